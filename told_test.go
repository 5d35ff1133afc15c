package redlock

import (
	"context"
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
