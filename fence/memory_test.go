package fence_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed58520471/redlock/fence"
)

const (
	older = uint64(1796035000123456) // as tokens of fenced locks are
	newer = older + 1
)

// requireStale checks the refusal of an older token.
func requireStale(t *testing.T, err error, resource string) {
	t.Helper()
	require.ErrorIs(t, err, fence.ErrStale)
	require.NotErrorIs(t, err, fence.ErrInvalid)
	var stale *fence.StaleError
	require.ErrorAs(t, err, &stale)
	require.Equal(t, fence.StaleError{Resource: resource, Token: older, Highest: newer}, *stale)
}

// notTokens are numbers that no guard lets in, and the bound that the error names.
var notTokens = map[uint64]string{0: "at least 1", fence.MaxToken + 1: "at most 9007199254740991", 1 << 63: "at most 9007199254740991"}

func TestMemoryRefusesOnlyLowerTokens(t *testing.T) {
	var m fence.Memory
	ran := 0
	write := func() error { ran++; return nil }
	require.NoError(t, m.Do(t.Context(), "a", older, write))
	require.NoError(t, m.Do(t.Context(), "a", older, write), "one holder may write often")
	require.NoError(t, m.Do(t.Context(), "a", newer, write))
	assert.Equal(t, 3, ran)

	err := m.Do(t.Context(), "a", older, write)
	requireStale(t, err, "a")
	assert.EqualError(t, err, `fence: "a": stale fencing token: it is 1796035000123456, and 1796035000123457 was here`)
	assert.Equal(t, 3, ran, "what is refused does not run")

	require.NoError(t, m.Do(t.Context(), "b", 1, write), "another resource has seen nothing")
	assert.Equal(t, newer, m.Highest("a"))
	assert.Equal(t, uint64(1), m.Highest("b"))
	assert.Zero(t, m.Highest("c"))
}

func TestMemoryRefusesWhatIsNoToken(t *testing.T) {
	var m fence.Memory
	for token, bound := range notTokens {
		err := m.Do(t.Context(), "a", token, func() error { t.Error("it ran"); return nil })
		require.ErrorIs(t, err, fence.ErrInvalid)
		require.NotErrorIs(t, err, fence.ErrStale)
		require.ErrorContains(t, err, fmt.Sprint(token))
		require.ErrorContains(t, err, bound)
	}
	require.ErrorIs(t, m.Do(t.Context(), "", 1, nil), fence.ErrInvalid)
	require.NoError(t, m.Do(t.Context(), "a", fence.MaxToken, func() error { return nil }))
}

func TestATokenCountsAsSeenWhateverTheWriteCameTo(t *testing.T) {
	var m fence.Memory
	bad := errors.New("disk full")
	require.Equal(t, bad, m.Do(t.Context(), "a", newer, func() error { return bad }))
	requireStale(t, m.Do(t.Context(), "a", older, nil), "a")

	require.Panics(t, func() { m.Do(t.Context(), "b", newer, func() error { panic("a bug") }) })
	requireStale(t, m.Do(t.Context(), "b", older, nil), "b") // and the turn is free
}

func TestNobodyIsLetInBetweenCheckAndWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m fence.Memory
		var order []string
		var all sync.WaitGroup
		all.Go(func() { // let in, and paused in the middle of its write
			assert.NoError(t, m.Do(t.Context(), "a", older, func() error {
				time.Sleep(time.Hour)
				order = append(order, "older")
				return nil
			}))
		})
		synctest.Wait()
		all.Go(func() {
			assert.NoError(t, m.Do(t.Context(), "a", newer, func() error {
				order = append(order, "newer")
				return nil
			}))
		})
		synctest.Wait() // it waits for its turn
		begin := time.Now()
		require.NoError(t, m.Do(t.Context(), "b", older, func() error { return nil }))
		assert.Zero(t, time.Since(begin), "other resources are not kept waiting")
		all.Wait()
		assert.Equal(t, []string{"older", "newer"}, order)
	})
}

func TestTheContextBoundsTheWaitForTheTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m fence.Memory
		var all sync.WaitGroup
		all.Go(func() { m.Do(t.Context(), "a", older, func() error { time.Sleep(time.Hour); return nil }) })
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		begin := time.Now()
		require.ErrorIs(t, m.Do(ctx, "a", newer, nil), context.DeadlineExceeded)
		assert.Equal(t, time.Minute, time.Since(begin))
		all.Wait()
		assert.Equal(t, older, m.Highest("a"), "who was not let in was not seen")
		for range 100 { // the turn is free, and ctx has ended
			require.ErrorIs(t, m.Do(ctx, "a", newer, nil), context.DeadlineExceeded)
		}
	})
}

func TestOfManyAtOnceNoneWritesAfterALaterOne(t *testing.T) {
	var m fence.Memory
	last := map[string]*uint64{"a": new(uint64), "b": new(uint64)} // what the guard guards, without a lock
	var all sync.WaitGroup
	for i := range 8 {
		random := rand.New(rand.NewPCG(1, uint64(i)))
		all.Go(func() {
			for range 500 {
				resource, token := string(rune('a'+random.IntN(2))), 1+random.Uint64N(1000)
				err := m.Do(t.Context(), resource, token, func() error {
					assert.LessOrEqual(t, *last[resource], token)
					*last[resource] = token
					return nil
				})
				assert.True(t, err == nil || errors.Is(err, fence.ErrStale))
			}
		})
	}
	all.Wait()
	for resource, token := range last {
		assert.Equal(t, *token, m.Highest(resource))
	}
}

func TestAFloorCountsAsSeenByAll(t *testing.T) {
	m := fence.Memory{Floor: newer}
	requireStale(t, m.Do(t.Context(), "a", older, nil), "a")
	require.NoError(t, m.Do(t.Context(), "a", newer, func() error { return nil }))
	requireStale(t, m.Do(t.Context(), "a", older, nil), "a")
}

func TestAMemoryWithALimitForgetsAndLetsNobodyStaleIn(t *testing.T) {
	m := fence.Memory{Limit: 10}
	nothing := func() error { return nil }
	for token := uint64(1); token <= 1000; token++ {
		require.NoError(t, m.Do(t.Context(), fmt.Sprint("resource ", token), token, nothing))
		require.LessOrEqual(t, m.Remembered(), 10)
	}
	for token := uint64(1); token <= 1000; token++ {
		err := m.Do(t.Context(), fmt.Sprint("resource ", token), token-1, nothing)
		if token > 1 {
			require.ErrorIs(t, err, fence.ErrStale, token)
		}
	}
	require.NoError(t, m.Do(t.Context(), "resource 1000", 1000, nothing), "the last ones are remembered")
	require.NoError(t, m.Do(t.Context(), "resource 1", 1001, nothing))
}

func TestWhoIsAtTheResourceIsNotForgotten(t *testing.T) {
	m := fence.Memory{Limit: 1}
	nothing := func() error { return nil }
	require.NoError(t, m.Do(t.Context(), "a", 5, func() error {
		for i := range 10 {
			require.NoError(t, m.Do(t.Context(), fmt.Sprint("other ", i), uint64(10+i), nothing))
		}
		assert.Equal(t, uint64(5), m.Highest("a"))
		return nil
	}))
	assert.Equal(t, uint64(19), m.Highest("never seen"))
}

func TestRefusalsAreNotRemembered(t *testing.T) {
	m := fence.Memory{Floor: 100}
	for i := range 50 {
		require.ErrorIs(t, m.Do(t.Context(), fmt.Sprint(i), 99, nil), fence.ErrStale)
	}
	assert.Zero(t, m.Remembered())
}
