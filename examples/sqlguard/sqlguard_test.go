package main

import (
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed58520471/redlock/fence"
)

func openAccounts(t *testing.T) *accounts {
	a, err := open(t.TempDir())
	require.NoError(t, err)
	t.Cleanup(func() { a.db.Close() })
	_, err = a.db.Exec(`INSERT INTO accounts (id, owner, balance) VALUES (7, 'nobody', 0)`)
	require.NoError(t, err)
	return a
}

func (a *accounts) read(t *testing.T, query string) (n int) {
	require.NoError(t, a.db.QueryRow(query).Scan(&n))
	return n
}

func TestTheStoryEndsWell(t *testing.T) {
	require.NoError(t, run(t.Output(), t.TempDir()))
}

func TestBothGuardsKeepAHolderOutAfterALaterOne(t *testing.T) {
	a := openAccounts(t)
	unchanged := func(n int) int { return n }
	var stale *fence.StaleError

	require.NoError(t, a.rename(t.Context(), later, 7, "later"))
	require.NoError(t, a.rename(t.Context(), later, 7, "later"), "the same again is no refusal")
	require.ErrorAs(t, a.rename(t.Context(), earlier, 7, "earlier"), &stale)
	assert.Equal(t, fence.StaleError{Resource: "account", Token: earlier, Highest: later}, *stale)

	require.NoError(t, a.deposit(t.Context(), later, 7, unchanged))
	require.NoError(t, a.deposit(t.Context(), later, 7, unchanged), "the same again is no refusal")
	require.ErrorAs(t, a.deposit(t.Context(), earlier, 7, unchanged), &stale)
	assert.Equal(t, fence.StaleError{Resource: "accounts", Token: earlier, Highest: later}, *stale)
}

func TestATransactionThatIsRolledBackHasShownNoToken(t *testing.T) {
	a := openAccounts(t)
	for range 2 { // its row is made, and is not there afterwards
		tx, err := a.db.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		require.NoError(t, fences.Enter(t.Context(), tx, "accounts", later))
		require.NoError(t, tx.Rollback())
	}
	require.NoError(t, a.deposit(t.Context(), earlier, 7, func(n int) int { return n }))
}

// Read, compute, write by eight holders at the same time, each of which believes to
// hold the lock: the transaction that has entered is alone with the data.
func TestNoDepositIsLostAndNoneComesAfterALaterHolders(t *testing.T) {
	a := openAccounts(t)
	var mu sync.Mutex
	deposits, refusals := 0, 0
	var last atomic.Uint64 // as the database has it, if its transactions come one after the other
	var all sync.WaitGroup
	for i := range 8 {
		random := rand.New(rand.NewPCG(7, uint64(i)))
		all.Go(func() {
			for j := range uint64(20) {
				token := earlier + 10*j + random.Uint64N(30)
				err := a.deposit(t.Context(), token, 7, func(balance int) int {
					assert.LessOrEqual(t, last.Swap(token), token)
					return balance + 1
				})
				mu.Lock()
				switch {
				case err == nil:
					deposits++
				default:
					refusals++
					assert.ErrorIs(t, err, fence.ErrStale)
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	assert.Equal(t, deposits, a.read(t, `SELECT balance FROM accounts`))
	assert.Equal(t, deposits, a.read(t, `SELECT entries FROM fences`))
	assert.Equal(t, int(last.Load()), a.read(t, `SELECT token FROM fences`))
	assert.Positive(t, deposits)
	assert.Positive(t, refusals)
}

func TestOfManyUpdatesTheLatestHoldersStays(t *testing.T) {
	a := openAccounts(t)
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for j := range uint64(20) {
				token := earlier + (7*j+5*uint64(i))%20
				err := a.rename(t.Context(), token, 7, "somebody")
				assert.True(t, err == nil || errors.Is(err, fence.ErrStale), "%v", err)
			}
		})
	}
	all.Wait()
	assert.Equal(t, earlier+19, a.read(t, `SELECT fence FROM accounts`))
}
