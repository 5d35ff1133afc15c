package fence_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed58520471/redlock/fence"
)

// script is a database that answers the statements it gets one after the other with
// what it was told: an int64 is how many rows a write says it has written; []any is
// the one row of a read, nil no row; an error is an error. It shows what the guard
// makes of answers that differ by database; examples/sqlguard has a real one.
type script struct {
	t       *testing.T
	answers []any
	got     []string
}

func (s *script) Connect(context.Context) (driver.Conn, error) { return s, nil }
func (s *script) Driver() driver.Driver                        { return nil }
func (s *script) Prepare(string) (driver.Stmt, error)          { return nil, errors.ErrUnsupported }
func (s *script) Begin() (driver.Tx, error)                    { return s, nil }
func (s *script) Commit() error                                { return nil }
func (s *script) Rollback() error                              { return nil }
func (s *script) Close() error                                 { return nil }

func (s *script) next(query string, args []driver.NamedValue) (answer any, err error) {
	for _, a := range args {
		query += fmt.Sprintf(" | %v", a.Value)
	}
	s.got = append(s.got, query)
	if len(s.answers) == 0 {
		s.t.Errorf("one too many: %s", query)
		return int64(0), io.ErrUnexpectedEOF
	}
	answer, s.answers = s.answers[0], s.answers[1:]
	err, _ = answer.(error)
	return answer, err
}

func (s *script) ExecContext(_ context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	answer, err := s.next(query, args)
	if err != nil {
		return nil, err
	}
	return driver.RowsAffected(answer.(int64)), nil
}

func (s *script) QueryContext(_ context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	answer, err := s.next(query, args)
	if err != nil {
		return nil, err
	}
	row, _ := answer.([]any)
	return &rows{row}, nil
}

// rows are at most one.
type rows struct{ row []any }

func (r *rows) Columns() []string { return []string{"fence"} }
func (r *rows) Close() error      { return nil }
func (r *rows) Next(dest []driver.Value) error {
	if r.row == nil {
		return io.EOF
	}
	dest[0], r.row = r.row[0], nil
	return nil
}

// answering is a database with a script, whose end the test has to reach.
func answering(t *testing.T, answers ...any) (*sql.DB, *script) {
	s := &script{t: t, answers: answers}
	db := sql.OpenDB(s)
	t.Cleanup(func() {
		db.Close()
		assert.Empty(t, s.answers, "it was not asked for these")
	})
	return db, s
}

func row(fence any) []any { return []any{fence} }

func update(t *testing.T, db fence.DB, token uint64) error {
	return fence.Update(t.Context(), db, "account 7", token,
		fence.SQL(`UPDATE accounts SET balance = ?, fence = ? WHERE id = ? AND fence <= ?`, 10, token, 7, token),
		fence.SQL(`SELECT fence FROM accounts WHERE id = ?`, 7))
}

func TestAnUpdateTellsWhyItWroteNoRow(t *testing.T) {
	db, s := answering(t, int64(1))
	require.NoError(t, update(t, db, older))
	assert.Equal(t, []string{
		"UPDATE accounts SET balance = ?, fence = ? WHERE id = ? AND fence <= ? | 10 | 1796035000123456 | 7 | 1796035000123456",
	}, s.got)

	db, _ = answering(t, int64(0), row(int64(newer)))
	requireStale(t, update(t, db, older), "account 7")

	db, _ = answering(t, int64(0), row([]byte(fmt.Sprint(newer)))) // as MySQL's text protocol has it
	requireStale(t, update(t, db, older), "account 7")

	db, _ = answering(t, int64(0), nil)
	err := update(t, db, older)
	require.ErrorIs(t, err, fence.ErrNoRow)
	require.ErrorIs(t, err, sql.ErrNoRows)
	require.NotErrorIs(t, err, fence.ErrStale)
	require.EqualError(t, err, `fence: "account 7": no such row: sql: no rows in result set`)
}

func TestAnUpdateNeverCallsAWriteDoneThatMayNotBe(t *testing.T) {
	// MySQL says 0 where nothing changed, and all of them do where the row came later.
	for _, seen := range []uint64{older, older - 1, 0} {
		db, _ := answering(t, int64(0), row(int64(seen)))
		err := update(t, db, older)
		require.ErrorContains(t, err, fmt.Sprintf("the row's fence is %d", seen))
		require.NotErrorIs(t, err, fence.ErrStale)
		require.NotErrorIs(t, err, fence.ErrNoRow)
	}
	db, _ := answering(t, int64(0), row(nil))
	require.ErrorContains(t, update(t, db, older), "NULL")
	bad := errors.New("deadlock found")
	db, _ = answering(t, bad)
	require.ErrorIs(t, update(t, db, older), bad)
	db, _ = answering(t, int64(0), bad)
	require.ErrorIs(t, update(t, db, older), bad)
}

func TestSQLIsNotAskedForWhatIsNoToken(t *testing.T) {
	db, _ := answering(t)
	for token, bound := range notTokens {
		err := update(t, db, token)
		require.ErrorIs(t, err, fence.ErrInvalid)
		require.ErrorContains(t, err, bound)
		err = enter(t, db, fence.Table{Name: "fences"}, token)
		require.ErrorIs(t, err, fence.ErrInvalid)
	}
	require.ErrorContains(t, enter(t, db, fence.Table{}, older), "no name")
}

func enter(t *testing.T, db *sql.DB, table fence.Table, token uint64) error {
	tx, err := db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	defer tx.Rollback()
	return table.Enter(t.Context(), tx, "account 7", token)
}

func TestATransactionEntersItsResource(t *testing.T) {
	db, s := answering(t, int64(1))
	require.NoError(t, enter(t, db, fence.Table{Name: "fences"}, older))
	assert.Equal(t, []string{
		"UPDATE fences SET token = ?, entries = entries + 1 WHERE resource = ? AND token <= ? | 1796035000123456 | account 7 | 1796035000123456",
	}, s.got)

	db, s = answering(t, int64(0), nil, int64(1)) // it is the first one there
	require.NoError(t, enter(t, db, fence.Table{Name: "app.fences", Dollar: true}, older))
	assert.Equal(t, []string{
		"UPDATE app.fences SET token = $1, entries = entries + 1 WHERE resource = $2 AND token <= $3 | 1796035000123456 | account 7 | 1796035000123456",
		"SELECT token FROM app.fences WHERE resource = $1 | account 7",
		"INSERT INTO app.fences (resource, token, entries) VALUES ($1, $2, 1) | account 7 | 1796035000123456",
	}, s.got)
}

func TestATransactionOfAnOlderHolderDoesNotEnter(t *testing.T) {
	table := fence.Table{Name: "fences"}
	db, _ := answering(t, int64(0), row(int64(newer)))
	requireStale(t, enter(t, db, table, older), "account 7")

	// The row came between the first two statements.
	db, _ = answering(t, int64(0), row(int64(older)), int64(1))
	require.NoError(t, enter(t, db, table, older))
	db, _ = answering(t, int64(0), row(int64(older)), int64(0), row(int64(newer)))
	requireStale(t, enter(t, db, table, older), "account 7")

	// The transaction had read before, and goes on reading what was true then.
	db, _ = answering(t, int64(0), row(int64(older-1)), int64(0), row(int64(older-1)))
	err := enter(t, db, table, older)
	require.ErrorIs(t, err, fence.ErrStale)
	require.EqualError(t, err, `fence: "account 7": stale fencing token: it is 1796035000123456, and a higher one was here`)

	// Two are the first at the same time.
	duplicate := errors.New("duplicate key")
	db, _ = answering(t, int64(0), nil, duplicate)
	err = enter(t, db, table, older)
	require.ErrorIs(t, err, duplicate)
	require.NotErrorIs(t, err, fence.ErrStale)
}
