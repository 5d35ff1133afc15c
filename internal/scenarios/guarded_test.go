package scenarios

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed58520471/redlock"
)

// It is the guard that these stories rest on.
func TestWithoutTheGuardItsStoriesEndWithTwoHolders(t *testing.T) {
	trusting := func(w *World, client string) (Locks, error) {
		l, err := redlock.New(w.Clients(client, clientOptions), redlock.WithTTL(w.TTL))
		return redlockLocks{l}, err
	}
	for _, s := range Catalogue() {
		if s.Guard == 0 {
			continue
		}
		t.Run(s.Name, func(t *testing.T) {
			r := inBubble(t, s, trusting)
			require.Error(t, r.Violation)
			assert.ErrorContains(t, r.Violation, "two holders")
		})
	}
}
