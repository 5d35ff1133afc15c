package redlock

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestExtensionsHealCounters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker(WithFencing())
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		time.Sleep(ms(10))
		fence, whole := lease.Fence(), 7*24*time.Hour
		require.NoError(t, w.Node(1).Set(fenceCounter("a"), "7", whole))                           // it has fallen behind
		w.Inject(fmt.Sprintf("at 0s, node 2: evict %q", fenceCounter("a")))                        // it is gone
		require.NoError(t, w.Node(3).Set(fenceCounter("a"), fmt.Sprint(fence), whole/2-time.Hour)) // it would expire
		time.Sleep(ms(10))
		require.NoError(t, lease.Extend(t.Context(), time.Minute))
		time.Sleep(ms(10))
		assert.Equal(t, []uint64{fence, fence, fence}, w.counters("a"))
		for i := range 3 {
			assert.Greater(t, w.ttl(i+1, fenceCounter("a")), whole-time.Minute)
		}
		for i := range 3 { // what is no counter is no reason to lose the lock
			require.NoError(t, w.Node(i+1).Set(fenceCounter("a"), "many", 0))
		}
		require.NoError(t, lease.Extend(t.Context(), 2*time.Minute))
		require.NoError(t, lease.Unlock(t.Context()))
	})
}

func TestRepairedNodeReachesTheFence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker(WithFencing())
		w.plantCounters("a", far, far, far)
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		time.Sleep(ms(10))
		w.Inject("at 0s, node 2: restart empty")
		time.Sleep(time.Second)
		require.Equal(t, "", w.keys("a")[1])
		require.NoError(t, lease.Extend(t.Context(), time.Minute))
		time.Sleep(ms(100))
		assert.Equal(t, lease.Token(), w.keys("a")[1])
		assert.EqualValues(t, far+1, w.counters("a")[1], "with the repair, not one extension later")
		assert.EqualValues(t, far+1, lease.Fence())
		require.NoError(t, lease.Unlock(t.Context()))
	})
}

func TestClockThatIsAYearOffNeitherPoisonsNorResetsTheOrder(t *testing.T) {
	const year = 365 * 24 * time.Hour
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		late := w.locker(WithFencing(), withClock(backdated(year)))
		early := w.locker(WithFencing(), withClock(backdated(-year)))
		sane := w.locker(WithFencing())
		last := uint64(0)
		for i, l := range []*Locker{late, sane, late, early, sane, early, late, sane, late} {
			lease, err := l.TryLock(t.Context(), "a")
			require.NoError(t, err)
			assert.Greater(t, lease.Fence(), last, "holder %d", i)
			last = lease.Fence()
			assert.InDelta(t, time.Now().UnixMicro(), last, 10*60*1e6+1e6, "ten minutes from the nodes' clocks at the most")
			require.NoError(t, lease.Unlock(t.Context()))
			time.Sleep(time.Second)
		}
		time.Sleep(11 * time.Minute)
		lease, err := sane.TryLock(t.Context(), "a")
		require.NoError(t, err)
		assert.InDelta(t, time.Now().UnixMicro(), lease.Fence(), 1e6, "and time goes on as if nothing had been")
		require.NoError(t, lease.Unlock(t.Context()))
		time.Sleep(ms(10))

		// What the early one leaves lives until seven days after it has come true, so
		// that a late clock has no lost counter to begin again from.
		lease, err = early.TryLock(t.Context(), "a")
		require.NoError(t, err)
		require.NoError(t, lease.Unlock(t.Context()))
		time.Sleep(7*24*time.Hour + 5*time.Minute)
		next, err := late.TryLock(t.Context(), "a")
		require.NoError(t, err)
		assert.Greater(t, next.Fence(), lease.Fence())
		require.NoError(t, next.Unlock(t.Context()))
	})
}

func TestFencesRiseAfterAllCountersAreLostWhereClocksAreRight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		a, b := w.locker(WithFencing()), w.locker(WithFencing(), withClock(backdated(time.Second)))
		last := uint64(0)
		for i := range 20 {
			l := []*Locker{a, b}[i%2]
			lease, err := l.TryLock(t.Context(), "a")
			require.NoError(t, err)
			assert.Greater(t, lease.Fence(), last)
			last = lease.Fence()
			require.NoError(t, lease.Unlock(t.Context()))
			w.Inject("at 0s, all: flushall")
			time.Sleep(2 * time.Second) // longer than the clocks differ
		}
	})
}

// What nodes find too far ahead is not proposed again, and not to another name at all.
func TestCounterThatIsFarAheadTakesNoOtherWithIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(2), ms(3))
		l := w.locker(WithFencing())
		fence := func(name string) uint64 {
			time.Sleep(time.Second)
			lease, err := l.TryLock(t.Context(), name)
			require.NoError(t, err)
			require.NoError(t, lease.Unlock(t.Context()))
			return lease.Fence()
		}
		w.plantCounters("a", far, far, far)
		require.EqualValues(t, far+1, fence("a"))
		before := l.Stats().Raised
		for i := range 20 {
			name := fmt.Sprint("b", i)
			if l.root.seen.of(name) == l.root.seen.of("a") {
				continue // hashes do not tell them apart
			}
			assert.InDelta(t, time.Now().UnixMicro(), fence(name), 2e6)
		}
		w.Inject(fmt.Sprintf("at 0s, all: evict %q", fenceCounter("a")))
		last := uint64(0)
		for range 20 {
			now := fence("a")
			assert.Greater(t, now, last)
			last = now
		}
		assert.LessOrEqual(t, l.Stats().Raised, before+1)
	})
}

func TestCounterThatCannotRiseIsAnErrorOfTheNode(t *testing.T) {
	for _, value := range []string{"many", "-1", "1.5", "1e300", "9007199254740991", "nan", "0x", " "} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, ms(1), ms(1), ms(1))
			l := w.locker(WithFencing())
			for i := range 2 {
				require.NoError(t, w.Node(i+1).Set(fenceCounter("a"), value, 0))
			}
			_, err := l.Lock(t.Context(), "a") // which does not wait for what no time can cure
			require.ErrorIs(t, err, ErrNoQuorum, value)
			assert.ErrorContains(t, err, "the fencing counter is not a number that can rise")
			time.Sleep(ms(100))
			assert.Equal(t, []string{"", "", ""}, w.keys("a"))
			assert.Equal(t, value, w.key(1, fenceCounter("a")).Value)
			assert.Contains(t, w.log(1)[len(w.log(1))-1], "a", "nothing was written: %v", w.log(1))
		})
	}
}

func TestFencedNameInAClusterNeedsAnUnambiguousSlot(t *testing.T) {
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})
	defer cluster.Close()
	l, err := New([]redis.UniversalClient{cluster}, WithFencing())
	require.NoError(t, err)
	defer l.Close()
	for _, name := range []string{"a}b", "{}a", "a{}{b}"} {
		_, err := l.TryLock(t.Context(), name)
		assert.ErrorIs(t, err, ErrInvalid, name)
		_, err = l.Attach(t.Context(), name, "token")
		assert.ErrorIs(t, err, ErrInvalid, name)
	}
	for name, counter := range map[string]string{
		"a":      "redlock:fence:{a}:a",
		"a{b}c":  "redlock:fence:{b}:a{b}c",
		"a{b":    "redlock:fence:{a{b}:a{b",
		"{a}{b}": "redlock:fence:{a}:{a}{b}",
	} {
		assert.Equal(t, counter, fenceCounter(name))
		assert.NoError(t, l.slotted(name))
		slot := hashTag(name)
		if slot == "" {
			slot = name
		}
		assert.Equal(t, slot, hashTag(counter), name)
	}
}
