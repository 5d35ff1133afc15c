package faultinject

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestKeysExpireTellsKeysThatStayTooLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := Start(t, 2)
		k := c.Clients()[1]
		require.NoError(t, c.KeysExpire(time.Second))
		require.NoError(t, k.Set(t.Context(), "brief", "x", time.Second).Err())
		require.NoError(t, c.KeysExpire(time.Second))
		assert.ErrorContains(t, c.KeysExpire(999*time.Millisecond), "node 2: brief = x for 1s")
		require.NoError(t, k.Set(t.Context(), "stays", "x", 0).Err())
		assert.ErrorContains(t, c.KeysExpire(time.Hour), "node 2: stays = x for ever")
		assert.ErrorContains(t, c.NoKeys(), "brief")
		assert.ErrorContains(t, c.NoKeys(), "stays")
		require.NoError(t, c.Node(2).Do(FlushAll))
		assert.NoError(t, c.NoKeys())
	})
}

func TestNoConnectionsTellsWhoIsStillConnected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := Start(t, 2)
		k := c.Client("left").Redis()
		require.NoError(t, c.NoConnections())
		require.NoError(t, k[1].Ping(t.Context()).Err())
		assert.ErrorContains(t, c.NoConnections(), "open connections of client left to node 2: 1")
		require.NoError(t, k[1].Close())
		synctest.Wait()
		assert.NoError(t, c.NoConnections())
	})
}

func TestGoroutinesTellsThoseThatWereLeftBehind(t *testing.T) {
	before := Goroutines()
	stop := make(chan struct{})
	go func() { <-stop }()
	assert.Error(t, before())
	close(stop)
	assert.NoError(t, before())
}

// go-redis looks a second after its last dial whether the client is closed. That is
// no leak.
func TestGoroutinesOfClientsThatCouldNotDialAreGivenTime(t *testing.T) {
	check := Goroutines()
	c, err := New(1)
	require.NoError(t, err)
	k := c.Clients(func(o *redis.Options) { plain(o); o.PoolSize, o.MaxRetries = 1, -1 })[0]
	require.NoError(t, c.Node(1).Do(Kill))
	assert.Error(t, k.Ping(t.Context()).Err())
	time.Sleep(20 * ms) // by now it sleeps
	require.NoError(t, c.Close())
	assert.NoError(t, check())
}
