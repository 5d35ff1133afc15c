package redlock

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestCloseSaysWhichNodesConfirmedNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l, err := New(w.Clients(func(o *redis.Options) { o.DialerRetries, o.MaxRetries = 1, -1 })) // as Open makes them
		require.NoError(t, err)
		l.warm()
		_, err = l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		time.Sleep(ms(5))
		w.Inject("at 0s, nodes 1,2: kill")
		err = l.Close()
		require.NotEmpty(t, w.stored(1))
		assert.EqualError(t, err, "redlock: close: 10.0.0.1:6379 did not confirm a release; 10.0.0.2:6379 did not confirm a release")
	})
}

func TestSecondCloseOfASiblingReturnsWhatTheFirstDid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker()
		s, err := l.With(WithTTL(time.Minute))
		require.NoError(t, err)
		_, err = s.TryLock(t.Context(), "a")
		require.NoError(t, err)
		w.Inject("at 0s, nodes 1,2: hang")
		var first, second error
		var wg sync.WaitGroup
		wg.Go(func() { first = s.Close() })
		time.Sleep(ms(1))
		begin := time.Now()
		second = s.Close()
		t.Log("second returned after", time.Since(begin))
		wg.Wait()
		assert.Error(t, first)
		assert.Equal(t, first, second, "a second Close returns what the first did")
	})
}

// slowStart is a clock that takes its time.
type slowStart struct {
	fakeClock
	delay atomic.Int64
}

func (c *slowStart) start() instant {
	time.Sleep(time.Duration(c.delay.Load()))
	return c.look()
}

func TestSiblingAndRootCloseAtOnceMissNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		clock := &slowStart{}
		l := w.locker(withClock(clock))
		s, err := l.With(WithTTL(time.Minute))
		require.NoError(t, err)
		_, err = s.TryLock(t.Context(), "a")
		require.NoError(t, err)
		time.Sleep(ms(5))
		clock.delay.Store(int64(ms(20)))
		var wg sync.WaitGroup
		wg.Go(func() { t.Log("sibling:", s.Close()) })
		time.Sleep(ms(1))
		wg.Go(func() { assert.NoError(t, l.Close()) })
		wg.Wait()
		w.requireNoKeys()
	})
}

func TestSecondUnlockDoesNotWaitForOneThatPanicked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker(WithHooks(Hooks{Round: func(_ context.Context, r Round) {
			if r.Op == "unlock" && r.Name == "a" {
				panic("in a hook")
			}
		}}))
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		assert.Panics(t, func() { lease.Unlock(t.Context()) })
		done := make(chan struct{})
		go func() { lease.Unlock(t.Context()); close(done) }()
		select {
		case <-done:
		case <-time.After(time.Minute):
			t.Error("the second Unlock waits for ever")
		}
	})
}

func TestCloseEndsEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker()
		sibling, err := l.With(WithTTL(time.Minute))
		require.NoError(t, err)
		lease, err := l.Lock(t.Context(), "a")
		require.NoError(t, err)
		other, err := sibling.Lock(t.Context(), "b")
		require.NoError(t, err)
		ctx := other.Context(t.Context())

		waited := make(chan error)
		go func() { _, err := l.Lock(t.Context(), "b"); waited <- err }()
		time.Sleep(ms(50))
		require.NoError(t, l.Close())
		assert.ErrorIs(t, <-waited, ErrClosed)
		assert.ErrorIs(t, lease.Err(), ErrClosed)
		<-ctx.Done()
		assert.ErrorIs(t, context.Cause(ctx), ErrClosed)
		w.requireNoKeys()

		_, err = l.TryLock(t.Context(), "c")
		assert.ErrorIs(t, err, ErrClosed)
		_, err = sibling.TryLock(t.Context(), "c")
		assert.ErrorIs(t, err, ErrClosed)
		assert.ErrorIs(t, lease.Unlock(t.Context()), ErrClosed)
		assert.ErrorIs(t, lease.Extend(t.Context(), time.Minute), ErrClosed)
		assert.NoError(t, l.Close(), "again")
	})
}

func TestCloseOfASiblingEndsOnlyItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker()
		sibling, err := l.With(WithTTL(time.Minute))
		require.NoError(t, err)
		mine, err := l.Lock(t.Context(), "a")
		require.NoError(t, err)
		its, err := sibling.Lock(t.Context(), "b")
		require.NoError(t, err)
		require.NoError(t, sibling.Close())
		assert.ErrorIs(t, its.Err(), ErrClosed)
		assert.NoError(t, mine.Err())
		time.Sleep(ms(10))
		assert.Equal(t, []string{"", "", ""}, w.keys("b"))
		_, err = sibling.Lock(t.Context(), "b")
		assert.ErrorIs(t, err, ErrClosed)
		require.NoError(t, mine.Unlock(t.Context()))
	})
}

func TestCloseIsBoundedWhenNodesHangAndSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker()
		_, err := l.Lock(t.Context(), "a")
		require.NoError(t, err)
		w.Inject("at 0s, all: hang")
		begin := time.Now()
		err = l.Close()
		assert.ErrorContains(t, err, "10.0.0.2:6379")
		assert.LessOrEqual(t, time.Since(begin), 3*time.Second)
	})
}

func TestUnlockAndCloseAtOnceMissNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker(WithHooks(Hooks{Start: func(_ context.Context, op Op) context.Context {
			if op.Kind == "unlock" {
				time.Sleep(ms(10))
			}
			return nil
		}}))
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		var wg sync.WaitGroup
		wg.Go(func() { lease.Unlock(t.Context()) })
		time.Sleep(ms(5))
		assert.NoError(t, l.Close())
		wg.Wait()
		w.requireNoKeys()
	})
}

func TestCloseReleasesALostLeaseWhoseHolderHasNotReturned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker(WithNodeTimeout(ms(100)))
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		time.Sleep(ms(5))
		w.Inject(`at 0s, nodes 1,2: evict "a"`)
		require.ErrorIs(t, lease.Extend(t.Context(), time.Hour), ErrLost)
		require.NotEmpty(t, w.keys("a")[2])
		require.NoError(t, l.Close())
		w.requireNoKeys()
		assert.Empty(t, l.leases())
	})
}
