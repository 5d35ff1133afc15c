package faultinject_test

import (
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed58520471/redlock/faultinject"
)

func TestWatchSeesWhatIsExecutedAndNothingElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var seen []string
		c := faultinject.Start(t, 2, faultinject.RTT(10*time.Millisecond), faultinject.Watch(func(node int, command []string) {
			mu.Lock()
			defer mu.Unlock()
			if node == 2 && (command[0] == "SET" || strings.HasPrefix(command[0], "EVAL")) {
				seen = append(seen, strings.Join(command, " "))
			}
		}))
		k := c.Clients()[1]
		struck := c.Inject(`
			on SET key "refused", node 2: error "OOM command not allowed"
			on SET key "lost" #1, node 2: cut during
			on SET key "never" #1, node 2: cut before`)
		require.Error(t, k.Set(t.Context(), "refused", 1, 0).Err())
		require.NoError(t, k.Set(t.Context(), "lost", 1, 0).Err(), "sent again")
		require.NoError(t, k.Set(t.Context(), "never", 1, 0).Err(), "sent again")
		require.NoError(t, k.Eval(t.Context(), "return redis.call('SET', KEYS[1], 'a b')", []string{"k"}).Err())
		require.NoError(t, struck.Check())
		mu.Lock()
		defer mu.Unlock()
		assert.Equal(t, []string{
			"SET lost 1", "SET lost 1", "SET never 1", "EVAL return redis.call('SET', KEYS[1], 'a b') 1 k",
		}, seen)
	})
}
