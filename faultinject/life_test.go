package faultinject_test

import (
	"io"
	"net"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed58520471/redlock/faultinject"
)

// A client that sees its connection end acts on it at once. By then the node has
// to be down for everybody.
func TestAKilledNodeIsDownBeforeItsClientsCanTell(t *testing.T) {
	for range 50 {
		c, err := faultinject.New(1)
		require.NoError(t, err)
		defer c.Close()
		addrs, err := c.Addrs()
		require.NoError(t, err)
		struck := c.Inject("on PING #1, node 1: kill during")
		conn, err := net.Dial("tcp", addrs[0])
		require.NoError(t, err)
		defer conn.Close()
		_, err = conn.Write([]byte("*1\r\n$4\r\nPING\r\n"))
		require.NoError(t, err)
		_, err = conn.Read(make([]byte, 1))
		up := c.Node(1).Up()
		_, dialErr := net.Dial("tcp", addrs[0])

		require.NoError(t, struck.Check())
		require.ErrorIs(t, err, io.EOF)
		require.False(t, up)
		require.Error(t, dialErr, "the port is open")
	}
}

func TestDialsAndKillsMayMeet(t *testing.T) {
	c := faultinject.Start(t, 1)
	node, client := c.Node(1), c.Client("a")
	for range 500 {
		var dials sync.WaitGroup
		for range 4 {
			dials.Go(func() { client.DialContext(t.Context(), "tcp", "10.0.0.1:6379") })
		}
		runtime.Gosched() // lets some dials be ahead of the kill
		require.NoError(t, node.Do(faultinject.Kill))
		dials.Wait()
		require.NoError(t, node.Do(faultinject.Restart))
	}
}
