package redlock

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestSplitVotesOfTwoOverFourNodesAreResolved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1), ms(1))
		a, b := w.process("a", WithWait(5*time.Second)), w.process("b", WithWait(5*time.Second))
		w.Inject("at 0s, nodes 3,4 from a: delay 20ms requests\nat 0s, nodes 1,2 from b: delay 20ms requests")
		var took []time.Duration
		for range 50 {
			var inside atomic.Int32
			var wg sync.WaitGroup
			begin := time.Now()
			for _, l := range []*Locker{a, b} {
				wg.Go(func() {
					lease, err := l.Lock(t.Context(), "a")
					if assert.NoError(t, err) {
						assert.EqualValues(t, 1, inside.Add(1))
						time.Sleep(ms(10))
						inside.Add(-1)
						assert.NoError(t, lease.Unlock(t.Context()))
					}
				})
			}
			wg.Wait()
			took = append(took, time.Since(begin))
			time.Sleep(ms(200))
		}
		t.Logf("both through in %v at the median", median(took))
		assert.LessOrEqual(t, median(took), ms(500))
		assert.LessOrEqual(t, took[len(took)-1], 2*time.Second)
		w.requireNoKeys()
	})
}

func TestTenClientsGetTwentyTurnsEach(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(2), ms(1), ms(2), ms(1))
		processes := w.processes(10, WithWait(30*time.Second))
		begin := time.Now()
		var inside atomic.Int32
		var wg sync.WaitGroup
		for _, l := range processes {
			wg.Go(func() {
				for range 20 {
					lease, err := l.Lock(t.Context(), "a")
					if assert.NoError(t, err) {
						assert.EqualValues(t, 1, inside.Add(1))
						time.Sleep(ms(5))
						inside.Add(-1)
						assert.NoError(t, lease.Unlock(t.Context()))
					}
				}
			})
		}
		wg.Wait()
		took := time.Since(begin)
		t.Logf("200 turns in %v", took)
		assert.Less(t, took, 30*time.Second)
	})
}

func TestSafetyTriesOfManyDoNotLineUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		lockers := w.processes(20)
		w.Cluster.Inject("at 0s, all: lose messages") // there may be none
		w.plant("a", 4*time.Second, 1, 2, 3)
		begin := time.Now()
		var mu sync.Mutex
		var moments []time.Duration
		var wg sync.WaitGroup
		for _, l := range lockers {
			watched, err := l.With(WithHooks(Hooks{Round: func(_ context.Context, r Round) {
				mu.Lock()
				defer mu.Unlock()
				if r.Op == "lock" {
					moments = append(moments, time.Since(begin)-r.Took)
				}
			}}))
			require.NoError(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), 3800*time.Millisecond)
			defer cancel()
			wg.Go(func() { watched.Lock(ctx, "a") })
		}
		wg.Wait()
		slices.Sort(moments)
		moments = moments[slices.IndexFunc(moments, func(d time.Duration) bool { return d > ms(400) }):]
		assert.GreaterOrEqual(t, len(moments), 50)
		assert.LessOrEqual(t, len(moments), 80, "at most one safety try a second, each")
		var sum, squares float64
		for i := range moments[1:] {
			d := (moments[i+1] - moments[i]).Seconds()
			sum, squares = sum+d, squares+d*d
			near := 0
			for _, m := range moments {
				if m >= moments[i] && m < moments[i]+ms(5) {
					near++
				}
			}
			assert.LessOrEqual(t, near, 10, "within 5 ms of %v", moments[i])
		}
		mean := sum / float64(len(moments)-1)
		variation := math.Sqrt(squares/float64(len(moments)-1)-mean*mean) / mean
		assert.GreaterOrEqual(t, variation, 0.1)
	})
}

func TestEveryWaitGoesWithEveryLease(t *testing.T) {
	t.Parallel()
	for _, wait := range []time.Duration{-1, 0, ms(50), 2 * time.Second} {
		for _, ttl := range []time.Duration{ms(100), time.Second, 10 * time.Second} {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, ms(1), ms(1), ms(1))
				opts := []Option{WithTTL(ttl)}
				if wait >= 0 {
					opts = append(opts, WithWait(wait))
				}
				var inside, turns atomic.Int32
				var wg sync.WaitGroup
				for _, l := range w.processes(2, opts...) {
					for range 4 {
						wg.Go(func() {
							for end := time.Now().Add(3 * time.Second); time.Now().Before(end); {
								begin := time.Now()
								lease, err := l.Lock(t.Context(), "a")
								if wait >= 0 {
									assert.LessOrEqual(t, time.Since(begin), wait+l.cfg.nodeTimeout)
								}
								if err != nil {
									assert.True(t, wait >= 0, "%v", err)
									time.Sleep(ms(5))
									continue
								}
								assert.EqualValues(t, 1, inside.Add(1))
								turns.Add(1)
								assert.LessOrEqual(t, w.ttl(1, "a"), ttl)
								time.Sleep(ms(30))
								inside.Add(-1)
								assert.NoError(t, lease.Unlock(t.Context()))
							}
						})
					}
				}
				wg.Wait()
				assert.Greater(t, turns.Load(), int32(40), "wait %v, ttl %v", wait, ttl)
			})
		}
	}
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker(WithWait(0))
		lease, err := l.Lock(t.Context(), "free")
		require.NoError(t, err)
		before := w.attempts(1, "free")
		_, err = l.Lock(t.Context(), "free")
		require.ErrorIs(t, err, ErrHeld)
		time.Sleep(time.Second)
		assert.Equal(t, before+1, w.attempts(1, "free"), "no wait is one attempt")
		require.NoError(t, lease.Unlock(t.Context()))
	})
}

func TestReleaseWhileTheSubscriptionIsBeingConfirmedIsNotMissed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		a, b := w.process("a", WithTTL(30*time.Second)), w.process("b")
		w.Inject("at 0s on SUBSCRIBE, all: delay 200ms replies")
		var worst time.Duration
		for i := range 200 {
			name := fmt.Sprint("name", i)
			lease, err := a.Lock(t.Context(), name)
			require.NoError(t, err)
			got := waitFor(t, b, name)
			time.Sleep(ms(2) + ms(50)*time.Duration(i)/200)
			begin := time.Now()
			require.NoError(t, lease.Unlock(t.Context()))
			worst = max(worst, (<-got).Sub(begin))
		}
		assert.LessOrEqual(t, worst, ms(200)+ms(50))
	})
}

func TestSubscriptionThatDiesCostsAPollingIntervalAtMost(t *testing.T) {
	for _, c := range []struct {
		faults string
		sleep  time.Duration
		most   time.Duration
	}{
		{"at 0s, all from b: cut", ms(10), ms(200)},
		{"at 0s, all from b: hang messages", ms(10), ms(1150)},
		{"at 0s, all from b: hang messages", 10 * time.Second, ms(1150)},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, ms(1), ms(1), ms(1))
			a, b := w.process("a", WithTTL(time.Minute)), w.process("b")
			lease, err := a.Lock(t.Context(), "a")
			require.NoError(t, err)
			got := waitFor(t, b, "a")
			time.Sleep(ms(1500))
			w.Inject(c.faults)
			before := w.executed(1, "SUBSCRIBE")
			for i := 1; i <= 3 && c.sleep > feedSilence; i++ {
				w.publish(i, "redlock:released:a", "it dies of this")
			}
			time.Sleep(c.sleep)
			if c.sleep > feedSilence {
				assert.Greater(t, w.executed(1, "SUBSCRIBE"), before, "its silence is noticed")
			}
			begin := time.Now()
			require.NoError(t, lease.Unlock(t.Context()))
			took := (<-got).Sub(begin)
			assert.LessOrEqual(t, took, c.most, c.faults)
			t.Logf("%s: %v", c.faults, took)
		})
	}
}

func TestForgedMessagesCostFewTriesAndNoLock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		a, b := w.process("a", WithTTL(time.Minute)), w.process("b")
		lease, err := a.Lock(t.Context(), "a")
		require.NoError(t, err)
		got := waitFor(t, b, "a")
		time.Sleep(time.Second)
		before := w.attempts(1, "a")
		stop := time.Now().Add(10 * time.Second)
		var wg sync.WaitGroup
		for i := 1; i <= 3; i++ {
			wg.Go(func() {
				for k := 0; time.Now().Before(stop); k++ {
					w.publish(i, "redlock:released:a", []string{"x", "", "forged:" + fmt.Sprint(k), strings.Repeat("long", 100)}[k%4])
				}
			})
		}
		wg.Wait()
		assert.LessOrEqual(t, w.attempts(1, "a")-before, 10*50)
		assert.NoError(t, lease.Err())
		begin := time.Now()
		require.NoError(t, lease.Unlock(t.Context()))
		assert.LessOrEqual(t, (<-got).Sub(begin), ms(100))
	})
}

func TestHundredsWaitForOneNameAndHalfOfThemLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l, err := New(w.Client("a").Redis(func(o *redis.Options) { o.PoolSize = 4 }))
		require.NoError(t, err)
		defer l.Close()
		l.warm()
		lease, err := l.Lock(t.Context(), "a")
		require.NoError(t, err)
		var had, left atomic.Int32
		var wg sync.WaitGroup
		for i := range 500 {
			ctx, cancel := context.WithCancel(t.Context())
			if i%2 == 0 {
				time.AfterFunc(ms(20+i*7%400), cancel)
			}
			wg.Go(func() {
				defer cancel()
				lease, err := l.Lock(ctx, "a")
				if err != nil {
					assert.ErrorIs(t, err, context.Canceled)
					left.Add(1)
					return
				}
				had.Add(1)
				time.Sleep(ms(1))
				assert.NoError(t, lease.Unlock(ctx))
			})
		}
		time.Sleep(ms(300))
		require.NoError(t, lease.Unlock(t.Context()))
		wg.Wait()
		assert.EqualValues(t, 500, had.Load()+left.Load())
		assert.GreaterOrEqual(t, had.Load(), int32(250))
		time.Sleep(time.Second)
		w.requireNoKeys()
		assert.Empty(t, w.channels(1))
	})
}

func TestClosingEndsSubscriptionsAndWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.process("a")
		w.plant("a", time.Minute, 1, 2, 3)
		failed := make(chan error)
		for range 3 {
			go func() {
				_, err := l.Lock(t.Context(), "a")
				failed <- err
			}()
		}
		time.Sleep(time.Second)
		require.Len(t, w.channels(2), 1)
		begin := time.Now()
		closed := make(chan error)
		go func() { closed <- l.Close() }()
		for range 3 {
			assert.ErrorIs(t, <-failed, ErrClosed)
		}
		require.NoError(t, <-closed)
		assert.LessOrEqual(t, time.Since(begin), ms(10))
		synctest.Wait()
		assert.Empty(t, w.channels(2))
	})
}
