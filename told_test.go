package redlock

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestLossIsToldWhoeverNoticesItFirst(t *testing.T) {
	for name, notice := range map[string]func(*Locker, *Lease) error{
		"Unlock": func(_ *Locker, lease *Lease) error { return lease.Unlock(background) },
		"Detach": func(_ *Locker, lease *Lease) error { return lease.Detach(background) },
		"Extend": func(_ *Locker, lease *Lease) error { return lease.Extend(background, time.Minute) },
		"Err, then Unlock": func(_ *Locker, lease *Lease) error {
			assert.ErrorIs(t, lease.Err(), ErrLost)
			return lease.Unlock(background)
		},
		"Err, then Close": func(l *Locker, lease *Lease) error {
			assert.ErrorIs(t, lease.Err(), ErrLost)
			require.NoError(t, l.Close())
			return lease.Err()
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, ms(2), ms(2), ms(2))
				clock := &fakeClock{}
				var told []error
				l := w.locker(withClock(clock), WithHooks(Hooks{Lost: func(_ context.Context, _ *Lease, err error) {
					told = append(told, err)
				}}))
				lease, err := l.TryLock(t.Context(), "a")
				require.NoError(t, err)
				clock.sleep(time.Minute)
				require.ErrorIs(t, notice(l, lease), ErrLost)
				time.Sleep(time.Second)
				synctest.Wait()
				require.Len(t, told, 1)
				assert.ErrorIs(t, told[0], ErrLost)
			})
		})
	}
}

func TestHookThatHangsCostsBoundedMemoryAndNoLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(2), ms(2), ms(2))
		hang := make(chan struct{})
		var rounds, risks, losses int
		l := w.locker(WithTTL(time.Second), WithAutoExtend(), WithHooks(Hooks{
			Round: func(_ context.Context, r Round) {
				if r.Op == "renew" {
					<-hang
					rounds++
				}
			},
			AtRisk: func(context.Context, *Lease, error) { risks++ },
			Lost:   func(context.Context, *Lease, error) { losses++ },
		}))
		untold := func() int {
			l.root.teller.mu.Lock()
			defer l.root.teller.mu.Unlock()
			return len(l.root.teller.what)
		}
		const many, room = 20, 30
		for i := range many {
			_, err := l.TryLock(t.Context(), fmt.Sprint("lock ", i))
			require.NoError(t, err)
		}
		time.Sleep(500 * time.Millisecond)
		for untold() < maxUntold-room {
			l.root.teller.tell(func() { rounds++ })
		}
		time.Sleep(3 * time.Second)
		require.Equal(t, maxUntold, untold())
		w.Inject("at 0s for 3s, all: hang")
		time.Sleep(3 * time.Second)
		assert.Equal(t, maxUntold+2*many, untold())
		close(hang)
		time.Sleep(time.Second)
		synctest.Wait()
		assert.Equal(t, maxUntold+1, rounds, "with the one that was being told")
		assert.Equal(t, many, risks)
		assert.Equal(t, many, losses)
		assert.Zero(t, untold())
	})
}

func TestRenewalThatIsWonAsItIsGivenUpIsToldOnceAndIsNoRisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(2), ms(2), ms(2))
		var told []string
		l := w.locker(WithAutoExtend(), WithHooks(Hooks{
			Round: func(_ context.Context, r Round) {
				if r.Op == "renew" {
					told = append(told, r.Op)
				}
			},
			AtRisk: func(context.Context, *Lease, error) { told = append(told, "at risk") },
		}))
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		late := newRound(extend, "renew", lease, l.cfg.clock.start(), time.Second, time.Second)
		late.then = func() { lease.renewed(late) }
		late.answer(0, Vote{Outcome: Granted})
		late.answer(1, Vote{Outcome: Granted})
		lease.send(late, nil, nil)
		synctest.Wait()
		assert.Equal(t, []string{"renew"}, told)
	})
}

func TestCloseWaitsForHooksButNotForOneThatHangs(t *testing.T) {
	for name, c := range map[string]struct {
		slow time.Duration
		ends string
	}{
		"one that is slow": {100 * time.Millisecond, ""},
		"one that hangs":   {time.Hour, "a hook has not returned"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, ms(2), ms(2), ms(2))
				var returned atomic.Bool
				l := w.locker(WithTTL(time.Second), WithHooks(Hooks{Lost: func(context.Context, *Lease, error) {
					time.Sleep(c.slow)
					returned.Store(true)
				}}))
				lease, err := l.TryLock(t.Context(), "a")
				require.NoError(t, err)
				<-lease.Done()
				begin := time.Now()
				err = l.Close()
				if c.ends == "" {
					assert.NoError(t, err)
					assert.True(t, returned.Load())
				} else {
					assert.ErrorContains(t, err, c.ends)
					assert.LessOrEqual(t, time.Since(begin), 5*time.Second)
				}
				time.Sleep(2 * time.Hour)
			})
		})
	}
}
