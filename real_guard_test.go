package redlock_test

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/seed58520471/redlock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// shortGuard is a ttl, and as long as a node that has restarted does not vote but for
// the two seconds of its clocks' grain.
const shortGuard = 2 * time.Second

// longGuard leaves time to see that two hold the lock, on a busy machine too.
const longGuard = 2 * shortGuard

func long() []redlock.Option {
	return []redlock.Option{redlock.WithTTL(longGuard), redlock.WithRestartGuard(longGuard), redlock.WithFencing()}
}

func guarded(opts ...redlock.Option) []redlock.Option {
	return append([]redlock.Option{redlock.WithTTL(shortGuard), redlock.WithRestartGuard(shortGuard)}, opts...)
}

// comeOfAge waits until the servers have been up for long enough to vote.
func (ns nodes) comeOfAge(t *testing.T, guard time.Duration) {
	t.Helper()
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		for _, n := range ns {
			_, rest, _ := strings.Cut(n.Client().Info(context.Background(), "server").Val(), "uptime_in_seconds:")
			up, _ := strconv.Atoi(strings.Fields(rest)[0])
			require.GreaterOrEqual(c, up, int(guard/time.Second)+2, n.Addr)
		}
	}, time.Minute, 20*time.Millisecond)
}

// requireYoung checks that so many votes say that their server has restarted.
func requireYoung(t *testing.T, err error, least int) {
	t.Helper()
	require.ErrorIs(t, err, redlock.ErrNoQuorum)
	young := 0
	for _, v := range votes(t, err) {
		if v.Err != nil && strings.Contains(v.Err.Error(), "it restarted lately and abstains for another") {
			young++
		}
	}
	require.GreaterOrEqual(t, young, least, err)
}

func TestServersKilledWithinATTLGiveTheNameAwayTwiceUnlessGuarded(t *testing.T) {
	ns := startNodes(t, 3)
	short := redlock.WithTTL(shortGuard)
	a, b := ns.locker(t, short), ns.locker(t, short)
	lease := lock(t, a, "orders")
	ns.eventuallyHold(t, lease, soon)
	require.NoError(t, lease.Extend(t.Context(), ttl))
	ns[:2].each((*server).Restart)
	var second *redlock.Lease
	require.Eventually(t, func() (got bool) {
		var err error
		second, err = b.TryLock(context.Background(), "orders")
		return err == nil
	}, soon, tick)
	assert.NoError(t, lease.Err(), "two holders")
	unlock(t, second)
	lease.Unlock(t.Context())

	for name, opts := range map[string][]redlock.Option{"plain": guarded(), "fenced": guarded(redlock.WithFencing())} {
		for _, open := range []bool{false, true} {
			t.Run(fmt.Sprintf("guarded, %s, open %t", name, open), func(t *testing.T) {
				make := func() *redlock.Locker {
					if open {
						return ns.open(t, "", opts...)
					}
					return ns.locker(t, opts...)
				}
				ns.comeOfAge(t, shortGuard)
				a, b := make(), make()
				unlock(t, lock(t, b, "warm-up"))
				lease := lock(t, a, "orders")
				ns.eventuallyHold(t, lease, soon)
				ns[:2].each((*server).Restart)
				late := make() // knows nothing of the servers that were there before
				require.NoError(t, lease.Err(), "a busy machine")
				for _, l := range []*redlock.Locker{b, late} {
					_, err := l.TryLock(t.Context(), "orders")
					requireYoung(t, err, 2)
				}
				next, err := late.Lock(t.Context(), "orders")
				require.NoError(t, err)
				require.ErrorIs(t, lease.Err(), redlock.ErrLost)
				unlock(t, next)
				next, err = b.Lock(t.Context(), "orders")
				require.NoError(t, err)
				unlock(t, next)
			})
		}
	}
}

// A save that is younger than the guard proves no age, so INFO has to.
func TestServerThatHasJustSavedVotesAllTheSame(t *testing.T) {
	ns := startNodes(t, 3)
	ns.comeOfAge(t, shortGuard)
	l := ns.locker(t, guarded()...)
	infos := func() (calls []int) {
		ns.do(t, "config", "resetstat")
		lease := lock(t, l, "orders")
		ns.eventuallyHold(t, lease, soon)
		unlock(t, lease)
		ns.eventuallyEmpty(t, soon)
		for _, n := range ns {
			require.Positive(t, n.Calls("lastsave"), n.Addr)
			calls = append(calls, n.Calls("info")-1) // but for the call before
		}
		return calls
	}
	infos() // connects
	assert.Equal(t, []int{0, 0, 0}, infos())
	ns.do(t, "bgsave")
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		for _, n := range ns {
			persistence := n.Client().Info(context.Background(), "persistence").Val()
			require.Contains(c, persistence, "rdb_bgsave_in_progress:0")
			require.NotContains(c, persistence, "rdb_saves:0")
		}
	}, soon, tick)
	assert.Equal(t, []int{1, 1, 1}, infos(), "asked by the script")
}

func TestGuardThatMayNotAskServersTheirAgeSaysSoAtOnce(t *testing.T) {
	ns := startNodes(t, 3)
	ns.comeOfAge(t, shortGuard)
	const rights = "on >pw ~* resetchannels -@all +set +get +del +pttl +pexpire +eval +evalsha +time +lastsave +info"
	ns.grant(t, rights)
	l := ns.asLocker(t, guarded()...)
	for range 2 {
		lease := lock(t, l, "orders")
		require.NoError(t, lease.Extend(t.Context(), shortGuard))
		unlock(t, lease)
	}
	fenced := ns.asLocker(t, guarded(redlock.WithFencing())...)
	unlock(t, lock(t, fenced, "fenced"))

	for right, says := range map[string]string{
		" +info":     "the restart guard needs INFO server: NOPERM ",
		" +lastsave": "the restart guard needs LASTSAVE: ",
		" +time":     "The user executing the script can't run this command",
	} {
		t.Run("without"+right, func(t *testing.T) {
			ns.grant(t, strings.Replace(rights, right, "", 1))
			for _, l := range []*redlock.Locker{
				ns.asLocker(t, guarded()...), ns.asLocker(t, guarded(redlock.WithFencing())...),
			} {
				begin := time.Now()
				_, err := l.Lock(t.Context(), "orders")
				require.ErrorIs(t, err, redlock.ErrNoQuorum)
				assert.Less(t, time.Since(begin), shortGuard)
				denied := 0
				for _, v := range votes(t, err) {
					if v.Err != nil && strings.Contains(v.Err.Error(), says) {
						denied++
					}
				}
				assert.GreaterOrEqual(t, denied, 2, err)
			}
		})
	}
}

// The guard is against restarts. What else makes a server forget, it does not see:
// another client may get the lock, and the holder finds out when it extends. With
// fencing the second holder has the higher number all the same, by the clock, so that
// the resource can refuse the first.
func TestGuardDoesNotSeeWhatServersForgetWhileTheyRun(t *testing.T) {
	ns := startNodes(t, 3)
	ns.comeOfAge(t, longGuard)
	for name, forget := range map[string]func(nodes){
		"FLUSHALL": func(ns nodes) { ns.do(t, "flushall") },
		"eviction": func(ns nodes) {
			ns.do(t, "config", "set", "maxmemory-policy", "allkeys-lru")
			ns.do(t, "config", "set", "maxmemory", "1")
			ns.eventuallyEmpty(t, soon)
			ns.do(t, "config", "set", "maxmemory", "0")
		},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := ns.locker(t, long()...), ns.locker(t, long()...)
			unlock(t, lock(t, b, "warm-up"))
			first := lock(t, a, "orders")
			ns.eventuallyHold(t, first, soon)
			forget(ns[:2])
			second := lock(t, b, "orders")
			assert.NoError(t, first.Err(), "two holders")
			assert.Greater(t, second.Fence(), first.Fence())
			require.ErrorIs(t, first.Extend(t.Context(), longGuard), redlock.ErrLost)
			require.NoError(t, second.Extend(t.Context(), longGuard))
			unlock(t, second)
		})
	}
}

// A replica that takes its primary's place was up all the time, so by its age it may
// vote. Its run id is another one, so those who had been connected to the primary
// leave it alone for a while. Who comes only then does not know, and may get a lock
// of which the replica has not heard.
func TestPromotedReplicaIsSeenByThoseWhoKnewThePrimary(t *testing.T) {
	primaries, replicas := startReplicated(t, 3)
	append(primaries, replicas...).comeOfAge(t, longGuard)
	var serving [3]atomic.Pointer[server]
	for i, p := range primaries {
		serving[i].Store(p)
	}
	follow := func(i int, o *redis.Options) { // as clients do that go by a name
		o.Dialer = func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, serving[i].Load().Addr)
		}
	}
	make := func() *redlock.Locker { return newLocker(t, primaries.clients(t, follow), long()...) }
	a, b := make(), make()
	unlock(t, lock(t, b, "warm-up"))
	replicas[:2].do(t, "replicaof", "no", "one") // hears nothing more
	first := lock(t, a, "orders")
	primaries.eventuallyHold(t, first, soon)
	primaries[:2].each((*server).Kill)
	for i, r := range replicas[:2] {
		serving[i].Store(r)
	}

	var err error
	require.EventuallyWithT(t, func(c *assert.CollectT) { // go-redis takes a moment to dial
		_, err = b.TryLock(context.Background(), "orders")
		require.NotContains(c, err.Error(), "connect")
	}, soon, tick)
	requireYoung(t, err, 2)
	second := lock(t, make(), "orders")
	assert.NoError(t, first.Err(), "two holders")
	assert.Greater(t, second.Fence(), first.Fence())
	require.ErrorIs(t, first.Extend(t.Context(), longGuard), redlock.ErrLost)
	unlock(t, second)
}
