package redlock

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestExtendOnlyLengthens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(10), ms(10), ms(10))
		l := w.locker(WithTTL(2 * time.Second))
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		require.NoError(t, lease.Extend(t.Context(), 3*time.Second+900*time.Microsecond))
		assert.Equal(t, 3*time.Second-ms(10)-ms(32), lease.Validity(), "cut to whole milliseconds")
		time.Sleep(ms(10))
		for n := 1; n <= 3; n++ {
			assert.InDelta(t, 3*time.Second, w.ttl(n, "a"), float64(ms(30)))
		}
		until := lease.Until()
		require.NoError(t, lease.Extend(t.Context(), ms(100)))
		assert.Equal(t, until, lease.Until())
		for n := 1; n <= 3; n++ {
			assert.Greater(t, w.ttl(n, "a"), 2900*time.Millisecond)
		}
		require.NoError(t, lease.Unlock(t.Context()))
	})
}

func TestExtendsThatOvertakeEachOtherNeverShorten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(10), ms(10), ms(10))
		l := w.locker(WithTTL(2 * time.Second))
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() { assert.NoError(t, lease.Extend(t.Context(), time.Duration(1+i%7)*time.Second)) })
		}
		wg.Wait()
		assert.Greater(t, lease.Validity(), 6*time.Second)
		time.Sleep(ms(50))
		for n := 1; n <= 3; n++ {
			assert.GreaterOrEqual(t, time.Now().Add(w.ttl(n, "a")), lease.Until())
		}
		require.NoError(t, lease.Unlock(t.Context()))
	})
}

func TestExtendWithoutAQuorumLeavesTheLeaseAsItWas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker(WithTTL(2*time.Second), WithNodeTimeout(ms(100)))
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		until := lease.Until()
		hung := w.Inject("at 0s, nodes 1,2: hang")
		err = lease.Extend(t.Context(), time.Minute)
		assert.ErrorIs(t, err, ErrNoQuorum)
		assert.NotErrorIs(t, err, ErrLost)
		require.NoError(t, lease.Err())
		assert.Equal(t, until, lease.Until(), "one node that was extended promises nothing")

		hung.Stop()
		require.NoError(t, lease.Extend(t.Context(), time.Minute), "and again")
		require.NoError(t, lease.Unlock(t.Context()))
		time.Sleep(time.Second)
		w.requireNoKeys()
	})
}

func TestExtendGoesAfterTheAcquireOfItsToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(10), ms(10), ms(60))
		l := w.locker()
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		time.Sleep(ms(100))
		require.NoError(t, lease.Unlock(t.Context()))
		lease, err = l.TryLock(t.Context(), "a") // on node 3 it waits for that release
		require.NoError(t, err)
		require.NoError(t, lease.Extend(t.Context(), time.Minute))
		time.Sleep(ms(500))
		assert.Greater(t, w.ttl(3, "a"), 50*time.Second)
		require.NoError(t, lease.Unlock(t.Context()))
	})
}

func TestExtendNeverBringsALeaseBack(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(w *world, lease *Lease)
		is    error
	}{
		"after its end":            {func(w *world, _ *Lease) { time.Sleep(ms(400)) }, ErrLost},
		"deleted everywhere":       {func(w *world, _ *Lease) { w.Inject(`at 0s, all: evict "a"`) }, ErrLost},
		"taken over on a majority": {func(w *world, _ *Lease) { w.plant("a", time.Minute, 1, 2) }, ErrLost},
		"another type on a majority": {func(w *world, _ *Lease) {
			for _, c := range w.Clients()[:2] {
				c.Del(context.Background(), "a")
				c.LPush(context.Background(), "a", "x")
			}
		}, ErrLost},
		"released": {func(w *world, lease *Lease) { lease.Unlock(context.Background()) }, ErrReleased},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, ms(1), ms(1), ms(1))
			l := w.locker(WithTTL(ms(300)))
			lease, err := l.TryLock(t.Context(), "a")
			require.NoError(t, err)
			time.Sleep(ms(5))
			c.spoil(w, lease)
			for range 2 {
				assert.ErrorIs(t, lease.Extend(t.Context(), time.Second), c.is, name)
				assert.ErrorIs(t, lease.Err(), c.is, name)
				assert.Zero(t, lease.Validity())
			}
			err = lease.Unlock(t.Context())
			if c.is == ErrLost {
				assert.ErrorIs(t, err, ErrLost, name)
			}
			time.Sleep(ms(10))
			for _, v := range w.keys("a") {
				assert.NotEqual(t, lease.Token(), v, "%s: our token is gone everywhere", name)
			}
			if strings.Contains(name, "majority") {
				assert.True(t, w.keys("a")[0] != "" && w.keys("a")[1] != "", "%s: what is not ours is untouched", name)
			}
		})
	}
}

func TestExtendThatIsAnsweredAfterTheEndIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker(WithTTL(ms(300)), WithNodeTimeout(ms(500)))
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		w.Inject("at 0s, all: delay 174.5ms") // either way
		assert.ErrorIs(t, lease.Extend(t.Context(), ms(300)), ErrLost)
		assert.ErrorIs(t, lease.Err(), ErrLost)
		time.Sleep(time.Second)
		w.requireNoKeys()
	})
}

func TestUnlockNeedsAQuorumAndTellsALossFromAnOutage(t *testing.T) {
	for name, c := range map[string]struct {
		faults string
		taken  []int // nodes on which another holder has taken over
		is     error
	}{
		"deleted on one of three":       {faults: `at 0s, node 1: evict "a"`},
		"deleted on two of three":       {faults: `at 0s, nodes 1,2: evict "a"`, is: ErrLost},
		"taken over on two of three":    {taken: []int{1, 2}, is: ErrLost},
		"a node down":                   {faults: "at 0s, node 1: kill"},
		"two nodes down":                {faults: "at 0s, nodes 1,2: kill", is: ErrNoQuorum},
		"one down, one has lost it":     {faults: "at 0s, node 1: kill\nat 0s, node 2: evict \"a\"", is: ErrNoQuorum},
		"one hangs, two have lost it":   {faults: "at 0s, node 1: hang\nat 0s, nodes 2,3: evict \"a\"", is: ErrLost},
		"restarted empty, one of three": {faults: "at 0s, node 3: restart empty"},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, ms(1), ms(1), ms(1))
			l := w.locker()
			lease, err := l.TryLock(t.Context(), "a")
			require.NoError(t, err)
			time.Sleep(ms(5))
			w.Inject(c.faults)
			w.plant("a", time.Minute, c.taken...)
			err = lease.Unlock(t.Context())
			if c.is == nil {
				assert.NoError(t, err, name)
			} else {
				assert.ErrorIs(t, err, c.is, name)
			}
			assert.ErrorIs(t, lease.Err(), ErrReleased)
			assert.Equal(t, err, lease.Unlock(t.Context()), "again: the same")
		})
	}
}

func TestUnlockOfALeaseThatJustAQuorumGranted(t *testing.T) {
	for name, c := range map[string]struct {
		faults string
		is     error
	}{
		"all there":                  {"", nil},
		"one of them dies":           {"at 0s, node 1: kill", nil},
		"one of them hangs":          {"at 0s, node 1: hang", nil},
		"two of them die":            {"at 0s, nodes 1,2: kill", nil},
		"all of them die":            {"at 0s, nodes 1-3: kill", ErrNoQuorum},
		"one of them forgets":        {`at 0s, node 1: evict "a"`, ErrLost},
		"one dies and one forgets":   {"at 0s, node 1: kill\nat 0s, node 2: evict \"a\"", ErrLost},
		"one hangs and one forgets":  {"at 0s, node 1: hang\nat 0s, node 2: evict \"a\"", ErrLost},
		"the last to answer forgets": {`at 0s, node 3: evict "a"`, ErrLost},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, ms(1), ms(2), ms(3), ms(4), ms(5))
			l := w.locker()
			w.Inject(`on any, nodes 4,5: error "LOADING Redis is loading the dataset in memory"`)
			lease, err := l.TryLock(t.Context(), "a")
			require.NoError(t, err)
			time.Sleep(ms(10))
			w.Inject(c.faults)
			err = lease.Unlock(t.Context())
			if c.is == nil {
				assert.NoError(t, err, name)
			} else {
				assert.ErrorIs(t, err, c.is, name)
			}
		})
	}
}

func TestUnlockOfALostLeaseLeavesTheNextHolderAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker(WithTTL(ms(300)))
		long, err := l.With(WithTTL(5 * time.Second))
		require.NoError(t, err)
		old, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		time.Sleep(ms(500))
		next, err := long.TryLock(t.Context(), "a")
		require.NoError(t, err)
		err = old.Unlock(t.Context())
		assert.ErrorIs(t, err, ErrLost)
		assert.NotErrorIs(t, err, ErrHeld)
		assert.NotErrorIs(t, err, ErrNoQuorum)
		time.Sleep(ms(10))
		assert.Equal(t, []string{next.Token(), next.Token(), next.Token()}, w.keys("a"))
		assert.NoError(t, next.Err())
		require.NoError(t, next.Unlock(t.Context()))
	})
}

func TestUnlockIgnoresThatTheCallerHasGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(10), ms(10), ms(10))
		l := w.locker()
		ctx, cancel := context.WithCancel(t.Context())
		lease, err := l.Lock(ctx, "a")
		require.NoError(t, err)
		time.Sleep(ms(10))
		cancel()
		require.NoError(t, lease.Err(), "ctx bounds the waiting, not the lease")
		require.NoError(t, lease.Unlock(ctx))
		time.Sleep(ms(10))
		w.requireNoKeys()
	})
}

func TestUnlockFromManyGoroutinesDeletesOnceAndAgrees(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker()
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		time.Sleep(ms(5))
		before := w.executed(1, "EVAL")
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() { assert.NoError(t, lease.Unlock(t.Context())) })
		}
		wg.Wait()
		time.Sleep(ms(5))
		assert.Equal(t, 1, w.executed(1, "EVAL")-before)
	})
}

func TestUnlockWhileExtendsAreUnderWayNeverLeavesAKey(t *testing.T) {
	for delay := range 12 {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, ms(2), ms(4), ms(8))
			l := w.locker()
			lease, err := l.TryLock(t.Context(), "a")
			require.NoError(t, err)
			var wg sync.WaitGroup
			for range 3 {
				wg.Go(func() {
					if err := lease.Extend(t.Context(), time.Minute); err != nil {
						assert.ErrorIs(t, err, ErrReleased)
					}
				})
			}
			time.Sleep(ms(delay))
			require.NoError(t, lease.Unlock(t.Context()))
			wg.Wait()
			time.Sleep(ms(20))
			w.requireNoKeys()
		})
	}
}

func TestNilLeaseIsALostOne(t *testing.T) {
	var lease *Lease
	ctx := t.Context()
	assert.ErrorIs(t, lease.Err(), ErrLost)
	assert.ErrorIs(t, lease.Unlock(ctx), ErrLost)
	assert.ErrorIs(t, lease.Extend(ctx, time.Second), ErrLost)
	assert.Zero(t, lease.Validity())
	assert.Zero(t, lease.Until())
	assert.Empty(t, lease.Name())
	assert.Empty(t, lease.Token())
	<-lease.Done()
	assert.ErrorIs(t, context.Cause(lease.Context(ctx)), ErrLost)
	assert.Nil(t, FromContext(ctx))
	assert.ErrorIs(t, FromContext(ctx).Err(), ErrLost)
}

func TestPrintingALeaseShowsNoToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(2), ms(2), ms(2))
		lease, err := w.locker().TryLock(t.Context(), "a")
		require.NoError(t, err)
		for _, verb := range []string{"%v", "%+v", "%#v", "%s"} {
			assert.Equal(t, `lease "a": valid for 9.896s`, fmt.Sprintf(verb, lease))
		}
		require.NoError(t, lease.Unlock(t.Context()))
		assert.Equal(t, `lease "a": over`, lease.String())
		lease = nil
		assert.Equal(t, "lease <nil>", lease.String())
	})
}

func TestContextFollowsItsParentAndTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker()
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		type key struct{}
		parent, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, "v"))
		ctx := lease.Context(parent)
		assert.Equal(t, "v", ctx.Value(key{}))
		assert.Same(t, lease, FromContext(ctx))
		cancel()
		<-ctx.Done()
		assert.NoError(t, lease.Err())
		second := lease.Context(t.Context())
		require.NoError(t, lease.Unlock(t.Context()))
		<-second.Done()
		assert.ErrorIs(t, context.Cause(second), ErrReleased)
		assert.ErrorIs(t, lease.Err(), ErrReleased)
		assert.ErrorIs(t, context.Cause(lease.Context(t.Context())), ErrReleased)
	})
}
