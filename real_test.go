package redlock_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/seed58520471/redlock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestALockIsOneKeyPerNodeAndUnlockLeavesNothing(t *testing.T) {
	ns := startNodes(t, 5)
	for name, l := range map[string]*redlock.Locker{
		"New":   ns.locker(t),
		"Open":  ns.open(t, ""),
		"owner": ns.locker(t, redlock.WithOwner("db-7 pid 42")),
	} {
		t.Run(name, func(t *testing.T) {
			begin := time.Now()
			lease := lock(t, l, "orders/42")
			ns.eventuallyHold(t, lease, soon)
			ns.eventuallyLasts(t, lease, ttl, begin)
			for _, n := range ns {
				keys, err := n.Client().Keys(t.Context(), "*").Result()
				require.NoError(t, err)
				assert.Equal(t, []string{"orders/42"}, keys)
			}

			begin = time.Now()
			require.NoError(t, lease.Extend(t.Context(), 2*ttl))
			require.NoError(t, lease.Extend(t.Context(), ttl), "never shortens")
			ns.eventuallyLasts(t, lease, 2*ttl, begin)

			unlock(t, lease)
			ns.eventuallyEmpty(t, soon)
		})
	}
}

func TestALockCostsOneSetPerNodeAndUnlockOneScript(t *testing.T) {
	const rounds = 20
	ns := startNodes(t, 5)
	l := ns.locker(t)
	ns.warm(t, l)
	ns.do(t, "config", "resetstat")
	for range rounds {
		lease := lock(t, l, "orders")
		ns.eventuallyHold(t, lease, soon)
		unlock(t, lease)
		ns.eventuallyEmpty(t, soon)
	}
	for _, n := range ns {
		got := map[string]int{}
		for _, command := range []string{"set", "evalsha", "eval", "del", "script|load", "pttl", "pexpire"} {
			got[command] = n.Calls(command)
		}
		assert.Equal(t, map[string]int{
			"set": rounds, "evalsha": rounds, "eval": 0, "del": rounds, "script|load": 0, "pttl": 0, "pexpire": 0,
		}, got, n.Addr)
	}
}

func TestFlushedScriptsAreSentAgain(t *testing.T) {
	for _, tc := range []struct {
		name string
		on   func(nodes) nodes
	}{
		{"on one node", func(ns nodes) nodes { return ns[2:3] }},
		{"on all nodes", func(ns nodes) nodes { return ns }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ns := startNodes(t, 5)
			l := ns.locker(t)
			ns.warm(t, l)
			for range 20 {
				lease := lock(t, l, "orders")
				tc.on(ns).do(t, "script", "flush")
				require.NoError(t, lease.Extend(t.Context(), 2*ttl))
				tc.on(ns).do(t, "script", "flush")
				unlock(t, lease)
			}
			ns.eventuallyEmpty(t, soon)
		})
	}
	t.Run("all the time", func(t *testing.T) {
		ns := startNodes(t, 5)
		l := ns.locker(t)
		stop, flushed := make(chan struct{}), make(chan int)
		go func() {
			count := 0
			defer func() { flushed <- count }()
			ticker := time.NewTicker(time.Millisecond)
			defer ticker.Stop()
			for {
				select {
				case <-stop:
					return
				case <-ticker.C:
				}
				for _, n := range ns {
					if n.Client().ScriptFlush(context.Background()).Err() == nil {
						count++
					}
				}
			}
		}()
		for range 300 {
			lease, err := l.TryLock(t.Context(), "orders")
			if assert.NoError(t, err) {
				assert.NoError(t, lease.Extend(t.Context(), 2*ttl))
				assert.NoError(t, lease.Unlock(t.Context()))
			}
		}
		close(stop)
		assert.Greater(t, <-flushed, 100)
		ns.eventuallyEmpty(t, soon)
	})
}

func TestANameIsExactlyThatKey(t *testing.T) {
	ns := startNodes(t, 3)
	l := ns.locker(t)
	for _, name := range []string{
		"a b", "\tq\n", "ключ 🔒", "{a}{b}", "}{", "%s %d", "*", "\"'\\",
		"\x00\xff", "\r\n$3\r\nfoo\r\n", strings.Repeat("k", 64<<10),
	} {
		lease := lock(t, l, name)
		ns.eventuallyHold(t, lease, soon)
		for _, n := range ns {
			keys, err := n.Client().Keys(t.Context(), "*").Result()
			require.NoError(t, err)
			require.Equal(t, []string{name}, keys)
		}
		require.NoError(t, lease.Extend(t.Context(), 2*ttl))
		unlock(t, lease)
		ns.eventuallyEmpty(t, soon)
	}
}

func TestDataOfAnotherTypeIsARefusalAndStays(t *testing.T) {
	ns := startNodes(t, 5)
	l := ns.locker(t)

	ns[:1].do(t, "rpush", "orders", "a", "b")
	lease := lock(t, l, "orders")
	ns[1:].eventuallyHold(t, lease, soon)
	require.NoError(t, lease.Extend(t.Context(), 2*ttl))
	unlock(t, lease)
	ns[1:].eventuallyEmpty(t, soon)

	ns[1:3].do(t, "hset", "orders", "field", "value")
	ns[3:].do(t, "rpush", "orders", "a", "b")
	_, err := l.TryLock(t.Context(), "orders")
	require.ErrorIs(t, err, redlock.ErrHeld)
	for _, v := range votes(t, err) {
		if v.Outcome == redlock.Refused { // three suffice for the verdict
			assert.ErrorContains(t, v.Err, "another type")
		}
	}
	for i, n := range ns {
		if i == 1 || i == 2 {
			assert.Equal(t, map[string]string{"field": "value"}, n.Client().HGetAll(t.Context(), "orders").Val())
			continue
		}
		assert.Equal(t, []string{"a", "b"}, n.Client().LRange(t.Context(), "orders", 0, -1).Val())
	}
}

func TestPlainDataUnderTheNameIsAHolder(t *testing.T) {
	ns := startNodes(t, 3)
	ns.do(t, "set", "orders", "not a token")
	_, err := ns.locker(t).TryLock(t.Context(), "orders")
	require.ErrorIs(t, err, redlock.ErrHeld)
	assert.ErrorContains(t, err, "not a to…")
	for _, n := range ns {
		assert.Equal(t, "not a token", n.Client().Get(t.Context(), "orders").Val())
		assert.Equal(t, time.Duration(-1), n.Client().PTTL(t.Context(), "orders").Val())
	}
}

func TestConnectionsThatTheServerClosedAreReplacedInTheSameRound(t *testing.T) {
	ns := startNodes(t, 5)
	for name, l := range map[string]*redlock.Locker{
		"New": ns.locker(t), "Open": ns.open(t, ""), "no pool": newLocker(t, ns.clients(t, pooled(1))),
	} {
		t.Run(name, func(t *testing.T) {
			ns.warm(t, l)
			for range 5 {
				ns.do(t, "client", "kill", "type", "normal") // all but the one that asks
				lease := lock(t, l, "orders")
				ns.eventuallyHold(t, lease, nodeTimeout+time.Second)
				ns.do(t, "client", "kill", "type", "normal")
				unlock(t, lease)
				ns.eventuallyEmpty(t, nodeTimeout+time.Second)
			}
		})
	}
}

func TestClosingLeavesNoGoroutineAndNoKey(t *testing.T) {
	ns := startNodes(t, 5)
	ns.eventuallyEmpty(t, soon) // the administrator's clients are connected now
	before := goleak.IgnoreCurrent()
	clients := make([]redis.UniversalClient, len(ns))
	urls := make([]string, len(ns))
	for i, n := range ns {
		clients[i] = redis.NewClient(&redis.Options{Addr: n.Addr})
		urls[i] = "redis://" + n.Addr
	}
	own, err := redlock.New(clients)
	require.NoError(t, err)
	opened, err := redlock.Open(urls)
	require.NoError(t, err)
	for i, l := range []*redlock.Locker{own, opened} {
		for j := range 3 {
			lease := lock(t, l, fmt.Sprintf("orders/%d/%d", i, j))
			if j == 0 {
				unlock(t, lease)
			}
		}
		require.NoError(t, l.Close())
	}
	for _, c := range clients {
		require.NoError(t, c.Ping(t.Context()).Err(), "the clients given to New stay open")
		require.NoError(t, c.Close())
	}
	goleak.VerifyNone(t, before)
	ns.eventuallyEmpty(t, soon)
}

// The library cannot know that two addresses are one server, but it sees that a
// fresh token is there already, and counts one vote.
func TestTwoAddressesOfOneServerAreOneVote(t *testing.T) {
	ns := startNodes(t, 2)
	_, port, err := net.SplitHostPort(ns[0].Addr)
	require.NoError(t, err)
	l := newLocker(t, nodes{ns[0], ns[0], ns[1]}.clients(t, func(i int, o *redis.Options) {
		if i == 1 {
			o.Addr = net.JoinHostPort("localhost", port)
		}
	}))
	lease := lock(t, l, "orders")
	ns.eventuallyHold(t, lease, soon)
	unlock(t, lease)
	ns.eventuallyEmpty(t, soon)

	ns[1].Kill()
	_, err = l.TryLock(t.Context(), "orders")
	require.ErrorIs(t, err, redlock.ErrNoQuorum)
	require.ErrorContains(t, err, "under another name")
	ns[:1].eventuallyEmpty(t, soon)
}

func TestADetachedLockIsAttachedOnce(t *testing.T) {
	ns := startNodes(t, 3)
	from, to := ns.locker(t), ns.locker(t)
	lease := lock(t, from, "orders")
	ns.eventuallyHold(t, lease, soon)
	require.NoError(t, lease.Detach(t.Context()))
	begin := time.Now()
	next, err := to.Attach(t.Context(), "orders", lease.Token())
	require.NoError(t, err)
	ns.eventuallyHold(t, next, soon)
	ns.eventuallyLasts(t, next, ttl, begin)
	_, err = from.Attach(t.Context(), "orders", lease.Token())
	require.ErrorIs(t, err, redlock.ErrLost)
	require.ErrorIs(t, lease.Unlock(t.Context()), redlock.ErrReleased)
	ns.eventuallyHold(t, next, soon)
	unlock(t, next)
	ns.eventuallyEmpty(t, soon)
	_, err = from.Attach(t.Context(), "orders", next.Token())
	require.ErrorIs(t, err, redlock.ErrLost, "released")
	ns.do(t, "lpush", "orders", "x")
	_, err = from.Attach(t.Context(), "orders", next.Token())
	require.ErrorIs(t, err, redlock.ErrLost, "another type")
}
