package redlock

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed58520471/redlock/faultinject"
)

// A server that refuses maintenance notifications makes go-redis change the options
// that a client's connections share. The race detector tells whether two
// connections, or one and a subscription, can do that at a time.
func TestConnectionsThatBeginTogetherShareNoOptions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		t.Cleanup(func() { time.Sleep(time.Minute) })
		var mu sync.Mutex
		var refused []string
		cluster := faultinject.Start(t, 1, faultinject.RTT(ms(1)), faultinject.Watch(func(_ int, command []string) {
			mu.Lock()
			defer mu.Unlock()
			if len(command) > 1 && strings.EqualFold(command[1], "maint_notifications") {
				refused = append(refused, strings.Join(command, " "))
			}
		}))
		seen := func() int { mu.Lock(); defer mu.Unlock(); return len(refused) }

		d := newDialer(cluster.Clients()[0], time.Second)
		var all sync.WaitGroup
		var links []link
		for range 4 {
			all.Go(func() {
				l, _, err := d.open(background)
				if assert.NoError(t, err) {
					mu.Lock()
					defer mu.Unlock()
					links = append(links, l)
				}
			})
		}
		for range 2 {
			all.Go(func() {
				ps := d.client.(*redis.Client).Subscribe(background)
				defer ps.Close()
				assert.NoError(t, ps.Ping(background))
			})
		}
		all.Wait()
		require.GreaterOrEqual(t, seen(), 5, "each found out for itself")

		before := seen()
		l, _, err := d.open(background)
		require.NoError(t, err)
		assert.Equal(t, before, seen(), "and it is known from then on")
		for _, l := range slices.Concat(links, []link{l}) {
			require.NoError(t, l.Close())
		}
	})
}
