package faultinject

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed58520471/redlock/internal/realredis"
)

func TestWithoutRedisServerThereAreNoServers(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := New(1, Servers())
	assert.ErrorIs(t, err, ErrNoServer)
}

func TestServersKeepWhatTheirPersistenceKeeps(t *testing.T) {
	realredis.Need(t)
	for _, persists := range []string{"no", "yes"} {
		c := Start(t, 1, Servers("--appendonly", persists, "--appendfsync", "always"))
		n := c.Node(1)
		connect(t, c, "client", 1).do("SET k v PX 100000", "+OK")
		require.NoError(t, n.Do(Kill))
		keys, err := n.Keys()
		require.NoError(t, err)
		assert.Empty(t, keys)
		require.NoError(t, n.Do(Restart))
		assert.Equal(t, map[string]string{"yes": "v"}[persists], n.Get("k"))
		require.NoError(t, n.Do(RestartEmpty))
		assert.Equal(t, "", n.Get("k"))
		connect(t, c, "client", 1).do("LPUSH list a", ":1")
		connect(t, c, "client", 1).do("SET k v PX 100000", "+OK")
		keys, err = n.Keys()
		require.NoError(t, err)
		require.Len(t, keys, 2)
		for _, k := range keys {
			assert.Equal(t, map[string]string{"list": "(list)", "k": "v"}[k.Name], k.Value)
			assert.Equal(t, k.Name == "k", k.TTL > 90*time.Second && k.TTL <= 100*time.Second)
		}
		require.NoError(t, n.Do(Evict("k")))
		assert.Equal(t, "", n.Get("k"))
		require.NoError(t, n.Do(FlushAll))
		connect(t, c, "client", 1).do("DBSIZE", ":0")
	}
}

func TestServersRefuseWhatOnlyEmbeddedNodesCanDo(t *testing.T) {
	realredis.Need(t)
	c := Start(t, 1, Servers())
	for text, f := range map[string]Fault{
		"clock +1s": ClockStep(time.Second), "rate 2": ClockRate(2), "restart as of 1s": RestartAsOf(time.Second),
	} {
		assert.EqualError(t, c.Node(1).Do(f), "faultinject: node 1: "+text+": only an embedded node can do that")
		p, err := ParsePlan("at 0s, all: " + text)
		require.NoError(t, err)
		_, err = c.Play(p)
		assert.ErrorIs(t, err, errEmbeddedOnly)
	}
	assert.True(t, c.Node(1).Up(), "nothing has been done to it")
}

func TestAFrozenServerWaitsAndAnswersItsAdministratorNot(t *testing.T) {
	realredis.Need(t)
	c := Start(t, 1, Servers())
	w := connect(t, c, "client", 1)
	i := c.Inject("on SET #2, all: freeze")
	w.do("SET k 1", "+OK")
	w.send("SET k 2")
	w.quiet(50 * ms)
	connect(t, c, "client", 1) // is accepted
	_, err := c.Node(1).Keys()
	assert.Error(t, err)
	i.Stop()
	require.NoError(t, c.Node(1).Do(Thaw))
	w.expect("+OK")
	assert.Equal(t, "2", c.Node(1).Get("k"))
	assert.NoError(t, i.Check())
}

func TestServersBlockAndRunScriptsAsTheyDo(t *testing.T) {
	realredis.Need(t)
	c := Start(t, 1, Servers())
	blocked, w := connect(t, c, "client", 1), connect(t, c, "client", 1)
	blocked.send("BLPOP list 0")
	w.do("PING", "+PONG")
	blocked.quiet(20 * ms)
	w.do("RPUSH list a", ":1")
	blocked.expect("*2\r\n$4\r\nlist\r\n$1\r\na")
	i := c.Inject(`on PING #2, all: error "BUSY no"`)
	w.send("PING")
	w.send("PING") // answered only after the one before
	w.send("ECHO x")
	w.expect("+PONG")
	w.expect("-BUSY no")
	w.expect("$1\r\nx")
	w.do("WAIT 0 0", ":0")
	assert.NoError(t, i.Check())
	assert.Equal(t, 2, c.Node(1).Executed("ping"), "the one answered with an error was not executed")
}

func TestFreezeOnACommandStopsARealServerBeforeItExecutes(t *testing.T) {
	realredis.Need(t)
	c := Start(t, 1, Servers())
	k := c.Clients()[0]
	require.NoError(t, k.Set(t.Context(), "a", 1, 0).Err())
	struck := c.Inject("on SET #1, node 1: freeze for 300ms")
	begin := time.Now()
	require.NoError(t, k.Set(t.Context(), "a", 2, 0).Err())
	assert.GreaterOrEqual(t, time.Since(begin), 290*time.Millisecond)
	require.NoError(t, struck.Check())
}
