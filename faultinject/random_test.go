package faultinject

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestDrawIsAFunctionOfTheSeed(t *testing.T) {
	c := Climate{Nodes: 5, Clients: []string{"a", "b"}, Length: 10 * time.Second, Events: 20, Harm: Faithful | Amnesia | Drift | Steps}
	first, err := c.Draw(7)
	require.NoError(t, err)
	again, err := c.Draw(7)
	require.NoError(t, err)
	other, err := c.Draw(8)
	require.NoError(t, err)
	assert.Equal(t, first, again)
	assert.NotEqual(t, first.Events, other.Events)
	assert.Len(t, first.Events, 20)
}

// Whatever is drawn makes sense, prints and parses, names nodes and clients that
// there are, and is over when the climate says.
func TestWhatIsDrawnFitsItsClimate(t *testing.T) {
	for seed := range uint64(400) {
		c := Climate{Nodes: 1 + int(seed%7), Length: time.Duration(1+seed) * 50 * time.Millisecond, Events: 10, Harm: Faithful | Amnesia | Drift | Steps}
		if seed%2 == 0 {
			c.Clients = []string{"a", "b", "c"}
		}
		p, err := c.Draw(seed)
		require.NoError(t, err)
		parsed, err := ParsePlan(p.String())
		require.NoError(t, err, "%v", p)
		require.Equal(t, p.String(), parsed.String())
		for _, e := range p.Events {
			require.NoError(t, e.Check(), "%v", e)
			require.Zero(t, e.Where.mask>>c.Nodes, "%v", e)
			end := e.When.At + e.When.For
			for _, f := range e.Faults {
				require.LessOrEqual(t, end+f.span, c.Length+2*time.Millisecond, "%v", e)
				require.True(t, e.When.For > 0 || !f.lasts(), "%v would not end", e)
			}
			if e.Where.clients != "" {
				require.NotEmpty(t, c.Clients, "%v", e)
			}
		}
	}
}

func TestOnlyTheHarmIsDrawnThatTheClimateAllows(t *testing.T) {
	allowed := map[Harm]string{
		Slow:     "delay",
		Silence:  "hang partition",
		Breakage: "cut refuse lose error",
		Crash:    "freeze kill",
		Amnesia:  "restart flushall",
		Drift:    "rate",
		Steps:    "clock",
	}
	for harm, words := range allowed {
		seen := make(map[string]bool)
		for seed := range uint64(100) {
			p, err := Climate{Nodes: 3, Length: time.Second, Events: 4, Harm: harm}.Draw(seed)
			require.NoError(t, err)
			for _, e := range p.Events {
				word, _, _ := strings.Cut(e.Faults[0].String(), " ")
				require.Contains(t, strings.Fields(words), word, "%v", e)
				seen[word] = true
			}
		}
		assert.Len(t, seen, len(strings.Fields(words)), "%s", words)
	}
}

func TestDrawRefusesAClimateThatMakesNoSense(t *testing.T) {
	for text, c := range map[string]Climate{
		"0 nodes":           {Length: time.Second},
		"65 nodes":          {Nodes: 65, Length: time.Second},
		"a climate of 0s":   {Nodes: 3},
		"5 events and no":   {Nodes: 3, Length: time.Second, Events: 5},
		"with -1 events an": {Nodes: 3, Length: time.Second, Events: -1},
	} {
		_, err := c.Draw(1)
		assert.ErrorContains(t, err, text)
	}
}
