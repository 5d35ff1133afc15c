package faultinject_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/seed58520471/redlock"
	"github.com/seed58520471/redlock/faultinject"
	"github.com/seed58520471/redlock/internal/realredis"
)

func TestSmokeVirtual(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := faultinject.Start(t, 3, faultinject.RTT(10*time.Millisecond))
		l, err := redlock.New(c.Clients())
		require.NoError(t, err)
		defer l.Close()
		begin := time.Now()
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		t.Log(time.Since(begin))
		begin = time.Now()
		require.NoError(t, lease.Unlock(context.Background()))
		t.Log(time.Since(begin))
		hit := c.Inject("on SET #1, node 3: kill during")
		lease, err = l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		time.Sleep(50 * time.Millisecond)
		require.NoError(t, hit.Check())
		require.False(t, c.Node(3).Up())
		require.NoError(t, c.Node(3).Do(faultinject.Restart))
		k, _ := c.Node(3).Keys()
		t.Log(k)
		require.NoError(t, lease.Unlock(context.Background()))
		time.Sleep(5 * time.Second)
		k, _ = c.Node(3).Keys()
		require.Empty(t, k)
	})
}

func TestSmokeReal(t *testing.T) {
	realredis.Need(t)
	for _, o := range [][]faultinject.Option{nil, {faultinject.Servers()}} {
		c := faultinject.Start(t, 3, o...)
		addrs, err := c.Addrs()
		require.NoError(t, err)
		var clients []redis.UniversalClient
		for _, a := range addrs {
			k := redis.NewClient(&redis.Options{Addr: a})
			defer k.Close()
			clients = append(clients, k)
		}
		l, err := redlock.New(clients)
		require.NoError(t, err)
		defer l.Close()
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		require.NoError(t, lease.Unlock(context.Background()))
		hit := c.Inject("on SET #1, node 3: kill during\non SET #2, node 2: freeze for 100ms")
		for range 2 {
			lease, err = l.Lock(t.Context(), "a")
			require.NoError(t, err)
			lease.Unlock(t.Context())
		}
		require.NoError(t, hit.Check())
		require.NoError(t, c.Node(3).Do(faultinject.Restart))
		k, _ := c.Node(3).Keys()
		t.Log(k)
	}
}
