package faultinject_test

import (
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed58520471/redlock/faultinject"
)

func TestForgetStrikesIdleConnectionsOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := faultinject.Start(t, 1, faultinject.RTT(10*time.Millisecond))
		k := c.Clients(func(o *redis.Options) {
			o.PoolSize, o.MaxRetries, o.ReadTimeout = 1, -1, time.Second
		})[0]
		firewall := c.Inject("at 0s, node 1: forget 1m")
		for range 5 {
			time.Sleep(50 * time.Second)
			require.NoError(t, k.Ping(t.Context()).Err())
		}
		assert.Zero(t, firewall.Fired())

		time.Sleep(61 * time.Second)
		begin := time.Now()
		assert.ErrorIs(t, k.Ping(t.Context()).Err(), errTimeout)
		assert.Equal(t, time.Second, time.Since(begin))
		assert.Equal(t, 1, firewall.Fired())
		require.NoError(t, k.Ping(t.Context()).Err(), "a new connection is remembered")

		firewall.Stop()
		time.Sleep(time.Hour)
		require.NoError(t, k.Ping(t.Context()).Err())
	})
}

func TestConnectionThatWasForgottenStaysSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := faultinject.Start(t, 1)
		k := c.Clients(func(o *redis.Options) { o.PoolSize, o.MaxRetries, o.ReadTimeout = 1, -1, time.Minute })[0]
		require.NoError(t, k.Ping(t.Context()).Err())
		firewall := c.Inject("at 0s, node 1: forget 1s")
		time.Sleep(2 * time.Second)
		time.AfterFunc(time.Second, firewall.Stop)
		assert.ErrorIs(t, k.Ping(t.Context()).Err(), errTimeout)
		require.NoError(t, firewall.Check())
	})
}

var errTimeout = os.ErrDeadlineExceeded
