package redlock_test

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/seed58520471/redlock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What only a server with a replica can show: what WAIT counts, and that it waits.

// startReplicated starts a primary and a replica for each, and waits for these to
// follow.
func startReplicated(t *testing.T, n int, args ...string) (primaries, replicas nodes) {
	t.Helper()
	primaries = startNodes(t, n, append([]string{"--repl-diskless-sync-delay", "0"}, args...)...)
	for _, p := range primaries {
		host, port, err := net.SplitHostPort(p.Addr)
		require.NoError(t, err)
		replicas = append(replicas, startNodes(t, 1, "--replicaof", host+" "+port)...)
	}
	for _, p := range primaries {
		eventuallyFollowed(t, p)
	}
	return primaries, replicas
}

// eventuallyFollowed waits until a replica has acknowledged what the primary has
// written just now.
func eventuallyFollowed(t *testing.T, p *server) {
	t.Helper()
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		conn := p.Client().Conn()
		defer conn.Close()
		require.NoError(c, conn.Set(context.Background(), "followed", 1, time.Millisecond).Err())
		k, err := conn.Wait(context.Background(), 1, 100*time.Millisecond).Result()
		require.NoError(c, err)
		require.EqualValues(c, 1, k)
	}, soon, tick)
}

func offset(t *testing.T, n *server) string {
	t.Helper()
	replication, err := n.Client().InfoMap(t.Context(), "replication").Result()
	require.NoError(t, err)
	return replication["Replication"]["master_repl_offset"]
}

func TestANodeWhoseReplicaStandsStillDoesNotVote(t *testing.T) {
	const within = 50 * time.Millisecond
	primaries, replicas := startReplicated(t, 1)
	for name, l := range map[string]*redlock.Locker{
		"New":  primaries.locker(t, redlock.WithReplicaAck(1, within)),
		"Open": primaries.open(t, "", redlock.WithReplicaAck(1, within)),
	} {
		t.Run(name, func(t *testing.T) {
			lease, err := l.Lock(t.Context(), "orders") // connects
			require.NoError(t, err)
			stored, err := replicas[0].Client().Get(t.Context(), "orders").Result()
			require.NoError(t, err, "acknowledged, so it is there")
			require.Equal(t, lease.Token(), stored)
			until := lease.Until()

			replicas[0].Stop()
			begin := time.Now()
			err = lease.Extend(t.Context(), 2*ttl)
			require.ErrorIs(t, err, redlock.ErrNoQuorum)
			assert.ErrorContains(t, err, "0 of 1 replicas acknowledged within 50ms")
			assert.GreaterOrEqual(t, time.Since(begin), within)
			assert.WithinDuration(t, until, lease.Until(), 5*time.Millisecond)
			require.NoError(t, lease.Err())
			unlock(t, lease)

			_, err = l.TryLock(t.Context(), "orders")
			require.ErrorIs(t, err, redlock.ErrNoQuorum)
			assert.ErrorContains(t, err, "0 of 1 replicas acknowledged within 50ms")
			primaries.eventuallyEmpty(t, soon)

			replicas[0].Cont()
			eventuallyFollowed(t, primaries[0])
			lease = lock(t, l, "orders")
			require.NoError(t, lease.Extend(t.Context(), 2*ttl))
			before := offset(t, primaries[0])
			require.NoError(t, lease.Extend(t.Context(), ttl), "which changes nothing")
			assert.NotEqual(t, before, offset(t, primaries[0]), "and is written all the same, for WAIT to wait for")
			left := primaries[0].Client().PTTL(t.Context(), "orders").Val()
			assert.Greater(t, left, ttl)
			assert.LessOrEqual(t, left, 2*ttl)
			unlock(t, lease)
			primaries.eventuallyEmpty(t, soon)
		})
	}
}

func TestANodeWithoutReplicasDoesNotKeepTheOthersFromVoting(t *testing.T) {
	primaries, _ := startReplicated(t, 2)
	ns := append(primaries, startNodes(t, 1)...)
	rounds := make(chan redlock.Round, 100)
	l := ns.locker(t, redlock.WithReplicaAck(1, nodeTimeout/2), redlock.WithHooks(redlock.Hooks{
		Round: func(_ context.Context, r redlock.Round) { rounds <- r },
	}))
	for range 3 {
		lease, err := l.Lock(t.Context(), "orders")
		require.NoError(t, err)
		unlock(t, lease)
	}
	ns.eventuallyEmpty(t, soon)
	lease := lock(t, l, "orders")
	ns.eventuallyHold(t, lease, soon)
	require.NoError(t, lease.Extend(t.Context(), 2*ttl))
	unlock(t, lease)
	ns.eventuallyEmpty(t, soon)
	close(rounds)
	for r := range rounds {
		if r.Op != "unlock" {
			assert.NotEqual(t, redlock.Granted, r.Votes[2].Outcome, "%v", r)
		}
	}
}

func TestAFrozenPrimaryIsReleasedWhenItAnswersAgain(t *testing.T) {
	primaries, _ := startReplicated(t, 3)
	l := primaries.locker(t, redlock.WithReplicaAck(1, nodeTimeout/2))
	lease, err := l.Lock(t.Context(), "orders")
	require.NoError(t, err)
	unlock(t, lease)
	primaries[2].Stop()
	for range 3 {
		lease := lock(t, l, "orders")
		require.NoError(t, lease.Extend(t.Context(), 2*ttl))
		unlock(t, lease)
	}
	primaries[2].Cont()
	primaries.eventuallyEmpty(t, soon)
}

func TestAUserWithoutTheRightToWaitIsToldSo(t *testing.T) {
	primaries, _ := startReplicated(t, 3)
	primaries.do(t, "acl", "setuser", "locker", "on", ">secret", "~*", "resetchannels", "-@all",
		"+set", "+get", "+del", "+pttl", "+pexpire", "+eval", "+evalsha", "+ping")
	l := primaries.open(t, "locker:secret@", redlock.WithReplicaAck(1, nodeTimeout/2))
	begin := time.Now()
	_, err := l.Lock(t.Context(), "orders")
	require.ErrorIs(t, err, redlock.ErrNoQuorum)
	assert.ErrorContains(t, err, "NOPERM")
	assert.ErrorContains(t, err, "wait")
	assert.Less(t, time.Since(begin), 2*nodeTimeout)
	primaries.eventuallyEmpty(t, soon)

	primaries.do(t, "acl", "setuser", "locker", "+wait")
	lease, err := l.Lock(t.Context(), "orders")
	require.NoError(t, err)
	unlock(t, lease)
	primaries.eventuallyEmpty(t, soon)
}
