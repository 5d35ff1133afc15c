package scenarios

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed58520471/redlock/internal/realredis"
)

// inBubble plays a scenario in virtual time.
func inBubble(t *testing.T, s Scenario, locks Maker) (r Result) {
	synctest.Test(t, func(t *testing.T) {
		var err error
		r, err = s.Run(context.Background(), Options{TTL: Virtual, Seed: 1, Locks: locks})
		require.NoError(t, err, "%v", r.Violation) // which may be why a fault had nothing to strike
	})
	return r
}

// stands demands that a scenario was played, and found nothing but what it admits.
func stands(t *testing.T, s Scenario, r Result) {
	t.Helper()
	assert.NoError(t, r.Violation, "%s\n%s", s.Story, r.Report)
	assert.Equal(t, s.Admits() != "", r.Residue != nil, "%s: %v\n%s", s.Story, r.Residue, r.Report)
	assert.Positive(t, r.Acquisitions)
	if s.Plan != "" {
		assert.Positive(t, r.Faults)
	}
}

func TestRedlockStandsEveryScenario(t *testing.T) {
	for _, s := range Catalogue() {
		if s.Servers == nil {
			t.Run(s.Name, func(t *testing.T) { stands(t, s, inBubble(t, s, nil)) })
		}
	}
}

// onServers are scenarios of embedded nodes that are also played on processes.
var onServers = []string{
	"acquire-minority-hung", "extend-minority-killed", "unlock-minority-slow", "majority-frozen-under-a-lease",
	"majority-restarts-empty", "old-extension-hits-nobody", "replies-lost-everywhere", "errors-noscript",
	"watchdog-deaf", "guarded-majority-restarts-empty", "amnesia-one-by-one", "unlock-during-repair", "attached-twice", "message-lost",
}

func TestRedlockStandsEveryScenarioOnRealServers(t *testing.T) {
	realredis.Need(t)
	for _, s := range Catalogue() {
		if s.Servers == nil && !slices.Contains(onServers, s.Name) {
			continue
		}
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			r, err := s.Run(t.Context(), Options{TTL: Real, Seed: 1, Servers: true})
			require.NoError(t, err)
			stands(t, s, r)
		})
	}
}

func TestServersWithoutALogLoseTheVotesOfAMajority(t *testing.T) {
	realredis.Need(t)
	s, _ := Find("servers-killed-with-a-log")
	s.Servers = []string{"--appendonly", "no"}
	r, err := s.Run(t.Context(), Options{TTL: Real, Seed: 1})
	require.NoError(t, err)
	assert.Error(t, r.Violation)
}

// What servers store is not in the history, so Orphans passes there whatever is left.
func TestKeysThatStayOnServersAreFound(t *testing.T) {
	realredis.Need(t)
	leaves := Scenario{Name: "leaves", Nodes: 3, Play: func(w *World) error {
		a, err := w.Actor("a")
		if err != nil {
			return err
		}
		h, err := a.Lock(orders, 2*settled(w.TTL), w.patience())
		if err != nil {
			return err
		}
		h.seen.Release()
		h.seen.Released(nil) // it believes
		return nil
	}}
	r, err := leaves.Run(t.Context(), Options{TTL: Real, Servers: true})
	require.NoError(t, err)
	assert.ErrorContains(t, r.Violation, orders)
}
