package faultinject

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func parsed(t *testing.T, text string) Plan {
	p, err := ParsePlan(text)
	require.NoError(t, err)
	return p
}

// A world in which everything is wrong as soon as node 2 is frozen for 20 ms while
// node 3 is slow.
func wrong(p Plan) bool {
	frozen, slow := false, false
	for _, e := range p.Events {
		for _, f := range e.Faults {
			frozen = frozen || f.verb == freeze && e.Where.hasNode(2) && e.When.For >= 20*time.Millisecond
			slow = slow || f.verb == delay && e.Where.hasNode(3)
		}
	}
	return frozen && slow
}

func TestShrinkFindsTheFewEventsThatMatter(t *testing.T) {
	p := parsed(t, `
		seed 3
		at 1s, node 1: kill
		at 2s for 1s, nodes 1,2,3: freeze
		at 3s, node 1: flushall
		on SET 10%, all: lose reply
		at 1s for 2s, nodes 3,1 from a,b: delay 20ms+5ms and hang
		at 4s for 1s, node 2: partition
		at 100ms, node 3: evict "k"`)
	runs := 0
	small := Shrink(p, 200, func(q Plan) bool { runs++; return wrong(q) })
	assert.Equal(t, "seed 3\nat 1ms for 31ms, node 2: freeze\nat 1ms for 1ms, node 3 from a: delay 20ms\n", small.String())
	assert.LessOrEqual(t, runs, 200)
}

func TestShrinkKeepsToItsRuns(t *testing.T) {
	p, err := Climate{Nodes: 3, Length: time.Second, Events: 100, Harm: Faithful}.Draw(1)
	require.NoError(t, err)
	runs := 0
	small := Shrink(p, 10, func(Plan) bool { runs++; return false })
	assert.Equal(t, 10, runs)
	assert.Equal(t, p, small, "nothing smaller fails")
}

func TestExploreReturnsTheSmallestFailureWithAllThatIsNeededToSeeItAgain(t *testing.T) {
	c := Climate{Nodes: 3, Length: 2 * time.Second, Events: 12, Harm: Slow | Crash}
	boom := errors.New("two holders")
	seeds := 0
	err := Explore(1, 1000, func(seed uint64) (Plan, error) { seeds++; return c.Draw(seed) }, func(p Plan) (string, error) {
		if wrong(p) {
			return "the picture", boom
		}
		return "", nil
	})
	var failure *Failure
	require.ErrorAs(t, err, &failure)
	assert.ErrorIs(t, err, boom)
	assert.Equal(t, uint64(seeds), failure.Plan.Seed, "the first that fails ends it")
	assert.Len(t, failure.Plan.Events, 12)
	assert.Len(t, failure.Smallest.Events, 2)
	assert.True(t, wrong(failure.Smallest))
	for _, part := range []string{"two holders", failure.Smallest.String(), "the picture", "seed "} {
		assert.ErrorContains(t, err, part)
	}
	again := Explore(failure.Plan.Seed, 1, c.Draw, func(p Plan) (string, error) {
		if wrong(p) {
			return "the picture", boom
		}
		return "", nil
	})
	assert.EqualError(t, again, err.Error())
}

func TestExploreIsSilentWhenAllIsWell(t *testing.T) {
	runs := 0
	c := Climate{Nodes: 3, Length: time.Second, Events: 3, Harm: Faithful}
	require.NoError(t, Explore(1, 20, c.Draw, func(Plan) (string, error) { runs++; return "", nil }))
	assert.Equal(t, 20, runs)
	require.Error(t, Explore(1, 20, Climate{}.Draw, func(Plan) (string, error) { return "", nil }))
}
