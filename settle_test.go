package redlock

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestNothingStaysAfterAFailedAcquireWhateverHappenedToTheAnswers(t *testing.T) {
	// The quorum is prevented on nodes 3-5; nodes 1 and 2 took the SET and
	// something went wrong with the answer.
	for fault, plan := range map[string]string{
		"no reply":                            "for 45.5ms on any, nodes 1,2: lose reply",
		"connection cut instead of the reply": `on SET key "a", nodes 1,2: cut during`,
		"late":                                `on SET key "a", nodes 1,2: delay 2s`,
		"caller gone":                         "",
		"caller gone before":                  "at 0s, nodes 3-5: hang",
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, ms(1), ms(1), ms(1), ms(1), ms(1))
			l := w.locker(WithTTL(30*time.Second), WithNodeTimeout(ms(50)))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			w.plant("a", 30*time.Second, 3, 4, 5)
			switch w.Inject(plan); fault {
			case "caller gone":
				time.AfterFunc(3*ms(1)/4, cancel) // the replies are on their way
			case "caller gone before":
				time.AfterFunc(ms(1)/2, cancel)
			}
			begin := time.Now()
			_, err := l.TryLock(ctx, "a")
			require.Error(t, err)
			if !strings.HasPrefix(fault, "caller") {
				assert.ErrorIs(t, err, ErrHeld)
			}
			assert.LessOrEqual(t, time.Since(begin), ms(50))
			bound := ms(150)
			if fault == "late" { // the server runs it after two seconds, and answers nobody
				bound += ms(2000) + ms(100)
			}
			time.Sleep(bound)
			values := w.keys("a")
			assert.Empty(t, values[0], fault)
			assert.Empty(t, values[1], fault)
			assert.Equal(t, "foreign", values[2])
		})
	}
}

func TestLostReplyNeverTurnsOurOwnLockIntoAnothers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker(WithNodeTimeout(ms(100)))
		struck := w.Inject(`on SET #1, all: cut during`)
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err, "executed, the connection ended before the reply, asked again: it is ours")
		require.GreaterOrEqual(t, struck.Fired(), 2)
		struck = w.Inject(`on any key "a" #1, all: cut during`)
		require.NoError(t, lease.Unlock(t.Context()), "the same for the release: it was ours")
		require.GreaterOrEqual(t, struck.Fired(), 2)
		w.requireNoKeys()
	})
}

func TestSilentReplyIsNoQuorumAndNeverHeldOrLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker(WithNodeTimeout(ms(100)))
		silent := w.Inject("on any, all: lose reply")
		_, err := l.TryLock(t.Context(), "a")
		assert.ErrorIs(t, err, ErrNoQuorum)
		assert.NotErrorIs(t, err, ErrHeld)
		silent.Stop()
		lease, err := l.Lock(t.Context(), "a")
		require.NoError(t, err)
		silent = w.Inject("on any, all: lose reply")
		err = lease.Unlock(t.Context())
		assert.ErrorIs(t, err, ErrNoQuorum)
		assert.NotErrorIs(t, err, ErrLost)
		silent.Stop()
		time.Sleep(time.Second)
		w.requireNoKeys()
	})
}

func TestOneServerUnderTwoNamesHasOneVote(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		clients := w.Clients()
		clients[1] = w.Clients()[0] // as if by another address
		l, err := New(clients, WithMaxAttempts(3))
		require.NoError(t, err)
		defer l.Close()
		l.warm()
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err, "two servers are a quorum of three")
		require.NoError(t, lease.Extend(t.Context(), time.Minute))
		w.Inject(`at 0s, node 3: evict "a"`)
		assert.Error(t, lease.Extend(t.Context(), time.Hour), "one server is not")
		assert.Less(t, lease.Validity(), time.Minute)
		lease.Unlock(t.Context())
		w.Inject("at 0s, node 3: kill")
		_, err = l.Lock(t.Context(), "a")
		assert.ErrorIs(t, err, ErrNoQuorum)
		assert.ErrorContains(t, err, "must not vote twice")
		time.Sleep(time.Second)
		assert.Empty(t, w.stored(1))
	})
}

func TestReplyOfALoadingServerDoesNotHideThatTheFirstWritingMayHaveArrived(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(90), ms(90)) // the votes that decide come last
		l := w.locker(WithTTL(30 * time.Second))
		w.plant("a", time.Minute, 2, 3)
		w.Inject(`on SET key "a" #1, node 1: cut during`)
		loading := w.Inject(`on SET key "a" #2-, node 1: error "LOADING Redis is loading the dataset in memory"`)
		_, err := l.TryLock(t.Context(), "a")
		require.ErrorIs(t, err, ErrHeld)
		time.Sleep(time.Second)
		assert.Equal(t, 2, w.executed(1, "SET a")+loading.Fired())
		assert.Empty(t, w.keys("a")[0])
	})
}

func TestAnotherFormOfTheAcquireDoesNotForgetTheFirst(t *testing.T) {
	for bound := 100; bound <= 400; bound += 10 {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, ms(1), ms(1), ms(40))
			w.Inject(`on SET key "get", all: error "ERR syntax error"`)     // Redis 6
			clients := w.Clients(func(o *redis.Options) { o.PoolSize = 2 }) // one connection for us
			l, err := New(clients, WithTTL(time.Hour), WithNodeTimeout(ms(bound)))
			require.NoError(t, err)
			defer l.Close()
			l.warm()
			struck := w.Inject(`on any key "a" #1, node 3: cut during`)
			lease, err := l.TryLock(t.Context(), "a")
			require.NoError(t, err)
			time.Sleep(time.Second)
			require.NoError(t, struck.Check())
			require.Equal(t, lease.Token(), w.keys("a")[2])
			require.NoError(t, lease.Unlock(t.Context()))
			time.Sleep(time.Minute)
			assert.Empty(t, w.keys("a")[2], "node timeout %d ms", bound)
		})
	}
}

// Nodes that break the connection over every release cannot be cleaned, so the next
// attempt meets the token of the one before it. That is nobody else's lock: who
// called it held would make a caller wait for another client that there is not.
func TestOwnLeftoverThatCannotBeClearedIsNobodyElsesLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker()
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		time.Sleep(ms(10))
		struck := w.Inject("at 0s on EVALSHA, all: cut before\nat 0s on EVAL, all: cut before")
		require.Error(t, lease.Unlock(t.Context()))
		_, err = l.TryLock(t.Context(), "a")
		require.ErrorIs(t, err, ErrNoQuorum)
		assert.NotErrorIs(t, err, ErrHeld)
		assert.ErrorContains(t, err, errLeftover.Error())
		struck.Stop()
		time.Sleep(l.cfg.nodeTimeout)
		again, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		require.NoError(t, again.Unlock(t.Context()))
		w.requireNoKeys()
	})
}
