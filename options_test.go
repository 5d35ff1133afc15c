package redlock

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestBadOptionsNameTheValueAndTheBound(t *testing.T) {
	for _, c := range []struct {
		opts []Option
		says []string
	}{
		{[]Option{WithTTL(0)}, []string{"ttl is 0s", "at least 1ms"}},
		{[]Option{WithTTL(-1)}, []string{"ttl is -1ns", "at least 1ms"}},
		{[]Option{WithTTL(-ms(5))}, []string{"ttl is -5ms"}},
		{[]Option{WithTTL(ms(1) / 2)}, []string{"ttl is 500µs", "at least 1ms"}},
		{[]Option{WithTTL(ms(1))}, []string{"ttl is 1ms", "drift margin 2.01ms", "1ms to remain"}},
		{[]Option{WithTTL(ms(3))}, []string{"ttl is 3ms", "drift margin 2.03ms", "1ms to remain"}},
		{[]Option{WithTTL(maxTTL + time.Second)}, []string{"ttl is 8760h0m1s", "at most 8760h0m0s"}},
		{[]Option{WithTTL(math.MaxInt64)}, []string{"at most 8760h0m0s"}},
		{[]Option{WithDrift(ms(101))}, []string{"drift is 101ms", "at least 102ms", "ttl of 10s"}},
		{[]Option{WithDrift(-1)}, []string{"drift is -1ns", "ttl/100 + 2ms"}},
		{[]Option{WithTTL(time.Second), WithDrift(time.Second)}, []string{"drift margin 1s", "1ms to remain"}},
		{[]Option{WithNodeTimeout(0)}, []string{"node timeout is 0s", "1ms"}},
		{[]Option{WithNodeTimeout(-ms(1))}, []string{"node timeout is -1ms"}},
		{[]Option{WithLossLead(0)}, []string{"loss lead is 0s", "more than 0"}},
		{[]Option{WithLossLead(10 * time.Second)}, []string{"loss lead is 10s", "ttl is 10s", "drift margin 102ms"}},
		{[]Option{WithBackoff(Backoff{Min: -1})}, []string{"Min is -1ns"}},
		{[]Option{WithBackoff(Backoff{Min: ms(9), Max: ms(8)})}, []string{"Max is 8ms", "9ms"}},
		{[]Option{WithBackoff(Backoff{Factor: .5})}, []string{"Factor is 0.5", "at least 1"}},
		{[]Option{WithBackoff(Backoff{Factor: math.NaN()})}, []string{"Factor is NaN"}},
		{[]Option{WithMaxAttempts(0)}, []string{"max attempts is 0", "at least 1"}},
		{[]Option{WithWait(-1)}, []string{"wait is -1ns", "0 or more"}},
		{[]Option{WithOwner("")}, []string{"0 bytes", "1 to 128"}},
		{[]Option{WithOwner(strings.Repeat("x", 129))}, []string{"129 bytes", "1 to 128"}},
		{[]Option{WithOwner("a\nb")}, []string{`"a\nb"`, "printable"}},
		{[]Option{WithOwner("\xff")}, []string{"printable"}},
		{[]Option{WithTTL(-1), WithWait(-2), WithMaxAttempts(-3)}, []string{"ttl is -1ns", "wait is -2ns", "max attempts is -3"}},
	} {
		_, err := New([]redis.UniversalClient{deaf(t)}, c.opts...)
		assert.ErrorIs(t, err, ErrInvalid)
		for _, s := range c.says {
			assert.ErrorContains(t, err, s)
		}
		assert.NotContains(t, err.Error(), "\n")
		_, openErr := Open([]string{"redis://127.0.0.1:1"}, c.opts...)
		assert.Equal(t, err.Error(), openErr.Error(), "Open says the same")
	}
}

func TestGoodOptionsGoTogether(t *testing.T) {
	for _, opts := range [][]Option{
		nil, {Option{}},
		{WithTTL(ms(4))}, {WithTTL(maxTTL)}, {WithTTL(ms(100)), WithDrift(ms(99))},
		{WithNodeTimeout(time.Hour)}, {WithTTL(ms(200)), WithNodeTimeout(time.Second)},
		{WithOwner("host-7/日本")}, {WithWait(0)}, {WithBackoff(Backoff{})}, {WithHooks(Hooks{})},
		{WithLossLead(9 * time.Second)},
	} {
		cfg, faults := defaults().apply(opts, false)
		require.Empty(t, faults)
		assert.Positive(t, cfg.voteBound())
		assert.Positive(t, cfg.span(cfg.ttl)-cfg.lead())
		assert.LessOrEqual(t, cfg.voteBound()+cfg.lead()+drift(cfg.ttl, cfg.leastDrift), cfg.ttl)
	}
	cfg, faults := defaults().apply(nil, false)
	require.Empty(t, faults)
	assert.Equal(t, 10*time.Second, cfg.ttl)
	assert.Equal(t, ms(500), cfg.nodeTimeout)
	assert.Equal(t, ms(51), cfg.lead())
	cfg, faults = defaults().apply([]Option{WithTTL(500 * time.Millisecond)}, false)
	require.Empty(t, faults)
	assert.Equal(t, ms(50), cfg.nodeTimeout)
}

func TestBadNodesAreRefusedTogether(t *testing.T) {
	a := deaf(t)
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}})
	t.Cleanup(func() { ring.Close() })
	var nilClient *redis.Client
	for _, c := range []struct {
		clients []redis.UniversalClient
		says    []string
	}{
		{nil, []string{"no nodes"}},
		{[]redis.UniversalClient{nil}, []string{"client 1 is nil"}},
		{[]redis.UniversalClient{a, nilClient}, []string{"client 2 is nil"}},
		{[]redis.UniversalClient{a, deaf(t), a}, []string{"clients 1 and 3 are the same"}},
		{[]redis.UniversalClient{ring}, []string{"client 1 is a *redis.Ring"}},
		{[]redis.UniversalClient{a, a, nil, ring}, []string{"clients 1 and 2", "client 3 is nil", "client 4 is a *redis.Ring"}},
	} {
		_, err := New(c.clients)
		assert.ErrorIs(t, err, ErrInvalid)
		for _, s := range c.says {
			assert.ErrorContains(t, err, s)
		}
	}
	_, err := New(nil, WithTTL(-1))
	assert.ErrorContains(t, err, "no nodes")
	assert.ErrorContains(t, err, "ttl is -1ns")
}

func TestBadCallsSendNothing(t *testing.T) {
	l, err := New([]redis.UniversalClient{deaf(t)})
	require.NoError(t, err)
	defer l.Close()
	for name, says := range map[string]string{
		"":                           "empty",
		"redlock:fence:{a}:a":        "fencing counters",
		strings.Repeat("k", 1<<20+1): "1048577 bytes",
	} {
		for _, lock := range []func(context.Context, string) (*Lease, error){l.Lock, l.TryLock} {
			lease, err := lock(t.Context(), name)
			assert.Nil(t, lease)
			assert.ErrorIs(t, err, ErrInvalid)
			assert.ErrorContains(t, err, says)
			assert.Less(t, len(err.Error()), 300, "the name does not drown the message")
		}
		assert.ErrorIs(t, l.Do(t.Context(), name, func(context.Context) error { return nil }), ErrInvalid)
	}
	var nilContext context.Context
	_, err = l.Lock(nilContext, "a")
	assert.ErrorIs(t, err, ErrInvalid)
	_, err = l.TryLock(nilContext, "a")
	assert.ErrorIs(t, err, ErrInvalid)

	_, err = l.With(WithNodeTimeout(time.Second))
	assert.ErrorIs(t, err, ErrInvalid)
	assert.ErrorContains(t, err, "node timeout")
	_, err = l.With(WithTTL(ms(1)))
	assert.ErrorIs(t, err, ErrInvalid)

	closed, err := New([]redis.UniversalClient{deaf(t)})
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	_, err = closed.Lock(t.Context(), "a")
	assert.ErrorIs(t, err, ErrClosed)
}

func TestBadExtensionsSendNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 0, 0, 0)
		l := w.locker()
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		synctest.Wait() // the third vote may be node 1's
		before := len(w.log(1))
		for _, ttl := range []time.Duration{0, -1, 1, ms(3), maxTTL + ms(1), math.MaxInt64, math.MinInt64} {
			assert.ErrorIs(t, lease.Extend(t.Context(), ttl), ErrInvalid, "%v", ttl)
		}
		var nilContext context.Context
		assert.ErrorIs(t, lease.Extend(nilContext, time.Minute), ErrInvalid)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		assert.ErrorIs(t, lease.Extend(ctx, time.Minute), context.Canceled)
		assert.Len(t, w.log(1), before)
		require.NoError(t, lease.Err())
		require.NoError(t, lease.Unlock(nilContext), "unlock needs no context")
	})
}

func TestEveryUsableTTLGivesAKeyThatExpires(t *testing.T) {
	for _, ttl := range []time.Duration{ms(4), ms(5), ms(999), 1500 * time.Millisecond, 1500*time.Millisecond + 999*time.Microsecond, 2 * time.Second, maxTTL} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, 0, 0, 0)
			l := w.locker(WithTTL(ttl))
			lease, err := l.TryLock(t.Context(), "a")
			require.NoError(t, err)
			synctest.Wait()
			for n := 1; n <= 3; n++ {
				assert.Equal(t, ttl.Truncate(time.Millisecond), w.ttl(n, "a"))
			}
			assert.Positive(t, lease.Validity())
			require.NoError(t, lease.Extend(t.Context(), ttl))
			require.NoError(t, lease.Unlock(t.Context()))
		})
	}
}

func TestTokensAreFreshAndCarryTheOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 0, 0, 0)
		l := w.locker(WithOwner("host-7:42"))
		seen := make(map[string]bool)
		for range 100 {
			lease, err := l.TryLock(t.Context(), "a")
			require.NoError(t, err)
			assert.Regexp(t, "^[0-9a-f-]{36}:host-7:42$", lease.Token())
			assert.False(t, seen[lease.Token()])
			seen[lease.Token()] = true
			require.NoError(t, lease.Unlock(t.Context()))
		}
		assert.Equal(t, "host-7:42", ownerOf("01234567-0123-0123-0123-0123456789ab:host-7:42"))
		assert.Equal(t, "01234567…", ownerOf("01234567-0123-0123-0123-0123456789ab"))
		assert.Equal(t, "data", ownerOf("data"))
		assert.Equal(t, "bm9uIHVu…", ownerOf("bm9uIHVuZSBwaXBlCg=="), "another library's token")
	})
}

// deaf is a client that fails the test if anything is sent to it.
func deaf(t *testing.T) redis.UniversalClient {
	c := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	c.AddHook(deafHook{t})
	t.Cleanup(func() { c.Close() })
	return c
}

type deafHook struct{ t *testing.T }

var errDeaf = errors.New("nothing should be sent")

func (h deafHook) DialHook(redis.DialHook) redis.DialHook {
	h.t.Helper()
	return nil
}

func (h deafHook) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(_ context.Context, cmd redis.Cmder) error {
		h.t.Errorf("%v: %v", errDeaf, cmd)
		return errDeaf
	}
}

func (h deafHook) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(_ context.Context, cmds []redis.Cmder) error {
		h.t.Errorf("%v: %v", errDeaf, cmds)
		return errDeaf
	}
}
