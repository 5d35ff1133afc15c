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
		for _, n := range w.nodes {
			assert.InDelta(t, 3*time.Second, n.TTL("a"), float64(ms(30)))
		}
		until := lease.Until()
		require.NoError(t, lease.Extend(t.Context(), ms(100)))
		assert.Equal(t, until, lease.Until())
		for _, n := range w.nodes {
			assert.Greater(t, n.TTL("a"), 2900*time.Millisecond)
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
		for _, n := range w.nodes {
			assert.GreaterOrEqual(t, time.Now().Add(n.TTL("a")), lease.Until())
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
		w.nodes[0].hang.Store(true)
		w.nodes[1].hang.Store(true)
		err = lease.Extend(t.Context(), time.Minute)
		assert.ErrorIs(t, err, ErrNoQuorum)
		assert.NotErrorIs(t, err, ErrLost)
		require.NoError(t, lease.Err())
		assert.Equal(t, until, lease.Until(), "one node that was extended promises nothing")

		w.nodes[0].hang.Store(false)
		w.nodes[1].hang.Store(false)
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
		assert.Greater(t, w.nodes[2].TTL("a"), 50*time.Second)
		require.NoError(t, lease.Unlock(t.Context()))
	})
}

func TestExtendNeverBringsALeaseBack(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(w *world, lease *Lease)
		is    error
	}{
		"after its end": {func(w *world, _ *Lease) { time.Sleep(ms(400)) }, ErrLost},
		"deleted everywhere": {func(w *world, _ *Lease) {
			for _, n := range w.nodes {
				n.Del("a")
			}
		}, ErrLost},
		"taken over on a majority": {func(w *world, _ *Lease) { w.plant("a", time.Minute, 0, 1) }, ErrLost},
		"another type on a majority": {func(w *world, _ *Lease) {
			for _, n := range w.nodes[:2] {
				n.Del("a")
				n.Lpush("a", "x")
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
			for _, n := range w.nodes {
				v, _ := n.Get("a")
				assert.NotEqual(t, lease.Token(), v, "%s: our token is gone everywhere", name)
			}
			if strings.Contains(name, "majority") {
				assert.True(t, w.nodes[0].Exists("a") && w.nodes[1].Exists("a"), "%s: what is not ours is untouched", name)
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
		for _, n := range w.nodes {
			n.rtt.Store(int64(ms(350)))
		}
		assert.ErrorIs(t, lease.Extend(t.Context(), ms(300)), ErrLost)
		assert.ErrorIs(t, lease.Err(), ErrLost)
		time.Sleep(time.Second)
		w.requireNoKeys()
	})
}

func TestUnlockNeedsAQuorumAndTellsALossFromAnOutage(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(w *world)
		is    error
	}{
		"deleted on one of three":       {func(w *world) { w.nodes[0].Del("a") }, nil},
		"deleted on two of three":       {func(w *world) { w.nodes[0].Del("a"); w.nodes[1].Del("a") }, ErrLost},
		"taken over on two of three":    {func(w *world) { w.plant("a", time.Minute, 0, 1) }, ErrLost},
		"a node down":                   {func(w *world) { w.nodes[0].kill() }, nil},
		"two nodes down":                {func(w *world) { w.nodes[0].kill(); w.nodes[1].kill() }, ErrNoQuorum},
		"one down, one has lost it":     {func(w *world) { w.nodes[0].kill(); w.nodes[1].Del("a") }, ErrNoQuorum},
		"one hangs, two have lost it":   {func(w *world) { w.nodes[0].hang.Store(true); w.nodes[1].Del("a"); w.nodes[2].Del("a") }, ErrLost},
		"restarted empty, one of three": {func(w *world) { w.nodes[2].FlushAll() }, nil},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, ms(1), ms(1), ms(1))
			l := w.locker()
			lease, err := l.TryLock(t.Context(), "a")
			require.NoError(t, err)
			time.Sleep(ms(5))
			c.spoil(w)
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
		after func(w *world)
		is    error
	}{
		"all there":                  {func(*world) {}, nil},
		"one of them dies":           {func(w *world) { w.nodes[0].kill() }, nil},
		"one of them hangs":          {func(w *world) { w.nodes[0].hang.Store(true) }, nil},
		"two of them die":            {func(w *world) { w.nodes[0].kill(); w.nodes[1].kill() }, nil},
		"all of them die":            {func(w *world) { w.nodes[0].kill(); w.nodes[1].kill(); w.nodes[2].kill() }, ErrNoQuorum},
		"one of them forgets":        {func(w *world) { w.nodes[0].Del("a") }, ErrLost},
		"one dies and one forgets":   {func(w *world) { w.nodes[0].kill(); w.nodes[1].Del("a") }, ErrLost},
		"one hangs and one forgets":  {func(w *world) { w.nodes[0].hang.Store(true); w.nodes[1].Del("a") }, ErrLost},
		"the last to answer forgets": {func(w *world) { w.nodes[2].Del("a") }, ErrLost},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, ms(1), ms(2), ms(3), ms(4), ms(5))
			l := w.locker()
			for _, n := range w.nodes[3:] {
				n.on(func(string, []string) string { return "LOADING Redis is loading the dataset in memory" })
			}
			lease, err := l.TryLock(t.Context(), "a")
			require.NoError(t, err)
			time.Sleep(ms(10))
			c.after(w)
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
		before := w.nodes[0].executed("EVAL")
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() { assert.NoError(t, lease.Unlock(t.Context())) })
		}
		wg.Wait()
		time.Sleep(ms(5))
		assert.Equal(t, 1, w.nodes[0].executed("EVAL")-before)
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
