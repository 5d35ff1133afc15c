package main

import (
	"context"
	"database/sql"
	"net/url"
	"path/filepath"

	_ "github.com/ncruces/go-sqlite3/driver" // SQLite without cgo

	"github.com/seed58520471/redlock/fence"
)

// accounts are the data. They are guarded in both ways that package fence has for SQL:
// a row of the table "fences" that a transaction enters, and a column of their own.
type accounts struct{ db *sql.DB }

var fences = fence.Table{Name: "fences"}

const schema = `
CREATE TABLE IF NOT EXISTS accounts (
	id      INTEGER NOT NULL PRIMARY KEY,
	owner   TEXT    NOT NULL,
	balance INTEGER NOT NULL,
	fence   BIGINT  NOT NULL DEFAULT 0
);
CREATE TABLE IF NOT EXISTS fences (
	resource VARCHAR(255) NOT NULL PRIMARY KEY,
	token    BIGINT NOT NULL,
	entries  BIGINT NOT NULL
)`

// open opens the accounts in a directory, and makes them if they are not there.
func open(dir string) (*accounts, error) {
	// A transaction that finds the file locked waits, a minute by default.
	name := url.URL{Scheme: "file", OmitHost: true, Path: filepath.ToSlash(filepath.Join(dir, "accounts.db"))}
	db, err := sql.Open("sqlite3", name.String())
	if err != nil {
		return nil, err
	}
	if _, err := db.Exec(schema); err != nil {
		db.Close()
		return nil, err
	}
	return &accounts{db}, nil
}

// rename writes a value that comes from outside: one statement does it.
func (a *accounts) rename(ctx context.Context, token uint64, id int, owner string) error {
	return fence.Update(ctx, a.db, "account", token,
		fence.SQL(`UPDATE accounts SET owner = ?, fence = ? WHERE id = ? AND fence <= ?`, owner, token, id, token),
		fence.SQL(`SELECT fence FROM accounts WHERE id = ?`, id))
}

// deposit writes a value that was computed from one that was read: the transaction
// enters before it reads. compute runs in the middle, and takes as long as it likes.
func (a *accounts) deposit(ctx context.Context, token uint64, id int, compute func(balance int) int) error {
	tx, err := a.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := fences.Enter(ctx, tx, "accounts", token); err != nil {
		return err
	}
	var balance int
	if err := tx.QueryRowContext(ctx, `SELECT balance FROM accounts WHERE id = ?`, id).Scan(&balance); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, `UPDATE accounts SET balance = ? WHERE id = ?`, compute(balance), id); err != nil {
		return err
	}
	return tx.Commit()
}
