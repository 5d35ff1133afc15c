package redlock_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/seed58520471/redlock"
	"github.com/seed58520471/redlock/internal/realredis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The tests in real_*_test.go run over TCP against redis-server
// processes, and use nothing but the public API.

const (
	ttl = 10 * time.Second

	// nodeTimeout is far longer than a healthy node takes on a busy machine, so
	// that what is done in less cannot have waited for a hung one.
	nodeTimeout = time.Second

	// soon bounds what has no promise to keep and should simply happen.
	soon = 10 * time.Second
	tick = 2 * time.Millisecond
)

// nodes are the servers that a test's Lockers vote on.
type (
	server = realredis.Server
	nodes  []*server
)

func startNodes(t *testing.T, n int, args ...string) nodes {
	t.Helper()
	return realredis.Start(t, n, args...)
}

// each calls f for every node.
func (ns nodes) each(f func(*server)) {
	for _, n := range ns {
		f(n)
	}
}

// do runs an administrator's command on every node.
func (ns nodes) do(t *testing.T, args ...any) {
	t.Helper()
	for _, n := range ns {
		require.NoError(t, n.Client().Do(t.Context(), args...).Err(), "%v on %s", args, n.Addr)
	}
}

// clients are made as users make them, with go-redis's defaults: three retries,
// and 5 s for a reply.
func (ns nodes) clients(t *testing.T, tune ...func(i int, o *redis.Options)) []redis.UniversalClient {
	clients := make([]redis.UniversalClient, len(ns))
	for i, n := range ns {
		o := &redis.Options{Addr: n.Addr}
		for _, f := range tune {
			f(i, o)
		}
		clients[i] = redis.NewClient(o)
		t.Cleanup(func() { clients[i].Close() })
	}
	return clients
}

// as makes clients log in.
func as(user, password string) func(int, *redis.Options) {
	return func(_ int, o *redis.Options) { o.Username, o.Password = user, password }
}

// pooled limits the pool. A client with a single connection has none to lend, so
// the Locker can only borrow it command by command.
func pooled(size int) func(int, *redis.Options) {
	return func(_ int, o *redis.Options) { o.PoolSize = size }
}

// locker makes a Locker with default clients, a ttl of 10 s and a node timeout
// of 1 s; opts come after these.
func (ns nodes) locker(t *testing.T, opts ...redlock.Option) *redlock.Locker {
	t.Helper()
	return newLocker(t, ns.clients(t), opts...)
}

func newLocker(t *testing.T, clients []redis.UniversalClient, opts ...redlock.Option) *redlock.Locker {
	t.Helper()
	l, err := redlock.New(clients, append(defaults(), opts...)...)
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	return l
}

func defaults() []redlock.Option {
	return []redlock.Option{redlock.WithTTL(ttl), redlock.WithNodeTimeout(nodeTimeout)}
}

// open makes a Locker with clients of its own; login is "user:password@" or "".
func (ns nodes) open(t *testing.T, login string, opts ...redlock.Option) *redlock.Locker {
	t.Helper()
	urls := make([]string, len(ns))
	for i, n := range ns {
		urls[i] = "redis://" + login + n.Addr
	}
	l, err := redlock.Open(urls, append(defaults(), opts...)...)
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	return l
}

// warm makes every lane connect and every node learn the scripts.
func (ns nodes) warm(t *testing.T, l *redlock.Locker) {
	t.Helper()
	lease := lock(t, l, "warm-up")
	ns.eventuallyHold(t, lease, soon)
	require.NoError(t, lease.Extend(t.Context(), 2*ttl))
	unlock(t, lease)
	ns.eventuallyEmpty(t, soon)
}

func lock(t *testing.T, l *redlock.Locker, name string) *redlock.Lease {
	t.Helper()
	lease, err := l.TryLock(t.Context(), name)
	require.NoError(t, err)
	return lease
}

func unlock(t *testing.T, lease *redlock.Lease) {
	t.Helper()
	require.NoError(t, lease.Unlock(t.Context()))
}

// eventuallyHold waits until every node has the lease's key: a lock is obtained
// before the slowest nodes have answered.
func (ns nodes) eventuallyHold(t *testing.T, lease *redlock.Lease, within time.Duration) {
	t.Helper()
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		for _, n := range ns {
			val, err := n.Client().Get(context.Background(), lease.Name()).Result()
			require.NoError(c, err, n.Addr)
			require.Equal(c, lease.Token(), val, n.Addr)
		}
	}, within, tick)
}

// eventuallyEmpty waits until no node has any key.
func (ns nodes) eventuallyEmpty(t *testing.T, within time.Duration) {
	t.Helper()
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		for _, n := range ns {
			keys, err := n.Client().Keys(context.Background(), "*").Result()
			require.NoError(c, err, n.Addr)
			require.Empty(c, keys, n.Addr)
		}
	}, within, tick)
}

// eventuallyLasts waits until every node keeps the lease for d, counted from some
// moment after begin.
func (ns nodes) eventuallyLasts(t *testing.T, lease *redlock.Lease, d time.Duration, begin time.Time) {
	t.Helper()
	const grain = 20 * time.Millisecond // a server reads its clock once per turn of its loop
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		for _, n := range ns {
			left, err := n.Client().PTTL(context.Background(), lease.Name()).Result()
			require.NoError(c, err)
			require.LessOrEqual(c, left, d, n.Addr)
			require.GreaterOrEqual(c, left, d-time.Since(begin)-grain, n.Addr)
		}
	}, soon, tick)
}

// votes digs the rows out of an error.
func votes(t *testing.T, err error) []redlock.Vote {
	t.Helper()
	var verdict *redlock.QuorumError
	require.ErrorAs(t, err, &verdict)
	return verdict.Round.Votes
}
