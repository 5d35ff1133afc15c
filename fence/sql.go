package fence

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// DB is what Update needs of a *sql.DB, *sql.Tx or *sql.Conn.
type DB interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Statement is SQL in your database's dialect, with the arguments of its placeholders.
type Statement struct {
	SQL  string
	Args []any
}

// SQL makes a Statement.
func SQL(query string, args ...any) Statement { return Statement{query, args} }

// ErrNoRow says that there is no such row, so nothing was written. It matches
// sql.ErrNoRows.
var ErrNoRow = fmt.Errorf("no such row: %w", sql.ErrNoRows)

// Update writes one row that has a fence column of its own, in one statement, which
// checks the token, stores it, and writes. If that finds no row, a second statement,
// which reads the row's fence, tells why. resource is for messages.
//
//	err := fence.Update(ctx, db, "account 7", token,
//		fence.SQL(`UPDATE accounts SET balance = ?, fence = ? WHERE id = ? AND fence <= ?`, balance, token, 7, token),
//		fence.SQL(`SELECT fence FROM accounts WHERE id = ?`, 7))
//
// The column is a BIGINT NOT NULL DEFAULT 0. Without the condition on it in the first
// statement nothing is guarded, and nobody can tell.
//
//   - nil: it was written.
//   - ErrStale (a *StaleError): a later holder was here. Nothing was written.
//   - ErrNoRow: there is no such row.
//   - ErrInvalid: the token is 0 or above MaxToken. Nothing was sent.
//   - any other: the database's or ctx's error, or nobody can tell, as with a row
//     that came into being between the two statements. See the text.
//
// A driver for MySQL says by default how many rows were changed, not how many were
// found, and so 0 when the same holder writes the same values again. That is none of
// the first four: set clientFoundRows=true, or let each write change something, such
// as a counter.
//
// If the new value was computed from one that was read, first show the token: with
// an Update that sets the fence alone, or in a transaction with Table.Enter.
func Update(ctx context.Context, db DB, resource string, token uint64, write, look Statement) error {
	if err := check(resource, token); err != nil {
		return err
	}
	result, err := db.ExecContext(ctx, write.SQL, write.Args...)
	if err != nil {
		return wrap(resource, err)
	}
	rows, err := result.RowsAffected()
	if err != nil {
		return wrap(resource, err)
	}
	if rows > 0 {
		return nil
	}
	var seen sql.Null[int64]
	switch err := db.QueryRowContext(ctx, look.SQL, look.Args...).Scan(&seen); {
	case errors.Is(err, sql.ErrNoRows):
		return wrap(resource, ErrNoRow)
	case err != nil:
		return wrap(resource, err)
	case !seen.Valid:
		return fmt.Errorf("fence: %s: the row's fence is NULL, which no token passes; want NOT NULL DEFAULT 0", quote(resource))
	case seen.V > int64(token):
		return &StaleError{resource, token, uint64(seen.V)}
	}
	return fmt.Errorf("fence: %s: no row was written with the token %d, although the row's fence is %d: it came into being just now,"+
		" or the driver counts rows that changed and not those that were found", quote(resource), token, seen.V)
}

// Table guards resources by rows of a table of its own, one each, which a transaction
// enters before it does anything else. It works with MySQL, PostgreSQL, SQLite and
// others that lock a row which they update. The table is made with
//
//	CREATE TABLE fences (
//		resource VARCHAR(255) NOT NULL PRIMARY KEY,
//		token    BIGINT NOT NULL,
//		entries  BIGINT NOT NULL
//	)
//
// and is to be in the same database as the data. (In MySQL give it a binary collation:
// by default resources that differ only in case share a row.) A resource's row comes
// into being when it is first entered, and stays. Delete it only when no holder from
// before can be left.
type Table struct {
	Name   string // of the table; it goes into the statements as it is
	Dollar bool   // placeholders are $1 and $2, as PostgreSQL's; else ?
}

// Enter checks the token, remembers it if the transaction is committed, and keeps
// others out of the resource until the transaction ends. Call it first in the
// transaction: what was read before may be older than the lock on the row (of MySQL's
// snapshots that is true of everything read later, too).
//
//	tx, err := db.BeginTx(ctx, nil)
//	if err != nil {
//		return err
//	}
//	defer tx.Rollback()
//	if err := fences.Enter(ctx, tx, "account 7", token); err != nil {
//		return err
//	}
//	// read, compute, write
//	return tx.Commit()
//
// The error is one of these:
//
//   - nil: the transaction has the resource until it ends.
//   - ErrStale (a *StaleError): a later holder was here. Roll back.
//   - ErrInvalid: the token is 0 or above MaxToken, the resource is "", or the Table's
//     Name. Nothing was sent.
//   - any other: the database's or ctx's error. Roll back; the whole transaction can be
//     tried again. That can be necessary when two are the first to enter a resource, or
//     with isolation levels at which databases end transactions that get into each
//     other's way.
//
// A Commit without an answer may have been done. To repeat the transaction is safe if
// it then finds out that it was done: by what it reads after Enter.
func (t Table) Enter(ctx context.Context, tx *sql.Tx, resource string, token uint64) error {
	if err := t.check(resource, token); err != nil {
		return err
	}
	for range 2 {
		entered, err := t.enter(ctx, tx, resource, token)
		if entered || err != nil {
			return err
		}
		var seen int64
		err = tx.QueryRowContext(ctx, t.dialect(`SELECT token FROM @ WHERE resource = ?`), resource).Scan(&seen)
		switch {
		case errors.Is(err, sql.ErrNoRows):
			_, err = tx.ExecContext(ctx, t.dialect(`INSERT INTO @ (resource, token, entries) VALUES (?, ?, 1)`), resource, int64(token))
			return wrap(resource, err)
		case err != nil:
			return wrap(resource, err)
		case seen > int64(token):
			return &StaleError{resource, token, uint64(seen)}
		}
		// The row came between the two statements; or the transaction reads a state from
		// before a later holder was here, and then it is the update that knows.
	}
	return &StaleError{Resource: resource, Token: token}
}

// enter updates the row, if there is one that is not ahead. Its counter changes each
// time, since MySQL counts only rows that were changed.
func (t Table) enter(ctx context.Context, tx *sql.Tx, resource string, token uint64) (bool, error) {
	result, err := tx.ExecContext(ctx,
		t.dialect(`UPDATE @ SET token = ?, entries = entries + 1 WHERE resource = ? AND token <= ?`),
		int64(token), resource, int64(token))
	if err != nil {
		return false, wrap(resource, err)
	}
	rows, err := result.RowsAffected()
	return rows > 0, wrap(resource, err)
}

func (t Table) check(resource string, token uint64) error {
	if err := check(resource, token); err != nil {
		return err
	}
	if t.Name == "" {
		return invalid(resource, "the table of fences has no name")
	}
	return nil
}

// dialect puts the table's name in the place of the @, and numbers the placeholders if
// they want that.
func (t Table) dialect(query string) string {
	if t.Dollar {
		parts := strings.Split(query, "?")
		for i := range parts[1:] {
			parts[i] += "$" + strconv.Itoa(i+1)
		}
		query = strings.Join(parts, "")
	}
	return strings.Replace(query, "@", t.Name, 1)
}

// wrap says which resource an error is about.
func wrap(resource string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("fence: %s: %w", quote(resource), err)
}
