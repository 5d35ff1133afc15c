package redlock_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/seed58520471/redlock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What servers answer instead of doing what they were asked. Some of it passes by
// itself and is waited for; some is a fault of the configuration, for which no
// waiting helps.

func TestNodesOutOfMemoryDoNotVoteButReleaseAndExtend(t *testing.T) {
	ns := startNodes(t, 5)
	l := ns.locker(t)
	early := lock(t, l, "early")
	ns.eventuallyHold(t, early, soon)

	ns[:1].do(t, "config", "set", "maxmemory", "1")
	lease := lock(t, l, "orders")
	ns[1:].eventuallyHold(t, lease, soon)
	unlock(t, lease)

	ns.do(t, "config", "set", "maxmemory", "1")
	_, err := l.TryLock(t.Context(), "orders")
	require.ErrorIs(t, err, redlock.ErrNoQuorum)
	require.True(t, redis.IsOOMError(err), err)
	require.ErrorContains(t, err, "OOM command not allowed when used memory > 'maxmemory'")

	begin := time.Now()
	require.NoError(t, early.Extend(t.Context(), 2*ttl))
	ns.eventuallyLasts(t, early, 2*ttl, begin)
	unlock(t, early)
	ns.eventuallyEmpty(t, soon)

	waits(t, l, func() { ns.do(t, "config", "set", "maxmemory", "0") })
}

// A server that has no memory left lets a script write only behind a write that needs
// none. An extension that leaves the key as it is has none, so it cannot heal a fencing
// counter; but the key is there, and that is what it was asked.
func TestNodesOutOfMemoryExtendFencedLeasesThatLastLonger(t *testing.T) {
	const counter = "redlock:fence:{orders}:orders"
	ns := startNodes(t, 3)
	l := ns.locker(t, redlock.WithFencing())
	lease := lock(t, l, "orders")
	ns.eventuallyHold(t, lease, soon)
	begin := time.Now()
	require.NoError(t, lease.Extend(t.Context(), 3*ttl))
	ns.eventuallyLasts(t, lease, 3*ttl, begin)
	ns.do(t, "del", counter) // as an eviction does
	ns.do(t, "config", "set", "maxmemory", "1")
	require.NoError(t, lease.Extend(t.Context(), ttl))

	ns.do(t, "config", "set", "maxmemory", "0")
	require.NoError(t, lease.Extend(t.Context(), ttl))
	for _, n := range ns {
		assert.Eventually(t, func() bool {
			return n.Client().Get(t.Context(), counter).Val() == fmt.Sprint(lease.Fence())
		}, soon, time.Millisecond, n.Addr)
	}
}

// waits checks that Lock waits while the nodes refuse, and succeeds after cure.
func waits(t *testing.T, l *redlock.Locker, cure func()) {
	t.Helper()
	refused := make(chan error, 1)
	patient, err := l.With(redlock.WithHooks(redlock.Hooks{Round: func(_ context.Context, r redlock.Round) {
		if r.Count(redlock.Granted) < r.Quorum {
			select {
			case refused <- nil:
			default:
			}
		}
	}}))
	require.NoError(t, err)
	locked := make(chan error, 1)
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	go func() {
		lease, err := patient.Lock(ctx, "waits")
		if err == nil {
			err = lease.Unlock(ctx)
		}
		locked <- err
	}()
	select {
	case <-refused:
	case err := <-locked:
		t.Fatalf("Lock did not wait: %v", err)
	}
	cure()
	require.NoError(t, <-locked)
}

func TestNodesThatCannotSaveDoNotVote(t *testing.T) {
	ns := startNodes(t, 5, "--save", "3600 1")
	l := ns.locker(t)
	spoil := func(ns nodes) {
		for _, n := range ns {
			require.NoError(t, os.RemoveAll(n.Dir))
			require.NoError(t, n.Client().BgSave(t.Context()).Err())
		}
		require.EventuallyWithT(t, func(c *assert.CollectT) {
			for _, n := range ns {
				info, err := n.Client().Info(context.Background(), "persistence").Result()
				require.NoError(c, err)
				require.Contains(c, info, "rdb_last_bgsave_status:err")
			}
		}, soon, tick)
	}
	held := lock(t, l, "held")
	ns.eventuallyHold(t, held, soon)

	spoil(ns[:2])
	lease := lock(t, l, "orders")
	ns[2:].eventuallyHold(t, lease, soon)
	require.NoError(t, lease.Extend(t.Context(), 2*ttl))
	unlock(t, lease)

	spoil(ns[2:3])
	_, err := l.TryLock(t.Context(), "orders")
	require.ErrorIs(t, err, redlock.ErrNoQuorum)
	require.ErrorContains(t, err, "MISCONF")

	// Such a node cannot lengthen or delete either.
	err = held.Extend(t.Context(), 2*ttl)
	require.ErrorIs(t, err, redlock.ErrNoQuorum)
	require.NoError(t, held.Err(), "it stands until its old end")
	err = held.Unlock(t.Context())
	require.ErrorIs(t, err, redlock.ErrNoQuorum)
	require.ErrorContains(t, err, "MISCONF")

	ns.do(t, "config", "set", "stop-writes-on-bgsave-error", "no")
	ns.eventuallyEmpty(t, ttl-time.Second) // the release is repeated
	unlock(t, lock(t, l, "orders"))
}

func TestBusyNodesDoNotVote(t *testing.T) {
	ns := startNodes(t, 5, "--busy-reply-threshold", "10")
	l := ns.locker(t)
	ns.warm(t, l)
	var scripts sync.WaitGroup
	occupy := func(ns nodes) {
		for _, n := range ns {
			scripts.Go(func() { n.Client().Eval(context.Background(), "while true do end", nil) })
		}
		require.EventuallyWithT(t, func(c *assert.CollectT) {
			for _, n := range ns {
				require.ErrorContains(c, n.Client().Ping(context.Background()).Err(), "BUSY", n.Addr)
			}
		}, soon, tick)
	}
	free := func() {
		for _, n := range ns[:3] {
			require.NoError(t, n.Client().ScriptKill(context.Background()).Err())
		}
		scripts.Wait()
	}
	occupy(ns[:2])
	lease := lock(t, l, "orders")
	ns[2:].eventuallyHold(t, lease, soon)
	unlock(t, lease)

	occupy(ns[2:3])
	_, err := l.TryLock(t.Context(), "orders")
	require.ErrorIs(t, err, redlock.ErrNoQuorum)
	require.ErrorContains(t, err, "BUSY")
	waits(t, l, free)
	ns.eventuallyEmpty(t, soon)
}

func TestReplicasDoNotVote(t *testing.T) {
	ns := startNodes(t, 5)
	l := ns.locker(t)
	ns[:2].do(t, "replicaof", "127.0.0.1", "1")
	lease := lock(t, l, "orders")
	ns[2:].eventuallyHold(t, lease, soon)
	require.NoError(t, lease.Extend(t.Context(), 2*ttl))
	unlock(t, lease)

	ns[2:3].do(t, "replicaof", "127.0.0.1", "1")
	_, err := l.TryLock(t.Context(), "orders")
	require.ErrorIs(t, err, redlock.ErrNoQuorum)
	require.True(t, redis.IsReadOnlyError(err), err)
	ns.eventuallyEmpty(t, soon)

	waits(t, l, func() { ns[:3].do(t, "replicaof", "no", "one") })
	ns.eventuallyEmpty(t, soon)
}

func TestNodesThatRefuseTheLoginEndTheWaitOnlyWhenTheyAreAMajority(t *testing.T) {
	ns := startNodes(t, 5)
	ns.do(t, "config", "set", "requirepass", "right") // who is connected stays logged in
	for _, tc := range []struct {
		user, password string
		reply          string
	}{
		{reply: "NOAUTH"},
		{password: "wrong", reply: "WRONGPASS"},
		{user: "nobody", password: "right", reply: "WRONGPASS"},
	} {
		t.Run(fmt.Sprintf("%s:%s@", tc.user, tc.password), func(t *testing.T) {
			outsiders := func(k int) []redis.UniversalClient {
				return ns.clients(t, as("", "right"), func(i int, o *redis.Options) {
					if i < k {
						o.Username, o.Password = tc.user, tc.password
					}
				})
			}
			minority := newLocker(t, outsiders(2))
			lease := lock(t, minority, "orders")
			ns[2:].eventuallyHold(t, lease, soon)
			require.NoError(t, lease.Extend(t.Context(), 2*ttl))
			unlock(t, lease)

			majority := newLocker(t, outsiders(3))
			requireHopeless(t, majority, tc.reply, ns[:3])
			ns.eventuallyEmpty(t, soon)
		})
	}
}

// requireHopeless checks that Lock, which has no limit of its own, ends at once
// with the reply of these nodes in its votes, as far as they were waited for.
func requireHopeless(t *testing.T, l *redlock.Locker, reply string, deaf nodes) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*soon)
	defer cancel()
	begin := time.Now()
	_, err := l.Lock(ctx, "orders")
	require.Less(t, time.Since(begin), nodeTimeout+time.Second)
	require.ErrorIs(t, err, redlock.ErrNoQuorum)
	require.NotErrorIs(t, err, redlock.ErrHeld)
	failed := 0
	for i, v := range votes(t, err)[:len(deaf)] {
		require.Equal(t, deaf[i].Addr, v.Node)
		if v.Outcome != redlock.Pending {
			require.Equal(t, redlock.Failed, v.Outcome, v)
			require.ErrorContains(t, v.Err, reply)
			failed++
		}
	}
	require.GreaterOrEqual(t, failed, len(votes(t, err))/2+1)
}

func TestNothingPrintsThePassword(t *testing.T) {
	const password = "hunter2"
	ns := startNodes(t, 3)
	ns.do(t, "acl", "setuser", "locker", "on", ">"+password, "~*", "+@all")
	var log bytes.Buffer
	hooks := redlock.LogHooks(slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})))

	l := ns.open(t, "locker:"+password+"@", redlock.WithHooks(hooks))
	unlock(t, lock(t, l, "orders"))
	require.NoError(t, l.Close())

	ns.do(t, "acl", "setuser", "locker", "resetpass", ">changed")
	l = ns.open(t, "locker:"+password+"@", redlock.WithHooks(hooks))
	requireHopeless(t, l, "WRONGPASS", ns)
	_, err := l.Lock(t.Context(), "orders")
	for _, text := range []string{
		err.Error(), fmt.Sprintf("%+v", err), fmt.Sprintf("%#v", errors.Unwrap(err)),
		fmt.Sprintf("%+v", votes(t, err)), fmt.Sprint(l.Close()), log.String(),
	} {
		require.NotContains(t, text, password)
	}
	require.Contains(t, log.String(), ns[0].Addr)
}
