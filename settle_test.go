package redlock

import (
	"context"
	"strings"
	"sync"
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
	for _, fault := range []string{"no reply", "connection cut instead of the reply", "late", "caller gone", "caller gone before"} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, ms(1), ms(1), ms(1), ms(1), ms(1))
			l := w.locker(WithTTL(30*time.Second), WithNodeTimeout(ms(50)))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			w.plant("a", 30*time.Second, 2, 3, 4)
			for _, n := range w.nodes[:2] {
				n.on(func(cmd string, args []string) string {
					if cmd != "SET" || args[0] != "a" {
						return ""
					}
					switch fault {
					case "no reply":
						n.mute.Store(true)
						time.AfterFunc(ms(45), func() { n.mute.Store(false) })
					case "connection cut instead of the reply":
						n.cut.Store(true)
					case "late":
						time.Sleep(ms(2000))
					case "caller gone":
						cancel()
					}
					return ""
				})
			}
			if fault == "caller gone before" {
				time.AfterFunc(ms(1)/2, cancel)
				for _, n := range w.nodes[2:] {
					n.hang.Store(true)
				}
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
		cutOnce := func(n *simNode, verb string) {
			var once sync.Once
			n.clearHooks()
			n.on(func(cmd string, _ []string) string {
				if strings.HasPrefix(cmd, verb) {
					once.Do(func() { n.cut.Store(true) })
				}
				return ""
			})
		}
		for _, n := range w.nodes {
			cutOnce(n, "SET")
		}
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err, "executed, the connection ended before the reply, asked again: it is ours")
		for _, n := range w.nodes {
			cutOnce(n, "EVAL")
		}
		require.NoError(t, lease.Unlock(t.Context()), "the same for the release: it was ours")
		w.requireNoKeys()
	})
}

func TestSilentReplyIsNoQuorumAndNeverHeldOrLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker(WithNodeTimeout(ms(100)))
		for _, n := range w.nodes {
			n.mute.Store(true)
		}
		_, err := l.TryLock(t.Context(), "a")
		assert.ErrorIs(t, err, ErrNoQuorum)
		assert.NotErrorIs(t, err, ErrHeld)
		for _, n := range w.nodes {
			n.mute.Store(false)
		}
		lease, err := l.Lock(t.Context(), "a")
		require.NoError(t, err)
		for _, n := range w.nodes {
			n.mute.Store(true)
		}
		err = lease.Unlock(t.Context())
		assert.ErrorIs(t, err, ErrNoQuorum)
		assert.NotErrorIs(t, err, ErrLost)
		for _, n := range w.nodes {
			n.mute.Store(false)
		}
		time.Sleep(time.Second)
		w.requireNoKeys()
	})
}

func TestOneServerUnderTwoNamesHasOneVote(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		w.nodes[1] = w.nodes[0] // another address, the same server
		l := w.locker(WithMaxAttempts(3))
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err, "two servers are a quorum of three")
		require.NoError(t, lease.Extend(t.Context(), time.Minute))
		w.nodes[2].Del("a")
		assert.Error(t, lease.Extend(t.Context(), time.Hour), "one server is not")
		assert.Less(t, lease.Validity(), time.Minute)
		lease.Unlock(t.Context())
		w.nodes[2].kill()
		_, err = l.Lock(t.Context(), "a")
		assert.ErrorIs(t, err, ErrNoQuorum)
		assert.ErrorContains(t, err, "must not vote twice")
		time.Sleep(time.Second)
		assert.Empty(t, w.nodes[0].Keys())
	})
}

func TestReplyOfALoadingServerDoesNotHideThatTheFirstWritingMayHaveArrived(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(90), ms(90)) // the votes that decide come last
		l := w.locker(WithTTL(30 * time.Second))
		w.plant("a", time.Minute, 1, 2)
		w.nodes[0].on(func(cmd string, args []string) string {
			switch {
			case cmd == "SET" && args[0] == "a" && w.nodes[0].executed("SET a") == 1:
				w.nodes[0].cut.Store(true)
			case cmd == "SET" && args[0] == "a":
				return "LOADING Redis is loading the dataset in memory"
			}
			return ""
		})
		_, err := l.TryLock(t.Context(), "a")
		require.ErrorIs(t, err, ErrHeld)
		time.Sleep(time.Second)
		assert.Equal(t, 2, w.nodes[0].executed("SET a"))
		assert.Empty(t, w.keys("a")[0])
	})
}

func TestAnotherFormOfTheAcquireDoesNotForgetTheFirst(t *testing.T) {
	for bound := 100; bound <= 400; bound += 10 {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, ms(1), ms(1), ms(40))
			for _, n := range w.nodes {
				n.trips.Store(1)
				n.on(func(cmd string, args []string) string {
					if cmd == "SET" && args[len(args)-1] == "get" {
						return "ERR syntax error" // Redis 6
					}
					return ""
				})
			}
			var clients []redis.UniversalClient
			for _, n := range w.nodes {
				c := redis.NewClient(&redis.Options{Addr: n.name, Dialer: n.Dial, PoolSize: 2}) // one connection for us
				defer c.Close()
				clients = append(clients, c)
			}
			l, err := New(clients, WithTTL(time.Hour), WithNodeTimeout(ms(bound)))
			require.NoError(t, err)
			defer l.Close()
			l.warm()
			n := w.nodes[2]
			var once sync.Once
			n.on(func(cmd string, args []string) string {
				if strings.HasPrefix(cmd, "EVAL") && args[2] == "a" {
					once.Do(func() { n.cut.Store(true) })
				}
				return ""
			})
			lease, err := l.TryLock(t.Context(), "a")
			require.NoError(t, err)
			time.Sleep(time.Second)
			require.Equal(t, lease.Token(), w.keys("a")[2])
			require.NoError(t, lease.Unlock(t.Context()))
			time.Sleep(time.Minute)
			assert.Empty(t, w.keys("a")[2], "node timeout %d ms", bound)
		})
	}
}
