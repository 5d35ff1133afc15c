package redlock

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// lane returns a node's counters.
func (l *Locker) lane(i int) nodeStats { return l.root.nodes[i].snapshot() }

// workers is how many a node has.
func (l *Locker) workers(i int) int {
	n := l.root.nodes[i]
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.workers)
}

// owed is how many releases a node still owes a confirmation.
func (l *Locker) owed(i int) int {
	n := l.root.nodes[i]
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.debts.of)
}

func TestReleaseWaitsUntilItsAcquireHasReturned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// A long line, on which the release could well take another connection.
		w := newWorld(t, ms(2), ms(1), ms(1))
		l := w.locker()
		w.plant("a", time.Minute, 2, 3)
		w.Inject(`on SET key "a", node 1: delay 300ms`) // the round is long lost then
		before := len(w.log(1))
		begin := time.Now()
		_, err := l.TryLock(t.Context(), "a")
		assert.ErrorIs(t, err, ErrHeld)
		assert.Equal(t, ms(1), time.Since(begin))
		time.Sleep(ms(290))
		assert.Len(t, w.log(1), before, "nothing before the SET has returned")
		time.Sleep(ms(15))
		calls := w.log(1)
		require.Len(t, calls, before+2)
		assert.Contains(t, calls[len(calls)-2], "SET a")
		assert.Contains(t, calls[len(calls)-1], "EVALSHA")
		assert.Equal(t, []string{"", "foreign", "foreign"}, w.keys("a"))
	})
}

func TestNextAttemptNeverPassesTheReleaseOfTheLast(t *testing.T) {
	// Long lines, so that a lane has several batches in flight on several
	// connections and nothing but its own rules keeps them in order.
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(40), ms(60), ms(100))
		l := w.locker(WithBackoff(Backoff{Min: 1, Max: 1}), WithWait(time.Minute))
		w.Inject("on EVALSHA, all: delay 2ms") // releases are slower than acquires
		var wg sync.WaitGroup
		for i := range 40 {
			wg.Go(func() {
				name := fmt.Sprint("lock", i%4)
				for range 5 {
					lease, err := l.Lock(t.Context(), name)
					if assert.NoError(t, err) {
						assert.NoError(t, lease.Unlock(t.Context()))
					}
				}
			})
		}
		wg.Wait()
		time.Sleep(time.Second)
		w.requireNoKeys()
		for i := range 3 {
			requireOrder(t, w.log(i+1))
		}
		assert.Greater(t, l.workers(2), 1, "the test is about several connections")
	})
}

func TestOneCallersAttemptsArriveInOrderOnEveryNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(20), ms(30), ms(140))
		l := w.locker()
		w.Inject("on EVALSHA, node 3: delay 60ms") // it releases slowly; the caller has long gone on
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * ms(7)) // not in step: one connection would do
				for range 20 {
					lease, err := l.Lock(t.Context(), fmt.Sprint("name", i))
					if assert.NoError(t, err) {
						assert.NoError(t, lease.Unlock(t.Context()))
					}
				}
			})
		}
		wg.Wait()
		time.Sleep(time.Second)
		w.requireNoKeys()
		for n := 1; n <= 3; n++ {
			open := make(map[string]string) // by name: the token whose release has not been seen
			for _, c := range w.log(n) {
				f := strings.Fields(c)
				switch {
				case f[0] == "SET" && strings.HasPrefix(f[1], "name"):
					require.Empty(t, open[f[1]], "%s passed a release on node %d", c, n)
					open[f[1]] = f[2]
				}
				if args, ok := scriptCall(release, c); ok && strings.HasPrefix(args[0], "name") {
					require.Equal(t, open[args[0]], args[1], "%s on node %d", c, n)
					open[args[0]] = ""
				}
			}
		}
		assert.Greater(t, l.workers(2), 1, "the test is about several connections")
	})
}

// requireOrder checks one server's log: nothing of a token runs after its
// release, and a SET of a token runs once.
func requireOrder(t *testing.T, calls []string) {
	t.Helper()
	released := make(map[string]bool)
	set := make(map[string]bool)
	for _, c := range calls {
		f := strings.Fields(c)
		switch {
		case f[0] == "SET" && len(f) > 3:
			require.False(t, released[f[2]], "SET after the release: %s", c)
			require.False(t, set[f[2]], "SET twice: %s", c)
			set[f[2]] = true
		}
		if args, ok := scriptCall(acquire, c); ok {
			require.False(t, released[args[1]], "acquire after the release: %s", c)
			require.False(t, set[args[1]], "acquire twice: %s", c)
			set[args[1]] = true
		}
		if args, ok := scriptCall(release, c); ok {
			released[args[1]] = true
		}
	}
}

func TestCleanUpOfOneAttemptNeverTouchesTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		a := w.locker(WithTTL(30 * time.Second))
		b := w.locker(WithTTL(30 * time.Second))
		w.plant("x", ms(200), 2, 3)
		slow := w.Inject(`on EVALSHA key "x" #1, node 1: delay 450ms`) // the release of the failed attempt
		_, err := a.TryLock(t.Context(), "x")
		require.ErrorIs(t, err, ErrHeld)
		time.Sleep(ms(250))
		require.NoError(t, slow.Check(), "it is under way")
		w.Inject(`at 0s, node 1: evict "x"`)
		next, err := b.TryLock(t.Context(), "x")
		require.NoError(t, err)
		time.Sleep(time.Second)
		assert.Equal(t, []string{next.Token(), next.Token(), next.Token()}, w.keys("x"))
		assert.NoError(t, next.Err())
		require.NoError(t, next.Unlock(t.Context()))
	})
}

func TestRequestIsNotWrittenOnceItsCallerHasGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker(WithNodeTimeout(ms(100)))
		hung := w.Inject("at 0s, node 1: hang")
		for i := range 1000 {
			lease, err := l.TryLock(t.Context(), fmt.Sprint("n", i))
			require.NoError(t, err)
			require.NoError(t, lease.Unlock(t.Context()))
		}
		assert.Greater(t, l.lane(0).GivenUp, uint64(900))
		n := l.root.nodes[0]
		n.mu.Lock()
		assert.LessOrEqual(t, n.queue.len, 50, "what nobody wants does not wait")
		n.mu.Unlock()
		hung.Stop()
		time.Sleep(5 * time.Second)
		assert.Less(t, w.executed(1, "SET n"), 100)
		w.requireNoKeys()
	})
}

func TestExtendIsNotWrittenOnceItsCallerHasGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker(WithNodeTimeout(ms(100)))
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		time.Sleep(ms(5))
		hung := w.Inject("at 0s, node 1: hang")
		for range 3 {
			require.NoError(t, lease.Extend(t.Context(), time.Minute)) // the first is written, the others wait
		}
		before := w.executed(1, "EVAL")
		time.Sleep(ms(60))
		hung.Stop()
		time.Sleep(time.Second)
		assert.Equal(t, before, w.executed(1, "EVAL"), "their time was over when the node answered again")

		hung = w.Inject("at 0s, node 1: hang")
		require.NoError(t, lease.Extend(t.Context(), time.Hour))
		require.NoError(t, lease.Extend(t.Context(), time.Hour))
		extends := w.executed(1, "EVALSHA "+hashes[extend])
		require.NoError(t, lease.Unlock(t.Context()))
		hung.Stop()
		time.Sleep(5 * time.Second)
		assert.Equal(t, extends, w.executed(1, "EVALSHA "+hashes[extend]), "an extend was written although a release was asked for")
		w.requireNoKeys()
	})
}

func TestHungNodeStallsNobodyAndPilesNothingUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1), ms(1), ms(1))
		l := w.locker()
		hung := w.Inject("at 0s, nodes 4,5: hang")
		var worst atomic.Int64
		var wg sync.WaitGroup
		for i := range 64 {
			wg.Go(func() {
				for k := range 20 {
					begin := time.Now()
					lease, err := l.Lock(t.Context(), fmt.Sprint(i, ".", k))
					if assert.NoError(t, err) {
						assert.NoError(t, lease.Unlock(t.Context()))
					}
					worst.Store(max(worst.Load(), int64(time.Since(begin))))
				}
			})
		}
		wg.Wait()
		assert.LessOrEqual(t, time.Duration(worst.Load()), ms(10))
		assert.LessOrEqual(t, l.workers(4), maxLinks)
		hung.Stop()
		time.Sleep(15 * time.Second)
		w.requireNoKeys()
	})
}

func TestAbandonedWaitsLeaveNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(20), ms(40), ms(80), ms(150))
		l := w.locker()
		for i := range 30 {
			ctx, cancel := context.WithTimeout(t.Context(), ms(30))
			_, err := l.Lock(ctx, fmt.Sprint(i))
			assert.ErrorIs(t, err, context.DeadlineExceeded)
			cancel()
		}
		time.Sleep(ms(500))
		w.requireNoKeys()
	})
}

func TestQueueIsBoundedAndReleasesAlwaysFit(t *testing.T) {
	n := &node{asked: map[string][]*request{}, workers: map[*worker]struct{}{}, connecting: 1, debts: debts{of: map[string]*debt{}}}
	lease := &Lease{name: "a", token: "t", claims: make([]claim, 1)}
	lease.claims[0] = claim{lease: lease, node: n}
	r := newRound(release, "unlock", lease, instant{}, 0, 0)
	for range maxQueue {
		n.push(&request{kind: extend, claim: &lease.claims[0], round: r})
	}
	assert.Equal(t, Pending, r.votes[0].Outcome)
	n.push(&request{kind: extend, claim: &lease.claims[0], round: r})
	assert.Equal(t, Failed, r.votes[0].Outcome)
	assert.Equal(t, errFull, r.votes[0].Err)
	lease.claims[0].there = true
	n.end(&request{kind: release, claim: &lease.claims[0]})
	assert.Equal(t, maxQueue+1, n.queue.len)

	for i := range maxDebts + 10 {
		other := &Lease{name: "b", token: fmt.Sprint(i)}
		n.newDebt(&claim{lease: other, node: n}, zeroDay.Add(time.Duration(i)))
	}
	assert.Len(t, n.debts.of, maxDebts)
	assert.Nil(t, n.debts.of["9"], "the oldest went")
	assert.NotNil(t, n.debts.of["10"])
}
