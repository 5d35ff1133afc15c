package faultinject

import (
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/seed58520471/redlock/internal/realredis"
)

// inTheOpen runs a test over sockets: to embedded nodes, and to processes that keep
// their data. Nothing may be left after it.
func inTheOpen(t *testing.T, nodes int, f func(t *testing.T, c *Cluster)) {
	for name, options := range map[string][]Option{
		"embedded":  nil,
		"processes": {Servers("--appendonly", "yes", "--appendfsync", "always")},
	} {
		t.Run(name, func(t *testing.T) {
			if options != nil {
				realredis.Need(t)
			}
			defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
			c, err := New(nodes, options...)
			require.NoError(t, err)
			defer c.Close()
			f(t, c)
			var ports []string
			c.mu.Lock()
			for _, k := range c.clients {
				for _, p := range k.paths {
					ports = append(ports, p.socket.addr)
				}
			}
			c.mu.Unlock()
			for _, n := range c.nodes {
				if g, ok := n.engine.(*processEngine); ok {
					ports = append(ports, g.p.Addr)
				}
			}
			require.NoError(t, c.Close())
			for _, addr := range ports {
				if addr == "" {
					continue
				}
				conn, err := net.Dial("tcp", addr)
				if !assert.ErrorIs(t, err, syscall.ECONNREFUSED) && conn != nil {
					conn.Close()
				}
			}
		})
	}
}

// phone connects to a node over its socket.
func phone(t *testing.T, c *Cluster, client string, node int) *wire {
	t.Helper()
	addrs, err := c.Client(client).Addrs()
	require.NoError(t, err)
	var conn net.Conn
	require.Eventually(t, func() bool { // the port of a node that has risen by itself may come after it
		conn, err = net.Dial("tcp", addrs[node-1])
		return err == nil
	}, 5*time.Second, ms)
	t.Cleanup(func() { conn.Close() })
	w := &wire{t: t, Conn: conn, limit: time.Now().Add(20 * time.Second)}
	require.NoError(t, w.SetReadDeadline(w.limit))
	return w
}

func TestFaultsStrikeOverSocketsToo(t *testing.T) {
	inTheOpen(t, 1, func(t *testing.T, c *Cluster) {
		n := c.Node(1)
		for _, tc := range []struct {
			fault, got string
			executed   bool
		}{
			{`error "OOM no"`, "-OOM no", false},
			{"delay 30ms", "+OK", true},
			{"delay 30ms replies", "+OK", true},
			{"freeze for 30ms", "+OK", true},
			{"cut before", "reset", false},
			{"cut during", "reset", true},
			{"cut after", "+OK", true},
			{"lose request", "silence", false},
			{"lose reply", "silence", true},
			{"kill before", "end", false},
			{"kill during", "end", true},
			{"kill after", "+OK", true},
			{"restart", "end", false},
		} {
			require.NoError(t, n.Do(FlushAll))
			w := phone(t, c, "client", 1)
			w.do("PING", "+PONG")
			i := c.Inject("on SET, all: " + tc.fault)
			begin := time.Now()
			w.send("SET k v")
			if tc.got == "silence" {
				w.quiet(50 * ms)
			} else {
				m, err := w.receive()
				switch tc.got {
				case "reset":
					assert.ErrorIs(t, err, syscall.ECONNRESET, tc.fault)
				case "end":
					assert.Equal(t, io.EOF, err, tc.fault)
				default:
					assert.NoError(t, err, tc.fault)
					assert.Equal(t, tc.got, m, tc.fault)
				}
			}
			if strings.HasPrefix(tc.fault, "delay") || strings.HasPrefix(tc.fault, "freeze") {
				assert.GreaterOrEqual(t, time.Since(begin), 30*ms, tc.fault)
			}
			if strings.HasPrefix(tc.fault, "kill") { // after it, the reply may be here before the end
				require.Eventually(t, func() bool { return !n.Up() }, 5*time.Second, ms, tc.fault)
				require.NoError(t, n.Do(Restart))
			}
			require.Eventually(t, n.Up, 5*time.Second, ms, tc.fault)
			assert.Equal(t, map[bool]string{true: "v"}[tc.executed], n.Get("k"), tc.fault)
			assert.NoError(t, i.Check(), tc.fault)
			i.Stop()
			w.Close()
		}
	})
}

func TestTheNetworkFailsOverSocketsToo(t *testing.T) {
	inTheOpen(t, 2, func(t *testing.T, c *Cluster) {
		w, other := phone(t, c, "client", 1), phone(t, c, "other", 1)
		w.do("PING", "+PONG")
		i := c.Inject("at 0s, node 1 from client: partition")
		w.send("SET k v")
		given := phone(t, c, "client", 1) // the system accepts
		given.send("SET old v")
		given.Close()
		other.do("PING", "+PONG")
		w.quiet(30 * ms)
		assert.Equal(t, "", c.Node(1).Get("k"))
		i.Stop()
		w.expect("+OK")
		require.Eventually(t, func() bool { return c.Node(1).Get("old") == "v" }, 5*time.Second, ms)

		i = c.Inject("at 0s, node 1: hang replies")
		w.send("SET k w")
		w.quiet(30 * ms)
		i.Stop()
		w.quiet(30 * ms)
		assert.Equal(t, "w", c.Node(1).Get("k"))

		i = c.Inject("at 0s, node 1: delay 20ms")
		assert.GreaterOrEqual(t, took(func() { other.do("PING", "+PONG") }), 40*ms)
		i.Stop()

		i = c.Inject("at 0s, all: cut")
		_, err := other.receive()
		assert.ErrorIs(t, err, syscall.ECONNRESET)
		i.Stop()
	})
}

func TestAPortIsClosedWhileItsNodeIsDownOrRefuses(t *testing.T) {
	inTheOpen(t, 2, func(t *testing.T, c *Cluster) {
		addrs, err := c.Addrs()
		require.NoError(t, err)
		again, err := c.Addrs()
		require.NoError(t, err)
		require.Equal(t, addrs, again)
		dial := func() error {
			conn, err := net.Dial("tcp", addrs[0])
			if err == nil {
				conn.Close()
			}
			return err
		}
		require.NoError(t, dial())
		i := c.Inject("at 0s, node 1 from client: refuse")
		assert.ErrorIs(t, dial(), syscall.ECONNREFUSED)
		phone(t, c, "other", 1).do("PING", "+PONG")
		phone(t, c, "client", 2).do("PING", "+PONG")
		i.Stop()
		require.NoError(t, dial())
		require.NoError(t, c.Node(1).Do(Kill))
		assert.ErrorIs(t, dial(), syscall.ECONNREFUSED)
		late, err := c.Client("late").Addrs() // a port of a dead node
		require.NoError(t, err)
		_, err = net.Dial("tcp", late[0])
		assert.ErrorIs(t, err, syscall.ECONNREFUSED)
		require.NoError(t, c.Node(1).Do(Restart))
		require.NoError(t, dial())
		phone(t, c, "late", 1).do("PING", "+PONG")
		require.NoError(t, c.Node(1).Do(Freeze))
		frozen := phone(t, c, "client", 1) // its system accepts
		frozen.send("PING")
		frozen.quiet(30 * ms)
		require.NoError(t, c.Node(1).Do(Thaw))
		frozen.expect("+PONG")
	})
}

func TestCloseEndsWhatHangsOverSockets(t *testing.T) {
	for _, plan := range []string{"at 0s, all: freeze", "at 0s, all: hang", "at 0s, all: partition", "on any, all: delay 1h"} {
		inTheOpen(t, 1, func(t *testing.T, c *Cluster) {
			w := phone(t, c, "client", 1)
			c.Inject(plan)
			w.send("PING")
			rdb := c.Clients(plain, func(o *redis.Options) { o.ReadTimeout = -1 })[0]
			done := make(chan struct{})
			go func() {
				defer close(done)
				rdb.BLPop(t.Context(), 0, "list")
			}()
			require.NoError(t, c.Close())
			<-done
			_, err := w.receive()
			assert.Error(t, err)
			_, err = c.Client("late").Addrs()
			assert.ErrorIs(t, err, net.ErrClosed)
		})
	}
}

func TestPublishedMessagesAndLargeValuesPassSockets(t *testing.T) {
	inTheOpen(t, 1, func(t *testing.T, c *Cluster) {
		addrs, err := c.Addrs()
		require.NoError(t, err)
		rdb := redis.NewClient(&redis.Options{Addr: addrs[0]})
		defer rdb.Close()
		sub := rdb.Subscribe(t.Context(), "a", "b")
		defer sub.Close()
		_, err = sub.Receive(t.Context())
		require.NoError(t, err)
		_, err = sub.Receive(t.Context())
		require.NoError(t, err)
		i := c.Inject("at 0s, all: lose messages")
		require.NoError(t, rdb.Publish(t.Context(), "a", "lost").Err())
		require.Eventually(t, func() bool { return i.Fired() == 1 }, 5*time.Second, ms)
		i.Stop()
		require.NoError(t, rdb.Publish(t.Context(), "a", "heard").Err())
		m, err := sub.ReceiveMessage(t.Context())
		require.NoError(t, err)
		assert.Equal(t, "heard", m.Payload)
		big := make([]byte, 8<<20)
		require.NoError(t, rdb.Set(t.Context(), "big", big, 0).Err())
		got, err := rdb.Get(t.Context(), "big").Bytes()
		require.NoError(t, err)
		assert.Len(t, got, len(big))
	})
}
