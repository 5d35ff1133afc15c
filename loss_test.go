package redlock

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestLeaseEndsItsLossLeadBeforeItsEndAndStaysLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(2), ms(2), ms(2))
		var lost []error
		l := w.locker(WithTTL(time.Second), WithHooks(Hooks{Lost: func(_ context.Context, lease *Lease, err error) {
			lost = append(lost, err)
		}}))
		begin := time.Now()
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		assert.Equal(t, begin.Add(ms(988)), lease.Until())
		ctx := lease.Context(t.Context())
		select {
		case <-ctx.Done():
		case <-lease.Done():
		}
		lead := ms(6) // half the drift margin
		assert.Equal(t, ms(988)-lead, time.Since(begin))
		synctest.Wait()
		assert.ErrorIs(t, context.Cause(ctx), ErrLost)
		assert.ErrorIs(t, ctx.Err(), context.Canceled)
		assert.ErrorIs(t, lease.Err(), ErrLost)
		assert.Zero(t, lease.Validity())
		require.Len(t, lost, 1)
		assert.ErrorIs(t, lost[0], ErrLost)
		time.Sleep(lead - ms(1)/2)
		for _, v := range w.keys("a") {
			assert.Equal(t, lease.Token(), v, "the holder is still stopping")
		}
		time.Sleep(ms(3))
		w.requireNoKeys()

		assert.ErrorIs(t, lease.Extend(t.Context(), time.Second), ErrLost)
		assert.ErrorIs(t, lease.Unlock(t.Context()), ErrLost)
		assert.NotErrorIs(t, lease.Unlock(t.Context()), ErrReleased)
		assert.Len(t, lost, 1)
	})
}

func TestLossIsLatchedHoweverTheClocksMove(t *testing.T) {
	for name, move := range map[string]func(*fakeClock){
		"the wall clock jumps past the end":   func(c *fakeClock) { c.jump(9900 * time.Millisecond) },
		"the machine was suspended":           func(c *fakeClock) { c.sleep(time.Minute) },
		"suspended and the wall clock is off": func(c *fakeClock) { c.sleep(time.Minute); c.jump(-time.Hour) },
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, ms(10), ms(10), ms(10))
			clock := &fakeClock{}
			l := w.locker(withClock(clock))
			lease, err := l.TryLock(t.Context(), "a")
			require.NoError(t, err)
			clock.jump(-time.Hour)
			assert.Equal(t, 10*time.Second-ms(10)-ms(102), lease.Validity(), "setting the wall clock back changes nothing")
			clock.jump(time.Hour + time.Second)
			assert.Equal(t, 9*time.Second-ms(10)-ms(102), lease.Validity(), "setting it ahead costs validity")
			clock.jump(-time.Second)
			require.NoError(t, lease.Err())

			move(clock)
			assert.ErrorIs(t, lease.Err(), ErrLost, name)
			clock.jump(-clockOffset(clock))
			clock.sleep(-time.Duration(clock.asleep.Load()))
			assert.ErrorIs(t, lease.Err(), ErrLost, "%s: and back", name)
			assert.Zero(t, lease.Validity())
			<-lease.Done()
			assert.ErrorIs(t, lease.Extend(t.Context(), time.Minute), ErrLost)
			assert.ErrorIs(t, lease.Unlock(t.Context()), ErrLost)
			time.Sleep(ms(100)) // the lease was over: its release need not be waited for
			w.requireNoKeys()
		})
	}
}

func clockOffset(c *fakeClock) time.Duration { return time.Duration(c.wall.Load()) }

func TestExtendedMinorityIsCleanedUpWhenTheLeaseEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker(WithTTL(time.Second), WithNodeTimeout(ms(100)))
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		hung := w.Inject("at 0s, nodes 1,2: hang")
		require.Error(t, lease.Extend(t.Context(), time.Hour))
		hung.Stop()
		time.Sleep(1100 * time.Millisecond)
		require.ErrorIs(t, lease.Err(), ErrLost)
		w.requireNoKeys()
	})
}

func TestKeysOfALeaseThatNodesLostStayUntilItsEndOrItsHoldersReturn(t *testing.T) {
	for _, returns := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, ms(1), ms(1), ms(1))
			l := w.locker(WithTTL(5*time.Second), WithNodeTimeout(ms(100)))
			lease, err := l.TryLock(t.Context(), "a")
			require.NoError(t, err)
			until := lease.Until()
			time.Sleep(ms(5))
			w.Inject(`at 0s, nodes 1,2: evict "a"`)
			require.ErrorIs(t, lease.Extend(t.Context(), time.Hour), ErrLost)
			<-lease.Done()
			assert.Equal(t, until, lease.Until())
			time.Sleep(time.Until(until) - ms(1))
			assert.Equal(t, lease.Token(), w.keys("a")[2], "the holder is still stopping")
			if returns {
				require.ErrorIs(t, lease.Unlock(t.Context()), ErrLost)
			} else {
				time.Sleep(ms(3))
			}
			w.requireNoKeys()
		})
	}
}

func TestLossesFoundOneAtATimeAddUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker(WithTTL(time.Minute), WithNodeTimeout(ms(100)))
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		time.Sleep(ms(5))
		w.plant("a", time.Minute, 1, 2)
		hung := w.Inject("at 0s, node 2: hang")
		require.Error(t, lease.Extend(t.Context(), time.Minute)) // node 1 tells
		require.NoError(t, lease.Err())
		hung.Stop()
		hung = w.Inject("at 0s, node 1: hang")
		time.Sleep(3 * time.Second)
		lease.Extend(t.Context(), time.Minute) // node 2 tells
		assert.ErrorIs(t, lease.Err(), ErrLost)
		hung.Stop()
		time.Sleep(time.Second)
	})
}

func TestExtendIsNotWrittenAfterTheLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker(WithTTL(time.Minute), WithNodeTimeout(time.Second))
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		time.Sleep(ms(5))
		w.Inject(`on SET key "slow", node 3: delay 300ms`)
		go l.TryLock(t.Context(), "slow")
		time.Sleep(ms(5))
		w.Inject(`at 0s, nodes 1,2: evict "a"`)
		require.ErrorIs(t, lease.Extend(t.Context(), time.Hour), ErrLost)
		time.Sleep(ms(500))
		assert.Less(t, w.ttl(3, "a"), 2*time.Minute)
		lease.Unlock(t.Context())
	})
}

func TestExtendThatReachedTheNodesDoesNotBringBackALeaseThatEndedMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(50), ms(50), ms(50))
		clock := &fakeClock{}
		l := w.locker(WithTTL(2*time.Second), withClock(clock))
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		// The machine sleeps while the answers are on their way: the nodes have
		// extended in time, the holder did not know.
		time.AfterFunc(ms(40), func() { clock.sleep(3 * time.Second) })
		assert.ErrorIs(t, lease.Extend(t.Context(), time.Minute), ErrLost)
		assert.ErrorIs(t, lease.Err(), ErrLost)
		assert.ErrorIs(t, lease.Unlock(t.Context()), ErrLost)
		time.Sleep(ms(100)) // the lease was over: its release need not be waited for
		w.requireNoKeys()
	})
}

func TestPromiseThatIsHeardAfterANodeTookItBackDoesNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker(WithTTL(time.Minute))
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		begin := func() *round {
			time.Sleep(ms(10))
			return newRound(extend, "extend", lease, l.cfg.clock.start(), time.Minute, time.Second)
		}
		// Two extensions overlap, and their answers come over two connections.
		first, second := begin(), begin()
		second.answer(0, Vote{Outcome: Refused, Err: errWrongType})
		first.answer(0, Vote{Outcome: Granted})
		require.NoError(t, lease.Err())
		second.answer(1, Vote{Outcome: Refused, Err: errWrongType})
		require.ErrorIs(t, lease.Err(), ErrLost, "two of three nodes have said that it is not there")

		lease, err = l.TryLock(t.Context(), "b")
		require.NoError(t, err)
		first, second = begin(), begin()
		third := begin()
		second.answer(0, Vote{Outcome: Refused, Err: errWrongType})
		third.answer(0, Vote{Outcome: Granted}) // it was repaired meanwhile
		second.answer(1, Vote{Outcome: Refused, Err: errWrongType})
		require.NoError(t, lease.Err())
		first.answer(1, Vote{Outcome: Granted})
		require.NoError(t, lease.Unlock(t.Context()))
	})
}

func TestLossByWhatNodesSayCountsThoseWhosePromiseStands(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker(WithTTL(3*time.Second), WithNodeTimeout(ms(100)))
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		w.Inject("at 1s, node 2: hang")
		for range 4 {
			time.Sleep(time.Second)
			require.NoError(t, lease.Extend(t.Context(), 3*time.Second))
		}
		w.Inject(`at 0s, node 3: evict "a"`)
		time.Sleep(ms(10))
		require.ErrorIs(t, lease.Extend(t.Context(), 3*time.Second), ErrLost)
		assert.ErrorContains(t, lease.Err(), "1 of 3 nodes are known to have it, 2 needed")
	})
}

func TestNodesThatDenyALeaseWhoseTimeIsOverAreNotItsCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(50), ms(50), ms(50))
		clock := &fakeClock{}
		l := w.locker(WithTTL(2*time.Second), withClock(clock))
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		w.Inject(`at 0s, all: evict "a"`)
		time.AfterFunc(ms(40), func() { clock.sleep(3 * time.Second) })
		require.ErrorIs(t, lease.Extend(t.Context(), time.Minute), ErrLost)
		var lost *LostError
		require.ErrorAs(t, lease.Err(), &lost)
		assert.Equal(t, CauseExpired, lost.Cause)
	})
}
