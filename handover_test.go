package redlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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
	assert.Empty(t, l.leases())
}

// leases are those that the watchdog or Close would have to see to.
func (l *Locker) leases() []*Lease {
	l.root.agenda.mu.Lock()
	defer l.root.agenda.mu.Unlock()
	return slices.Clone(l.root.agenda.leases)
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
