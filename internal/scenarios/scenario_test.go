package scenarios

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// inBubble plays a scenario in virtual time.
func inBubble(t *testing.T, s Scenario, locks Maker) (r Result) {
	synctest.Test(t, func(t *testing.T) {
		var err error
		r, err = s.Run(context.Background(), Options{TTL: Virtual, Seed: 1, Locks: locks})
		require.NoError(t, err)
	})
	return r
}

func TestRedlockStandsEveryScenario(t *testing.T) {
	for _, s := range Catalogue() {
		if s.Servers != nil {
			continue
		}
		t.Run(s.Name, func(t *testing.T) {
			r := inBubble(t, s, nil)
			assert.NoError(t, r.Violation, "%s\n%s", s.Story, r.Report)
			assert.Equal(t, s.Residue != "", r.Residue != nil, "%s: %v\n%s", s.Story, r.Residue, r.Report)
			if s.Plan != "" {
				assert.Positive(t, r.Faults)
			}
		})
	}
}
