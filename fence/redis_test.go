package fence_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed58520471/redlock/faultinject"
	"github.com/seed58520471/redlock/fence"
	"github.com/seed58520471/redlock/internal/realredis"
)

func TestMain(m *testing.M) {
	redis.SetLogger(&logging.VoidLogger{})
	os.Exit(m.Run())
}

// guarded is a guard on an embedded server.
func guarded(t *testing.T) (fence.Redis, *miniredis.Miniredis) {
	m := miniredis.RunT(t)
	client := redis.NewClient(&redis.Options{Addr: m.Addr()})
	t.Cleanup(func() { client.Close() })
	return fence.Redis{Client: client}, m
}

// overRedis runs a test of the guard on an embedded server and on a real one.
func overRedis(t *testing.T, test func(t *testing.T, g fence.Redis)) {
	t.Run("embedded", func(t *testing.T) {
		g, _ := guarded(t)
		test(t, g)
	})
	t.Run("real", func(t *testing.T) {
		test(t, fence.Redis{Client: realredis.Start(t, 1)[0].Client()})
	})
}

func TestRedisRefusesOnlyLowerTokens(t *testing.T) {
	overRedis(t, func(t *testing.T, g fence.Redis) {
		ctx := t.Context()
		require.NoError(t, g.Set(ctx, "a", older, "one", 0))
		require.NoError(t, g.Set(ctx, "a", older, "two", 0), "one holder may write often")
		require.NoError(t, g.Set(ctx, "a", newer, "three", 0))

		err := g.Set(ctx, "a", older, "late", 0)
		requireStale(t, err, "a")
		_, err = g.Get(ctx, "a", older)
		requireStale(t, err, "a")
		_, err = g.IncrBy(ctx, "a", older, 1)
		requireStale(t, err, "a")

		assert.Equal(t, "three", g.Client.Get(ctx, "a").Val())
		read, err := g.Get(ctx, "a", newer)
		require.NoError(t, err)
		assert.Equal(t, "three", read)
		require.NoError(t, g.Set(ctx, "b", 1, "", 0), "another resource has seen nothing")
	})
}

func TestTokensInRedisKeepEveryDigit(t *testing.T) {
	overRedis(t, func(t *testing.T, g fence.Redis) {
		ctx := t.Context()
		for _, token := range []uint64{1, 9, 10, 99999999999999, 100000000000001, older, newer, fence.MaxToken - 1, fence.MaxToken} {
			require.NoError(t, g.Set(ctx, "a", token, token, 0))
			assert.Equal(t, fmt.Sprint(token), g.Client.Get(ctx, "a").Val())
			assert.Equal(t, fmt.Sprint(token), g.Client.Get(ctx, "redlock:fenced:{a}:a").Val())
			if token == 1 {
				continue
			}
			var stale *fence.StaleError
			require.ErrorAs(t, g.Set(ctx, "a", token-1, "late", 0), &stale, "one less than %d", token)
			assert.Equal(t, token, stale.Highest)
		}
	})
}

func TestShowingATokenKeepsOlderHoldersOut(t *testing.T) {
	overRedis(t, func(t *testing.T, g fence.Redis) {
		_, err := g.Get(t.Context(), "a", newer)
		require.ErrorIs(t, err, redis.Nil)
		require.NotErrorIs(t, err, fence.ErrStale)
		requireStale(t, g.Set(t.Context(), "a", older, "late", 0), "a")
	})
}

func TestSumsInRedisAreExact(t *testing.T) {
	overRedis(t, func(t *testing.T, g fence.Redis) {
		ctx := t.Context()
		sum, err := g.IncrBy(ctx, "a", older, 5)
		require.NoError(t, err)
		assert.Equal(t, int64(5), sum)
		const large = int64(1)<<53 + 1 // Lua's numbers skip it
		sum, err = g.IncrBy(ctx, "a", older, large-5)
		require.NoError(t, err)
		assert.Equal(t, large, sum)

		require.NoError(t, g.Set(ctx, "text", older, "x", 0))
		_, err = g.IncrBy(ctx, "text", newer, 1)
		require.ErrorContains(t, err, "not an integer")
		requireStale(t, g.Set(ctx, "text", older, "late", 0), "text") // the token was seen all the same
	})
}

func TestWhatIsSetCanExpireAndItsTokenStays(t *testing.T) {
	overRedis(t, func(t *testing.T, g fence.Redis) {
		ctx := t.Context()
		require.NoError(t, g.Set(ctx, "a", newer, "x", time.Hour))
		assert.Equal(t, time.Hour, g.Client.TTL(ctx, "a").Val())
		assert.Equal(t, time.Duration(-1), g.Client.TTL(ctx, "redlock:fenced:{a}:a").Val())
		g.Client.Del(ctx, "a")
		requireStale(t, g.Set(ctx, "a", older, "late", 0), "a")

		g.Keep = 48 * time.Hour
		require.NoError(t, g.Set(ctx, "a", newer, "x", 0))
		assert.Equal(t, time.Duration(-1), g.Client.TTL(ctx, "a").Val())
		assert.Equal(t, 48*time.Hour, g.Client.TTL(ctx, "redlock:fenced:{a}:a").Val())
		_, err := g.Get(ctx, "a", newer)
		require.NoError(t, err)
		assert.Equal(t, 48*time.Hour, g.Client.TTL(ctx, "redlock:fenced:{a}:a").Val())
	})
}

func TestAScriptRunsBehindTheGuard(t *testing.T) {
	move := fence.NewScript(`
if #KEYS ~= 2 or #ARGV ~= 1 then error('not as given') end
redis.call('DECRBY', KEYS[1], ARGV[1])
return redis.call('INCRBY', KEYS[2], ARGV[1])`)
	overRedis(t, func(t *testing.T, g fence.Redis) {
		ctx := t.Context()
		keys := []string{"{accounts}:1", "{accounts}:2"}
		for i := range 2 {
			sum, err := g.Run(ctx, move, "accounts", newer, keys, 5).Int()
			require.NoError(t, err)
			assert.Equal(t, 5*(i+1), sum)
		}
		assert.Equal(t, "10", g.Client.Get(ctx, keys[1]).Val())
		requireStale(t, g.Run(ctx, move, "accounts", older, keys, 5).Err(), "accounts")
		assert.Equal(t, "10", g.Client.Get(ctx, keys[1]).Val())

		nothing, err := g.Run(ctx, fence.NewScript(`return #KEYS + #ARGV`), "accounts", newer, nil).Int()
		require.NoError(t, err)
		assert.Zero(t, nothing)

		err = g.Run(ctx, fence.NewScript("\n\nreturn token"), "accounts", newer, nil).Err()
		require.ErrorContains(t, err, "nonexistent global variable 'token'", "the guard's own names are not in sight")
		require.ErrorContains(t, err, ":3:", "the line is the script's")
	})
}

func TestServersThatForgetTheirScriptsGetThemAgain(t *testing.T) {
	overRedis(t, func(t *testing.T, g fence.Redis) {
		for range 3 {
			require.NoError(t, g.Client.ScriptFlush(t.Context()).Err())
			require.NoError(t, g.Set(t.Context(), "a", older, "x", 0))
		}
	})
}

func TestKeysOfAGuardShareASlotOfACluster(t *testing.T) {
	s := realredis.Start(t, 1, "--cluster-enabled", "yes")[0]
	ctx := t.Context()
	require.NoError(t, s.Client().Do(ctx, "cluster", "addslotsrange", 0, 16383).Err())
	require.Eventually(t, func() bool {
		return strings.Contains(s.Client().ClusterInfo(ctx).Val(), "cluster_state:ok")
	}, 10*time.Second, 10*time.Millisecond)
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{s.Addr}})
	defer cluster.Close()
	g := fence.Redis{Client: cluster}
	for _, resource := range []string{"a", "a b", "{x}y", "x{y}z", "{x}{y}", "{{x}}", "a{b", "{", "日本語"} {
		require.NoError(t, g.Set(ctx, resource, newer, "x", 0), resource)
		requireStale(t, g.Set(ctx, resource, older, "x", 0), resource)
	}
	for _, resource := range []string{"}", "a}b", "{}", "{}x", "{}{x}", "}{"} {
		require.ErrorIs(t, g.Set(ctx, resource, newer, "x", 0), fence.ErrInvalid, resource)
		assert.Zero(t, cluster.Exists(ctx, resource).Val())
	}
}

func TestAnyNameWillDoOnAPlainServer(t *testing.T) {
	overRedis(t, func(t *testing.T, g fence.Redis) {
		for _, resource := range []string{"}", "a}b", "{}", "{}x", "a b", "\x00\xff", "-- '", "{x}y"} {
			require.NoError(t, g.Set(t.Context(), resource, newer, "x", 0), resource)
			requireStale(t, g.Set(t.Context(), resource, older, "y", 0), resource)
			assert.Equal(t, "x", g.Client.Get(t.Context(), resource).Val())
		}
	})
}

func TestRedisRefusesNonsenseBeforeItIsSent(t *testing.T) {
	g, m := guarded(t)
	ctx := t.Context()
	for token, bound := range notTokens {
		err := g.Set(ctx, "a", token, "x", 0)
		require.ErrorIs(t, err, fence.ErrInvalid)
		require.ErrorContains(t, err, bound)
		_, err = g.Get(ctx, "a", token)
		require.ErrorIs(t, err, fence.ErrInvalid)
		_, err = g.IncrBy(ctx, "a", token, 1)
		require.ErrorIs(t, err, fence.ErrInvalid)
	}
	require.ErrorIs(t, g.Set(ctx, "", older, "x", 0), fence.ErrInvalid)
	require.ErrorContains(t, g.Set(ctx, "a", older, "x", -time.Second), "want 0 or at least 1ms")
	require.ErrorContains(t, g.Set(ctx, "a", older, "x", time.Microsecond), "ttl is 1µs")
	require.ErrorContains(t, fence.Redis{Client: g.Client, Keep: time.Hour}.Set(ctx, "a", older, "x", 0), "at least 24h0m0s")
	require.ErrorContains(t, fence.Redis{}.Set(ctx, "a", older, "x", 0), "nil")
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": m.Addr()}})
	defer ring.Close()
	require.ErrorContains(t, fence.Redis{Client: ring}.Set(ctx, "a", older, "x", 0), "Ring")
	assert.Zero(t, m.CommandCount())
}

func TestAnIncrementWithoutAnswerIsNotSentAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		t.Cleanup(func() { time.Sleep(time.Minute) })
		cluster := faultinject.Start(t, 1)
		g := fence.Redis{Client: cluster.Clients()[0]} // which repeats three times
		ctx := t.Context()
		_, err := g.IncrBy(ctx, "a", older, 1)
		require.NoError(t, err)

		for _, fault := range []string{"cut during", "lose reply"} {
			struck := cluster.Inject("on EVALSHA #1, node 1: " + fault)
			before := cluster.Node(1).Executed("EVALSHA")
			_, err = g.IncrBy(ctx, "a", older, 1)
			require.Error(t, err)
			require.NotErrorIs(t, err, fence.ErrStale)
			require.NotErrorIs(t, err, fence.ErrInvalid)
			var served redis.Error
			require.False(t, errors.As(err, &served), "nobody refused it: %v", err)
			require.NoError(t, struck.Check())
			assert.Equal(t, 1, cluster.Node(1).Executed("EVALSHA")-before)
			struck.Stop()
		}
		assert.Equal(t, "3", cluster.Node(1).Get("a"), "they were executed")
	})
}

func TestAForeignValueInPlaceOfTheTokenLetsNobodyIn(t *testing.T) {
	overRedis(t, func(t *testing.T, g fence.Redis) {
		ctx := t.Context()
		for _, value := range []string{"", "x", "nan", "inf"} {
			require.NoError(t, g.Client.Set(ctx, "redlock:fenced:{a}:a", value, 0).Err())
			err := g.Set(ctx, "a", newer, "x", 0)
			require.Error(t, err)
			require.NotErrorIs(t, err, fence.ErrStale)
			assert.Zero(t, g.Client.Exists(ctx, "a").Val())
		}
	})
}

func TestOfManyInRedisNoneWritesAfterALaterOne(t *testing.T) {
	overRedis(t, func(t *testing.T, g fence.Redis) {
		var all sync.WaitGroup
		var highest atomic.Uint64
		for i := range 8 {
			all.Go(func() {
				for j := range 25 {
					token := older + uint64((i*7+j*5)%100)
					switch err := g.Set(context.Background(), "a", token, token, 0); {
					case err == nil:
						for h := highest.Load(); h < token && !highest.CompareAndSwap(h, token); h = highest.Load() {
						}
					default:
						assert.ErrorIs(t, err, fence.ErrStale)
					}
				}
			})
		}
		all.Wait()
		assert.Equal(t, fmt.Sprint(highest.Load()), g.Client.Get(t.Context(), "a").Val())
	})
}

func TestAServerThatIsDownIsNeitherStaleNorInvalid(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1, DialerRetries: 1,
		Dialer: func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("refused") }})
	defer client.Close()
	err := fence.Redis{Client: client}.Set(t.Context(), "a", older, "x", 0)
	require.ErrorContains(t, err, "refused")
	require.NotErrorIs(t, err, fence.ErrStale)
}
