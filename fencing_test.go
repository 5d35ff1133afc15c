package redlock

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// counters lists a name's fencing counter, one per node; 0 where there is none.
func (w *world) counters(name string) []uint64 {
	counters := make([]uint64, len(w.Nodes()))
	for i := range counters {
		counters[i], _ = strconv.ParseUint(w.key(i+1, fenceCounter(name)).Value, 10, 64)
	}
	return counters
}

func TestFencedLockIsOneRoundTripWhereCountersAgree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(10), ms(10), ms(10))
		l := w.locker(WithFencing())
		begin := len(w.log(1))
		start := time.Now()
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		assert.Equal(t, ms(10), time.Since(start))
		assert.Equal(t, uint64(start.UnixMicro()), lease.Fence(), "the time in microseconds")
		synctest.Wait()
		assert.Equal(t, slices.Repeat([]uint64{lease.Fence()}, 3), w.counters("a"))
		require.NoError(t, lease.Extend(t.Context(), time.Minute))
		fence := lease.Fence()
		require.NoError(t, lease.Unlock(t.Context()))
		assert.Equal(t, fence, lease.Fence())
		time.Sleep(ms(10))
		assert.Len(t, w.log(1)[begin:], 3, "commands: %v", w.log(1)[begin:])
		assert.Equal(t, slices.Repeat([]uint64{fence}, 3), w.counters("a"))
		for i := range 3 {
			assert.Empty(t, w.keys("a")[i])
			assert.InDelta(t, 7*24*time.Hour, w.ttl(i+1, fenceCounter("a")), float64(time.Second))
		}
	})
}

// Case 40 (a): whichever two of three nodes win, each token is higher than the last.
func TestFencesRiseOverChangingMajorities(t *testing.T) {
	for _, start := range []string{"clocks", "no clocks"} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, ms(1), ms(1), ms(1))
			opts := []Option{WithFencing()}
			if start == "no clocks" { // all proposals are far below what is there
				opts = append(opts, withClock(backdated(time.Hour)))
				for i := range 3 {
					require.NoError(t, w.Node(i+1).Set(fenceCounter("a"), strconv.Itoa(1<<52+i), 0))
				}
			}
			l := w.locker(opts...)
			last := uint64(0)
			for i := range 30 {
				away := i%3 + 1
				refuse := w.Inject(fmt.Sprintf(`on EVALSHA key "a", node %d: error "OOM command not allowed"`, away))
				lease, err := l.TryLock(t.Context(), "a")
				require.NoError(t, err)
				assert.Greater(t, lease.Fence(), last)
				last = lease.Fence()
				require.NoError(t, lease.Unlock(t.Context()))
				time.Sleep(ms(10))
				refuse.Stop()
			}
		})
	}
}

// backdated is a clock whose wall is wrong by a constant.
func backdated(by time.Duration) clock {
	c := new(fakeClock)
	c.jump(-by)
	return c
}

var _ = context.Background
