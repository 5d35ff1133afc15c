package redlock

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed58520471/redlock/faultinject"
)

// For the race detector, in real time: a quorum is enough to set the lease's token,
// while the acquires of the slower nodes may not have been written yet.
func TestAnAcquireThatIsLateDoesNotLookAtTheTokenThatIsBeingSet(t *testing.T) {
	l, err := New(faultinject.Start(t, 5).Clients(), WithFencing())
	require.NoError(t, err)
	defer l.Close()
	for range 100 {
		lease, err := l.Lock(t.Context(), "a")
		require.NoError(t, err)
		require.Positive(t, lease.Fence())
		require.NoError(t, lease.Unlock(t.Context()))
	}
}
