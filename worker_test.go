package redlock

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// openLike makes clients the way Open does, on the simulated nodes.
func (w *world) openLike(timeout time.Duration) []redis.UniversalClient {
	var clients []redis.UniversalClient
	for _, n := range w.nodes {
		o := tuned(&redis.Options{Addr: n.name}, timeout)
		o.Dialer = n.Dial
		c := redis.NewClient(o)
		w.t.Cleanup(func() { c.Close() })
		clients = append(clients, c)
	}
	return clients
}

func TestIdleConnectionIsUsedWhileAnotherIsBeingMade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(20), ms(20), ms(20))
		l, err := New(w.openLike(ms(500)))
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
		dial := w.nodes[0]
		dial.on(func(cmd string, args []string) string {
			if cmd == "SET" && args[0] == "x" && dial.executed("SET x") == 1 {
				dial.cut.Store(true)
			}
			return ""
		})
		dial.noDial.Store(true)
		defer dial.noDial.Store(false)
		lease, err := l.TryLock(t.Context(), "x")
		require.NoError(t, err)
		time.Sleep(ms(300))
		n.mu.Lock()
		t.Logf("workers %d idle %d active %d connecting %d queue %d", len(n.workers), len(n.idle), n.active, n.connecting, n.queue.len)
		queued := n.queue.len
		n.mu.Unlock()
		assert.Zero(t, queued, "an idle connection that works is there")
		_ = lease
	})
}

func TestConnectionThatIsRefusedIsNotTriedInALoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(100), ms(100), ms(100))
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
		w.nodes[0].refuse.Store(true) // what is connected goes on
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
		t.Logf("%d failed connects in %v, %d dials", failures, time.Since(begin), w.nodes[0].dials.Load())
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
		w.nodes[0].hang.Store(true)
		other, err := l.TryLock(t.Context(), "b") // node 1's worker is stuck in this
		require.NoError(t, err)
		time.Sleep(ms(50))
		require.NoError(t, lease.Unlock(t.Context()))
		time.Sleep(ms(10))
		w.nodes[0].hang.Store(false) // only what was on the line then is gone
		time.Sleep(ms(500))
		assert.Empty(t, w.keys("a")[0], "the node has been answering for half a second; its release waits for the one that is stuck")
		other.Unlock(t.Context())
		time.Sleep(10 * time.Second)
	})
}

func TestColdFirstLockSucceedsWithinItsWaitAndTheSecondCostsOneRoundTrip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(150), ms(150), ms(150))
		for _, n := range w.nodes {
			n.trips.Store(4)
		}
		l := w.cold(WithWait(5 * time.Second))
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
			for _, n := range w.nodes {
				n.forget.Store(int64(time.Minute))
			}
			time.Sleep(time.Hour)
		},
		"every connection dropped without a word once": func(w *world) {
			time.Sleep(30 * time.Minute)
			for _, n := range w.nodes {
				n.forget.Store(1) // what is connected now is dead from here on
			}
			time.Sleep(time.Minute)
			for _, n := range w.nodes {
				n.forget.Store(0)
			}
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
		for _, n := range w.nodes {
			n.cutAll() // the servers closed them, as they do with idle clients
		}
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		time.Sleep(ms(100))
		assert.Equal(t, []string{lease.Token(), lease.Token(), lease.Token()}, w.keys("a"))
	})
}

func TestNodesThatWereDownAreUsedWhenTheyComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1), ms(1), ms(1))
		w.nodes[3].kill()
		w.nodes[4].kill()
		l := w.locker()
		w.plant("a", time.Minute, 2, 3, 4)
		_, err := l.TryLock(t.Context(), "a")
		require.Error(t, err, "three of five are needed, however many are reachable")
		time.Sleep(ms(500))
		assert.Equal(t, []string{"", "", "foreign", "foreign", "foreign"}, w.keys("a"))

		w.nodes[3].revive()
		w.nodes[4].revive()
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
		for _, n := range w.nodes {
			n.kill()
		}
		go l.TryLock(t.Context(), "a")
		time.Sleep(ms(310)) // the fourth of its dials has just failed
		for _, n := range w.nodes {
			n.refuse.Store(true)
		}
		time.AfterFunc(ms(95), func() { // right after the fifth
			for _, n := range w.nodes {
				n.revive()
			}
		})
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
		assert.LessOrEqual(t, len(l.root.nodes[0].workers), maxLinks)
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
		assert.Len(t, l.root.nodes[0].workers, 1)
		assert.Less(t, l.lane(0).Batches, l.lane(0).Requests/2, "they shared round trips")
	})
}

// stubborn is a client that can lend no single connection and ignores deadlines,
// as ClusterClients with go-redis's defaults do.
type stubborn struct{ *redis.Client }

func (w *world) stubbornClients() []redis.UniversalClient {
	clients := w.clients()
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
		w.nodes[0].hang.Store(true)
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
		w.nodes[0].hang.Store(false)
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

func TestPoolOfOneIsOnlyBorrowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		var clients []redis.UniversalClient
		for _, n := range w.nodes {
			c := redis.NewClient(&redis.Options{Addr: n.name, Dialer: n.Dial, PoolSize: 1, PipelinePoolSize: -1})
			defer c.Close()
			clients = append(clients, c)
		}
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
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(30), ms(30), ms(30))
		var clients []redis.UniversalClient
		for _, n := range w.nodes {
			c := redis.NewClient(&redis.Options{Addr: n.name, Dialer: n.Dial, PoolSize: 3})
			defer c.Close()
			clients = append(clients, c)
		}
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
		assert.Len(t, l.root.nodes[0].workers, 2)
	})
}
