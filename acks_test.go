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

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
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
			run := fmt.Sprintf("run_id:%d\r\nuptime_in_seconds:0\r\n", started)
			m.Server().SetPreHook(func(c *server.Peer, cmd string, args ...string) bool {
				if cmd == "INFO" { // in place of the harness's own
					c.WriteBulk(run)
					return true
				}
				return r.see(i, c, cmd, args)
			})
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
			assert.Positive(t, w.executed(3, "EVALSHA "+hashes[release]), name)
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
		// A node that a quorum did not wait for may be asked for the release first, and
		// is not asked for the vote any more then.
		dropped := func() (k int) {
			for _, n := range l.Stats().Nodes {
				k += int(n.GivenUp)
			}
			return k
		}
		before := dropped()
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
		assert.Equal(t, 3*64*5, covered+dropped()-before)
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
				n := l.root.nodes[i]
				n.mu.Lock()
				assert.Zero(t, n.acking.active)
				n.mu.Unlock()
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
		case f[0] == "EVALSHA" && f[1] == hashes[release]:
			released[f[4]] = true
		case f[0] == "EVALSHA":
			require.False(t, released[f[4]], "extend after the release: %s", c)
		}
	}
}
