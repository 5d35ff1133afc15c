package redlock_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/seed58520471/redlock/internal/realredis"
	"github.com/stretchr/testify/require"
)

// startSentinel runs a Sentinel that knows the servers as "node0", "node1", …,
// and returns its address. The servers have to have been started, so the test
// does not run here without redis-server.
func startSentinel(t *testing.T, ns nodes) string {
	t.Helper()
	port, err := realredis.FreePort()
	require.NoError(t, err)
	dir := t.TempDir()
	config := fmt.Sprintf("bind 127.0.0.1\nport %s\ndir %s\n", port, dir)
	for i, n := range ns {
		host, port, err := net.SplitHostPort(n.Addr)
		require.NoError(t, err)
		config += fmt.Sprintf("sentinel monitor node%d %s %s 1\n", i, host, port)
	}
	file := filepath.Join(dir, "sentinel.conf")
	require.NoError(t, os.WriteFile(file, []byte(config), 0o600))
	cmd := exec.Command("redis-server", file, "--sentinel")
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	addr := net.JoinHostPort("127.0.0.1", port)
	c := redis.NewClient(&redis.Options{Addr: addr})
	defer c.Close()
	require.Eventually(t, func() bool { return c.Ping(context.Background()).Err() == nil }, soon, tick)
	return addr
}

func TestSentinelAndClusterClientsAreNodesToo(t *testing.T) {
	plain := startNodes(t, 2)
	shards := startNodes(t, 3, "--cluster-enabled", "yes")
	for _, args := range [][]any{{"cluster", "addslotsrange", 0, 16383}, {"config", "set", "cluster-require-full-coverage", "no"}} {
		shards.do(t, args...)
	}
	sentinel := startSentinel(t, plain[:1])
	all := append(append(nodes{}, plain...), shards...)

	clients := plain[1:].clients(t)
	clients = append(clients, redis.NewFailoverClient(&redis.FailoverOptions{
		MasterName: "node0", SentinelAddrs: []string{sentinel},
	}))
	for _, s := range shards {
		clients = append(clients, redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{s.Addr}}))
	}
	for _, c := range clients[1:] {
		t.Cleanup(func() { c.Close() })
	}
	for _, s := range shards { // a cluster of one comes up in its own time
		require.Eventually(t, func() bool { return s.Client().Set(context.Background(), "x", 1, 0).Err() == nil }, soon, tick)
		require.NoError(t, s.Client().Del(t.Context(), "x").Err())
	}

	l := newLocker(t, clients)
	for _, name := range []string{"orders", "{orders}:42", "a b"} {
		lease := lock(t, l, name)
		all.eventuallyHold(t, lease, soon)
		require.NoError(t, lease.Extend(t.Context(), 2*ttl))
		_, err := l.TryLock(t.Context(), name)
		require.Error(t, err)
		unlock(t, lease)
		all.eventuallyEmpty(t, soon)
	}

	shards[0].Kill()
	plain[0].Stop()
	for range 5 {
		unlock(t, lock(t, l, "orders"))
	}
	plain[0].Cont()
	append(nodes{plain[0]}, shards[1:]...).eventuallyEmpty(t, soon)
}
