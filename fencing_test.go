package redlock

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
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

// plantCounters gives a name's counter a number per node; 0: none.
func (w *world) plantCounters(name string, numbers ...uint64) {
	for i, n := range numbers {
		if n > 0 {
			require.NoError(w.t, w.Node(i+1).Set(fenceCounter(name), strconv.FormatUint(n, 10), 0))
		}
	}
}

// far is above everything that clocks propose.
const far = 1 << 52

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
				w.plantCounters("a", far, far+1, far+2)
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

func contextFor(d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(background, d)
}

// backdated is a clock whose wall is wrong by a constant.
func backdated(by time.Duration) clock {
	c := new(fakeClock)
	c.jump(-by)
	return c
}

// Four processes far apart want one lock, one node is away now and then, and yet
// hardly any lock takes a second round trip.
func TestOneRoundTripIsTheNormalCostOfAFencedLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(20), ms(20), ms(40), ms(80))
		var lockers []*Locker
		for i := range 4 {
			lockers = append(lockers, w.locker(WithFencing(), withClock(backdated(time.Duration(i)*ms(30)))))
		}
		w.Inject("at 2s for 3s, node 2: hang\nat 8s for 3s, node 1: partition\non EVALSHA 3%, all: lose reply")
		end := time.Now().Add(30 * time.Second)
		var everybody sync.WaitGroup
		for _, l := range lockers {
			everybody.Go(func() {
				for time.Now().Before(end) {
					if lease, err := l.Lock(t.Context(), "a"); err == nil {
						time.Sleep(ms(5))
						lease.Unlock(t.Context())
					}
				}
			})
		}
		everybody.Wait()
		fenced, raised := uint64(0), uint64(0)
		for _, l := range lockers {
			fenced, raised = fenced+l.Stats().Fenced, raised+l.Stats().Raised
		}
		t.Logf("%d of %d fenced locks took a second round trip", raised, fenced)
		assert.Greater(t, fenced, uint64(200))
		assert.Less(t, raised*10, fenced)
	})
}

func TestCountersThatDifferAreRaisedInOneMoreRoundTrip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(10), ms(10), ms(10))
		l := w.locker(WithFencing())
		before := l.Stats()
		w.plantCounters("a", far, far+5, far+5)
		w.Inject("at 0s for 30ms, node 3: delay 15ms") // its vote comes after the raise began
		start := time.Now()
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		assert.Equal(t, ms(20), time.Since(start))
		assert.EqualValues(t, far+6, lease.Fence())
		assert.Equal(t, before.Fenced+1, l.Stats().Fenced)
		assert.Equal(t, before.Raised+1, l.Stats().Raised)
		time.Sleep(ms(50))
		assert.Equal(t, []uint64{far + 6, far + 6, far + 6}, w.counters("a"))
		require.NoError(t, lease.Unlock(t.Context()))
	})
}

func TestNodeThatVotesAfterTheAgreementCatchesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(10), ms(10), ms(90))
		l := w.locker(WithFencing())
		w.plantCounters("a", far, far, 7)
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		assert.EqualValues(t, far+1, lease.Fence())
		assert.Less(t, w.counters("a")[2], uint64(far))
		time.Sleep(ms(300))
		assert.Equal(t, []uint64{far + 1, far + 1, far + 1}, w.counters("a"))
		assert.EqualValues(t, far+1, lease.Fence())
		require.NoError(t, lease.Unlock(t.Context()))
	})
}

func TestLateVoteFromANodeThatIsAheadChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(10), ms(10), ms(90))
		l := w.locker(WithFencing())
		w.plantCounters("a", 0, 0, far)
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		fence := lease.Fence()
		require.Less(t, fence, uint64(far))
		time.Sleep(ms(300))
		require.NoError(t, lease.Extend(t.Context(), time.Minute))
		time.Sleep(ms(300))
		assert.Equal(t, fence, lease.Fence())
		assert.EqualValues(t, far+1, w.counters("a")[2], "an extension lowers no counter")
		require.NoError(t, lease.Unlock(t.Context()))
		next, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		assert.Greater(t, next.Fence(), fence)
		require.NoError(t, next.Unlock(t.Context()))
	})
}

func TestRaiseThatFailsCostsTheVoteAndLeavesNothing(t *testing.T) {
	for what, why := range map[string]string{
		`on EVAL #1-3, nodes 1,2: error "OOM command not allowed"`: "its fencing counter was not raised: OOM command not allowed",
		`on EVAL #1-3, nodes 1,2: lose reply`:                      "its fencing counter was not raised: no answer within 5",
		`on EVAL #1-3, nodes 1,2: lose request`:                    "its fencing counter was not raised: no answer within 5",
		`on EVAL #1, nodes 1,2: kill during for 1s`:                "its fencing counter was not raised: ",
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, ms(10), ms(10), ms(10))
			l := w.locker(WithFencing())
			w.plantCounters("a", far, far+1, far+2)
			fault := w.Inject(what) // the first use of the script that raises goes out as text
			begin := time.Now()
			_, err := l.TryLock(t.Context(), "a")
			require.ErrorIs(t, err, ErrNoQuorum, what)
			assert.NotErrorIs(t, err, ErrHeld)
			assert.ErrorContains(t, err, why)
			assert.LessOrEqual(t, time.Since(begin), 2*l.cfg.nodeTimeout, "a node timeout for each of the two round trips")
			time.Sleep(20 * time.Second)
			fault.Stop()
			assert.Equal(t, []string{"", "", ""}, w.keys("a"))
			told := slices.ContainsFunc(w.log(3), func(c string) bool { return strings.Contains(c, " redlock:released:a ") })
			assert.True(t, told, "a quorum had it, so others may have been kept out: %s", what)
			lease, err := l.TryLock(t.Context(), "a")
			require.NoError(t, err)
			assert.Greater(t, lease.Fence(), uint64(far+3))
			require.NoError(t, lease.Unlock(t.Context()))
		})
	}
}

func TestNodeThatLostTheLockBeforeTheRaiseDoesNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(10), ms(10), ms(10))
		l := w.locker(WithFencing())
		w.plantCounters("a", far, far+1, 0)
		w.Inject(`at 0s for 1s, node 3: hang`)
		w.Inject(`at 10ms, node 1: evict "a"`) // it has voted by then
		_, err := l.TryLock(t.Context(), "a")
		require.ErrorIs(t, err, ErrNoQuorum)
		assert.ErrorContains(t, err, errForsaken.Error())
		time.Sleep(20 * time.Second)
		assert.Equal(t, []string{"", "", ""}, w.keys("a"))
		assert.EqualValues(t, far+1, w.counters("a")[0], "a node whose lock is not ours is not raised")
	})
}

// Until is what those nodes promise that still have the lock.
func TestNodeThatLostTheLockBeforeTheRaisePromisesNothing(t *testing.T) {
	for name, tc := range map[string]struct {
		rtts  []time.Duration
		evict string
	}{
		// Nodes 4 and 5 make the quorum in place of nodes 1 and 3, which are behind.
		"before the agreement": {[]time.Duration{ms(10), ms(10), ms(10), ms(30), ms(30)}, "12ms"},
		// Nodes 2, 4 and 5 agree before node 1 is heard.
		"after it": {[]time.Duration{ms(50), ms(10), ms(10), ms(10), ms(10)}, "30ms"},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, tc.rtts...)
			l := w.locker(WithFencing())
			w.plantCounters("a", far, far+5, far, far+5, far+5)
			w.Inject(`at ` + tc.evict + `, node 1: evict "a"`)
			lease, err := l.TryLock(t.Context(), "a")
			require.NoError(t, err, name)
			assert.EqualValues(t, far+6, lease.Fence())
			time.Sleep(ms(200))
			lease.mu.Lock()
			assert.Nil(t, lease.vouches[0], name)
			assert.NotNil(t, lease.vouches[1], name)
			lease.mu.Unlock()
			require.NoError(t, lease.Unlock(t.Context()))
		})
	}
}

func TestSecondRoundTripHasItsOwnNodeTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(80), ms(80), ms(80))
		l := w.locker(WithFencing(), WithNodeTimeout(ms(100)))
		w.plantCounters("a", far, far+1, far+2)
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		assert.EqualValues(t, far+3, lease.Fence())
		require.NoError(t, lease.Unlock(t.Context()))

		short := w.locker(WithFencing(), WithNodeTimeout(ms(100)), WithTTL(ms(160)))
		w.plantCounters("b", far, far+1, far+2)
		begin := time.Now()
		_, err = short.TryLock(t.Context(), "b")
		require.ErrorIs(t, err, ErrNoQuorum)
		assert.Less(t, time.Since(begin), ms(160), "what leaves no validity is not waited for")
		assert.ErrorContains(t, err, "its fencing counter was not raised: no answer within")
	})
}

func TestLockWhoseContextEndsBetweenTheRoundTripsLeavesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(10), ms(10), ms(10))
		l := w.locker(WithFencing())
		w.plantCounters("a", far, far+1, far+2)
		ctx, cancel := contextFor(ms(15))
		defer cancel()
		_, err := l.TryLock(ctx, "a")
		require.ErrorIs(t, err, ctx.Err())
		time.Sleep(ms(100))
		assert.Equal(t, []string{"", "", ""}, w.keys("a"))
	})
}

func TestNestedLeaseHasTheOutermostFence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker(WithReentrancy())
		fenced, err := l.With(WithFencing())
		require.NoError(t, err)

		outer, err := fenced.Lock(t.Context(), "a")
		require.NoError(t, err)
		for _, locker := range []*Locker{fenced, l} {
			inner, err := locker.Lock(outer.Context(t.Context()), "a")
			require.NoError(t, err)
			assert.Equal(t, outer.Fence(), inner.Fence())
		}
		require.NoError(t, outer.Unlock(t.Context()))

		plain, err := l.Lock(t.Context(), "b")
		require.NoError(t, err)
		assert.Zero(t, plain.Fence())
		_, err = fenced.Lock(plain.Context(t.Context()), "b")
		assert.ErrorIs(t, err, ErrInvalid, "there is no number to share")
		require.NoError(t, plain.Unlock(t.Context()))
		assert.Zero(t, (*Lease)(nil).Fence())
	})
}

func TestAttachTakesANewFence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(10), ms(10), ms(10))
		l := w.locker(WithFencing())
		w.plantCounters("a", far, far+1, 0)
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		time.Sleep(ms(100))
		require.NoError(t, lease.Detach(t.Context()))
		begin := time.Now()
		attached, err := w.locker(WithFencing()).Attach(t.Context(), "a", lease.Token())
		require.NoError(t, err)
		assert.Greater(t, attached.Fence(), lease.Fence())
		assert.Less(t, time.Since(begin), 10*time.Second)
		time.Sleep(ms(100))
		assert.Equal(t, slices.Repeat([]uint64{attached.Fence()}, 3), w.counters("a"))
		_, err = l.Attach(t.Context(), "a", lease.Token())
		assert.ErrorIs(t, err, ErrLost)
		require.NoError(t, attached.Unlock(t.Context()))
	})
}

func TestFencedVotesWaitForReplicasToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReplicated(t, ms(1), ms(1), ms(1))
		l := r.locker(WithFencing(), WithReplicaAck(1, ms(100)))
		r.plantCounters("a", far, far+1, far+2)
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		assert.EqualValues(t, far+3, lease.Fence())
		require.NoError(t, lease.Extend(t.Context(), time.Minute))
		require.NoError(t, lease.Unlock(t.Context()))
		time.Sleep(ms(100))
		r.replicas[0].Store(0)
		r.replicas[1].Store(0)
		_, err = l.TryLock(t.Context(), "a")
		assert.ErrorIs(t, err, ErrNoQuorum)
		time.Sleep(time.Second)
		assert.Equal(t, []string{"", "", ""}, r.keys("a"))
	})
}

func TestAcquireWhoseReplyIsLostGetsOneNumber(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(10), ms(10), ms(10))
		l := w.locker(WithFencing())
		before := l.Stats().Raised
		w.Inject(`on EVALSHA key "a" #1, all: cut after`)
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		assert.Equal(t, before, l.Stats().Raised, "sent again it is the same acquire")
		assert.Equal(t, slices.Repeat([]uint64{lease.Fence()}, 3), w.counters("a"))
		require.NoError(t, lease.Unlock(t.Context()))
	})
}

func TestFencedWaiterIsToldOfARelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l, m := w.locker(WithFencing()), w.locker(WithFencing())
		lease, err := l.Lock(t.Context(), "a")
		require.NoError(t, err)
		got := make(chan *Lease)
		go func() {
			next, err := m.Lock(t.Context(), "a")
			assert.NoError(t, err)
			got <- next
		}()
		time.Sleep(3300 * time.Millisecond)
		begin := time.Now()
		require.NoError(t, lease.Unlock(t.Context()))
		next := <-got
		assert.Less(t, time.Since(begin), ms(20))
		assert.Greater(t, next.Fence(), lease.Fence())
		require.NoError(t, next.Unlock(t.Context()))
	})
}

func TestFencingNeedsScriptsAndNeverGoesWithout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.cold(WithFencing())
		w.Inject(`
			on EVAL, all: error "NOPERM no permissions to run the 'EVAL' command"
			on EVALSHA, all: error "NOPERM no permissions to run the 'EVALSHA' command"`)
		begin := time.Now()
		_, err := l.Lock(t.Context(), "a")
		require.ErrorIs(t, err, ErrNoQuorum)
		assert.ErrorContains(t, err, "NOPERM")
		assert.Less(t, time.Since(begin), time.Second, "no wait can cure it")
		assert.Zero(t, w.executed(1, "SET a"))
		time.Sleep(20 * time.Second)
	})
}
