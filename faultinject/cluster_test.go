package faultinject

import (
	"context"
	"fmt"
	"go/build"
	"io"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	miniserver "github.com/alicebob/miniredis/v2/server"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestAClusterHasFromOneToSixtyFourNodes(t *testing.T) {
	for n, want := range map[int]string{
		0:  "faultinject: 0 nodes; a cluster has from 1 to 64",
		-1: "faultinject: -1 nodes; a cluster has from 1 to 64",
		65: "faultinject: 65 nodes; a cluster has from 1 to 64",
	} {
		_, err := New(n)
		assert.EqualError(t, err, want)
		tb := &fakeTB{}
		assert.PanicsWithValue(t, tb, func() { Start(tb, n) })
		assert.Equal(t, want, tb.log.String())
	}
	bubble(t, func(t *testing.T) {
		c := Start(t, 64)
		i := c.Inject("at 0s, node 64: kill")
		assert.Len(t, c.Nodes(), 64)
		assert.Equal(t, 64, c.Node(64).Number())
		assert.False(t, c.Node(64).Up())
		assert.Equal(t, 1, i.Fired())
	})
}

func TestAFailedTestsLogHasThePlans(t *testing.T) {
	bubble(t, func(t *testing.T) {
		for _, failed := range []bool{false, true} {
			tb := &fakeTB{}
			c := Start(tb, 1, Seed(5))
			c.Inject("at 0s, all: freeze")
			c.Inject("seed 9\non SET, all: lose reply")
			tb.failed = failed
			tb.end()
			assert.False(t, c.Node(1).Up())
			if !failed {
				assert.Empty(t, tb.log.String())
				continue
			}
			assert.Contains(t, tb.log.String(), "seed 5\nat 0s, all: freeze   # struck 1 time\n\nseed 9\non SET, all: lose reply   # struck 0 times\n")
			assert.Contains(t, tb.log.String(), "nobody tried for a lock\n1: 0.000s node 1 freeze")
		}
	})
}

func TestAReportChangesNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := Start(t, 1)
		i := c.Inject("at 0s, all: partition")
		assert.Contains(t, c.Report(), "at 0s, all: partition   # struck 0 times")
		c.Client("another") // the weather is made anew
		assert.Error(t, within(t, time.Second, func(ctx context.Context) error { return c.Clients(plain)[0].Ping(ctx).Err() }))
		i.Stop()
		assert.NoError(t, c.Clients(plain)[0].Ping(t.Context()).Err())
	})
}

func TestCloseEndsEverythingWhateverIsWrong(t *testing.T) {
	for _, plan := range []string{
		"at 0s, all: freeze", "at 0s, all: partition", "at 0s, all: hang", "at 0s, all: kill",
		"at 0s for 1s, all: kill", "on any, all: freeze", "on any, all: delay 1h", "at 0s, all: delay 1h",
		"on any, all: lose reply", "at 1s, all: flushall", "at 0s, all: delay messages 1h", "at 0s, all: rate 3",
		"on any, all: kill during for 1h",
	} {
		t.Run(plan, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				c, err := New(3, RTT(ms))
				require.NoError(t, err)
				var wg sync.WaitGroup
				var conns []*wire
				for n := range 3 {
					conns = append(conns, connect(t, c, "client", n+1))
				}
				c.Inject(plan)
				for n, w := range conns {
					wg.Go(func() {
						w.Write(append(encode("SUBSCRIBE a b"), encode("PING")...))
						for {
							if _, err := w.receive(); err != nil {
								return
							}
						}
					})
					wg.Go(func() { // a dial that may wait for ever
						if conn, err := c.Client("other").DialContext(t.Context(), "tcp", w.RemoteAddr().String()); err == nil {
							conn.Write(encode("BLPOP list 0"))
							conn.Read(make([]byte, 1))
						}
						c.Node(n + 1).Keys()
					})
				}
				synctest.Wait()
				assert.Zero(t, took(func() {
					go c.Close()
					require.NoError(t, c.Close())
				}))
				for _, w := range conns {
					w.Close()
				}
				wg.Wait()
				require.NoError(t, c.Close())
				assert.Error(t, c.Node(1).Do(Restart), "a closed cluster does not come back")
				_, err = c.Client("client").DialContext(t.Context(), "tcp", "10.0.0.1:6379")
				assert.Error(t, err)
			})
		})
	}
}

func TestCloseMayComeWhileNodesDieAndRise(t *testing.T) {
	defer goleak.VerifyNone(t)
	for range 30 {
		c, err := New(2)
		require.NoError(t, err)
		c.Inject("on PING 20%, all: kill during for 1ms\non PING 5%, all: restart\nat 1ms for 1ms, all: freeze")
		var wg sync.WaitGroup
		for n := range 4 {
			wg.Go(func() {
				for range 100 {
					conn, err := c.Client("client").DialContext(t.Context(), "tcp", c.Node(n%2+1).addr.String())
					if err != nil {
						continue
					}
					conn.SetDeadline(time.Now().Add(10 * ms))
					conn.Write(encode("PING"))
					conn.Read(make([]byte, 10))
					conn.Close()
				}
			})
		}
		wg.Go(func() {
			for range 20 {
				c.Node(1).Do(Restart)
				c.Node(2).Keys()
			}
		})
		wg.Go(func() { c.Close() })
		require.NoError(t, c.Close())
		wg.Wait()
		assert.False(t, c.Node(1).Up() || c.Node(2).Up())
	}
}

func TestSetupAddsToEachServer(t *testing.T) {
	bubble(t, func(t *testing.T) {
		starts := 0
		c := Start(t, 2, Setup(func(m *miniredis.Miniredis) {
			starts++
			m.Server().Register("HI", func(p *miniserver.Peer, _ string, _ []string) { p.WriteInline("there") })
			m.Server().Register("BYE", func(p *miniserver.Peer, _ string, _ []string) { p.Close() })
		}))
		w := connect(t, c, "client", 2)
		w.send("BYE") // has no answer, and must not keep the node for itself
		_, err := w.receive()
		assert.Equal(t, io.EOF, err)
		connect(t, c, "client", 2).do("HI", "+there")
		require.NoError(t, c.Node(2).Do(Restart))
		connect(t, c, "client", 2).do("HI", "+there")
		assert.Equal(t, 3, starts)
	})
}

func TestABubbleHasNoSocketsAndNoProcesses(t *testing.T) {
	bubble(t, func(t *testing.T) {
		_, err := Start(t, 1).Addrs()
		assert.ErrorIs(t, err, errBubble)
		_, err = New(1, Servers())
		assert.ErrorIs(t, err, errBubble)
	})
}

func TestANodeThatIsNotThereIsNamed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := Start(t, 2)
		for _, n := range []int{-1, 0, 3} {
			want := fmt.Sprintf("faultinject: no node %d: the cluster has nodes 1 to 2", n)
			assert.PanicsWithValue(t, want, func() { c.Node(n) })
		}
	})
}

func TestAClientIsTheSameByItsName(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := Start(t, 1)
		assert.Same(t, c.Client("a"), c.Client("a"))
		assert.Equal(t, "a", c.Client("a").Name())
		assert.PanicsWithValue(t, `faultinject: "a b" is no client's name: letters, digits, '.', '_' and '-'`, func() { c.Client("a b") })
		assert.Panics(t, func() { c.Client("") })
		assert.Panics(t, func() { c.Client("a,b") })
		_, err := c.Client("a").DialContext(t.Context(), "tcp", "10.0.0.2:6379")
		assert.EqualError(t, err, `faultinject: no node has the address "10.0.0.2:6379"`)
	})
}

// The package tests other lock libraries too, so it must do without ours.
func TestThePackageDoesNotNeedTheLibraryThatItTests(t *testing.T) {
	const module = "github.com/seed58520471/redlock"
	p, err := build.ImportDir(".", 0)
	require.NoError(t, err)
	assert.NotContains(t, p.Imports, module)
	deps, err := exec.CommandContext(t.Context(), "go", "list", "-deps", ".").CombinedOutput()
	if err != nil {
		t.Skipf("%v: %s", err, deps)
	}
	assert.NotContains(t, strings.Fields(string(deps)), module)
}
