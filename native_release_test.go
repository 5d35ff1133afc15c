package redlock

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestWaitersAreToldOfANativeRelease(t *testing.T) {
	for name, d := range compliant {
		synctest.Test(t, func(t *testing.T) {
			w := newSpoken(t, d, ms(1), ms(1), ms(1))
			w.denyScripts("all")
			holder, waiting := w.locker(), w.locker()
			lease, err := holder.Lock(t.Context(), "a")
			require.NoError(t, err)
			got := make(chan time.Time)
			go func() {
				next, err := waiting.Lock(t.Context(), "a")
				assert.NoError(t, err)
				got <- time.Now()
				next.Unlock(t.Context())
			}()
			time.Sleep(2*time.Second + ms(100))
			begin := time.Now()
			require.NoError(t, lease.Unlock(t.Context()))
			assert.Less(t, (<-got).Sub(begin), ms(10), name)
			time.Sleep(ms(100))
			w.requireNoKeys()
		})
	}
}

func TestAPublicationThatIsDeniedOrLostHidesNoNativeRelease(t *testing.T) {
	for fault, plan := range map[string]string{
		"denied":         `on PUBLISH, all: error "NOPERM No permissions to access a channel"`,
		"lost":           `on PUBLISH, node 1: lose reply`,
		"cut off":        `on PUBLISH, all: cut before`,
		"never answered": `on PUBLISH, node 2: lose request`,
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newSpoken(t, valkey9, ms(1), ms(1), ms(1))
			w.denyScripts("all")
			l := w.locker()
			lease, err := l.Lock(t.Context(), "a")
			require.NoError(t, err)
			time.Sleep(ms(10))
			w.Inject(plan)
			require.NoError(t, lease.Unlock(t.Context()), fault)
			time.Sleep(time.Second)
			w.requireNoKeys()
			assert.Zero(t, l.Stats().Owed, fault)
			again, err := l.Lock(t.Context(), "a")
			require.NoError(t, err, fault)
			require.NoError(t, again.Unlock(t.Context()), fault)
		})
	}
}

func TestNothingOfALostRoundStaysWithoutScripts(t *testing.T) {
	for name, d := range compliant {
		for fault, plan := range map[string]string{
			"no reply":                    "for 45.5ms on any, nodes 1,2: lose reply",
			"cut instead of the reply":    `on SET key "a", nodes 1,2: cut during`,
			"late":                        `on SET key "a", nodes 1,2: delay 2s`,
			"none, and the scripts tried": "",
		} {
			synctest.Test(t, func(t *testing.T) {
				w := newSpoken(t, d, ms(1), ms(1), ms(1), ms(1), ms(1))
				w.denyScripts("all")
				l := w.locker(WithTTL(30*time.Second), WithNodeTimeout(ms(50)))
				if plan == "" { // nothing is known of the servers
					l = w.cold(WithTTL(30*time.Second), WithNodeTimeout(ms(50)))
				}
				w.plant("a", 30*time.Second, 3, 4, 5)
				w.Inject(plan)
				_, err := l.TryLock(t.Context(), "a")
				require.ErrorIs(t, err, ErrHeld, "%s, %s", name, fault)
				time.Sleep(3 * time.Second)
				assert.Equal(t, []string{"", "", "foreign", "foreign", "foreign"}, w.keys("a"), "%s, %s", name, fault)
			})
		}
	}
}

func TestANativeReleaseThatWasNotHeardOfIsRepeatedAndCountsAsDone(t *testing.T) {
	for name, d := range compliant {
		synctest.Test(t, func(t *testing.T) {
			w := newSpoken(t, d, ms(1), ms(1), ms(1))
			w.denyScripts("all")
			l := w.locker(WithNodeTimeout(ms(100)))
			lease, err := l.Lock(t.Context(), "a")
			require.NoError(t, err)
			time.Sleep(ms(10))
			struck := w.Inject(`on any key "a" #1, all: cut during`)
			require.NoError(t, lease.Unlock(t.Context()), "the answer was lost, and it was ours: %s", name)
			require.GreaterOrEqual(t, struck.Fired(), 2)
			w.requireNoKeys()

			lease, err = l.Lock(t.Context(), "a")
			require.NoError(t, err)
			time.Sleep(ms(10))
			hang := w.Inject("at 0s, all: hang")
			require.ErrorIs(t, lease.Unlock(t.Context()), ErrNoQuorum, name)
			time.Sleep(ms(100))
			hang.Stop()
			time.Sleep(time.Second)
			w.requireNoKeys()
			assert.Zero(t, l.Stats().Owed, name)
		})
	}
}

func TestDoWorksWithoutScriptsAlsoWhenItsCallerHasGone(t *testing.T) {
	for name, d := range compliant {
		synctest.Test(t, func(t *testing.T) {
			w := newSpoken(t, d, ms(1), ms(1), ms(1))
			w.denyScripts("nodes 1,2")
			l := w.locker()
			ctx, cancel := context.WithCancel(t.Context())
			err := l.Do(ctx, "a", func(ctx context.Context) error {
				time.Sleep(time.Minute)
				require.NoError(t, ctx.Err(), "renewed, %s", name)
				cancel()
				return nil
			})
			require.NoError(t, err)
			time.Sleep(ms(10))
			w.requireNoKeys()
		})
	}
}

// Most repetitions delete nothing, and what they told would be for nobody.
func TestARepeatedNativeReleaseTellsNobodyAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSpoken(t, redis84, ms(1), ms(1), ms(1))
		w.denyScripts("all")
		l := w.locker(WithNodeTimeout(ms(100)))
		begin := w.executed(1, "PUBLISH redlock:released:a")
		for i := range 3 {
			w.Inject(fmt.Sprintf(`on SET key "a" #1, node %d: lose request`, i+1))
		}
		_, err := l.TryLock(t.Context(), "a")
		require.ErrorIs(t, err, ErrNoQuorum)
		time.Sleep(time.Minute)
		assert.Greater(t, w.executed(1, "DELEX a"), 3, "repeated, since the SET may still arrive")
		assert.LessOrEqual(t, w.executed(1, "PUBLISH redlock:released:a")-begin, 1)
		assert.Zero(t, l.Stats().Owed)
	})
}
