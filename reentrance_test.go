package redlock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// sent is how many commands the nodes have executed.
func (w *world) sent() (k int) {
	synctest.Wait()
	for n := range w.Nodes() {
		k += len(w.log(n + 1))
	}
	return k
}

func TestNestedLeaseCostsNothingAndIsTheOutermostOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker(WithReentrancy())
		sibling, err := l.With(WithTTL(time.Minute))
		require.NoError(t, err)
		outer, err := l.Lock(t.Context(), "a")
		require.NoError(t, err)
		time.Sleep(ms(10))
		before := w.sent()

		ctx := outer.Context(t.Context())
		var nested []*Lease
		for _, lock := range []func(context.Context, string) (*Lease, error){l.Lock, l.TryLock, sibling.Lock, sibling.TryLock} {
			begin := time.Now()
			lease, err := lock(ctx, "a")
			require.NoError(t, err)
			assert.Zero(t, time.Since(begin))
			assert.NotSame(t, outer, lease)
			assert.Equal(t, "a", lease.Name())
			assert.Equal(t, outer.Token(), lease.Token())
			assert.Equal(t, outer.Until(), lease.Until(), "of the outermost one, whatever the sibling's ttl")
			assert.Equal(t, outer.Validity(), lease.Validity())
			assert.Equal(t, outer.String(), lease.String())
			nested = append(nested, lease)
			ctx = lease.Context(ctx) // nested in nested in nested
			assert.Same(t, lease, FromContext(ctx))
		}
		assert.Equal(t, before, w.sent())

		innermost := nested[3]
		require.NoError(t, innermost.Extend(ctx, 30*time.Second))
		assert.Greater(t, outer.Validity(), 29*time.Second)
		for _, n := range nested {
			assert.Equal(t, outer.Until(), n.Until())
		}
		time.Sleep(ms(10))
		before = w.sent()
		for i := len(nested) - 1; i >= 0; i-- {
			n := nested[i]
			life, done := n.Context(t.Context()), n.Done()
			require.NoError(t, n.Err())
			require.NoError(t, n.Unlock(ctx))
			require.NoError(t, n.Unlock(t.Context()), "again: the first result")
			assert.ErrorIs(t, n.Err(), ErrReleased)
			assert.Zero(t, n.Validity())
			assert.ErrorIs(t, n.Extend(t.Context(), time.Minute), ErrReleased)
			assert.Equal(t, `lease "a": over`, n.String())
			<-done
			<-life.Done()
			assert.ErrorIs(t, context.Cause(life), ErrReleased)
			assert.ErrorIs(t, context.Cause(n.Context(t.Context())), ErrReleased)
			require.NoError(t, outer.Err())
		}
		assert.Equal(t, before, w.sent())
		require.NoError(t, outer.Unlock(t.Context()))
		time.Sleep(ms(10))
		w.requireNoKeys()
	})
}

func TestWithoutTheOptionTheErrorNamesIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker()
		lease, err := l.Lock(t.Context(), "a")
		require.NoError(t, err)
		_, err = l.Lock(lease.Context(t.Context()), "a")
		assert.ErrorIs(t, err, ErrHeld)
		assert.ErrorContains(t, err, "WithReentrancy")
		var votes *QuorumError
		assert.False(t, errors.As(err, &votes), "nobody was asked")

		nesting, err := l.With(WithReentrancy())
		require.NoError(t, err)
		nested, err := nesting.Lock(lease.Context(t.Context()), "a")
		require.NoError(t, err, "the option of the Locker that is called counts")
		_, err = l.Lock(nested.Context(t.Context()), "a")
		assert.ErrorIs(t, err, ErrHeld)
		require.NoError(t, nested.Unlock(t.Context()))
		require.NoError(t, lease.Unlock(t.Context()))
	})
}

func TestOutermostUnlockReleasesWhateverIsNestedInIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker(WithReentrancy())
		outer, err := l.Lock(t.Context(), "a")
		require.NoError(t, err)
		leaked, err := l.Lock(outer.Context(t.Context()), "a")
		require.NoError(t, err)
		asked, err := l.Lock(leaked.Context(t.Context()), "a")
		require.NoError(t, err)
		ctx := leaked.Context(t.Context())
		require.NoError(t, outer.Unlock(t.Context()))
		time.Sleep(ms(10))
		w.requireNoKeys()
		<-ctx.Done()
		<-leaked.Done()
		assert.ErrorIs(t, context.Cause(ctx), ErrReleased)
		for _, n := range []*Lease{leaked, asked} {
			assert.ErrorIs(t, n.Err(), ErrReleased)
			assert.Zero(t, n.Validity())
			assert.ErrorIs(t, n.Extend(t.Context(), time.Minute), ErrReleased)
		}
		before := w.sent()
		assert.ErrorIs(t, asked.Unlock(t.Context()), ErrReleased)
		assert.Equal(t, before, w.sent())

		again, err := l.Lock(context.WithoutCancel(ctx), "a")
		require.NoError(t, err, "a ctx of a lease that was released locks as any")
		assert.NotEqual(t, outer.Token(), again.Token())
		assert.NotSame(t, outer, again.outermost())
		require.NoError(t, again.Unlock(t.Context()))
	})
}

func TestNestedLeaseIsLostWithTheOutermostOne(t *testing.T) {
	for name, lose := range map[string]func(w *world, outer *Lease){
		"its time is over": func(_ *world, outer *Lease) { time.Sleep(outer.Validity()) },
		"found by an extend": func(w *world, outer *Lease) {
			w.Inject(`at 0s, all: evict "a"`)
			outer.Extend(background, time.Second)
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, ms(1), ms(1), ms(1))
			var lost []*Lease
			l := w.locker(WithTTL(time.Second), WithReentrancy(), WithHooks(Hooks{
				Lost: func(_ context.Context, lease *Lease, _ error) { lost = append(lost, lease) },
			}))
			outer, err := l.Lock(t.Context(), "a")
			require.NoError(t, err)
			time.Sleep(ms(5))
			ctx := outer.Context(t.Context())
			nested, err := l.Lock(ctx, "a")
			require.NoError(t, err)
			early, err := l.Lock(ctx, "a")
			require.NoError(t, err)
			require.NoError(t, early.Unlock(ctx))
			inner := nested.Context(t.Context())
			lose(w, outer)
			<-inner.Done()
			assert.ErrorIs(t, context.Cause(inner), ErrLost, name)
			assert.Equal(t, outer.Err(), nested.Err(), name)
			assert.ErrorIs(t, early.Err(), ErrReleased, "it had ended before")
			assert.ErrorIs(t, context.Cause(early.Context(t.Context())), ErrReleased)

			before := w.sent()
			for _, ctx := range []context.Context{ctx, inner, context.WithoutCancel(inner)} {
				begin := time.Now()
				_, err = l.Lock(ctx, "a")
				assert.ErrorIs(t, err, ErrLost, "%s: at once, not after a wait", name)
				assert.Zero(t, time.Since(begin))
				assert.ErrorContains(t, err, `redlock: lock "a": lease lost`)
			}
			assert.ErrorIs(t, nested.Unlock(ctx), ErrLost, name)
			assert.ErrorIs(t, nested.Unlock(ctx), ErrLost)
			assert.Equal(t, before, w.sent())
			assert.ErrorIs(t, outer.Unlock(ctx), ErrLost)
			_, err = l.Lock(context.WithoutCancel(inner), "a")
			assert.ErrorIs(t, err, ErrLost, "it stays lost")
			time.Sleep(ms(10))
			w.requireNoKeys()
			require.Len(t, lost, 1, name)
			assert.Same(t, outer, lost[0])
		})
	}
}

func TestOnlyTheContextMakesALockNested(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker(WithReentrancy())
		other := w.locker(WithReentrancy())
		outer, err := l.Lock(t.Context(), "a")
		require.NoError(t, err)
		ctx := outer.Context(t.Context())

		_, err = l.TryLock(t.Context(), "a")
		assert.ErrorIs(t, err, ErrHeld, "the same process and goroutine, and not the ctx")
		_, err = other.TryLock(ctx, "a")
		assert.ErrorIs(t, err, ErrHeld, "another root Locker")
		b, err := l.TryLock(ctx, "b")
		require.NoError(t, err, "another name")
		assert.Nil(t, b.outer)

		deep := b.Context(ctx)
		nested, err := l.TryLock(deep, "a")
		require.NoError(t, err, "through the context of another lease")
		assert.Same(t, outer, nested.outermost())
		assert.Same(t, b, FromContext(deep))

		gone, cancel := context.WithCancel(ctx)
		cancel()
		_, err = l.Lock(gone, "a")
		assert.ErrorIs(t, err, context.Canceled)
		assert.NotErrorIs(t, err, ErrLost)

		inner := nested.Context(t.Context())
		require.NoError(t, nested.Unlock(ctx))
		again, err := l.TryLock(context.WithoutCancel(inner), "a")
		require.NoError(t, err, "the outermost lease is held, so this must not wait for it")
		assert.Same(t, outer, again.outermost())
		require.NoError(t, b.Unlock(ctx))
		require.NoError(t, outer.Unlock(ctx))
	})
}

func TestNestedLeaseEndsWithCloseAndALockerThatIsClosedNestsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker(WithReentrancy())
		sibling, err := l.With(WithTTL(time.Minute))
		require.NoError(t, err)
		outer, err := sibling.Lock(t.Context(), "a")
		require.NoError(t, err)
		ctx := outer.Context(t.Context())
		nested, err := l.Lock(ctx, "a")
		require.NoError(t, err)
		inner := nested.Context(t.Context())
		require.NoError(t, sibling.Close())
		<-inner.Done()
		assert.ErrorIs(t, context.Cause(inner), ErrClosed)
		assert.ErrorIs(t, nested.Err(), ErrClosed)
		_, err = sibling.Lock(ctx, "a")
		assert.ErrorIs(t, err, ErrClosed)
		_, err = l.Lock(ctx, "a")
		assert.ErrorIs(t, err, ErrClosed, "the work under this ctx was ended")
		assert.ErrorIs(t, nested.Unlock(ctx), ErrClosed)
		w.requireNoKeys()
		assert.Empty(t, l.leases(), "nested leases are nothing that Close would have to release")
	})
}

func TestNestedDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker(WithReentrancy(), WithMaxHold(time.Second))
		runs := 0
		require.NoError(t, l.Do(t.Context(), "a", func(ctx context.Context) error {
			outer := FromContext(ctx)
			before := w.sent()
			defer func() { assert.Equal(t, before, w.sent()) }()
			return l.Do(ctx, "a", func(ctx context.Context) error {
				assert.Same(t, outer, FromContext(ctx).outermost())
				return l.Do(ctx, "a", func(ctx context.Context) error { runs++; return ctx.Err() })
			})
		}))
		assert.Equal(t, 1, runs)
		time.Sleep(ms(10))
		w.requireNoKeys()

		oops := errors.New("oops")
		err := l.Do(t.Context(), "a", func(ctx context.Context) error {
			err := l.Do(ctx, "a", func(ctx context.Context) error { <-ctx.Done(); return oops })
			assert.ErrorIs(t, err, oops)
			assert.ErrorIs(t, err, ErrLost)
			return nil
		})
		assert.ErrorIs(t, err, ErrLost)

		err = l.Do(t.Context(), "a", func(ctx context.Context) error {
			outer := FromContext(ctx)
			return l.Do(ctx, "a", func(ctx context.Context) error { return outer.Unlock(ctx) })
		})
		assert.ErrorIs(t, err, ErrReleased, "the rest of the nested function ran without the lock")
	})
}

// One unlock fails. What the process and the goroutine had is over with it: neither
// a new call nor one on the old context gets in by being who it is, and the lock
// comes free for others.
func TestFailedUnlockNeverLetsTheProcessReenter(t *testing.T) {
	for fault, plan := range map[string]string{
		"not arrived":        "at 0s for 300ms, all: hang",
		"executed, unheard":  "at 0s for 300ms on any, all: lose reply",
		"executed, too late": "at 0s on EVALSHA, all: delay 400ms",
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, ms(1), ms(1), ms(1))
			a := w.locker(WithTTL(5*time.Second), WithNodeTimeout(ms(100)), WithReentrancy(), WithWait(time.Minute))
			b := w.locker(WithTTL(5*time.Second), WithNodeTimeout(ms(100)), WithWait(10*time.Second))
			lease, err := a.Lock(t.Context(), "a")
			require.NoError(t, err)
			nested, err := a.Lock(lease.Context(t.Context()), "a")
			require.NoError(t, err)
			ctx := context.WithoutCancel(nested.Context(t.Context()))
			time.Sleep(ms(10))
			struck := w.Inject(plan)
			begin := time.Now()
			require.ErrorIs(t, lease.Unlock(t.Context()), ErrNoQuorum, fault)
			assert.LessOrEqual(t, time.Since(begin), ms(100))
			assert.ErrorIs(t, nested.Err(), ErrReleased)
			assert.ErrorIs(t, nested.Extend(ctx, time.Second), ErrReleased)

			// At once, by whichever context.
			for _, ctx := range []context.Context{t.Context(), ctx} {
				again, err := a.TryLock(ctx, "a")
				if err == nil {
					assert.Nil(t, again.outer, fault)
					assert.NotEqual(t, lease.Token(), again.Token(), "%s: if it got in, then by votes", fault)
					again.Unlock(ctx)
				}
			}
			time.Sleep(ms(300) - time.Since(begin))
			struck.Stop()
			next, err := b.Lock(t.Context(), "a")
			require.NoError(t, err, fault)
			assert.LessOrEqual(t, time.Since(begin), 6*time.Second+ms(150))
			_, err = a.TryLock(ctx, "a")
			assert.ErrorIs(t, err, ErrHeld)
			require.NoError(t, next.Unlock(t.Context()))
			last, err := a.Lock(ctx, "a")
			require.NoError(t, err, "nothing in this process has stayed locked")
			assert.Nil(t, last.outer)
			require.NoError(t, last.Unlock(ctx))
			time.Sleep(10 * time.Second)
			w.requireNoKeys()
		})
	}
}

func TestHooksTellNestedOperationsFromTheirOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker(WithReentrancy())
		var seen []string
		l, err := l.With(WithTTL(time.Second), WithHooks(Hooks{
			Start: func(ctx context.Context, op Op) context.Context {
				seen = append(seen, "start "+op.Kind)
				return nil
			},
			Round: func(_ context.Context, r Round) { seen = append(seen, "round "+r.Op) },
			Done: func(_ context.Context, op Op, lease *Lease, err error) {
				seen = append(seen, fmt.Sprint("done ", op.Kind, " ", lease != nil, " ", err == nil))
			},
		}))
		require.NoError(t, err)
		outer, err := l.Lock(t.Context(), "a")
		require.NoError(t, err)
		ctx := outer.Context(t.Context())
		nested, err := l.TryLock(ctx, "a")
		require.NoError(t, err)
		require.NoError(t, nested.Extend(ctx, time.Second))
		require.NoError(t, nested.Unlock(ctx))
		require.NoError(t, nested.Unlock(ctx))
		nested, err = l.Lock(ctx, "a")
		require.NoError(t, err)
		time.Sleep(time.Second)
		assert.ErrorIs(t, nested.Unlock(ctx), ErrLost)
		_, err = l.Lock(ctx, "a")
		assert.ErrorIs(t, err, ErrLost)
		assert.Equal(t, []string{
			"start lock", "round lock", "done lock true true",
			"start reenter", "done reenter true true",
			"start extend", "round extend", "done extend true true",
			"start leave", "done leave true true",
			"start reenter", "done reenter true true",
			"start leave", "done leave true false",
			"start reenter", "done reenter false false",
		}, seen)
	})
}

func TestNestedLeasesFromManyGoroutines(t *testing.T) {
	for round := range 20 {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, ms(1), ms(2), ms(3))
			l := w.locker(WithReentrancy(), WithTTL(time.Second))
			outer, err := l.Lock(t.Context(), "a")
			require.NoError(t, err)
			ctx := outer.Context(t.Context())
			over := time.Duration(round) * ms(1)
			var wg sync.WaitGroup
			for i := range 50 {
				wg.Go(func() {
					for k := range 10 {
						nested, err := l.Lock(ctx, "a")
						if err != nil { // the lease was found over, or its context first
							assert.True(t, errors.Is(err, ErrReleased) || errors.Is(err, context.Canceled), "%v", err)
							return
						}
						inner := nested.Context(ctx)
						switch (i + k) % 4 {
						case 0:
							nested.Extend(inner, time.Second)
						case 1:
							nested.Done()
							nested.Validity()
							time.Sleep(ms(1))
						case 2:
							nested.Until()
							wg.Go(func() { nested.Unlock(inner) })
						}
						if i%5 == 0 {
							continue // leaked
						}
						if err := nested.Unlock(inner); err != nil {
							assert.ErrorIs(t, err, ErrReleased)
						}
						<-nested.Done()
						assert.ErrorIs(t, nested.Err(), ErrReleased)
						<-inner.Done()
					}
				})
			}
			time.Sleep(over)
			require.NoError(t, outer.Unlock(t.Context()))
			wg.Wait()
			time.Sleep(ms(50))
			w.requireNoKeys()
			assert.Empty(t, l.leases())
		})
	}
}
