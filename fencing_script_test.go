package redlock

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed58520471/redlock/internal/realredis"
)

// The scripts count alike on a real server and on an embedded one, to the last
// digit.
func TestFencingScriptsCountExactly(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		m := miniredis.RunT(t)
		c := redis.NewClient(&redis.Options{Addr: m.Addr()})
		defer c.Close()
		testFencingScripts(t, c)
	})
	t.Run("real", func(t *testing.T) { testFencingScripts(t, realredis.Start(t, 1)[0].Client()) })
}

// numbers are hard to print or to store: 16 digits, many zeros, powers, the end.
var numbers = []uint64{
	1, 9, 10, 99999999999999, 100000000000000, 1796000000000000, 1796035000123457, 1800000000000000,
	2000000000000000, 4503599627370496, 4503599627370497, 9000000000000000, 9007199254740989, maxFence - 1,
}

func testFencingScripts(t *testing.T, c *redis.Client) {
	ctx := t.Context()
	const lock, counter = "a", "redlock:fence:{a}:a"
	eval := func(k kind, args ...any) any {
		val, err := c.Eval(ctx, sources[k], []string{lock, counter}, args...).Result()
		require.NoError(t, err)
		return val
	}
	str := func(n uint64) string { return strconv.FormatUint(n, 10) }
	begin := func(held string, n uint64) {
		require.NoError(t, c.FlushAll(ctx).Err())
		if held != "" {
			require.NoError(t, c.Set(ctx, lock, held, time.Minute).Err())
		}
		if n > 0 {
			require.NoError(t, c.Set(ctx, counter, str(n), 0).Err())
		}
	}
	stored := func() (string, string) { return c.Get(ctx, lock).Val(), c.Get(ctx, counter).Val() }
	for _, n := range numbers {
		clock, err := c.Time(ctx).Result()
		require.NoError(t, err)
		late := clock.Add(-10 * time.Minute).UnixMicro()

		begin("", n)
		text := ""
		if n < uint64(late) { // a proposal of 1 is brought to ten minutes ago
			text = eval(ballot, "mine", 60000, 0, "", 1, "propose").([]any)[1].(string)
			got, err := strconv.ParseInt(text, 10, 64)
			require.NoError(t, err)
			assert.InDelta(t, late, got, 5e6)
		} else {
			assert.Equal(t, []any{int64(1), str(n + 1)}, eval(ballot, "mine", 60000, 0, "", 1, "propose"), "%d", n)
			text = str(n + 1)
		}
		held, count := stored()
		assert.Equal(t, "mine", held)
		assert.Equal(t, text, count)
		assert.InDelta(t, time.Minute, c.PTTL(ctx, lock).Val(), float64(5*time.Second))
		ahead := max(0, time.UnixMicro(first(strconv.ParseInt(text, 10, 64))).Sub(clock))
		assert.InDelta(t, 7*24*time.Hour+ahead, c.PTTL(ctx, counter).Val(), float64(5*time.Second))

		// Sent again it is the same.
		if text != str(maxFence) {
			assert.Equal(t, []any{int64(2), text}, eval(ballot, "mine", 60000, 0, "", 1, "propose"))
		}
		_, count = stored()
		assert.Equal(t, text, count)

		begin("mine", n)
		assert.Equal(t, str(n), eval(raise, "mine", 1))
		assert.Equal(t, str(n+1), eval(raise, "mine", n+1))
		assert.Equal(t, int64(-1), eval(raise, "other", 2))
		_, count = stored()
		assert.Equal(t, str(n+1), count)

		begin("mine", n)
		assert.Equal(t, int64(1), eval(heal, "mine", 90000, "", n+1))
		_, count = stored()
		assert.Equal(t, str(n+1), count)

		begin("", n)
		assert.Equal(t, []any{int64(1), str(n + 1)}, eval(ballot, "mine", 60000, 0, "", n+1, "reach"))
		held, count = stored()
		assert.Equal(t, "mine", held)
		assert.Equal(t, str(n+1), count)
	}

	t.Run("refusals", func(t *testing.T) {
		for _, tc := range []struct {
			held string
			old  string
			want any
		}{
			{"other", "", "other"}, {"other", "old", "other"}, {"", "old", int64(0)},
		} {
			begin(tc.held, 5)
			got := eval(ballot, "mine", 60000, 0, tc.old, 1, "propose").([]any)
			assert.Equal(t, tc.want, got[0], "%+v", tc)
			held, count := stored()
			assert.Equal(t, tc.held, held)
			assert.Equal(t, "5", count, "no number for who is refused")
		}
		begin("old", maxFence/2)
		assert.Equal(t, []any{int64(1), str(maxFence/2 + 1)}, eval(ballot, "mine", 60000, 0, "old", 1, "propose"))

		require.NoError(t, c.Set(ctx, lock, "", 0).Err())
		assert.Equal(t, []any{"", int64(-1)}, eval(ballot, "mine", 60000, 0, "", 1, "propose"), "an empty value is a value")

		for _, value := range []string{"many", "-1", "1.5", "1e300", str(maxFence), "nan", "inf", "-inf"} {
			begin("", 0)
			require.NoError(t, c.Set(ctx, counter, value, 0).Err())
			err := c.Eval(ctx, sources[ballot], []string{lock, counter}, "mine", 60000, 0, "", 1, "propose").Err()
			assert.ErrorContains(t, err, "the fencing counter is not a number that can rise", value)
			held, count := stored()
			assert.Equal(t, [2]string{"", value}, [2]string{held, count})
		}
		begin("mine", 0)
		require.NoError(t, c.LPush(ctx, counter, "x").Err())
		assert.Equal(t, int64(1), eval(heal, "mine", 90000, "", 7), "a counter that is none does not cost the extension")
		assert.ErrorContains(t, c.Eval(ctx, sources[raise], []string{lock, counter}, "mine", 7).Err(), "not a number")
	})

	t.Run("proposals are brought within ten minutes", func(t *testing.T) {
		clock, err := c.Time(ctx).Result()
		require.NoError(t, err)
		for proposal, want := range map[int64]time.Duration{
			0: -10 * time.Minute, clock.Add(-time.Hour).UnixMicro(): -10 * time.Minute, clock.UnixMicro(): 0,
			clock.Add(5 * time.Minute).UnixMicro(): 5 * time.Minute, clock.AddDate(1, 0, 0).UnixMicro(): 10 * time.Minute,
			maxFence: 10 * time.Minute,
		} {
			begin("", 0)
			text := eval(ballot, "mine", 60000, 0, "", proposal, "propose").([]any)[1].(string)
			got, err := strconv.ParseInt(text, 10, 64)
			require.NoError(t, err)
			assert.InDelta(t, clock.Add(want).UnixMicro(), got, 5e6, "%d", proposal)
			if want > -time.Minute && want < 10*time.Minute {
				assert.Equal(t, proposal, got, "exactly")
			}
		}
	})
}

func first[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// On real servers from end to end, with numbers that Lua prints wrongly by itself.
func TestFencesAreExactOnRealServers(t *testing.T) {
	servers := realredis.Start(t, 3)
	var clients []redis.UniversalClient
	for _, s := range servers {
		clients = append(clients, s.Client())
	}
	l, err := New(clients, WithFencing())
	require.NoError(t, err)
	defer l.Close()
	for i, n := range []uint64{1796000000000000, 1800000000000001, 4503599627370495, 9007199254740000} {
		name := fmt.Sprint("n", i)
		for j, s := range servers {
			require.NoError(t, s.Client().Set(t.Context(), fenceCounter(name), n+uint64(j), 0).Err())
		}
		last := n
		for range 20 {
			lease, err := l.TryLock(t.Context(), name)
			require.NoError(t, err)
			assert.Greater(t, lease.Fence(), last)
			last = lease.Fence()
			require.NoError(t, lease.Unlock(t.Context()))
		}
		assert.LessOrEqual(t, last, max(n+22, uint64(time.Now().UnixMicro())))
	}
	in, err := l.Inspect(context.Background(), "n3")
	require.NoError(t, err)
	assert.Greater(t, in.Fence, uint64(9007199254740000))
	assert.Contains(t, in.String(), fmt.Sprint("fence ", in.Fence))
}
