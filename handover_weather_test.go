package redlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed58520471/redlock/faultinject"
)

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
