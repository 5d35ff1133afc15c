package faultinject

import (
	"io"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestARestartKeepsDataWhoseTtlsRanOn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := Start(t, 1)
		n := c.Node(1)
		w := connect(t, c, "client", 1)
		w.do("SET long v PX 10000", "+OK")
		w.do("SET short v PX 3000", "+OK")
		w.do("SET forever v", "+OK")
		require.NoError(t, n.Do(Kill))
		require.NoError(t, n.Do(Kill))
		keys, err := n.Keys()
		require.NoError(t, err)
		assert.Empty(t, keys, "a dead node shows nothing")
		_, err = w.receive()
		assert.Equal(t, io.EOF, err)
		time.Sleep(4 * time.Second)
		require.NoError(t, n.Do(Restart))
		w = connect(t, c, "client", 1)
		w.do("PTTL long", ":6000")
		w.do("PTTL short", ":-2")
		w.do("PTTL forever", ":-1")
		require.NoError(t, n.Do(Restart)) // of a node that runs
		_, err = w.receive()
		assert.Equal(t, io.EOF, err)
		w = connect(t, c, "client", 1)
		w.do("PTTL long", ":6000")
		w.expires("long", 6*time.Second)
	})
}

func TestARestartLosesScripts(t *testing.T) {
	for _, f := range []Fault{Restart, RestartEmpty, RestartAsOf(0)} {
		bubble(t, func(t *testing.T) {
			c := Start(t, 1)
			w := connect(t, c, "client", 1)
			_, err := w.Write([]byte("*3\r\n$6\r\nSCRIPT\r\n$4\r\nLOAD\r\n$8\r\nreturn 1\r\n"))
			require.NoError(t, err)
			w.expect("$40\r\ne0e1f9fabfc9d4800c877a703b823ac0578ff8db")
			w.do("EVALSHA e0e1f9fabfc9d4800c877a703b823ac0578ff8db 0", ":1")
			require.NoError(t, c.Node(1).Do(f))
			w = connect(t, c, "client", 1)
			w.send("EVALSHA e0e1f9fabfc9d4800c877a703b823ac0578ff8db 0")
			m, err := w.receive()
			require.NoError(t, err)
			assert.True(t, strings.HasPrefix(m, "-NOSCRIPT"), m)
		})
	}
}

func TestARestartWithoutPersistenceIsEmpty(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := Start(t, 1, Setup(func(m *miniredis.Miniredis) { m.RequireAuth("secret") }))
		auth := func() *wire {
			w := connect(t, c, "client", 1)
			w.do("GET k", "-NOAUTH Authentication required.")
			w.do("AUTH secret", "+OK")
			return w
		}
		auth().do("SET k v", "+OK")
		require.NoError(t, c.Node(1).Do(Restart))
		auth().do("GET k", "$1\r\nv")
		require.NoError(t, c.Node(1).Do(RestartEmpty))
		auth().do("GET k", "$-1")
		require.NoError(t, c.Node(1).Do(Kill))
		require.NoError(t, c.Node(1).Do(Restart))
		auth().do("DBSIZE", ":0")
	})
}

func TestFlushAllAndEvictLeaveConnections(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := Start(t, 2)
		w := connect(t, c, "client", 1)
		w.do("MSET a 1 b 2", "+OK")
		w.do("SELECT 3", "+OK")
		w.do("SET a 3", "+OK")
		i := c.Inject(`at 1s, node 1: evict "a"` + "\nat 2s, node 1: flushall")
		time.Sleep(1500 * ms)
		keys, err := c.Node(1).Keys()
		require.NoError(t, err)
		assert.Equal(t, []Key{{Node: 1, Name: "b", Value: "2"}}, keys, "in whatever database it was")
		time.Sleep(time.Second)
		w.do("GET a", "$-1")
		w.do("SELECT 0", "+OK")
		w.do("DBSIZE", ":0")
		assert.Equal(t, 2, i.Fired())
	})
}

func TestDoRefusesWhatHappensToNoNode(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := Start(t, 1).Node(1)
		for want, f := range map[string]Fault{
			`faultinject: "hang" is nothing that is done to a node; use Inject`:          Hang,
			`faultinject: "kill during" is nothing that is done to a node; use Inject`:   Kill.During(),
			`faultinject: "freeze for 1s" is nothing that is done to a node; use Inject`: Freeze.For(time.Second),
			"faultinject: no fault": {},
			"faultinject: a clock rate of 0 is not between 0.001 and 1000": ClockRate(0),
		} {
			assert.EqualError(t, n.Do(f), want)
		}
	})
}

func TestKeysShowsTypesAndTtls(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := Start(t, 1)
		w := connect(t, c, "client", 1)
		w.do("SET a v PX 1500", "+OK")
		w.do("LPUSH b v", ":1")
		time.Sleep(500 * ms)
		keys, err := c.Node(1).Keys()
		require.NoError(t, err)
		require.Len(t, keys, 2)
		assert.Equal(t, "node 1: a = v for 1s", keys[0].String())
		assert.Equal(t, "node 1: b = (list) for ever", keys[1].String())
		assert.Equal(t, 1, c.Node(1).Executed("set"))
		assert.Equal(t, 0, c.Node(1).Executed("GET"))
		assert.Equal(t, 1, c.Node(1).Number())
	})
}
