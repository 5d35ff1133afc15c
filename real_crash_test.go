package redlock_test

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed58520471/redlock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// load is a number of workers that lock and unlock names of their own, so nobody
// but the nodes can stop them.
type load struct {
	rounds atomic.Int64
	stop   chan struct{}
	wg     sync.WaitGroup

	mu  sync.Mutex
	err error
}

func startLoad(t *testing.T, l *redlock.Locker, workers int) *load {
	w := &load{stop: make(chan struct{})}
	for i := range workers {
		w.wg.Go(func() {
			for j := 0; ; j++ {
				select {
				case <-w.stop:
					return
				default:
				}
				lease, err := l.TryLock(t.Context(), fmt.Sprintf("load/%d/%d", i, j%3))
				if err == nil {
					err = lease.Unlock(t.Context())
				}
				if err != nil {
					w.fail(err)
					return
				}
				w.rounds.Add(1)
			}
		})
	}
	t.Cleanup(func() { w.end() })
	return w
}

func (w *load) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = errors.Join(w.err, err)
}

// passes waits for so many more rounds.
func (w *load) passes(t *testing.T, rounds int64, within time.Duration) {
	t.Helper()
	target := w.rounds.Load() + rounds
	require.Eventually(t, func() bool { return w.rounds.Load() >= target }, within, tick)
}

// end stops the workers and returns what went wrong.
func (w *load) end() error {
	select {
	case <-w.stop:
	default:
		close(w.stop)
	}
	w.wg.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

func TestKillingAMinorityMidAcquireIsNotNoticed(t *testing.T) {
	ns := startNodes(t, 5)
	w := startLoad(t, ns.locker(t), 16)
	w.passes(t, 100, soon)
	ns[1].Kill()
	w.passes(t, 100, soon)
	ns[3].Kill()
	w.passes(t, 300, soon)
	require.NoError(t, w.end())
	nodes{ns[0], ns[2], ns[4]}.eventuallyEmpty(t, soon)
}

func TestFreezingAMinorityMidAcquireIsNotNoticed(t *testing.T) {
	ns := startNodes(t, 5)
	w := startLoad(t, ns.locker(t), 16)
	w.passes(t, 100, soon)
	ns[1].Stop()
	ns[3].Stop()
	// 20 rounds by each. An unlock may wait for a node that froze just after it had
	// granted the lock; those after it find nobody to wait for.
	w.passes(t, 20*16, 2*nodeTimeout+time.Second)
	require.NoError(t, w.end())
	nodes{ns[0], ns[2], ns[4]}.eventuallyEmpty(t, soon)
	ns[1].Cont()
	ns[3].Cont()
	ns.eventuallyEmpty(t, nodeTimeout+time.Second)
}

func TestFreezingAMinorityUnderHeldLeasesIsNotNoticed(t *testing.T) {
	const patience = 3 * time.Second // so that much fits into it, even on a busy machine
	ns := startNodes(t, 5)
	for name, l := range map[string]*redlock.Locker{
		"New":  ns.locker(t, redlock.WithNodeTimeout(patience)),
		"Open": ns.open(t, "", redlock.WithNodeTimeout(patience)),
	} {
		t.Run(name, func(t *testing.T) {
			leases := make([]*redlock.Lease, 30)
			for i := range leases {
				leases[i] = lock(t, l, fmt.Sprintf("orders/%d", i))
				ns.eventuallyHold(t, leases[i], soon)
			}
			ns[0].Stop()
			ns[1].Stop()
			begin := time.Now()
			for i, lease := range leases {
				if i%2 == 0 {
					require.NoError(t, lease.Extend(t.Context(), 2*ttl))
				}
				unlock(t, lease)
			}
			assert.Less(t, time.Since(begin), patience, "45 operations together")
			ns[0].Cont()
			ns[1].Cont()
			ns.eventuallyEmpty(t, patience+time.Second)
		})
	}
}

// The SET waits in the frozen server, or in the kernel on its way, and is carried
// out when the server goes on, long after the call has failed.
func TestAFrozenMajorityIsNoHolderAndKeepsNothing(t *testing.T) {
	const timeout = 300 * time.Millisecond
	ns := startNodes(t, 5)
	for name, l := range map[string]*redlock.Locker{
		"New":     ns.locker(t, redlock.WithNodeTimeout(timeout)),
		"Open":    ns.open(t, "", redlock.WithNodeTimeout(timeout)),
		"no pool": newLocker(t, ns.clients(t, pooled(1)), redlock.WithNodeTimeout(timeout)),
	} {
		t.Run(name, func(t *testing.T) {
			ns.warm(t, l)
			ns.do(t, "config", "resetstat")
			ns[:3].each((*server).Stop)
			for range 2 {
				begin := time.Now()
				_, err := l.TryLock(t.Context(), "orders")
				assert.Less(t, time.Since(begin), timeout+time.Second)
				require.ErrorIs(t, err, redlock.ErrNoQuorum)
				require.NotErrorIs(t, err, redlock.ErrHeld)
			}
			ns[:3].each((*server).Cont)
			ns.eventuallyEmpty(t, timeout+time.Second)
			for _, n := range ns[:3] {
				assert.LessOrEqual(t, n.Calls("set"), 2, "the client's own retries are off")
			}
		})
	}
}

func TestALeaseSurvivesAMinorityThatForgot(t *testing.T) {
	ns := startNodes(t, 5)
	l := ns.locker(t)
	lease := lock(t, l, "orders")
	ns.eventuallyHold(t, lease, soon)
	ns[:2].each((*server).Restart)
	require.NoError(t, lease.Extend(t.Context(), 2*ttl))
	unlock(t, lease)
	ns.eventuallyEmpty(t, soon)
}

func TestALeaseThatAMajorityForgotIsLost(t *testing.T) {
	ns := startNodes(t, 5)
	l := ns.locker(t)
	for name, forget := range map[string]func(){
		"restarted":  func() { ns[:3].each((*server).Restart) },
		"flushed":    func() { ns[:3].do(t, "flushall") },
		"taken over": func() { ns[:3].do(t, "set", "orders", "foreign") },
	} {
		t.Run(name, func(t *testing.T) {
			lease := lock(t, l, "orders")
			ns.eventuallyHold(t, lease, soon)
			forget()
			require.ErrorIs(t, lease.Extend(t.Context(), 2*ttl), redlock.ErrLost)
			require.ErrorIs(t, lease.Err(), redlock.ErrLost)
			require.ErrorIs(t, lease.Unlock(t.Context()), redlock.ErrLost)
			ns[3:].eventuallyEmpty(t, soon)
			ns.do(t, "del", "orders")
		})
	}
	for name, forget := range map[string]func(){
		"flushed before unlock":    func() { ns[:3].do(t, "flushall") },
		"taken over before unlock": func() { ns[:3].do(t, "set", "orders", "foreign") },
	} {
		t.Run(name, func(t *testing.T) {
			lease := lock(t, l, "orders")
			ns.eventuallyHold(t, lease, soon)
			forget()
			require.ErrorIs(t, lease.Unlock(t.Context()), redlock.ErrLost)
			ns[3:].eventuallyEmpty(t, soon)
			ns.do(t, "del", "orders")
		})
	}
}

func TestARestartedMajorityVotesAgain(t *testing.T) {
	ns := startNodes(t, 5)
	l := ns.locker(t)
	ns.warm(t, l)
	ns[:3].each((*server).Kill)
	_, err := l.TryLock(t.Context(), "orders")
	require.ErrorIs(t, err, redlock.ErrNoQuorum)
	got := make(chan *redlock.Lease)
	go func() {
		lease, err := l.Lock(t.Context(), "orders")
		assert.NoError(t, err)
		got <- lease
	}()
	ns[:3].each((*server).Restart)
	lease := <-got
	unlock(t, lease)
	ns.eventuallyEmpty(t, soon)
}
