package redlock

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestDetachWaitsForTheExtendThatIsUnderWay(t *testing.T) {
	for name, c := range map[string]struct {
		plan  string
		takes time.Duration
	}{
		"a long line": {"", ms(300) - ms(100)},
		"nodes hang":  {"at 0s, nodes 2,3: hang", ms(500) - ms(100)},
		"no way back": {"at 250ms, node 3: hang\nat 250ms, node 3: cut", ms(250) - ms(100)}, // it is not sent again
		"no reply":    {"at 0s on EVALSHA, all: lose reply", ms(500) - ms(100)},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, ms(100), ms(200), ms(300))
			l := w.locker(WithNodeTimeout(ms(500)))
			lease, err := l.TryLock(t.Context(), "a")
			require.NoError(t, err)
			time.Sleep(time.Second)
			struck := w.Inject(c.plan)
			var wg sync.WaitGroup
			for range 3 {
				wg.Go(func() { assert.ErrorIs(t, lease.Extend(t.Context(), time.Minute), ErrReleased, name) })
			}
			time.Sleep(ms(100) - 1)
			begin := time.Now()
			require.NoError(t, lease.Detach(t.Context()))
			assert.InDelta(t, c.takes, time.Since(begin), float64(ms(1)), name)
			for i := range lease.claims {
				n := l.root.nodes[i]
				n.mu.Lock()
				assert.Zero(t, lease.claims[i].flying, "%s: node %d", name, i+1)
				n.mu.Unlock()
			}
			struck.Stop()
			before := w.told(lease.Token())
			wg.Wait()
			lease.Unlock(t.Context())
			time.Sleep(5 * time.Second)
			assert.Equal(t, before, w.told(lease.Token()), "%s: nothing comes after it", name)
			l.requireQuiet(t)
		})
	}
}

func TestDetachEndsTheRenewalsAndRepairs(t *testing.T) {
	renewed := 0
	for at := 950; at < 1700; at += 50 {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, ms(100), ms(200), ms(300))
			l := w.locker(WithTTL(3*time.Second), WithNodeTimeout(ms(500)), WithAutoExtend())
			lease, err := l.TryLock(t.Context(), "a")
			require.NoError(t, err)
			time.Sleep(ms(500))
			w.Inject(`at 0s, node 1: evict "a"`) // to be repaired after the renewal
			begun := w.told(lease.Token())
			time.Sleep(ms(at - 500))
			require.NoError(t, lease.Detach(t.Context()))
			before := w.told(lease.Token())
			renewed += before - begun
			time.Sleep(ms(1500))
			assert.Equal(t, before, w.told(lease.Token()), "detached at %d ms", at)
			l.requireQuiet(t)
		})
	}
	assert.Positive(t, renewed)
}

func TestDetachDropsWhatIsNotWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1), ms(1))
		l := w.locker(WithTTL(30*time.Second), WithNodeTimeout(ms(500)))
		// Node 4 answers no release, so on it the next acquire of the name waits for
		// one; node 3 hangs in something else.
		first, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		time.Sleep(ms(10))
		struck := w.Inject("at 0s, node 4: hang")
		require.NoError(t, first.Unlock(t.Context()))
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		go lease.Extend(t.Context(), time.Minute) // on node 4 behind its acquire
		time.Sleep(ms(20))
		n := l.root.nodes[3]
		n.mu.Lock()
		require.NotNil(t, lease.claims[3].acquire)
		require.Zero(t, lease.claims[3].flying)
		n.mu.Unlock()
		begin := time.Now()
		require.NoError(t, lease.Detach(t.Context()))
		assert.Zero(t, time.Since(begin), "nothing of its own was under way")
		n.mu.Lock()
		assert.Nil(t, lease.claims[3].acquire)
		assert.Zero(t, n.queue.len)
		n.mu.Unlock()
		struck.Stop()
		time.Sleep(5 * time.Second)
		for _, c := range w.log(4) {
			assert.NotContains(t, c, lease.Token())
		}
		assert.Equal(t, []string{lease.Token(), lease.Token(), lease.Token(), ""}, w.keys("a"))
		l.requireQuiet(t)
	})
}

func TestDetachLeavesAnAcquireThatLandsLateToItsTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker(WithTTL(5*time.Second), WithNodeTimeout(ms(200)))
		w.Inject(`on SET key "a" #1, node 3: delay 2s`) // executed after 2 s
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		time.Sleep(ms(50))
		begin := time.Now()
		require.NoError(t, lease.Detach(t.Context()))
		assert.Greater(t, time.Since(begin), ms(100), "it was under way")
		assert.LessOrEqual(t, time.Since(begin), ms(200))
		next, err := l.Attach(t.Context(), "a", lease.Token())
		require.NoError(t, err)
		time.Sleep(3 * time.Second)
		assert.Equal(t, []string{next.Token(), next.Token(), lease.Token()}, w.keys("a"))
		require.NoError(t, next.Err())
		require.NoError(t, next.Extend(t.Context(), 5*time.Second), "it harms nobody")
		require.NoError(t, next.Unlock(t.Context()))
		time.Sleep(ms(10))
		assert.Equal(t, lease.Token(), w.keys("a")[2], "no release is sent for it")
		time.Sleep(5 * time.Second)
		w.requireNoKeys()
		l.requireQuiet(t)
	})
}

func TestDetachOfALostLeaseDetachesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		var told atomic.Int32
		l := w.locker(WithTTL(time.Second), WithHooks(Hooks{Lost: func(context.Context, *Lease, error) { told.Add(1) }}))
		for end := range 3 {
			lease, err := l.TryLock(t.Context(), "a")
			require.NoError(t, err)
			time.Sleep(lease.Validity() - l.cfg.lead() + time.Duration(end-1)*ms(1))
			err = lease.Detach(t.Context())
			if end == 0 {
				require.NoError(t, err)
				token := lease.Token()
				time.Sleep(ms(5))
				assert.Equal(t, []string{token, token, token}, w.keys("a"), "the loss timer finds it over")
				time.Sleep(ms(100))
				assert.Zero(t, told.Load())
				continue
			}
			assert.ErrorIs(t, err, ErrLost)
			assert.NotErrorIs(t, err, ErrReleased)
			time.Sleep(time.Until(lease.Until().Add(ms(2))))
			w.requireNoKeys()
			assert.EqualValues(t, end, told.Load())
			assert.ErrorIs(t, lease.Unlock(t.Context()), ErrLost)
			assert.ErrorIs(t, lease.Detach(t.Context()), ErrLost, "it stays lost")
		}
		l.requireQuiet(t)
	})
}

func TestDetachAndCloseAtOnceMissNothing(t *testing.T) {
	for delay := -3; delay <= 3; delay++ {
		for _, sibling := range []bool{false, true} {
			for range 5 {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t, ms(2), ms(4), ms(8))
					l := w.locker()
					s := l
					if sibling {
						var err error
						s, err = l.With(WithTTL(time.Minute))
						require.NoError(t, err)
					}
					lease, err := s.TryLock(t.Context(), "a")
					require.NoError(t, err)
					go lease.Extend(t.Context(), time.Minute)
					time.Sleep(ms(5))
					var wg sync.WaitGroup
					wg.Go(func() {
						time.Sleep(ms(max(delay, 0)))
						assert.NoError(t, s.Close())
					})
					time.Sleep(ms(max(-delay, 0)))
					err = lease.Detach(t.Context())
					before := w.told(lease.Token())
					wg.Wait()
					time.Sleep(ms(20))
					if err == nil {
						assert.ErrorIs(t, lease.Err(), ErrReleased)
						assert.Equal(t, before, w.told(lease.Token()))
						assert.Equal(t, lease.Token(), w.keys("a")[0])
						assert.Equal(t, lease.Token(), w.keys("a")[1])
					} else {
						assert.ErrorIs(t, err, ErrClosed)
						assert.ErrorIs(t, lease.Err(), ErrClosed)
						w.requireNoKeys()
					}
					if delay != 0 {
						assert.Equal(t, delay > 0, err == nil, "delay %d: %v", delay, err)
					}
				})
			}
		}
	}
}

// nosyClock runs something in the middle of an operation that looks at the clock.
type nosyClock struct {
	fakeClock
	then atomic.Pointer[func()]
}

func (c *nosyClock) look() instant {
	if f := c.then.Swap(nil); f != nil {
		(*f)()
	}
	return c.fakeClock.look()
}

func TestDetachLeavesToCloseWhatThatHasTaken(t *testing.T) {
	for _, sibling := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, ms(1), ms(1), ms(1))
			clock := &nosyClock{}
			l := w.locker(withClock(clock))
			s := l
			if sibling {
				var err error
				s, err = l.With(WithTTL(time.Minute))
				require.NoError(t, err)
			}
			lease, err := s.TryLock(t.Context(), "a")
			require.NoError(t, err)
			time.Sleep(ms(5))
			var closing sync.WaitGroup
			inTheMiddle := func() {
				closing.Go(func() { assert.NoError(t, s.Close()) })
				for taken := false; !taken; runtime.Gosched() {
					taken = len(l.leases()) == 0
				}
			}
			clock.then.Store(&inTheMiddle)
			assert.ErrorIs(t, lease.Detach(t.Context()), ErrClosed)
			closing.Wait()
			assert.ErrorIs(t, lease.Err(), ErrClosed)
			w.requireNoKeys()
		})
	}
}

func TestDetachAndUnlockAtOnceAgree(t *testing.T) {
	for i := range 40 {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, ms(2), ms(4), ms(8))
			l := w.locker()
			lease, err := l.TryLock(t.Context(), "a")
			require.NoError(t, err)
			time.Sleep(ms(i % 10))
			var wg sync.WaitGroup
			var mu sync.Mutex
			detached, unlocked := 0, 0
			for k := range 12 {
				wg.Go(func() {
					switch k % 3 {
					case 0:
						if err := lease.Detach(t.Context()); err == nil {
							mu.Lock()
							detached++
							mu.Unlock()
						} else {
							assert.ErrorIs(t, err, ErrReleased)
						}
					case 1:
						if err := lease.Unlock(t.Context()); err == nil {
							mu.Lock()
							unlocked++
							mu.Unlock()
						} else {
							assert.ErrorIs(t, err, ErrReleased)
						}
					case 2:
						lease.Extend(t.Context(), time.Minute)
					}
				})
			}
			wg.Wait()
			assert.True(t, detached == 1 && unlocked == 0 || detached == 0 && unlocked == 4, "%d, %d", detached, unlocked)
			time.Sleep(ms(20))
			if detached == 0 {
				w.requireNoKeys()
			} else {
				assert.Equal(t, lease.Token(), w.keys("a")[0])
				next, err := l.Attach(t.Context(), "a", lease.Token())
				require.NoError(t, err)
				require.NoError(t, next.Unlock(t.Context()))
				time.Sleep(ms(20))
			}
			l.requireQuiet(t)
		})
	}
}

func TestDetachIgnoresThatTheCallerHasGoneAndEndsWhatIsNested(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker(WithReentrancy())
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		nested, err := l.TryLock(lease.Context(t.Context()), "a")
		require.NoError(t, err)
		before := w.sent()
		err = nested.Detach(t.Context())
		assert.ErrorIs(t, err, ErrInvalid)
		assert.ErrorContains(t, err, "outermost")
		require.NoError(t, nested.Err())

		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.NoError(t, lease.Detach(ctx))
		assert.ErrorIs(t, nested.Err(), ErrReleased)
		assert.ErrorIs(t, nested.Unlock(ctx), ErrReleased)
		assert.Equal(t, before, w.sent())
		next, err := l.Attach(t.Context(), "a", lease.Token())
		require.NoError(t, err)
		assert.Nil(t, next.outer)
		require.NoError(t, next.Unlock(t.Context()))
		var none *Lease
		assert.ErrorIs(t, none.Detach(ctx), ErrLost)
	})
}

func TestDoLeavesWhatItsFunctionHasDetached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker()
		var token string
		require.NoError(t, l.Do(t.Context(), "a", func(ctx context.Context) error {
			token = FromContext(ctx).Token()
			return FromContext(ctx).Detach(ctx)
		}))
		time.Sleep(ms(10))
		assert.Equal(t, []string{token, token, token}, w.keys("a"))
		lease, err := l.Attach(t.Context(), "a", token)
		require.NoError(t, err)
		require.NoError(t, lease.Unlock(t.Context()))
	})
}

func TestHooksSeeTheHandOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(2), ms(3))
		l := w.locker()
		var seen []string
		l, err := l.With(WithTTL(time.Second), WithHooks(Hooks{
			Start: func(_ context.Context, op Op) context.Context { seen = append(seen, "start "+op.Kind); return nil },
			Round: func(_ context.Context, r Round) {
				seen = append(seen, fmt.Sprint("round ", r.Op, " ", r.Attempt, " ", r.Count(Granted)))
			},
			Done: func(_ context.Context, op Op, lease *Lease, err error) {
				seen = append(seen, fmt.Sprint("done ", op.Kind, " ", lease != nil, " ", err == nil))
			},
		}))
		require.NoError(t, err)
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		require.NoError(t, lease.Detach(t.Context()))
		lease.Unlock(t.Context())
		_, err = l.Attach(t.Context(), "a", lease.Token())
		require.NoError(t, err)
		_, err = l.Attach(t.Context(), "a", lease.Token())
		require.Error(t, err)
		assert.Equal(t, []string{
			"start trylock", "round trylock 1 2", "done trylock true true",
			"start detach", "done detach true true",
			"start attach", "round attach 0 2", "done attach true true",
			"start attach", "round attach 0 0", "done attach false false",
		}, seen)
	})
}
