package redlock

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestHooksSeeEveryOperationAndEveryRoundInTheirContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(2), ms(3))
		type span struct{}
		var mu sync.Mutex
		var seen []string
		note := func(ctx context.Context, format string, args ...any) {
			id, _ := ctx.Value(span{}).(string)
			mu.Lock()
			defer mu.Unlock()
			seen = append(seen, id+": "+fmt.Sprintf(format, args...))
		}
		hooks := Hooks{
			Start: func(ctx context.Context, op Op) context.Context {
				return context.WithValue(ctx, span{}, op.Kind)
			},
			Round: func(ctx context.Context, r Round) {
				note(ctx, "round %s %q attempt %d, %d granted, %d refused", r.Op, r.Name, r.Attempt, r.Count(Granted), r.Count(Refused))
			},
			Done: func(ctx context.Context, op Op, lease *Lease, err error) {
				note(ctx, "done %q, lease %v, error %v", op.Name, lease != nil, err != nil)
			},
			Lost: func(ctx context.Context, lease *Lease, err error) {
				note(ctx, "lost %q", lease.Name())
			},
		}
		order := 0
		l := w.locker()
		l, err := l.With(WithHooks(hooks), WithHooks(Hooks{
			Start: func(context.Context, Op) context.Context { order++; return nil },
		}), WithMaxAttempts(2), WithTTL(time.Second))
		require.NoError(t, err)

		lease, err := l.Lock(t.Context(), "a")
		require.NoError(t, err)
		require.NoError(t, lease.Extend(t.Context(), 2*time.Second))
		require.NoError(t, lease.Unlock(t.Context()))
		w.plant("a", time.Minute, 1, 2, 3)
		_, err = l.Lock(t.Context(), "a")
		require.Error(t, err)
		_, err = l.TryLock(t.Context(), "a")
		require.Error(t, err)
		_, err = l.TryLock(t.Context(), "b")
		require.NoError(t, err)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		assert.Equal(t, []string{
			`lock: round lock "a" attempt 1, 2 granted, 0 refused`,
			`lock: done "a", lease true, error false`,
			`extend: round extend "a" attempt 0, 2 granted, 0 refused`,
			`extend: done "a", lease true, error false`,
			`unlock: round unlock "a" attempt 0, 2 granted, 0 refused`,
			`unlock: done "a", lease true, error false`,
			`lock: round lock "a" attempt 1, 0 granted, 2 refused`,
			`lock: round lock "a" attempt 2, 0 granted, 2 refused`,
			`lock: done "a", lease false, error true`,
			`trylock: round trylock "a" attempt 1, 0 granted, 2 refused`,
			`trylock: done "a", lease false, error true`,
			`trylock: round trylock "b" attempt 1, 2 granted, 0 refused`,
			`trylock: done "b", lease true, error false`,
			`trylock: lost "b"`,
		}, seen)
		assert.Equal(t, 6, order, "an operation that is over is not another one")
	})
}

func TestHookCanCarryOnTheTraceOfACallerThatHasGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 0, 0, 0)
		var ended error
		l := w.locker(WithHooks(Hooks{Done: func(ctx context.Context, op Op, _ *Lease, _ error) {
			if op.Kind == "unlock" {
				ended = ctx.Err()
			}
		}}))
		ctx, cancel := context.WithCancel(t.Context())
		lease, err := l.Lock(ctx, "a")
		require.NoError(t, err)
		cancel()
		require.NoError(t, lease.Unlock(ctx))
		assert.NoError(t, ended)
	})
}

func TestLogNamesWhatMattersAndNoToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		var out bytes.Buffer
		log := slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))
		l := w.locker(WithHooks(LogHooks(log)), WithTTL(time.Second), WithMaxAttempts(1), WithOwner("host-7"))
		out.Reset()
		lease, err := l.Lock(t.Context(), "a")
		require.NoError(t, err)
		_, err = l.Lock(t.Context(), "a")
		require.Error(t, err)
		require.NoError(t, lease.Unlock(t.Context()))
		hung := w.Inject("at 0s, nodes 1,2: hang")
		_, err = l.Lock(t.Context(), "a")
		require.Error(t, err)
		hung.Stop()
		time.Sleep(time.Second)
		_, err = l.Lock(t.Context(), "a")
		require.NoError(t, err)
		time.Sleep(2 * time.Second)
		synctest.Wait()

		text := out.String()
		for _, want := range []string{
			`level=DEBUG msg="redlock lock" op=lock lock=a took=1ms validity=987ms`,
			`level=INFO msg="redlock lock" op=lock lock=a took=1ms error="redlock: lock \"a\": held by another owner`,
			`level=DEBUG msg="redlock unlock" op=unlock lock=a took=1ms`,
			`level=WARN msg="redlock lock" op=lock lock=a took=50ms error="redlock: lock \"a\": no quorum`,
			`level=WARN msg="redlock lease lost" lock=a error="redlock: lease \"a\": lease lost: its time is over"`,
		} {
			assert.Contains(t, text, want)
		}
		assert.NotContains(t, text, lease.Token())
		assert.Contains(t, text, "host-7")
		assert.NotContains(t, strings.ToLower(text), "!badkey")
	})
}

func TestLostHookIsNotCalledForALeaseReleasedAsItsTimerRanOut(t *testing.T) {
	// The lease was extended, so the timer that runs out is stale; Unlock comes in
	// the same instant.
	told := 0
	for i := range 100 {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, ms(1), ms(1), ms(1))
			var lost atomic.Pointer[error]
			l := w.locker(WithTTL(time.Second), WithHooks(Hooks{Lost: func(_ context.Context, _ *Lease, err error) { lost.Store(&err) }}))
			lease, err := l.TryLock(t.Context(), "a")
			require.NoError(t, err)
			at := lease.Until().Add(-l.cfg.lead())
			time.Sleep(ms(2))
			require.NoError(t, lease.Extend(t.Context(), time.Minute))
			time.Sleep(time.Until(at))
			require.NoError(t, lease.Unlock(t.Context()))
			synctest.Wait()
			if e := lost.Load(); e != nil {
				told++
				if told == 1 {
					t.Logf("run %d: %v", i, *e)
				}
			}
		})
	}
	assert.Zero(t, told)
}
