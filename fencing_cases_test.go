package redlock

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Two who get half of four nodes each, again and again: the numbers that losers have
// burnt on some nodes do not keep the winners' from rising.
func TestFencesRiseThroughSplitVotes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1), ms(1))
		a, b := w.process("a", WithFencing()), w.process("b", WithFencing(), withClock(backdated(time.Minute)))
		w.Inject("at 0s, nodes 3,4 from a: delay 20ms requests\nat 0s, nodes 1,2 from b: delay 20ms requests")
		last := uint64(0)
		for range 50 {
			var both sync.WaitGroup
			for _, l := range []*Locker{a, b} {
				both.Go(func() {
					lease, err := l.Lock(t.Context(), "a")
					if assert.NoError(t, err) {
						assert.Greater(t, lease.Fence(), last) // the lock guards it
						last = lease.Fence()
						time.Sleep(ms(10))
						assert.NoError(t, lease.Unlock(t.Context()))
					}
				})
			}
			both.Wait()
			time.Sleep(ms(200))
		}
		assert.Equal(t, []string{"", "", "", ""}, w.keys("a"))
	})
}

// A release that failed, and is executed late, leaves a number behind that nobody gets
// again, and no way back in.
func TestFenceAfterAFailedUnlockIsNewAndHigher(t *testing.T) {
	for _, late := range []string{"hang", "hang replies", "partition"} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, ms(1), ms(1), ms(1))
			a, b := w.process("a", WithFencing(), WithAutoExtend()), w.process("b", WithFencing())
			lease, err := a.Lock(t.Context(), "a")
			require.NoError(t, err)
			time.Sleep(ms(10))
			w.Inject("at 0s for 700ms, all from a: " + late)
			require.ErrorIs(t, lease.Unlock(t.Context()), ErrNoQuorum, late)
			if again, err := a.TryLock(t.Context(), "a"); err == nil {
				assert.Greater(t, again.Fence(), lease.Fence())
				require.NoError(t, again.Unlock(t.Context()))
			}
			ctx, cancel := context.WithTimeout(t.Context(), 12*time.Second)
			defer cancel()
			next, err := b.Lock(ctx, "a")
			require.NoError(t, err, late)
			assert.Greater(t, next.Fence(), lease.Fence())
			require.NoError(t, next.Unlock(t.Context()))
			third, err := a.Lock(ctx, "a")
			require.NoError(t, err)
			assert.Greater(t, third.Fence(), next.Fence())
			require.NoError(t, third.Unlock(t.Context()))
		})
	}
}
