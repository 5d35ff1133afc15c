package redlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed58520471/redlock/faultinject"
)

// told is how many commands that carry the token the nodes have executed.
func (w *world) told(token string) (k int) {
	for n := range w.Nodes() {
		for _, c := range w.log(n + 1) {
			if strings.Contains(c, token) {
				k++
			}
		}
	}
	return k
}

// requireQuiet fails if a lane still has anything to do.
func (l *Locker) requireQuiet(t *testing.T) {
	t.Helper()
	for i, n := range l.root.nodes {
		n.mu.Lock()
		assert.Empty(t, n.asked, "node %d", i+1)
		assert.Zero(t, n.outstanding, "node %d", i+1)
		assert.Empty(t, n.debts.of, "node %d", i+1)
		assert.Zero(t, n.queue.len, "node %d", i+1)
		n.mu.Unlock()
	}
	l.root.agenda.mu.Lock()
	assert.Empty(t, l.root.agenda.leases)
	l.root.agenda.mu.Unlock()
}

// handedOver locks and detaches.
func (l *Locker) handedOver(t *testing.T, name string) (token string) {
	t.Helper()
	lease, err := l.TryLock(t.Context(), name)
	require.NoError(t, err)
	require.NoError(t, lease.Detach(t.Context()))
	return lease.Token()
}

func TestDetachedLockIsAttachedByAnotherProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(10), ms(20), ms(30))
		from := w.locker(WithTTL(30 * time.Second))
		to := w.locker(WithTTL(4*time.Second), WithOwner("host-2"))
		lease, err := from.Lock(t.Context(), "a")
		require.NoError(t, err)
		ctx := lease.Context(t.Context())
		time.Sleep(ms(100))

		begin := time.Now()
		require.NoError(t, lease.Detach(t.Context()))
		assert.Zero(t, time.Since(begin), "nothing was under way")
		<-ctx.Done()
		assert.ErrorIs(t, context.Cause(ctx), ErrReleased)
		assert.ErrorIs(t, lease.Err(), ErrReleased)
		assert.ErrorContains(t, lease.Err(), "detached")
		assert.Zero(t, lease.Validity())
		_, err = to.TryLock(t.Context(), "a")
		assert.ErrorIs(t, err, ErrHeld, "it is held by the one who has the token")

		old := lease.Token()
		begin = time.Now()
		next, err := to.Attach(t.Context(), lease.Name(), old)
		require.NoError(t, err)
		assert.Equal(t, ms(20), time.Since(begin), "the quorum-th fastest round trip")
		assert.Equal(t, 4*time.Second-ms(20)-ms(42), next.Validity())
		assert.NotEqual(t, old, next.Token())
		assert.Equal(t, "host-2", ownerOf(next.Token()))
		time.Sleep(ms(100))
		assert.Equal(t, []string{next.Token(), next.Token(), next.Token()}, w.keys("a"))
		for n := 1; n <= 3; n++ {
			assert.InDelta(t, 4*time.Second, w.ttl(n, "a"), float64(ms(200)), "the ttl is the new lease's")
		}

		before := w.told(old)
		assert.ErrorIs(t, lease.Unlock(t.Context()), ErrReleased)
		assert.ErrorIs(t, lease.Unlock(t.Context()), ErrReleased)
		assert.ErrorIs(t, lease.Detach(t.Context()), ErrReleased)
		assert.ErrorIs(t, lease.Extend(t.Context(), time.Minute), ErrReleased)
		lease.release(nil) // whoever might ask
		require.NoError(t, from.Close())
		time.Sleep(time.Second)
		assert.Equal(t, before, w.told(old))

		require.NoError(t, next.Err())
		require.NoError(t, next.Extend(t.Context(), time.Minute))
		require.NoError(t, next.Unlock(t.Context()))
		time.Sleep(ms(100))
		w.requireNoKeys()
		to.requireQuiet(t)
	})
}

func TestTokenIsAttachedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker()
		other := w.locker(WithOwner("the first"))
		token := l.handedOver(t, "a")
		lease, err := other.Attach(t.Context(), "a", token)
		require.NoError(t, err)
		time.Sleep(ms(5))
		for _, again := range []*Locker{l, other} {
			_, err = again.Attach(t.Context(), "a", token)
			assert.ErrorIs(t, err, ErrLost)
			assert.NotErrorIs(t, err, ErrHeld)
			var q *QuorumError
			require.ErrorAs(t, err, &q)
			assert.Equal(t, "the first", q.Round.Owner())
			assert.NotContains(t, err.Error(), token)
		}
		time.Sleep(ms(5))
		assert.Equal(t, []string{lease.Token(), lease.Token(), lease.Token()}, w.keys("a"))

		require.NoError(t, lease.Detach(t.Context()))
		back, err := l.Attach(t.Context(), "a", lease.Token())
		require.NoError(t, err, "and back again")
		require.NoError(t, back.Unlock(t.Context()))
		time.Sleep(ms(5))
		w.requireNoKeys()
	})
}

func TestTokenThatIsGoneIsLostAndNothingIsLeft(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(w *world, l *Locker)
		keys  string
	}{
		"expired":             {func(*world, *Locker) { time.Sleep(2 * time.Second) }, "||"},
		"evicted":             {func(w *world, _ *Locker) { w.Inject(`at 0s, nodes 1,2: evict "a"`) }, "||old"},
		"taken by another":    {func(w *world, _ *Locker) { w.plant("a", time.Minute, 1, 2) }, "foreign|foreign|old"},
		"one gone, one taken": {func(w *world, _ *Locker) { w.Inject(`at 0s, node 2: evict "a"`); w.plant("a", time.Minute, 3) }, "old||foreign"},
		"of another type": {func(w *world, _ *Locker) {
			for _, c := range w.Clients()[:2] {
				c.Del(background, "a")
				c.LPush(background, "a", "x")
			}
		}, ""},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, ms(1), ms(1), ms(1))
			l := w.locker(WithTTL(2 * time.Second))
			lease, err := l.TryLock(t.Context(), "a")
			require.NoError(t, err)
			time.Sleep(ms(5))
			require.NoError(t, lease.Detach(t.Context()))
			c.spoil(w, l)
			_, err = l.Attach(t.Context(), "a", lease.Token())
			assert.ErrorIs(t, err, ErrLost, name)
			assert.NotErrorIs(t, err, ErrNoQuorum, name)
			time.Sleep(ms(20))
			if c.keys != "" {
				// Where the old token was, the fresh one took its place and was released.
				assert.Equal(t, strings.ReplaceAll(c.keys, "old", ""), strings.Join(w.keys("a"), "|"), name)
			}
			l.requireQuiet(t)
		})
	}
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker()
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		require.NoError(t, lease.Unlock(t.Context()))
		_, err = l.Attach(t.Context(), "a", lease.Token())
		assert.ErrorIs(t, err, ErrLost, "released")
		time.Sleep(ms(5))
		w.requireNoKeys()
		l.requireQuiet(t)
	})
}

func TestConcurrentAttachesOfOneTokenHaveOneWinner(t *testing.T) {
	t.Parallel()
	const pairs = 200
	for _, nodes := range []int{1, 2, 3, 4, 5} {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(38, uint64(nodes)))
			rtts := make([]time.Duration, nodes)
			w := newWorld(t, rtts...)
			holder, a, b := w.locker(), w.locker(), w.locker()
			w.Inject("at 0s, all: delay 1ms+10ms")
			wins, rivals := 0, []*Locker{a, b}
			for i := range pairs {
				name := fmt.Sprint("lock ", i%3)
				lease, err := holder.Lock(t.Context(), name)
				require.NoError(t, err)
				time.Sleep(ms(random.IntN(30)))
				require.NoError(t, lease.Detach(t.Context()))
				var wg sync.WaitGroup
				var leases [2]*Lease
				var errs [2]error
				for k, l := range rivals {
					pause := time.Duration(random.IntN(10_000)) * time.Microsecond
					wg.Go(func() {
						time.Sleep(pause)
						leases[k], errs[k] = l.Attach(t.Context(), name, lease.Token())
					})
				}
				wg.Wait()
				won := 0
				for k, next := range leases {
					if next == nil {
						assert.True(t, errors.Is(errs[k], ErrLost) || errors.Is(errs[k], ErrNoQuorum), "%v", errs[k])
						continue
					}
					won++
					require.NoError(t, next.Err())
					require.NoError(t, next.Unlock(t.Context()))
				}
				require.LessOrEqual(t, won, 1, "%d nodes, pair %d: two have attached one token", nodes, i)
				if nodes%2 == 1 {
					require.Equal(t, 1, won, "%d nodes, pair %d: %v, %v", nodes, i, errs[0], errs[1])
				}
				wins += won
				time.Sleep(ms(100))
				w.requireNoKeys()
			}
			assert.Positive(t, wins)
			for _, l := range []*Locker{holder, a, b} {
				l.requireQuiet(t)
			}
		})
	}
}

func TestAttachWithoutAQuorumIsUndoneAndMayBeTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1), ms(1), ms(1))
		l := w.locker(WithNodeTimeout(ms(100)), WithTTL(30*time.Second))
		token := l.handedOver(t, "a")
		time.Sleep(ms(5))
		hung := w.Inject("at 0s, nodes 2-5: refuse\nat 0s, nodes 2-5: cut")
		_, err := l.Attach(t.Context(), "a", token)
		assert.ErrorIs(t, err, ErrNoQuorum)
		assert.NotErrorIs(t, err, ErrLost)
		hung.Stop()
		time.Sleep(2 * time.Second)
		assert.Equal(t, []string{"", token, token, token, token}, w.keys("a"), "what was taken is released")
		lease, err := l.Attach(t.Context(), "a", token)
		require.NoError(t, err, "four nodes are a quorum of five")
		time.Sleep(ms(5))
		assert.Empty(t, w.keys("a")[0], "a node where the key is absent does not take part")
		require.NoError(t, lease.Unlock(t.Context()))
		time.Sleep(ms(5))
		w.requireNoKeys()
		time.Sleep(31 * time.Second) // for so long the first attempt could still have landed
		l.requireQuiet(t)
	})
}

func TestAttachThatFailsLeavesNoFreshTokenWhateverHappenedToTheAnswers(t *testing.T) {
	for fault, plan := range map[string]string{
		"no reply":                            `on EVALSHA #1, nodes 1,2: lose reply`,
		"connection cut instead of the reply": `on EVALSHA #1, nodes 1,2: cut during`,
		"late":                                `on EVALSHA #1, nodes 1,2: delay 2s`,
		"caller gone":                         "",
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, ms(1), ms(1), ms(1), ms(1), ms(1))
			l := w.locker(WithTTL(30*time.Second), WithNodeTimeout(ms(50)))
			l.Attach(t.Context(), "warm-up", "x") // so that the lanes know the script
			time.Sleep(time.Second)
			token := l.handedOver(t, "a")
			time.Sleep(ms(5))
			w.plant("a", 30*time.Second, 3, 4, 5)
			w.Inject(plan)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if plan == "" {
				time.AfterFunc(3*ms(1)/4, cancel)
			}
			_, err := l.Attach(ctx, "a", token)
			if plan == "" {
				assert.ErrorIs(t, err, context.Canceled)
			} else {
				assert.ErrorIs(t, err, ErrLost, fault)
			}
			time.Sleep(5 * time.Second)
			assert.Equal(t, []string{"", "", "foreign", "foreign", "foreign"}, w.keys("a"), fault)
			l.requireQuiet(t)
		})
	}
}

func TestAttachIsRepeatedInPeaceAfterALostReply(t *testing.T) {
	for name, plan := range map[string]string{
		"cut instead of the reply": "on any #1, all: cut during",
		"script unknown":           `on EVALSHA #1, all: error "NOSCRIPT No matching script. Please use EVAL."`,
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, ms(1), ms(1), ms(1))
			l := w.locker()
			l.Attach(t.Context(), "warm-up", "x")
			time.Sleep(ms(5))
			token := l.handedOver(t, "a")
			time.Sleep(ms(5))
			w.Inject(plan)
			lease, err := l.Attach(t.Context(), "a", token)
			require.NoError(t, err, "%s: it is ours", name)
			time.Sleep(ms(5))
			assert.Equal(t, []string{lease.Token(), lease.Token(), lease.Token()}, w.keys("a"))
			require.NoError(t, lease.Unlock(t.Context()))
			time.Sleep(ms(5))
			w.requireNoKeys()
		})
	}
}

func TestAttachThatComesTooLateIsExpiredAndReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(10), ms(10), ms(10))
		clock := &fakeClock{}
		l := w.locker(WithTTL(time.Second), withClock(clock))
		token := l.handedOver(t, "a")
		time.Sleep(ms(20))
		time.AfterFunc(ms(5), func() { clock.jump(time.Second) })
		_, err := l.Attach(t.Context(), "a", token)
		assert.ErrorIs(t, err, ErrExpired)
		time.Sleep(ms(50))
		w.requireNoKeys()
		l.requireQuiet(t)
	})
}

func TestAttachOnOneServerUnderTwoNamesHasOneVote(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		token := w.locker().handedOver(t, "a")
		time.Sleep(ms(5))
		clients := w.Clients()
		clients[1] = w.Clients()[0]
		l, err := New(clients)
		require.NoError(t, err)
		defer l.Close()
		l.warm()
		w.Inject("at 0s, node 3: kill")
		_, err = l.Attach(t.Context(), "a", token)
		assert.ErrorIs(t, err, ErrNoQuorum)
		assert.ErrorContains(t, err, "must not vote twice")
		time.Sleep(time.Second)
		assert.Empty(t, w.keys("a")[0])
	})
}

func TestAttachKeepsItsPlaceAmongTheRequestsForItsName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(10), ms(10), ms(10))
		l, other := w.locker(), w.locker()
		l.Attach(t.Context(), "warm-up", "x")
		time.Sleep(time.Second)
		first, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		time.Sleep(ms(100))
		w.Inject("on EVALSHA #1, node 3: delay 100ms") // the release, either way
		require.NoError(t, first.Unlock(t.Context()))
		old := other.handedOver(t, "a") // by nodes 1 and 2
		lease, err := l.Attach(t.Context(), "a", old)
		require.NoError(t, err)
		require.NoError(t, lease.Extend(t.Context(), time.Minute))
		time.Sleep(time.Second)
		var order []string
		for _, c := range w.log(3) {
			switch {
			case strings.Contains(c, " a "+first.Token()) && !strings.HasPrefix(c, "SET"):
				order = append(order, "release")
			case strings.Contains(c, " a "+lease.Token()) && strings.HasSuffix(c, old):
				order = append(order, "attach")
			case strings.HasPrefix(c, "SET a "+lease.Token()):
				order = append(order, "repair")
			case strings.Contains(c, " a "+lease.Token()):
				order = append(order, "extend")
			}
		}
		assert.Equal(t, []string{"release", "attach", "extend", "repair"}, order)
		require.NoError(t, lease.Unlock(t.Context()))
		time.Sleep(time.Second)
		l.requireQuiet(t)
	})
}

func TestAttachRefusesWhatCannotBeAToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker()
		before := w.sent()
		for _, c := range []struct{ name, token, says string }{
			{"", "t", "name is empty"},
			{fencePrefix + "a", "t", "fencing"},
			{"a", "", "token has 0 bytes; want 1 to 1024"},
			{"a", strings.Repeat("x", 1025), "token has 1025 bytes; want 1 to 1024"},
		} {
			_, err := l.Attach(t.Context(), c.name, c.token)
			assert.ErrorIs(t, err, ErrInvalid)
			assert.ErrorContains(t, err, c.says)
		}
		var none context.Context
		_, err := l.Attach(none, "a", "t")
		assert.ErrorIs(t, err, ErrInvalid)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = l.Attach(ctx, "a", "t")
		assert.ErrorIs(t, err, context.Canceled)
		assert.Equal(t, before, w.sent())
		require.NoError(t, l.Close())
		_, err = l.Attach(t.Context(), "a", "t")
		assert.ErrorIs(t, err, ErrClosed)
	})
}

func TestDetachWaitsForTheExtendThatIsUnderWay(t *testing.T) {
	for name, c := range map[string]struct {
		plan  string
		takes time.Duration
	}{
		"a long line": {"", ms(300) - ms(100)},
		"nodes hang":  {"at 0s, nodes 2,3: hang", ms(500) - ms(100)},
		"no way back": {"at 250ms, node 3: hang\nat 250ms, node 3: cut", ms(250) - ms(100)}, // it is not sent again
		"no reply":    {"at 0s on EVALSHA, all: lose reply", ms(500) - ms(100)},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, ms(100), ms(200), ms(300))
			l := w.locker(WithNodeTimeout(ms(500)))
			lease, err := l.TryLock(t.Context(), "a")
			require.NoError(t, err)
			time.Sleep(time.Second)
			struck := w.Inject(c.plan)
			var wg sync.WaitGroup
			for range 3 {
				wg.Go(func() { assert.ErrorIs(t, lease.Extend(t.Context(), time.Minute), ErrReleased, name) })
			}
			time.Sleep(ms(100) - 1)
			begin := time.Now()
			require.NoError(t, lease.Detach(t.Context()))
			assert.InDelta(t, c.takes, time.Since(begin), float64(ms(1)), name)
			for i := range lease.claims {
				n := l.root.nodes[i]
				n.mu.Lock()
				assert.Zero(t, lease.claims[i].flying, "%s: node %d", name, i+1)
				n.mu.Unlock()
			}
			struck.Stop()
			before := w.told(lease.Token())
			wg.Wait()
			lease.Unlock(t.Context())
			time.Sleep(5 * time.Second)
			assert.Equal(t, before, w.told(lease.Token()), "%s: nothing comes after it", name)
			l.requireQuiet(t)
		})
	}
}

func TestDetachEndsTheRenewalsAndRepairs(t *testing.T) {
	renewed := 0
	for at := 950; at < 1700; at += 50 {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, ms(100), ms(200), ms(300))
			l := w.locker(WithTTL(3*time.Second), WithNodeTimeout(ms(500)), WithAutoExtend())
			lease, err := l.TryLock(t.Context(), "a")
			require.NoError(t, err)
			time.Sleep(ms(500))
			w.Inject(`at 0s, node 1: evict "a"`) // to be repaired after the renewal
			begun := w.told(lease.Token())
			time.Sleep(ms(at - 500))
			require.NoError(t, lease.Detach(t.Context()))
			before := w.told(lease.Token())
			renewed += before - begun
			time.Sleep(ms(1500))
			assert.Equal(t, before, w.told(lease.Token()), "detached at %d ms", at)
			l.requireQuiet(t)
		})
	}
	assert.Positive(t, renewed)
}

func TestDetachDropsWhatIsNotWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1), ms(1))
		l := w.locker(WithTTL(30*time.Second), WithNodeTimeout(ms(500)))
		// Node 4 answers no release, so on it the next acquire of the name waits for
		// one; node 3 hangs in something else.
		first, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		time.Sleep(ms(10))
		struck := w.Inject("at 0s, node 4: hang")
		require.NoError(t, first.Unlock(t.Context()))
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		go lease.Extend(t.Context(), time.Minute) // on node 4 behind its acquire
		time.Sleep(ms(20))
		n := l.root.nodes[3]
		n.mu.Lock()
		require.NotNil(t, lease.claims[3].acquire)
		require.Zero(t, lease.claims[3].flying)
		n.mu.Unlock()
		begin := time.Now()
		require.NoError(t, lease.Detach(t.Context()))
		assert.Zero(t, time.Since(begin), "nothing of its own was under way")
		n.mu.Lock()
		assert.Nil(t, lease.claims[3].acquire)
		assert.Zero(t, n.queue.len)
		n.mu.Unlock()
		struck.Stop()
		time.Sleep(5 * time.Second)
		for _, c := range w.log(4) {
			assert.NotContains(t, c, lease.Token())
		}
		assert.Equal(t, []string{lease.Token(), lease.Token(), lease.Token(), ""}, w.keys("a"))
		l.requireQuiet(t)
	})
}

func TestDetachLeavesAnAcquireThatLandsLateToItsTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker(WithTTL(5*time.Second), WithNodeTimeout(ms(200)))
		w.Inject(`on SET key "a" #1, node 3: delay 2s`) // executed after 2 s
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		time.Sleep(ms(50))
		begin := time.Now()
		require.NoError(t, lease.Detach(t.Context()))
		assert.Greater(t, time.Since(begin), ms(100), "it was under way")
		assert.LessOrEqual(t, time.Since(begin), ms(200))
		next, err := l.Attach(t.Context(), "a", lease.Token())
		require.NoError(t, err)
		time.Sleep(3 * time.Second)
		assert.Equal(t, []string{next.Token(), next.Token(), lease.Token()}, w.keys("a"))
		require.NoError(t, next.Err())
		require.NoError(t, next.Extend(t.Context(), 5*time.Second), "it harms nobody")
		require.NoError(t, next.Unlock(t.Context()))
		time.Sleep(ms(10))
		assert.Equal(t, lease.Token(), w.keys("a")[2], "no release is sent for it")
		time.Sleep(5 * time.Second)
		w.requireNoKeys()
		l.requireQuiet(t)
	})
}

func TestDetachOfALostLeaseDetachesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		var told atomic.Int32
		l := w.locker(WithTTL(time.Second), WithHooks(Hooks{Lost: func(context.Context, *Lease, error) { told.Add(1) }}))
		for end := range 3 {
			lease, err := l.TryLock(t.Context(), "a")
			require.NoError(t, err)
			time.Sleep(lease.Validity() - l.cfg.lead() + time.Duration(end-1)*ms(1))
			err = lease.Detach(t.Context())
			if end == 0 {
				require.NoError(t, err)
				token := lease.Token()
				time.Sleep(ms(5))
				assert.Equal(t, []string{token, token, token}, w.keys("a"), "the loss timer finds it over")
				time.Sleep(ms(100))
				assert.Zero(t, told.Load())
				continue
			}
			assert.ErrorIs(t, err, ErrLost)
			assert.NotErrorIs(t, err, ErrReleased)
			time.Sleep(time.Until(lease.Until().Add(ms(2))))
			w.requireNoKeys()
			assert.EqualValues(t, end, told.Load())
			assert.ErrorIs(t, lease.Unlock(t.Context()), ErrLost)
			assert.ErrorIs(t, lease.Detach(t.Context()), ErrLost, "it stays lost")
		}
		l.requireQuiet(t)
	})
}

func TestDetachAndCloseAtOnceMissNothing(t *testing.T) {
	for delay := -3; delay <= 3; delay++ {
		for _, sibling := range []bool{false, true} {
			for range 5 {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t, ms(2), ms(4), ms(8))
					l := w.locker()
					s := l
					if sibling {
						var err error
						s, err = l.With(WithTTL(time.Minute))
						require.NoError(t, err)
					}
					lease, err := s.TryLock(t.Context(), "a")
					require.NoError(t, err)
					go lease.Extend(t.Context(), time.Minute)
					time.Sleep(ms(5))
					var wg sync.WaitGroup
					wg.Go(func() {
						time.Sleep(ms(max(delay, 0)))
						assert.NoError(t, s.Close())
					})
					time.Sleep(ms(max(-delay, 0)))
					err = lease.Detach(t.Context())
					before := w.told(lease.Token())
					wg.Wait()
					time.Sleep(ms(20))
					if err == nil {
						assert.ErrorIs(t, lease.Err(), ErrReleased)
						assert.Equal(t, before, w.told(lease.Token()))
						assert.Equal(t, lease.Token(), w.keys("a")[0])
						assert.Equal(t, lease.Token(), w.keys("a")[1])
					} else {
						assert.ErrorIs(t, err, ErrClosed)
						assert.ErrorIs(t, lease.Err(), ErrClosed)
						w.requireNoKeys()
					}
					if delay != 0 {
						assert.Equal(t, delay > 0, err == nil, "delay %d: %v", delay, err)
					}
				})
			}
		}
	}
}

// nosyClock runs something in the middle of an operation that looks at the clock.
type nosyClock struct {
	fakeClock
	then atomic.Pointer[func()]
}

func (c *nosyClock) look() instant {
	if f := c.then.Swap(nil); f != nil {
		(*f)()
	}
	return c.fakeClock.look()
}

func TestDetachLeavesToCloseWhatThatHasTaken(t *testing.T) {
	for _, sibling := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, ms(1), ms(1), ms(1))
			clock := &nosyClock{}
			l := w.locker(withClock(clock))
			s := l
			if sibling {
				var err error
				s, err = l.With(WithTTL(time.Minute))
				require.NoError(t, err)
			}
			lease, err := s.TryLock(t.Context(), "a")
			require.NoError(t, err)
			time.Sleep(ms(5))
			var closing sync.WaitGroup
			inTheMiddle := func() {
				closing.Go(func() { assert.NoError(t, s.Close()) })
				for taken := false; !taken; runtime.Gosched() {
					l.root.agenda.mu.Lock()
					taken = len(l.root.agenda.leases) == 0
					l.root.agenda.mu.Unlock()
				}
			}
			clock.then.Store(&inTheMiddle)
			assert.ErrorIs(t, lease.Detach(t.Context()), ErrClosed)
			closing.Wait()
			assert.ErrorIs(t, lease.Err(), ErrClosed)
			w.requireNoKeys()
		})
	}
}

func TestDetachAndUnlockAtOnceAgree(t *testing.T) {
	for i := range 40 {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, ms(2), ms(4), ms(8))
			l := w.locker()
			lease, err := l.TryLock(t.Context(), "a")
			require.NoError(t, err)
			time.Sleep(ms(i % 10))
			var wg sync.WaitGroup
			var mu sync.Mutex
			detached, unlocked := 0, 0
			for k := range 12 {
				wg.Go(func() {
					switch k % 3 {
					case 0:
						if err := lease.Detach(t.Context()); err == nil {
							mu.Lock()
							detached++
							mu.Unlock()
						} else {
							assert.ErrorIs(t, err, ErrReleased)
						}
					case 1:
						if err := lease.Unlock(t.Context()); err == nil {
							mu.Lock()
							unlocked++
							mu.Unlock()
						} else {
							assert.ErrorIs(t, err, ErrReleased)
						}
					case 2:
						lease.Extend(t.Context(), time.Minute)
					}
				})
			}
			wg.Wait()
			assert.True(t, detached == 1 && unlocked == 0 || detached == 0 && unlocked == 4, "%d, %d", detached, unlocked)
			time.Sleep(ms(20))
			if detached == 0 {
				w.requireNoKeys()
			} else {
				assert.Equal(t, lease.Token(), w.keys("a")[0])
				next, err := l.Attach(t.Context(), "a", lease.Token())
				require.NoError(t, err)
				require.NoError(t, next.Unlock(t.Context()))
				time.Sleep(ms(20))
			}
			l.requireQuiet(t)
		})
	}
}

func TestDetachIgnoresThatTheCallerHasGoneAndEndsWhatIsNested(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker(WithReentrancy())
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		nested, err := l.TryLock(lease.Context(t.Context()), "a")
		require.NoError(t, err)
		before := w.sent()
		err = nested.Detach(t.Context())
		assert.ErrorIs(t, err, ErrInvalid)
		assert.ErrorContains(t, err, "outermost")
		require.NoError(t, nested.Err())

		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.NoError(t, lease.Detach(ctx))
		assert.ErrorIs(t, nested.Err(), ErrReleased)
		assert.ErrorIs(t, nested.Unlock(ctx), ErrReleased)
		assert.Equal(t, before, w.sent())
		next, err := l.Attach(t.Context(), "a", lease.Token())
		require.NoError(t, err)
		assert.Nil(t, next.outer)
		require.NoError(t, next.Unlock(t.Context()))
		var none *Lease
		assert.ErrorIs(t, none.Detach(ctx), ErrLost)
	})
}

func TestDoLeavesWhatItsFunctionHasDetached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker()
		var token string
		require.NoError(t, l.Do(t.Context(), "a", func(ctx context.Context) error {
			token = FromContext(ctx).Token()
			return FromContext(ctx).Detach(ctx)
		}))
		time.Sleep(ms(10))
		assert.Equal(t, []string{token, token, token}, w.keys("a"))
		lease, err := l.Attach(t.Context(), "a", token)
		require.NoError(t, err)
		require.NoError(t, lease.Unlock(t.Context()))
	})
}

func TestHooksSeeTheHandOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(2), ms(3))
		l := w.locker()
		var seen []string
		l, err := l.With(WithTTL(time.Second), WithHooks(Hooks{
			Start: func(_ context.Context, op Op) context.Context { seen = append(seen, "start "+op.Kind); return nil },
			Round: func(_ context.Context, r Round) {
				seen = append(seen, fmt.Sprint("round ", r.Op, " ", r.Attempt, " ", r.Count(Granted)))
			},
			Done: func(_ context.Context, op Op, lease *Lease, err error) {
				seen = append(seen, fmt.Sprint("done ", op.Kind, " ", lease != nil, " ", err == nil))
			},
		}))
		require.NoError(t, err)
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		require.NoError(t, lease.Detach(t.Context()))
		lease.Unlock(t.Context())
		_, err = l.Attach(t.Context(), "a", lease.Token())
		require.NoError(t, err)
		_, err = l.Attach(t.Context(), "a", lease.Token())
		require.Error(t, err)
		assert.Equal(t, []string{
			"start trylock", "round trylock 1 2", "done trylock true true",
			"start detach", "done detach true true",
			"start attach", "round attach 0 2", "done attach true true",
			"start attach", "round attach 0 0", "done attach false false",
		}, seen)
	})
}

// TestHandOversInRandomWeather runs holders that pass their locks on, and others who
// want them, over nodes to which everything happens except forgetting. No two leases
// of a name overlap, and in the end nothing is left.
func TestHandOversInRandomWeather(t *testing.T) {
	t.Parallel()
	passed := 0
	for seed := *firstSeed; seed < *firstSeed+uint64(*seeds+1)/2; seed++ {
		synctest.Test(t, func(t *testing.T) { passed += handOversInWeather(t, seed) })
		if t.Failed() {
			t.Fatalf("go test -run '^TestHandOversInRandomWeather$' -seeds 1 -first-seed %d .", seed)
		}
	}
	assert.Positive(t, passed)
	t.Logf("%d leases were passed on", passed)
}

func handOversInWeather(t *testing.T, seed uint64) (passed int) {
	const storm, timeout = 10 * time.Second, 200 * time.Millisecond
	nodes := []int{3, 5}[seed%2]
	w := newWorld(t, make([]time.Duration, nodes)...)
	var lockers []*Locker
	for _, user := range users {
		l, err := New(w.Client(user).Redis(func(o *redis.Options) {
			o.DialTimeout, o.DialerRetries, o.PoolSize = ms(300), 1, 40
		}), WithNodeTimeout(timeout), WithTTL(2*time.Second), WithReentrancy())
		require.NoError(t, err)
		lockers = append(lockers, l)
	}
	plan, err := faultinject.ParsePlan(weather(seed, nodes, storm))
	require.NoError(t, err)
	struck, err := w.Play(plan)
	require.NoError(t, err)

	var mu sync.Mutex
	tenures := make(map[string][]tenure)
	end := func(lease *Lease, from time.Time) {
		to := lease.Until()
		if now := time.Now(); now.Before(to) {
			to = now
		}
		mu.Lock()
		defer mu.Unlock()
		tenures[lease.Name()] = append(tenures[lease.Name()], tenure{from: from, to: to, who: lease.Token()})
	}
	var people sync.WaitGroup
	stop := time.Now().Add(storm)
	for i := range 9 {
		r := rand.New(rand.NewPCG(seed, uint64(300+i)))
		people.Go(func() {
			for time.Now().Before(stop) {
				name := fmt.Sprint("name", r.IntN(2))
				ctx, cancel := context.WithTimeout(t.Context(), ms(r.IntN(2000)))
				lease, err := lockers[r.IntN(3)].Lock(ctx, name)
				cancel()
				for err == nil {
					from := time.Now()
					if r.IntN(2) == 0 {
						go lease.Extend(t.Context(), ms(500+r.IntN(3000)))
					}
					time.Sleep(ms(r.IntN(300)))
					if nested, err := lease.locker.TryLock(lease.Context(t.Context()), name); err == nil {
						assert.Same(t, lease, nested.outer)
						nested.Unlock(t.Context())
					}
					end(lease, from)
					if r.IntN(3) == 0 {
						lease.Unlock(t.Context())
						break
					}
					begin := time.Now()
					if err := lease.Detach(t.Context()); err != nil {
						assert.ErrorIs(t, err, ErrLost)
						lease.Unlock(t.Context())
						break
					}
					assert.LessOrEqual(t, time.Since(begin), 2*timeout, "Detach")
					time.Sleep(ms(r.IntN(100)))
					if r.IntN(5) == 0 { // for too long, maybe
						time.Sleep(ms(r.IntN(5000)))
					}
					begin = time.Now()
					old, rival := lease.Token(), lockers[r.IntN(3)]
					var second *Lease
					var rivals sync.WaitGroup
					rivals.Go(func() { second, _ = rival.Attach(t.Context(), name, old) })
					lease, err = lockers[r.IntN(3)].Attach(t.Context(), name, old)
					rivals.Wait()
					assert.LessOrEqual(t, time.Since(begin), timeout, "Attach")
					if second != nil {
						assert.Nil(t, lease, "two have attached one token")
						lease, err = second, nil
					}
					if err == nil {
						mu.Lock()
						passed++
						mu.Unlock()
						continue
					}
					classes := 0
					for _, c := range []error{ErrLost, ErrNoQuorum, ErrExpired} {
						if errors.Is(err, c) {
							classes++
						}
					}
					assert.Equal(t, 1, classes, "%v", err)
				}
				time.Sleep(ms(r.IntN(50)))
			}
		})
	}
	people.Wait()
	struck.Stop()
	for _, n := range w.Nodes() {
		if !n.Up() {
			require.NoError(t, n.Do(faultinject.Restart))
		}
	}
	for name, list := range tenures {
		slices.SortFunc(list, func(a, b tenure) int { return cmp.Or(a.from.Compare(b.from), a.to.Compare(b.to)) })
		var last tenure
		for _, x := range list {
			if x.from.Before(last.to) {
				t.Errorf("two holders of %s: %s and %s", name, last, x)
			}
			if x.to.After(last.to) {
				last = x
			}
		}
	}
	time.Sleep(30 * time.Second)
	w.requireNoKeys()
	for _, l := range lockers {
		l.requireQuiet(t)
		l.Close()
	}
	return passed
}
