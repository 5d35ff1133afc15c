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

func TestFaultsOfRepliesOnACommandLetItBeExecuted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := faultinject.Start(t, 1, faultinject.RTT(10*time.Millisecond))
		k := c.Clients(func(o *redis.Options) { o.MaxRetries, o.ReadTimeout = -1, time.Second })[0]
		require.NoError(t, k.Ping(t.Context()).Err())
		struck := c.Inject(`
			on SET key "late", node 1: delay 300ms replies
			on SET key "refused", node 1: error "OOM" and delay 300ms replies
			on SET key "lost", node 1: lose reply
			on SET key "never", node 1: lose request`)
		for _, key := range []string{"late", "refused", "lost", "never"} {
			begin := time.Now()
			done := make(chan error)
			go func() { done <- k.Set(t.Context(), key, "x", 0).Err() }()
			time.Sleep(100 * time.Millisecond)
			executed := key == "late" || key == "lost"
			assert.Equal(t, executed, c.Node(1).Get(key) == "x", key)
			err := <-done
			switch key {
			case "late":
				assert.NoError(t, err)
				assert.Equal(t, 310*time.Millisecond, time.Since(begin))
			case "refused":
				assert.ErrorContains(t, err, "OOM")
				assert.Equal(t, 310*time.Millisecond, time.Since(begin))
			default:
				assert.ErrorIs(t, err, os.ErrDeadlineExceeded)
			}
		}
		require.NoError(t, struck.Check())
	})
}
