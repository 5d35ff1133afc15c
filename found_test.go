package redlock

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed58520471/redlock/faultinject"
)

// What faultinject has found in the library, each as the smallest plan that
// showed it.

func TestNodeThatBreaksConnectionsOverReleasesIsNotAskedInALoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := faultinject.Start(t, 3, faultinject.RTT(time.Millisecond))
		l, err := New(c.Clients())
		require.NoError(t, err)
		defer l.Close()
		l.warm()
		struck := c.Inject("at 0s for 10s on EVALSHA, node 3: cut before\nat 0s for 10s on EVAL, node 3: cut before")
		for _, name := range []string{"a", "b", "c"} {
			lease, err := l.TryLock(t.Context(), name)
			require.NoError(t, err)
			time.Sleep(10 * time.Millisecond)
			require.NoError(t, lease.Unlock(t.Context()))
		}
		time.Sleep(9 * time.Second)
		require.NoError(t, struck.Check())
		// Each release in two tries a node timeout at the most, and what each sends
		// again itself. One loop would be thousands.
		assert.LessOrEqual(t, struck.Fired(), 3*2*2*int(9*time.Second/l.cfg.nodeTimeout))
		time.Sleep(4 * time.Second)
		assert.NoError(t, c.NoKeys())
	})
}
