package redlock

import (
	"fmt"
	"strings"
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

func TestReleaseOfAnExtendedLeaseIsOwedAsLongAsItsKeyCanLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker(WithTTL(time.Second))
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		time.Sleep(ms(5))
		require.NoError(t, lease.Extend(t.Context(), time.Hour))
		time.Sleep(ms(5))
		w.nodes[0].on(func(cmd string, _ []string) string {
			if cmd == "EVALSHA" || cmd == "EVAL" {
				return "MISCONF Redis is configured to save RDB snapshots"
			}
			return ""
		})
		require.NoError(t, lease.Unlock(t.Context()))
		time.Sleep(3 * time.Second)
		w.nodes[0].clearHooks()
		time.Sleep(time.Minute)
		t.Log("ttl left on node 1:", w.nodes[0].TTL("a"), "stats:", l.lane(0))
		w.requireNoKeys()
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

func TestStuckClientIsReplacedWithoutWaitingForTheNextCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		clients := w.clients()
		for i := range clients {
			clients[i] = stubborn{clients[i].(*redis.Client)}
		}
		l, err := New(clients, WithNodeTimeout(ms(100)), WithTTL(30*time.Second))
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
