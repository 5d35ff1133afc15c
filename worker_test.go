package redlock

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// openLike makes clients the way Open does, on the simulated nodes.
func (w *world) openLike(timeout time.Duration) []redis.UniversalClient {
	return w.Clients(func(o *redis.Options) {
		dial := o.Dialer
		tuned(o, timeout).Dialer = dial
	})
}

func TestIdleConnectionIsUsedWhileAnotherIsBeingMade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(20), ms(20), ms(20))
		var noDial atomic.Bool // to node 1: they never end
		l, err := New(w.Clients(func(o *redis.Options) {
			dial, first := o.Dialer, o.Addr == "10.0.0.1:6379"
			tuned(o, ms(500)).Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
				if first && noDial.Load() {
					<-ctx.Done()
					return nil, ctx.Err()
				}
				return dial(ctx, network, addr)
			}
		}))
		require.NoError(t, err)
		defer l.Close()
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() {
				time.Sleep(ms(5 * i))
				for k := range 10 {
					lease, err := l.TryLock(t.Context(), fmt.Sprint(i, ".", k))
					if err == nil {
						lease.Unlock(t.Context())
					}
				}
			})
		}
		wg.Wait()
		time.Sleep(time.Second)
		n := l.root.nodes[0]
		n.mu.Lock()
		linked := 0
		for w := range n.workers {
			if w.link != nil {
				linked++
			}
		}
		n.mu.Unlock()
		require.Greater(t, linked, 1)
		// Dials to node 1 hang, its connections live on. One breaks under a SET.
		struck := w.Inject(`on SET key "x" #1, node 1: cut during`)
		noDial.Store(true)
		defer noDial.Store(false)
		lease, err := l.TryLock(t.Context(), "x")
		require.NoError(t, err)
		time.Sleep(ms(300))
		n.mu.Lock()
		t.Logf("workers %d idle %d active %d connecting %d queue %d", len(n.workers), len(n.idle), n.active, n.connecting, n.queue.len)
		queued := n.queue.len
		n.mu.Unlock()
		require.NoError(t, struck.Check())
		assert.Zero(t, queued, "an idle connection that works is there")
		_ = lease
	})
}

func TestConnectionThatIsRefusedIsNotTriedInALoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 0, 0, 0) // a refused dial takes no time
		w.Inject("on any, all: delay 100ms")
		l, err := New(w.openLike(ms(500)))
		require.NoError(t, err)
		defer l.Close()
		for range 2 {
			if lease, err := l.TryLock(t.Context(), "warm"); err == nil {
				lease.Unlock(t.Context())
			}
			time.Sleep(ms(300))
		}
		n := l.root.nodes[0]
		before := n.snapshot().ConnectFailures
		refusing := w.Inject("at 0s, node 1: refuse") // what is connected goes on
		var wg sync.WaitGroup
		begin := time.Now()
		for i := range 5 {
			wg.Go(func() {
				time.Sleep(ms(20 * i))
				lease, err := l.TryLock(t.Context(), fmt.Sprint(i))
				if assert.NoError(t, err) {
					lease.Unlock(t.Context())
				}
			})
		}
		wg.Wait()
		failures := n.snapshot().ConnectFailures - before
		t.Logf("%d failed connects in %v, %d dials", failures, time.Since(begin), refusing.Fired())
		assert.Less(t, failures, uint64(100))
	})
}

func TestStuckClientIsReplacedWithoutWaitingForTheNextCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l, err := New(w.stubbornClients(), WithNodeTimeout(ms(100)), WithTTL(30*time.Second))
		require.NoError(t, err)
		defer l.Close()
		l.warm()
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		time.Sleep(ms(5))
		hung := w.Inject("at 0s, node 1: hang")
		other, err := l.TryLock(t.Context(), "b") // node 1's worker is stuck in this
		require.NoError(t, err)
		time.Sleep(ms(50))
		require.NoError(t, lease.Unlock(t.Context()))
		time.Sleep(ms(10))
		hung.Stop() // only what was on the line then is gone
		time.Sleep(ms(500))
		assert.Empty(t, w.keys("a")[0], "the node has been answering for half a second; its release waits for the one that is stuck")
		other.Unlock(t.Context())
		time.Sleep(10 * time.Second)
	})
}

func TestColdFirstLockSucceedsWithinItsWaitAndTheSecondCostsOneRoundTrip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(150), ms(150), ms(150))
		l, err := New(w.Clients(func(o *redis.Options) {
			dial := o.Dialer
			o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
				time.Sleep(3 * ms(150)) // connecting takes four round trips, as with TLS
				return dial(ctx, network, addr)
			}
		}), WithWait(5*time.Second))
		require.NoError(t, err)
		defer l.Close()
		lease, err := l.Lock(t.Context(), "a")
		require.NoError(t, err, "connecting must go on when the votes that waited for it have timed out")
		require.NoError(t, lease.Unlock(t.Context()))

		begin := time.Now()
		lease, err = l.Lock(t.Context(), "a")
		require.NoError(t, err)
		assert.Equal(t, ms(150), time.Since(begin))
		require.NoError(t, lease.Unlock(t.Context()))
	})
}

func TestLockAfterAnHourOfSilenceCostsOneRoundTrip(t *testing.T) {
	for name, sabotage := range map[string]func(*world){
		"a firewall that forgets idle connections": func(w *world) {
			w.Cluster.Inject("at 0s, all: forget 1m") // which is not to strike
			time.Sleep(time.Hour)
		},
		"every connection dropped without a word once": func(w *world) {
			time.Sleep(30 * time.Minute)
			w.Inject("at 0s for 1m, all: forget 1ns") // what is connected now is dead from here on
			time.Sleep(time.Minute)
			time.Sleep(30 * time.Minute)
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, ms(40), ms(40), ms(40))
			l := w.locker()
			sabotage(w)
			begin := time.Now()
			lease, err := l.Lock(t.Context(), "a")
			require.NoError(t, err, name)
			assert.Equal(t, ms(40), time.Since(begin), name)
			require.NoError(t, lease.Unlock(t.Context()))
		})
	}
}

func TestDeadConnectionIsReplacedWithinTheSameAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(5), ms(5), ms(5))
		l := w.locker()
		w.Inject("at 0s, all: cut") // as servers do with idle clients
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		time.Sleep(ms(100))
		assert.Equal(t, []string{lease.Token(), lease.Token(), lease.Token()}, w.keys("a"))
	})
}

func TestNodesThatWereDownAreUsedWhenTheyComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1), ms(1), ms(1))
		w.plant("a", time.Minute, 3, 4, 5)
		down := w.Inject("at 0s, nodes 4,5: kill")
		l := w.locker()
		_, err := l.TryLock(t.Context(), "a")
		require.Error(t, err, "three of five are needed, however many are reachable")
		time.Sleep(ms(500))
		assert.Equal(t, []string{"", "", "foreign", "foreign", "foreign"}, w.keys("a"))

		down.Stop()
		time.Sleep(2 * time.Second) // go-redis itself tries a refused address once a second
		lease, err := l.TryLock(t.Context(), "b")
		require.NoError(t, err)
		time.Sleep(time.Second)
		assert.Equal(t, 5, len(w.keys("b")))
		for i, v := range w.keys("b") {
			assert.Equal(t, lease.Token(), v, "node %d", i+1)
		}
	})
}

func TestVoteIsNotSpentOnADialThatBeganBeforeIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker(WithNodeTimeout(ms(600))) // go-redis dials five times within 400 ms
		down := w.Inject("at 0s, all: kill")
		go l.TryLock(t.Context(), "a")
		time.Sleep(ms(310))               // the fourth of its dials has just failed
		time.AfterFunc(ms(97), down.Stop) // right after the fifth
		lease, err := l.TryLock(t.Context(), "b")
		require.NoError(t, err, "the nodes came back within its time")
		require.NoError(t, lease.Unlock(t.Context()))
	})
}

func TestLongLineCarriesSeveralBatchesAndAShortOneOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(100), ms(100), ms(100))
		l := w.locker()
		// Eight callers, one every 10 ms: nobody may wait for another's trip
		// once the connections are there.
		run := func() (worst time.Duration) {
			var wg sync.WaitGroup
			var mu sync.Mutex
			for i := range 8 {
				wg.Go(func() {
					time.Sleep(ms(10 * i))
					begin := time.Now()
					lease, err := l.TryLock(t.Context(), fmt.Sprint(i))
					if assert.NoError(t, err) {
						mu.Lock()
						worst = max(worst, time.Since(begin))
						mu.Unlock()
						assert.NoError(t, lease.Unlock(t.Context()))
					}
				})
			}
			wg.Wait()
			return worst
		}
		for range 10 {
			run()
		}
		assert.Equal(t, ms(100), run())
		assert.LessOrEqual(t, l.workers(0), maxLinks)
	})
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1)/2, ms(1)/2, ms(1)/2)
		l := w.locker()
		var wg sync.WaitGroup
		for i := range 64 {
			wg.Go(func() {
				lease, err := l.Lock(t.Context(), fmt.Sprint(i))
				if assert.NoError(t, err) {
					assert.NoError(t, lease.Unlock(t.Context()))
				}
			})
		}
		wg.Wait()
		assert.Equal(t, 1, l.workers(0))
		assert.Less(t, l.lane(0).Batches, l.lane(0).Requests/2, "they shared round trips")
	})
}

// stubborn is a client that can lend no single connection and ignores deadlines,
// as ClusterClients with go-redis's defaults do.
type stubborn struct{ *redis.Client }

func (w *world) stubbornClients() []redis.UniversalClient {
	clients := w.Clients()
	for i, c := range clients {
		clients[i] = stubborn{c.(*redis.Client)}
	}
	return clients
}

func TestClientThatIgnoresDeadlinesIsWorkedAround(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l, err := New(w.stubbornClients(), WithNodeTimeout(ms(100)), WithTTL(30*time.Second))
		require.NoError(t, err)
		l.warm()
		hung := w.Inject("at 0s, node 1: hang")
		for i := range 200 {
			begin := time.Now()
			lease, err := l.TryLock(t.Context(), fmt.Sprint(i))
			require.NoError(t, err)
			require.NoError(t, lease.Unlock(t.Context()))
			assert.LessOrEqual(t, time.Since(begin), ms(3))
			time.Sleep(ms(20))
		}
		n := l.root.nodes[0]
		n.mu.Lock()
		workers := len(n.workers)
		n.mu.Unlock()
		assert.Greater(t, workers, 1, "the one that is stuck was replaced")
		assert.LessOrEqual(t, workers, maxLinks+spareLinks)
		hung.Stop()
		time.Sleep(6 * time.Second) // the client's own read timeout and a little
		lease, err := l.TryLock(t.Context(), "after")
		require.NoError(t, err)
		time.Sleep(ms(300))
		assert.Equal(t, lease.Token(), w.keys("after")[0], "the node votes again")
		require.NoError(t, lease.Unlock(t.Context()))
		time.Sleep(40 * time.Second)
		w.requireNoKeys()
		l.Close()
	})
}

// forgetTimers empties the pool of timers that go-redis waits for connections with. They
// are of the bubble that made them, and end the program in another.
func forgetTimers() {
	runtime.GC()
	runtime.GC()
}

func TestPoolOfOneIsOnlyBorrowed(t *testing.T) {
	defer forgetTimers()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		clients := w.Clients(func(o *redis.Options) { o.PoolSize, o.PipelinePoolSize = 1, -1 })
		l, err := New(clients)
		require.NoError(t, err)
		defer l.Close()
		lease, err := l.Lock(t.Context(), "a")
		require.NoError(t, err)
		begin := time.Now()
		require.NoError(t, clients[0].Set(t.Context(), "data", 1, 0).Err())
		assert.LessOrEqual(t, time.Since(begin), ms(2), "the user gets the connection at once")
		require.NoError(t, lease.Unlock(t.Context()))
	})
}

func TestUsersKeepConnectionsOfTheirPool(t *testing.T) {
	defer forgetTimers()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(30), ms(30), ms(30))
		clients := w.Clients(func(o *redis.Options) { o.PoolSize = 3 })
		l, err := New(clients)
		require.NoError(t, err)
		defer l.Close()
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() {
				for k := range 5 {
					lease, err := l.Lock(t.Context(), fmt.Sprint(i, ".", k))
					if assert.NoError(t, err) {
						assert.NoError(t, lease.Unlock(t.Context()))
					}
				}
			})
		}
		wg.Go(func() {
			for range 10 {
				assert.NoError(t, clients[0].Ping(t.Context()).Err())
			}
		})
		wg.Wait()
		assert.Equal(t, 2, l.workers(0))
	})
}
