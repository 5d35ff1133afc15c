package redlock

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestLockAndUnlockCostTheQuorumthFastestRoundTrip(t *testing.T) {
	for _, hung := range []string{"none", "node 4", "node 5", "nodes 4,5"} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, ms(1), ms(20), ms(40), ms(80), ms(150))
			l := w.locker()
			if hung != "none" {
				w.Inject("at 0s, " + hung + ": hang")
			}
			begin := time.Now()
			lease, err := l.Lock(t.Context(), "orders")
			require.NoError(t, err)
			assert.Equal(t, ms(40), time.Since(begin), "lock with %v hung", hung)
			assert.Equal(t, 10*time.Second-ms(40)-ms(102), lease.Validity())

			begin = time.Now()
			require.NoError(t, lease.Extend(t.Context(), 20*time.Second))
			assert.Equal(t, ms(40), time.Since(begin), "extend with %v hung", hung)
			assert.Equal(t, 20*time.Second-ms(40)-ms(202), lease.Validity())

			begin = time.Now()
			require.NoError(t, lease.Unlock(t.Context()))
			assert.Equal(t, ms(40), time.Since(begin), "unlock with %v hung", hung)
		})
	}
}

func TestHungMajorityFailsAtTheNodeTimeoutAndRefusalsAtTheDecidingAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(20), ms(40), ms(80), ms(150))
		l := w.locker()
		w.plant("taken", time.Minute, 1, 2, 3, 4, 5)
		begin := time.Now()
		_, err := l.TryLock(t.Context(), "taken")
		assert.ErrorIs(t, err, ErrHeld)
		assert.Equal(t, ms(40), time.Since(begin))

		w.Inject("at 0s, nodes 1-3: hang")
		begin = time.Now()
		_, err = l.TryLock(t.Context(), "orders")
		assert.ErrorIs(t, err, ErrNoQuorum)
		assert.NotErrorIs(t, err, ErrHeld)
		assert.NotErrorIs(t, err, context.DeadlineExceeded, "a node timeout is not the caller's deadline")
		assert.Equal(t, ms(500), time.Since(begin))
	})
}

func TestEveryNumberOfNodesToleratesItsMinority(t *testing.T) {
	for _, n := range []int{1, 2, 3, 4, 5, 7} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, make([]time.Duration, n)...)
			l := w.locker()
			for i := range n - quorumOf(n) {
				w.Inject(fmt.Sprintf("at 0s, node %d: hang", i+1))
			}
			lease, err := l.TryLock(t.Context(), "a")
			require.NoError(t, err, "N=%d", n)
			require.NoError(t, lease.Unlock(t.Context()))

			w.Inject(fmt.Sprintf("at 0s, node %d: hang", n))
			_, err = l.TryLock(t.Context(), "a")
			assert.ErrorIs(t, err, ErrNoQuorum, "N=%d with one more down", n)
		})
	}
}

func TestValidityCountsFromBeforeTheWinningAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(4), ms(4), ms(4))
		l := w.locker(WithTTL(time.Second), WithNodeTimeout(ms(500)), WithBackoff(Backoff{Min: ms(50), Max: ms(100)}))
		w.plant("a", ms(1200), 1, 2, 3)
		begin := time.Now()
		lease, err := l.Lock(t.Context(), "a")
		require.NoError(t, err)
		waited := time.Since(begin)
		assert.GreaterOrEqual(t, waited, ms(1200)-ms(4))
		assert.Less(t, waited, ms(1600))
		assert.Equal(t, time.Second-ms(4)-ms(12), lease.Validity(), "the wait does not count")
		require.NoError(t, lease.Unlock(t.Context()))

		w.Inject("at 0s, nodes 1,2: delay 148ms") // either way
		lease, err = l.Lock(t.Context(), "b")
		require.NoError(t, err)
		assert.Equal(t, time.Second-ms(300)-ms(12), lease.Validity(), "the time of the winning attempt does")
		for n := 1; n <= 3; n++ {
			assert.False(t, lease.Until().After(time.Now().Add(w.ttl(n, "b"))), "no node forgets before Until")
		}
	})
}

func TestQuorumThatComesTooLateIsExpiredAndReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(10), ms(10), ms(10))
		clock := &fakeClock{}
		l := w.locker(WithTTL(ms(200)), withClock(clock))
		time.AfterFunc(ms(5), func() { clock.jump(ms(190)) }) // of the wall clock, while the votes are on their way
		_, err := l.TryLock(t.Context(), "a")
		assert.ErrorIs(t, err, ErrExpired)
		assert.NotErrorIs(t, err, ErrHeld)
		assert.NotErrorIs(t, err, ErrNoQuorum)
		var q *QuorumError
		require.ErrorAs(t, err, &q)
		assert.GreaterOrEqual(t, q.Round.Count(Granted), 2)
		time.Sleep(ms(50))
		w.requireNoKeys()

		w.Inject("at 0s, all: delay 120ms") // either way
		begin := time.Now()
		_, err = l.TryLock(t.Context(), "a")
		assert.ErrorIs(t, err, ErrNoQuorum, "no vote is waited for past the point where it would come too late")
		assert.LessOrEqual(t, time.Since(begin), ms(196))
		time.Sleep(ms(600))
		w.requireNoKeys()
	})
}

func TestWaitEndsForItsOwnReasonAndKeepsTheLastVerdict(t *testing.T) {
	cause := errors.New("the user pressed the button")
	for _, c := range []struct {
		name     string
		opts     []Option
		ctx      func(context.Context) (context.Context, context.CancelFunc)
		is       []error
		isNot    []error
		from, to time.Duration
	}{
		{"cancelled", nil, func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancelCause(ctx)
			time.AfterFunc(ms(300), func() { cancel(cause) })
			return ctx, func() { cancel(nil) }
		}, []error{context.Canceled, cause, ErrHeld}, []error{context.DeadlineExceeded}, ms(300), ms(300)},
		{"past its deadline", nil, func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, ms(300))
		}, []error{context.DeadlineExceeded, ErrHeld}, []error{context.Canceled}, ms(300), ms(300)},
		{"used up", []Option{WithWait(ms(300))}, func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithCancel(ctx)
		}, []error{ErrHeld}, []error{context.Canceled, context.DeadlineExceeded}, ms(300), ms(310)},
		{"no wait at all", []Option{WithWait(0)}, func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithCancel(ctx)
		}, []error{ErrHeld}, []error{context.Canceled}, ms(2), ms(2)},
		{"three attempts", []Option{WithMaxAttempts(3)}, func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithCancel(ctx)
		}, []error{ErrHeld}, []error{context.Canceled}, ms(6), ms(9000)},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, ms(2), ms(2), ms(2))
			l := w.locker(append(c.opts, WithBackoff(Backoff{Min: 2 * time.Second, Max: 2 * time.Second}))...)
			w.plant("a", time.Minute, 1, 2, 3)
			before := w.attempts(1, "a")
			ctx, cancel := c.ctx(t.Context())
			defer cancel()
			begin := time.Now()
			lease, err := l.Lock(ctx, "a")
			took := time.Since(begin)
			assert.Nil(t, lease)
			for _, e := range c.is {
				assert.ErrorIs(t, err, e, c.name)
			}
			for _, e := range c.isNot {
				assert.NotErrorIs(t, err, e, c.name)
			}
			var q *QuorumError
			assert.ErrorAs(t, err, &q, "the rows are kept")
			assert.GreaterOrEqual(t, took, c.from, c.name)
			assert.LessOrEqual(t, took, c.to, c.name)
			if c.name == "three attempts" {
				assert.Equal(t, 3, w.attempts(1, "a")-before)
			}
			assert.Equal(t, []string{"foreign", "foreign", "foreign"}, w.keys("a"))
		})
	}
}

func TestContextThatHasEndedSendsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(2), ms(2), ms(2))
		l := w.locker()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		before := len(w.log(1))
		_, err := l.Lock(ctx, "a")
		assert.ErrorIs(t, err, context.Canceled)
		assert.NotErrorIs(t, err, ErrNoQuorum)
		time.Sleep(time.Second)
		assert.Len(t, w.log(1), before)
	})
}

func TestLeaseWonAsTheContextEndsIsReturnedOrReleased(t *testing.T) {
	// The quorum arrives at 40 ms; the context ends at every millisecond around.
	for end := 30; end <= 50; end++ {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, ms(10), ms(40), ms(90))
			l := w.locker()
			ctx, cancel := context.WithTimeout(t.Context(), ms(end))
			defer cancel()
			lease, err := l.Lock(ctx, "a")
			if err == nil {
				assert.GreaterOrEqual(t, end, 40)
				require.NoError(t, lease.Err())
				require.NoError(t, lease.Unlock(ctx))
			} else {
				assert.LessOrEqual(t, end, 40)
				assert.ErrorIs(t, err, context.DeadlineExceeded)
			}
			time.Sleep(ms(200))
			w.requireNoKeys()
		})
	}
}

func TestNamesAreTheKeysByteForByte(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker()
		names := []string{
			"my-lock", "a b", "\tq\n", "日本語-ключ", "a{b}c", "{x}{y}", "{}", "}{", "a:b", "redlock:released:a",
			strings.Repeat("k", 64<<10), "\x00\xff", "a", "a:fence", "A", " a",
		}
		var leases []*Lease
		for _, name := range names {
			lease, err := l.TryLock(t.Context(), name)
			require.NoError(t, err, "%.20q", name)
			_, err = l.TryLock(t.Context(), name)
			assert.ErrorIs(t, err, ErrHeld, "%.20q", name)
			leases = append(leases, lease)
		}
		time.Sleep(ms(10))
		for n := 1; n <= 3; n++ {
			var stored []string
			for _, k := range w.stored(n) {
				stored = append(stored, k.Name)
			}
			assert.ElementsMatch(t, names, stored)
		}
		for _, lease := range leases {
			require.NoError(t, lease.Unlock(t.Context()))
		}
		time.Sleep(ms(10))
		w.requireNoKeys()
	})
}

func TestContendersAllGetTheirTurnsAndNeverTwoAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(2), ms(3), ms(4), ms(5))
		var lockers []*Locker
		for range 3 {
			lockers = append(lockers, w.locker(WithWait(5*time.Minute)))
		}
		var inside, turns atomic.Int64
		var wg sync.WaitGroup
		for i := range 10 {
			wg.Go(func() {
				for range 20 {
					lease, err := lockers[i%3].Lock(t.Context(), "a")
					if !assert.NoError(t, err) {
						return
					}
					assert.EqualValues(t, 1, inside.Add(1))
					time.Sleep(ms(5))
					inside.Add(-1)
					turns.Add(1)
					assert.NoError(t, lease.Unlock(t.Context()))
				}
			})
		}
		wg.Wait()
		assert.EqualValues(t, 200, turns.Load())
		time.Sleep(time.Second)
		w.requireNoKeys()
	})
}

func TestWaitingForOurselvesFailsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker()
		sibling, err := l.With(WithTTL(time.Minute))
		require.NoError(t, err)
		lease, err := l.Lock(t.Context(), "a")
		require.NoError(t, err)
		ctx := lease.Context(t.Context())
		for _, locker := range []*Locker{l, sibling} {
			_, err = locker.Lock(ctx, "a")
			assert.ErrorIs(t, err, ErrHeld)
			assert.ErrorContains(t, err, "context")
		}
		inner, err := l.Lock(ctx, "b")
		require.NoError(t, err, "another name is another lock")
		require.NoError(t, inner.Unlock(ctx))
		require.NoError(t, lease.Unlock(ctx))
		lease, err = l.Lock(context.WithoutCancel(ctx), "a")
		require.NoError(t, err, "the outer lease is over")
		require.NoError(t, lease.Unlock(ctx))
	})
}

func TestDoHoldsTheLockAroundTheFunction(t *testing.T) {
	oops := errors.New("oops")
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker(WithTTL(time.Second))
		err := l.Do(t.Context(), "a", func(ctx context.Context) error {
			lease := FromContext(ctx)
			require.NotNil(t, lease)
			assert.Equal(t, "a", lease.Name())
			assert.NoError(t, ctx.Err())
			_, err := l.TryLock(t.Context(), "a")
			assert.ErrorIs(t, err, ErrHeld)
			return oops
		})
		assert.Equal(t, oops, err)
		time.Sleep(ms(10))
		w.requireNoKeys()

		assert.PanicsWithValue(t, "at the disco", func() {
			l.Do(t.Context(), "a", func(context.Context) error { panic("at the disco") })
		})
		time.Sleep(ms(10))
		w.requireNoKeys()

		done := make(chan struct{})
		go func() {
			defer close(done)
			l.Do(t.Context(), "a", func(context.Context) error { runtime.Goexit(); return nil })
		}()
		<-done
		time.Sleep(ms(10))
		w.requireNoKeys()

		ctx, cancel := context.WithCancel(t.Context())
		err = l.Do(ctx, "a", func(ctx context.Context) error { cancel(); return ctx.Err() })
		assert.ErrorIs(t, err, context.Canceled, "fn's own error")
		time.Sleep(ms(10))
		w.requireNoKeys()

		begin := time.Now()
		err = l.Do(t.Context(), "a", func(ctx context.Context) error {
			time.Sleep(time.Minute)
			assert.NoError(t, ctx.Err(), "it is renewed")
			defer w.Inject("at 0s, nodes 1,2: hang").Stop()
			<-ctx.Done()
			assert.Less(t, time.Since(begin), time.Minute+time.Second)
			assert.ErrorIs(t, context.Cause(ctx), ErrLost)
			return oops
		})
		assert.ErrorIs(t, err, oops)
		assert.ErrorIs(t, err, ErrLost)

		assert.ErrorIs(t, l.Do(t.Context(), "a", nil), ErrInvalid)

		err = l.Do(t.Context(), "a", func(ctx context.Context) error { l.Close(); <-ctx.Done(); return oops })
		assert.ErrorIs(t, err, oops)
		assert.ErrorIs(t, err, ErrClosed)
	})
}

func TestDoTellsAnUnlockWithoutAQuorumToHooksOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		var told error
		l := w.locker(WithHooks(Hooks{Done: func(_ context.Context, op Op, _ *Lease, err error) {
			if op.Kind == "unlock" {
				told = err
			}
		}}))
		err := l.Do(t.Context(), "a", func(context.Context) error {
			w.Inject("at 0s, nodes 1,2: hang")
			return nil
		})
		assert.NoError(t, err)
		assert.ErrorIs(t, told, ErrNoQuorum)
	})
}
