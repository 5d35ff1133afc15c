package redlock_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/seed58520471/redlock"
	"github.com/seed58520471/redlock/internal/realredis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// fencingRights are what fenced locks need beside leastRights.
const fencingRights = "+time ~redlock:fence:{locks:*"

func TestTheLeastRightsOfFencing(t *testing.T) {
	ns := startNodes(t, 3)
	ns.grant(t, leastRights+" "+fencingRights)
	l := ns.asLocker(t, redlock.WithFencing())
	// Counters that differ, and one that is behind, so that all scripts are used.
	require.NoError(t, ns[0].Client().Set(t.Context(), "redlock:fence:{locks:a}:locks:a", 1<<52, 0).Err())
	require.NoError(t, ns[1].Client().Set(t.Context(), "redlock:fence:{locks:a}:locks:a", 1<<52+1, 0).Err())
	last := uint64(0)
	for range 3 {
		lease := lock(t, l, "locks:a")
		ns.eventuallyHold(t, lease, soon)
		assert.Greater(t, lease.Fence(), last)
		last = lease.Fence()
		require.NoError(t, ns[2].Client().Del(t.Context(), "redlock:fence:{locks:a}:locks:a").Err())
		require.NoError(t, lease.Extend(t.Context(), 2*ttl))
		_, err := l.TryLock(t.Context(), "locks:a")
		require.ErrorIs(t, err, redlock.ErrHeld)
		unlock(t, lease)
	}
	for _, missing := range []string{"+time", "~redlock:fence:{locks:*"} {
		rights := map[string]string{"+time": "~redlock:fence:*", "~redlock:fence:{locks:*": "+time"}[missing]
		ns.grant(t, leastRights+" "+rights)
		begin := time.Now()
		_, err := ns.asLocker(t, redlock.WithFencing()).Lock(t.Context(), "locks:b")
		requireDenied(t, err, 2)
		assert.Less(t, time.Since(begin), 5*time.Second, "it is told at once and not waited for")
		for _, n := range ns {
			assert.Zero(t, n.Client().Exists(t.Context(), "locks:b", "redlock:fence:{locks:b}:locks:b").Val())
		}
	}
}

func TestFencedLockIsOneScriptPerNode(t *testing.T) {
	const rounds = 20
	ns := startNodes(t, 5)
	l := ns.locker(t, redlock.WithFencing())
	lease := lock(t, l, "orders")
	ns.eventuallyHold(t, lease, soon)
	unlock(t, lease)
	released := func() {
		require.EventuallyWithT(t, func(c *assert.CollectT) {
			for _, n := range ns {
				require.Zero(c, n.Client().Exists(context.Background(), "orders").Val(), n.Addr)
			}
		}, soon, time.Millisecond)
	}
	released()
	ns.do(t, "config", "resetstat")
	for range rounds {
		lease := lock(t, l, "orders")
		ns.eventuallyHold(t, lease, soon)
		unlock(t, lease)
		released()
	}
	for _, n := range ns {
		assert.Equal(t, [2]int{2 * rounds, 0}, [2]int{n.Calls("evalsha"), n.Calls("eval")}, n.Addr)
	}
	assert.Zero(t, l.Stats().Raised)
}

// BenchmarkFencing shows what fencing adds to a lock and its unlock, on five real
// servers: with names of their own for all callers, and with one name for all. The
// share of locks that needed a second round trip is "%-raised". Plain and fenced
// locks take turns, so that both meet the same machine.
func BenchmarkFencing(b *testing.B) {
	for _, names := range []string{"own", "one"} {
		b.Run("names="+names, func(b *testing.B) {
			ns := nodes(realredis.Start(b, 5))
			var clients []redis.UniversalClient
			for _, n := range ns {
				clients = append(clients, n.Client())
			}
			plain, err := redlock.New(clients)
			require.NoError(b, err)
			defer plain.Close()
			fenced, err := plain.With(redlock.WithFencing())
			require.NoError(b, err)

			var took [2][]time.Duration
			for b.Loop() {
				for i, l := range []*redlock.Locker{plain, fenced} {
					took[i] = append(took[i], pairs(b, l, names, i)...)
				}
			}
			median := func(d []time.Duration) time.Duration { slices.Sort(d); return d[len(d)/2] }
			b.ReportMetric(float64(median(took[1]))/float64(median(took[0])), "fenced/plain")
			s := fenced.Stats()
			b.ReportMetric(100*float64(s.Raised)/float64(s.Fenced), "%-raised")
		})
	}
}

// pairs is four callers that lock and unlock 25 times each, and how long each pair took.
func pairs(b *testing.B, l *redlock.Locker, names string, kind int) (took []time.Duration) {
	var callers sync.WaitGroup
	var mu sync.Mutex
	for i := range 4 {
		callers.Go(func() {
			name := fmt.Sprint(kind) // a name is fenced by all its users or by none
			if names == "own" {
				name += fmt.Sprint(" of ", i)
			}
			for range 25 {
				begin := time.Now()
				lease, err := l.Lock(b.Context(), name)
				if err == nil {
					err = lease.Unlock(b.Context())
				}
				if err != nil {
					b.Error(err)
					return
				}
				mu.Lock()
				took = append(took, time.Since(begin))
				mu.Unlock()
			}
		})
	}
	callers.Wait()
	return took
}
