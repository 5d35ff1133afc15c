package redlock

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed58520471/redlock/faultinject"
)

// replicated is a world whose nodes have replicas: WAIT answers with their number,
// at once, for what its own connection has written.
type replicated struct {
	*world
	replicas []atomic.Int64 // of node i+1: how many keep up

	mu    sync.Mutex
	sent  map[*server.Peer][]string // by connection: the names written since its last WAIT
	waits [][]string                // by WAIT: what was written before it on its connection
}

func newReplicated(t *testing.T, rtts ...time.Duration) *replicated {
	t.Cleanup(func() { time.Sleep(time.Minute) })
	r := &replicated{
		world:    &world{t: t, calls: make(map[int][]string)},
		replicas: make([]atomic.Int64, len(rtts)),
		sent:     make(map[*server.Peer][]string),
	}
	for i := range r.replicas {
		r.replicas[i].Store(2)
	}
	started := 0 // nodes come into being in their order
	r.Cluster = faultinject.Start(t, len(rtts), faultinject.RTT(rtts...), faultinject.Watch(r.note),
		faultinject.Setup(func(m *miniredis.Miniredis) {
			i := started % len(rtts)
			started++
			m.Server().SetPreHook(func(c *server.Peer, cmd string, args ...string) bool { return r.see(i, c, cmd, args) })
		}))
	return r
}

// see answers WAIT.
func (r *replicated) see(node int, c *server.Peer, cmd string, args []string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch cmd {
	case "SET":
		r.sent[c] = append(r.sent[c], args[0])
	case "EVAL", "EVALSHA":
		r.sent[c] = append(r.sent[c], args[2])
	case "WAIT":
		r.waits = append(r.waits, append([]string{args[0], args[1]}, r.sent[c]...))
		delete(r.sent, c)
		c.WriteInt(int(r.replicas[node].Load()))
		return true
	}
	return false
}

// waited lists what each WAIT since the last call has covered.
func (r *replicated) waited() [][]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.waits
	r.waits = nil
	return w
}

// rows are the votes of the last round that a Locker's hooks were told of.
type rows struct{ last atomic.Pointer[Round] }

func (r *rows) hook() Option {
	return WithHooks(Hooks{Round: func(_ context.Context, round Round) { r.last.Store(&round) }})
}

func (l *Lease) promised() (nodes int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, v := range l.vouches {
		if v != nil {
			nodes++
		}
	}
	return nodes
}

func TestNodesWithTooFewAcknowledgementsDoNotVote(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newReplicated(t, ms(1), ms(2), ms(2))
		l := w.locker(WithReplicaAck(2, ms(20)))
		w.waited()
		begin := time.Now()
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		assert.Equal(t, ms(2), time.Since(begin), "SET and WAIT are one round trip")
		time.Sleep(ms(5))
		assert.Equal(t, [][]string{{"2", "20", "a"}, {"2", "20", "a"}, {"2", "20", "a"}}, w.waited())
		assert.Equal(t, 3, lease.promised())
		require.NoError(t, lease.Unlock(t.Context()))

		w.replicas[1].Store(1)
		w.replicas[2].Store(0)
		_, err = l.TryLock(t.Context(), "a")
		require.ErrorIs(t, err, ErrNoQuorum)
		assert.ErrorContains(t, err, "1 of 3 granted, 2 needed")
		assert.ErrorContains(t, err, "(1 of 2 replicas acknowledged within 20ms)")
		assert.ErrorContains(t, err, "(0 of 2 replicas acknowledged within 20ms)")
		time.Sleep(ms(5))
		w.requireNoKeys()

		w.replicas[1].Store(2)
		lease, err = l.TryLock(t.Context(), "a")
		require.NoError(t, err, "a quorum has its replicas again")
		time.Sleep(ms(5))
		assert.Equal(t, 2, lease.promised())
		require.NoError(t, lease.Unlock(t.Context()))
		w.requireNoKeys()
	})
}

func TestKeyOfANodeThatDidNotVoteGoesWithTheLeaseWhicheverWayThatEnds(t *testing.T) {
	for name, end := range map[string]func(*Locker, *Lease) error{
		"unlock": func(_ *Locker, lease *Lease) error { return lease.Unlock(background) },
		"loss":   func(_ *Locker, lease *Lease) error { <-lease.Done(); time.Sleep(ms(50)); return nil },
		"close":  func(l *Locker, _ *Lease) error { return l.Close() },
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newReplicated(t, ms(1), ms(1), ms(1))
			w.replicas[2].Store(0)
			l := w.locker(WithReplicaAck(1, ms(20)), WithTTL(4*time.Second))
			lease, err := l.TryLock(t.Context(), "a")
			require.NoError(t, err)
			time.Sleep(ms(5))
			require.Equal(t, lease.Token(), w.keys("a")[2])
			require.NoError(t, end(l, lease), name)
			time.Sleep(ms(5))
			w.requireNoKeys()
			assert.Positive(t, w.executed(3, "EVALSHA "+scripts[release].Hash()), name)
		})
	}
}

func TestLeaseOfABareQuorumIsLostWithOneNodeHoweverManyHaveItsKeyUnacknowledged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newReplicated(t, ms(1), ms(1), ms(1))
		w.replicas[2].Store(0)
		l := w.locker(WithReplicaAck(1, ms(20)))
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		time.Sleep(ms(5))
		w.Inject(`at 0s, node 1: evict "a"`)
		assert.ErrorIs(t, lease.Extend(t.Context(), 20*time.Second), ErrLost)
		lease.Unlock(t.Context())
		w.requireNoKeys()
	})
}

func TestExtendBringsANodeBackWhoseReplicasHaveCaughtUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newReplicated(t, ms(1), ms(1), ms(1))
		w.replicas[2].Store(0)
		l := w.locker(WithReplicaAck(1, ms(20)))
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		w.replicas[2].Store(1)
		require.NoError(t, lease.Extend(t.Context(), 20*time.Second))
		time.Sleep(ms(5))
		assert.Equal(t, 3, lease.promised())
		w.Inject(`at 0s, node 1: evict "a"`)
		w.waited()
		require.NoError(t, lease.Extend(t.Context(), 30*time.Second), "the two others promised")
		time.Sleep(ms(5))
		assert.Equal(t, lease.Token(), w.keys("a")[0], "repaired")
		assert.Len(t, w.waited(), 4, "a WAIT for the repair too")
		require.NoError(t, lease.Extend(t.Context(), 30*time.Second))
		time.Sleep(ms(5))
		assert.Equal(t, 3, lease.promised())
		require.NoError(t, lease.Unlock(t.Context()))
		time.Sleep(ms(5))
		w.requireNoKeys()
	})
}

func TestExtendThatFallsShortLeavesTheOlderPromise(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newReplicated(t, ms(1), ms(1), ms(1))
		var seen rows
		l := w.locker(WithReplicaAck(2, ms(20)), seen.hook())
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		time.Sleep(ms(5))
		until := lease.Until()
		w.replicas[0].Store(1)
		w.replicas[1].Store(1)
		err = lease.Extend(t.Context(), time.Minute)
		require.ErrorIs(t, err, ErrNoQuorum)
		assert.ErrorContains(t, err, "1 of 2 replicas acknowledged within 20ms")
		assert.Equal(t, until, lease.Until())
		assert.NoError(t, lease.Err())
		assert.Greater(t, w.ttl(1, "a"), 50*time.Second, "the nodes themselves were extended")

		w.waited()
		w.replicas[0].Store(2)
		require.NoError(t, lease.Extend(t.Context(), 20*time.Second), "for less than the node has: it vouches for what was asked")
		assert.Greater(t, w.ttl(1, "a"), 50*time.Second, "never shortened")
		assert.Less(t, lease.Validity(), 20*time.Second)
		assert.Greater(t, lease.Validity(), 19*time.Second)
		require.NoError(t, lease.Unlock(t.Context()))
		w.requireNoKeys()
	})
}

// WAIT waits for what its own connection has written. An extension that changed
// nothing there, because another connection had lengthened the lock already, would
// wait for nothing.
func TestExtendWritesEvenWhereItChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newReplicated(t, ms(1))
		l := w.locker(WithReplicaAck(1, ms(20)))
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		require.NoError(t, lease.Extend(t.Context(), time.Second))
		calls := w.log(1)
		assert.True(t, strings.HasSuffix(calls[len(calls)-2], " 1000 write"))
		assert.Equal(t, "WAIT 1 20", calls[len(calls)-1])
		require.NoError(t, lease.Unlock(t.Context()))
	})
}

func TestRenewedLeaseOutlivesReplicasThatLagForAWhileAndEndsWhenTheyStayAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newReplicated(t, ms(1), ms(1), ms(1))
		l := w.locker(WithReplicaAck(2, ms(20)), WithAutoExtend())
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		lag := func(d time.Duration) {
			for i := range w.replicas {
				w.replicas[i].Store(1)
			}
			time.Sleep(d)
			for i := range w.replicas {
				w.replicas[i].Store(2)
			}
		}
		time.Sleep(time.Minute)
		lag(5 * time.Second)
		time.Sleep(time.Minute)
		require.NoError(t, lease.Err())
		lag(11 * time.Second)
		require.ErrorIs(t, lease.Err(), ErrLost)
		lease.Unlock(t.Context())
		time.Sleep(time.Second)
		w.requireNoKeys()
	})
}

func TestWaitingForReplicasStallsNobodyElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newReplicated(t, ms(1), ms(1), ms(1))
		plain := w.locker(WithNodeTimeout(ms(500)))
		acked, err := plain.With(WithReplicaAck(1, ms(400)))
		require.NoError(t, err)
		acked.warm()
		w.Inject("on WAIT, all: delay 300ms")
		slow := make(chan time.Duration)
		go func() {
			begin := time.Now()
			lease, err := acked.TryLock(t.Context(), "slow")
			if assert.NoError(t, err) {
				defer lease.Unlock(t.Context())
			}
			slow <- time.Since(begin)
		}()
		for i := range 50 {
			begin := time.Now()
			lease, err := plain.TryLock(t.Context(), fmt.Sprint(i))
			require.NoError(t, err)
			require.NoError(t, lease.Unlock(t.Context()))
			require.LessOrEqual(t, time.Since(begin), ms(3))
			time.Sleep(ms(2))
		}
		assert.Equal(t, ms(301), <-slow)
	})
}

func TestOneWaitServesAllThatWaitedAndConnectionsAreFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newReplicated(t, ms(1), ms(1), ms(1))
		l := w.locker(WithReplicaAck(2, ms(100)))
		w.Inject("on WAIT, all: delay 50ms")
		w.waited()
		var wg sync.WaitGroup
		for i := range 64 {
			wg.Go(func() {
				for range 5 {
					lease, err := l.TryLock(t.Context(), fmt.Sprint(i))
					if assert.NoError(t, err) {
						assert.NoError(t, lease.Unlock(t.Context()))
					}
				}
			})
		}
		wg.Wait()
		time.Sleep(time.Second)
		waits := w.waited()
		covered := 0
		for _, names := range waits {
			assert.Greater(t, len(names), 2, "a WAIT without a write before it on its connection")
			covered += len(names) - 2
		}
		assert.Equal(t, 3*64*5, covered)
		assert.Less(t, len(waits), covered/5, "they shared")
		n := l.root.nodes[0]
		n.mu.Lock()
		assert.LessOrEqual(t, len(n.acking.idle), maxAcking)
		assert.Greater(t, len(n.acking.idle), 1)
		assert.Zero(t, n.acking.active)
		n.mu.Unlock()
		w.requireNoKeys()
	})
}

func TestSiblingsWithOtherRulesDoNotShareAWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newReplicated(t, ms(1), ms(1), ms(1))
		one := w.locker(WithReplicaAck(1, ms(20)))
		three, err := one.With(WithReplicaAck(3, ms(30)))
		require.NoError(t, err)
		w.waited()
		var wg sync.WaitGroup
		for i := range 40 {
			wg.Go(func() {
				name := fmt.Sprint("one", i)
				lease, err := one.TryLock(t.Context(), name)
				if assert.NoError(t, err) {
					assert.NoError(t, lease.Unlock(t.Context()))
				}
			})
			wg.Go(func() {
				_, err := three.TryLock(t.Context(), fmt.Sprint("three", i))
				assert.ErrorContains(t, err, "2 of 3 replicas acknowledged within 30ms")
			})
		}
		wg.Wait()
		time.Sleep(time.Second)
		for _, names := range w.waited() {
			rule := map[string]string{"1": "one", "3": "three"}[names[0]]
			for _, name := range names[2:] {
				require.True(t, strings.HasPrefix(name, rule), "%v", names)
			}
		}
		w.requireNoKeys()
	})
}

func TestServerThatRefusesToWaitDoesNotVoteAndEndsTheWait(t *testing.T) {
	for _, says := range []string{
		"ERR unknown command 'wait'",
		"NOPERM User locker has no permissions to run the 'wait' command",
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newReplicated(t, ms(1), ms(1), ms(1))
			w.Inject(`on WAIT, all: error "` + says + `"`)
			l := w.cold(WithReplicaAck(1, ms(20)), WithWait(time.Minute))
			begin := time.Now()
			_, err := l.Lock(t.Context(), "a")
			require.ErrorIs(t, err, ErrNoQuorum)
			assert.ErrorContains(t, err, says)
			assert.Less(t, time.Since(begin), time.Second, "no retry cures that")
			time.Sleep(ms(10))
			w.requireNoKeys()
		})
	}
}

func TestWaitThatIsNotAnsweredIsNoVoteAndLeavesNothing(t *testing.T) {
	for name, plan := range map[string]string{
		"hangs":           "at 0s for 200ms, all: hang",
		"no reply":        "on WAIT #1, all: lose reply",
		"late":            "on WAIT #1, all: delay 2s",
		"cut":             "on WAIT #1, all: cut before",
		"cut, set stored": `on SET key "a" #1, all: cut during`,
		"set unanswered":  `on SET key "a" #1, all: lose reply`,
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newReplicated(t, ms(1), ms(1), ms(1))
			l := w.locker(WithReplicaAck(1, ms(20)), WithNodeTimeout(ms(100)))
			w.Inject(plan)
			begin := time.Now()
			_, err := l.TryLock(t.Context(), "a")
			require.ErrorIs(t, err, ErrNoQuorum, name)
			assert.NotErrorIs(t, err, ErrHeld)
			assert.LessOrEqual(t, time.Since(begin), ms(100))
			time.Sleep(3 * time.Second)
			w.requireNoKeys()
			for i := range 3 {
				requireNothingAfterReleases(t, w.log(i+1))
				assert.Zero(t, l.root.nodes[i].acking.active)
			}
			lease, err := l.TryLock(t.Context(), "a")
			require.NoError(t, err)
			require.NoError(t, lease.Unlock(t.Context()))
		})
	}
}

// requireNothingAfterReleases checks one server's log: nothing of a token runs after
// its release. (A SET whose connection broke may run twice.)
func requireNothingAfterReleases(t *testing.T, calls []string) {
	t.Helper()
	released := make(map[string]bool)
	for _, c := range calls {
		f := strings.Fields(c)
		switch {
		case f[0] == "SET" && len(f) > 3:
			require.False(t, released[f[2]], "SET after the release: %s", c)
		case f[0] == "EVALSHA" && f[1] == scripts[release].Hash():
			released[f[4]] = true
		case f[0] == "EVALSHA":
			require.False(t, released[f[4]], "extend after the release: %s", c)
		}
	}
}

func TestDeadConnectionForWaitingIsReplacedWithinTheSameAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newReplicated(t, ms(5), ms(5), ms(5))
		l := w.locker(WithReplicaAck(1, ms(20)))
		w.Inject("at 0s, all: cut")
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		time.Sleep(ms(100))
		assert.Equal(t, 3, lease.promised())
		require.NoError(t, lease.Unlock(t.Context()))
	})
}

func TestWaitingForReplicasAfterAnHourOfSilenceCostsOneRoundTrip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newReplicated(t, ms(40), ms(40), ms(40))
		l := w.locker(WithReplicaAck(1, ms(20)))
		var wg sync.WaitGroup
		for i := range 4 { // four connections for a while
			wg.Go(func() {
				time.Sleep(ms(10 * i))
				lease, err := l.TryLock(t.Context(), fmt.Sprint(i))
				if assert.NoError(t, err) {
					lease.Unlock(t.Context())
				}
			})
		}
		wg.Wait()
		w.Cluster.Inject("at 0s, all: forget 1m") // which is not to strike
		time.Sleep(time.Hour)
		n := l.root.nodes[0]
		n.mu.Lock()
		assert.Len(t, n.acking.idle, 1, "one is kept proven")
		n.mu.Unlock()
		begin := time.Now()
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		assert.Equal(t, ms(40), time.Since(begin))
		require.NoError(t, lease.Unlock(t.Context()))
		assert.Equal(t, ms(80), time.Since(begin))
	})
}

func TestScriptsThatAServerForgotAreSentAgainBeforeTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newReplicated(t, ms(1), ms(1), ms(1))
		l := w.locker(WithReplicaAck(1, ms(20)))
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		for _, c := range w.Clients() {
			require.NoError(t, c.ScriptFlush(t.Context()).Err())
		}
		require.NoError(t, lease.Extend(t.Context(), time.Minute))
		time.Sleep(ms(5))
		assert.Equal(t, 3, lease.promised())
		require.NoError(t, lease.Unlock(t.Context()))
	})
}

func TestOrderHoldsBetweenTheLaneAndWhatWaitsForReplicas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newReplicated(t, ms(40), ms(60), ms(100))
		l := w.locker(WithReplicaAck(1, ms(30)), WithBackoff(Backoff{Min: 1, Max: 1}), WithWait(time.Minute))
		w.Inject("on WAIT 30%, all: delay 25ms\non EVALSHA, all: delay 2ms\non any 1%, all: cut during")
		go func() {
			for k := range 200 { // replicas come and go
				w.replicas[k%3].Store(int64(k % 2))
				time.Sleep(ms(17))
			}
			for i := range w.replicas {
				w.replicas[i].Store(1)
			}
		}()
		var wg sync.WaitGroup
		var inside [4]atomic.Int64
		for i := range 40 {
			wg.Go(func() {
				for range 5 {
					lease, err := l.Lock(t.Context(), fmt.Sprint("lock", i%4))
					if !assert.NoError(t, err) {
						return
					}
					assert.EqualValues(t, 1, inside[i%4].Add(1))
					lease.Extend(t.Context(), 11*time.Second)
					inside[i%4].Add(-1)
					lease.Unlock(t.Context())
				}
			})
		}
		wg.Wait()
		time.Sleep(30 * time.Second)
		w.requireNoKeys()
		for i := range 3 {
			requireNothingAfterReleases(t, w.log(i+1))
		}
	})
}

func TestReleaseWaitsForAnAcquireThatWaitsForReplicas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newReplicated(t, ms(2), ms(1), ms(1))
		l := w.locker(WithReplicaAck(1, ms(20)))
		w.plant("a", time.Minute, 2, 3)
		w.Inject(`on SET key "a", node 1: delay 300ms`) // the lane itself has nothing to do meanwhile
		before := len(w.log(1))
		begin := time.Now()
		_, err := l.TryLock(t.Context(), "a")
		assert.ErrorIs(t, err, ErrHeld)
		assert.Equal(t, ms(1), time.Since(begin))
		time.Sleep(ms(290))
		assert.Len(t, w.log(1), before, "nothing before the SET has returned")
		time.Sleep(ms(20))
		calls := w.log(1)[before:]
		require.Len(t, calls, 3)
		assert.Contains(t, calls[0], "SET a")
		assert.Contains(t, calls[1], "WAIT")
		assert.Contains(t, calls[2], "EVALSHA")
		assert.Equal(t, []string{"", "foreign", "foreign"}, w.keys("a"))
	})
}

func TestAcquireThatWaitsForReplicasWaitsForTheReleaseOfItsName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newReplicated(t, ms(1), ms(1), ms(1))
		l := w.locker(WithReplicaAck(1, ms(20)))
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		time.Sleep(ms(5))
		w.Inject(`on EVALSHA #1, node 3: delay 100ms`)
		require.NoError(t, lease.Unlock(t.Context()))
		next, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		time.Sleep(ms(90))
		assert.Equal(t, 2, next.promised())
		time.Sleep(ms(20))
		assert.Equal(t, 3, next.promised(), "sent as soon as the release had returned")
		require.NoError(t, next.Unlock(t.Context()))
	})
}

func TestSmallPoolIsSharedBetweenTheLaneAndWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newReplicated(t, ms(30), ms(30), ms(30))
		clients := w.Clients(func(o *redis.Options) { o.PoolSize = 4 })
		plain, err := New(clients)
		require.NoError(t, err)
		defer plain.Close()
		load := func(l *Locker) {
			var wg sync.WaitGroup
			for i := range 20 {
				wg.Go(func() {
					for k := range 5 {
						lease, err := l.Lock(t.Context(), fmt.Sprint(i, ".", k))
						if assert.NoError(t, err) {
							assert.NoError(t, lease.Unlock(t.Context()))
						}
					}
				})
			}
			for range 10 {
				assert.NoError(t, clients[0].Ping(t.Context()).Err())
			}
			wg.Wait()
		}
		load(plain)
		require.Equal(t, 3, plain.workers(0), "all but one are its own")
		acked, err := plain.With(WithReplicaAck(1, ms(20)))
		require.NoError(t, err)
		load(acked)
		assert.Equal(t, 2, plain.workers(0), "it has given one up")
		load(plain)
		assert.Equal(t, 2, plain.workers(0))
		n := plain.root.nodes[0]
		n.mu.Lock()
		assert.Equal(t, 1, n.acking.most)
		assert.Len(t, n.acking.idle, 1)
		n.mu.Unlock()
	})
}

func TestCloseEndsWhatWaitsForReplicas(t *testing.T) {
	for _, plan := range []string{"at 0s, all: hang", "on WAIT, all: delay 90ms", "at 0s, all: refuse\nat 0s, all: cut"} {
		synctest.Test(t, func(t *testing.T) {
			w := newReplicated(t, ms(1), ms(1), ms(1))
			l := w.locker(WithReplicaAck(1, ms(95)), WithNodeTimeout(ms(100)))
			w.Inject(plan)
			var wg sync.WaitGroup
			for i := range 10 {
				wg.Go(func() {
					time.Sleep(ms(i))
					_, err := l.Lock(t.Context(), strconv.Itoa(i))
					assert.ErrorIs(t, err, ErrClosed)
				})
			}
			time.Sleep(ms(50))
			begin := time.Now()
			l.Close()
			wg.Wait()
			assert.LessOrEqual(t, time.Since(begin), 2*time.Second)
			for _, n := range l.root.nodes {
				assert.Zero(t, n.acking.active)
				assert.Empty(t, n.acking.idle)
			}
		})
	}
}

func TestFirstUnlockFindsItsConnectionReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newReplicated(t, ms(40), ms(40), ms(40))
		l := w.cold(WithReplicaAck(1, ms(20)), WithWait(time.Minute))
		lease, err := l.Lock(t.Context(), "a")
		require.NoError(t, err)
		time.Sleep(time.Second)
		begin := time.Now()
		require.NoError(t, lease.Unlock(t.Context()))
		assert.Equal(t, ms(40), time.Since(begin))
	})
}

func TestCloseGivesConnectionsForWaitingBackToTheirPool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newReplicated(t, ms(1))
		clients := w.Clients()
		l, err := New(clients, WithReplicaAck(1, ms(20)))
		require.NoError(t, err)
		l.warm()
		require.NoError(t, l.Close())
		stats := clients[0].PoolStats()
		assert.Positive(t, stats.TotalConns)
		assert.Equal(t, stats.TotalConns, stats.IdleConns)
	})
}

func TestReplicasThatTakeLongDoNotMakeTheLineLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newReplicated(t, ms(1)/2)
		l := w.locker(WithReplicaAck(1, ms(100)))
		w.Inject("on WAIT, all: delay 50ms")
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		for range 20 { // and nothing in the lane meanwhile
			require.NoError(t, lease.Extend(t.Context(), time.Minute))
		}
		n := l.root.nodes[0]
		n.mu.Lock()
		defer n.mu.Unlock()
		assert.LessOrEqual(t, n.trip, longTrip)
	})
}

func TestVoteThatHadNoConnectionForWaitingSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newReplicated(t, ms(1))
		l := w.locker() // the lane is connected
		acked, err := l.With(WithReplicaAck(1, ms(20)))
		require.NoError(t, err)
		w.Inject("at 0s, all: hang")
		_, err = acked.TryLock(t.Context(), "a")
		assert.ErrorContains(t, err, "no answer within 500ms, not connected yet")
	})
}

func TestWithoutTheOptionNothingWaitsForReplicas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newReplicated(t, ms(1), ms(1), ms(1))
		l := w.locker()
		for _, c := range w.log(1) {
			assert.False(t, strings.HasPrefix(c, "WAIT") || strings.HasSuffix(c, " write"), c)
		}
		assert.Equal(t, uint64(1), l.lane(0).Connects)
	})
}

func TestReplicaAckOptionsNameTheValueAndTheBound(t *testing.T) {
	plain := redis.NewClient(&redis.Options{Addr: "10.0.0.1:1"})
	defer plain.Close()
	small := redis.NewClient(&redis.Options{Addr: "10.0.0.2:1", PoolSize: 2})
	defer small.Close()
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"10.0.0.3:1"}})
	defer cluster.Close()
	for _, c := range []struct {
		clients []redis.UniversalClient
		opts    []Option
		says    string
	}{
		{nil, []Option{WithReplicaAck(0, ms(20))}, "replica acknowledgements wanted are 0; want at least 1"},
		{nil, []Option{WithReplicaAck(1, ms(1)/2)}, "the time for replica acknowledgements is 500µs; want at least 1ms"},
		{nil, []Option{WithReplicaAck(1, ms(500))}, "the time for replica acknowledgements is 500ms and the node timeout 500ms; want less than that"},
		{nil, []Option{WithNodeTimeout(ms(20)), WithReplicaAck(1, ms(30))}, "is 30ms and the node timeout 20ms"},
		{[]redis.UniversalClient{plain, cluster}, []Option{WithReplicaAck(1, ms(20))}, "client 2 is a *redis.ClusterClient; replica acknowledgements need a *redis.Client"},
		{[]redis.UniversalClient{small}, []Option{WithReplicaAck(1, ms(20))}, "client 1 has a pool of 2 connections; replica acknowledgements need at least 3"},
	} {
		clients := c.clients
		if clients == nil {
			clients = []redis.UniversalClient{plain}
		}
		_, err := New(clients, c.opts...)
		require.ErrorIs(t, err, ErrInvalid)
		assert.ErrorContains(t, err, c.says)
	}
	l, err := New([]redis.UniversalClient{plain, cluster})
	require.NoError(t, err)
	defer l.Close()
	_, err = l.With(WithReplicaAck(1, ms(20)))
	require.ErrorIs(t, err, ErrInvalid)
	assert.ErrorContains(t, err, "client 2 is a *redis.ClusterClient")
	_, err = l.With(WithReplicaAck(1, time.Second))
	assert.ErrorContains(t, err, "is 1s and the node timeout 500ms")
	_, err = Open([]string{"redis://10.0.0.1:1"}, WithReplicaAck(1, time.Second))
	assert.ErrorContains(t, err, "is 1s and the node timeout 500ms")
}

func TestHandingOverWaitsForReplicasToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newReplicated(t, ms(1), ms(1), ms(1))
		l := w.locker(WithReplicaAck(1, ms(20)))
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		time.Sleep(ms(5))
		token := lease.Token()
		require.NoError(t, lease.Detach(t.Context()))
		w.waited()
		w.replicas[2].Store(0)
		next, err := l.Attach(t.Context(), "a", token)
		require.NoError(t, err)
		time.Sleep(ms(5))
		assert.Len(t, w.waited(), 3)
		assert.Equal(t, 2, next.promised())
		require.NoError(t, next.Unlock(t.Context()))
		time.Sleep(ms(5))
		w.requireNoKeys()
	})
}
