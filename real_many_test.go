package redlock_test

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed58520471/redlock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// liveHeap is what is still referred to, in bytes, without the buffers of l's
// connections: how many there are depends on how busy the machine is, and not on
// the number of leases.
func liveHeap(l *redlock.Locker) int64 {
	const buffers = 64 << 10 // go-redis has 32 kB each for reading and writing
	runtime.GC()
	runtime.GC() // pools are emptied by the second
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	live := int64(m.HeapAlloc)
	for _, n := range l.Stats().Nodes {
		live -= int64(n.Connections) * buffers
	}
	return live
}

// peaks are the most that was seen while something else went on.
type peaks struct {
	heap, goroutines atomic.Int64
	stop, stopped    chan struct{}
}

func watchPeaks() *peaks {
	p := &peaks{stop: make(chan struct{}), stopped: make(chan struct{})}
	go func() {
		defer close(p.stopped)
		for {
			select {
			case <-p.stop:
				return
			case <-time.After(20 * time.Millisecond):
			}
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			p.heap.Store(max(p.heap.Load(), int64(m.HeapInuse)))
			p.goroutines.Store(max(p.goroutines.Load(), int64(runtime.NumGoroutine())))
		}
	}()
	return p
}

func (p *peaks) end() {
	close(p.stop)
	<-p.stopped
}

// inParallel calls f for every lease from 64 goroutines.
func inParallel(leases []*redlock.Lease, f func(i int)) {
	var next atomic.Int64
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(leases); i = int(next.Add(1)) - 1 {
				f(i)
			}
		})
	}
	wg.Wait()
}

// What a held lease costs while the watchdog renews it: less than a kilobyte, no
// goroutine, and a share of few exchanges.
func TestTenThousandLeasesAreRenewedWithoutAGoroutineOrAKilobyteEach(t *testing.T) {
	if testing.Short() {
		t.Skip("holds leases for two ttls")
	}
	const few, many = 100, 10_000
	for _, tc := range []struct {
		name  string
		nodes int
		make  func(nodes, *testing.T) *redlock.Locker
	}{
		{"3 nodes, New", 3, func(ns nodes, t *testing.T) *redlock.Locker { return ns.locker(t, redlock.WithAutoExtend()) }},
		{"5 nodes, Open", 5, func(ns nodes, t *testing.T) *redlock.Locker { return ns.open(t, "", redlock.WithAutoExtend()) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ns := startNodes(t, tc.nodes)
			ns.eventuallyEmpty(t, soon) // the administrator's clients are connected now
			l := tc.make(ns, t)
			idle := runtime.NumGoroutine() // those of the clients included
			ns.warm(t, l)
			leases := make([]*redlock.Lease, many)
			grab := func(from, to int) {
				inParallel(leases[from:to], func(i int) {
					lease, err := l.TryLock(t.Context(), fmt.Sprintf("orders/%d", from+i))
					assert.NoError(t, err)
					leases[from+i] = lease
				})
				require.Equal(t, to, l.Stats().Held)
			}
			// Lanes have what they need for many once they have had them.
			grab(0, many)
			inParallel(leases, func(i int) { assert.NoError(t, leases[i].Unlock(t.Context())) })
			clear(leases)
			ns.eventuallyEmpty(t, soon)
			baseline := int64(1 << 62)
			for range 20 { // what is left of the answers goes
				time.Sleep(100 * time.Millisecond)
				baseline = min(baseline, liveHeap(l))
			}
			grab(0, few)
			withFew := runtime.NumGoroutine()
			begin := time.Now()
			grab(few, many)
			locked := time.Now()
			t.Logf("%d leases obtained in %v", many, locked.Sub(begin))

			before := l.Stats()
			watch := watchPeaks()
			cost, seen := int64(1<<62), time.Duration(0)
			for time.Since(locked) < 2*ttl { // what is under way in a renewal comes on top
				time.Sleep(100 * time.Millisecond)
				if time.Since(locked) < ttl/2 {
					continue // each was renewed once
				}
				if now := (liveHeap(l) - baseline) / many; now < cost {
					cost, seen = now, time.Since(locked)
				}
			}
			watch.end()
			after := l.Stats()

			lost := 0
			for _, lease := range leases {
				if lease.Err() != nil {
					lost++
				}
			}
			assert.Zero(t, lost, "leases lost within two ttls")
			assert.LessOrEqual(t, cost, int64(1000), "bytes per lease")
			t.Logf("%d B per lease (%v after the last was obtained); at the peak %d B, garbage included",
				cost, seen.Round(time.Millisecond), (watch.heap.Load()-baseline)/many)
			assert.Less(t, watch.goroutines.Load(), int64(withFew+100))
			t.Logf("%d goroutines with %d leases, %d at the most with %d", withFew, few, watch.goroutines.Load(), many)
			for i, n := range after.Nodes {
				requests, exchanges := n.Requests-before.Nodes[i].Requests, n.Exchanges-before.Nodes[i].Exchanges
				assert.GreaterOrEqual(t, requests, uint64(2*many), "every lease is renewed once in a ttl at least")
				assert.LessOrEqual(t, 10*exchanges, requests)
				t.Logf("%s: %d requests in %d exchanges", n.Node, requests, exchanges)
			}
			for _, n := range ns {
				require.Eventually(t, func() bool { return n.Client().DBSize(t.Context()).Val() == many }, soon, 10*tick)
			}

			inParallel(leases[few:], func(i int) { assert.NoError(t, leases[few+i].Unlock(t.Context())) })
			require.Equal(t, few, l.Stats().Held)
			require.NoError(t, l.Close(), "releases the others")
			assert.Zero(t, l.Stats().Held)
			ns.eventuallyEmpty(t, soon)
			clear(leases)
			left := (liveHeap(l) - baseline) / many
			t.Logf("%d B per lease left", left)
			assert.LessOrEqual(t, left, int64(100))
			for until := time.Now().Add(soon); runtime.NumGoroutine() > idle && time.Now().Before(until); {
				time.Sleep(tick)
			}
			assert.LessOrEqual(t, runtime.NumGoroutine(), idle)
		})
	}
}
