package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed58520471/redlock/internal/scenarios"
)

func TestTheCatalogueIsListed(t *testing.T) {
	code, out, errs := invoke(t.Context(), "chaos", "list", "--json")
	require.Equal(t, exitOK, code, errs)
	var list struct {
		Scenarios []struct {
			Name, Story       string
			Nodes             int
			Embedded, Servers bool
		}
	}
	require.NoError(t, json.Unmarshal([]byte(out), &list))
	require.Len(t, list.Scenarios, len(scenarios.Catalogue()))

	for _, columns := range []int{60, 100} {
		t.Setenv("COLUMNS", fmt.Sprint(columns))
		code, out, errs = invoke(t.Context(), "chaos", "list")
		require.Equal(t, exitOK, code, errs)
		words := strings.Join(strings.Fields(out), " ")
		for _, s := range list.Scenarios {
			assert.Positive(t, s.Nodes)
			assert.True(t, s.Embedded || s.Servers)
			assert.Contains(t, out, s.Name+"  ")
			assert.Contains(t, words, strings.Join(strings.Fields(s.Story), " "))
		}
		for line := range strings.Lines(out) {
			if strings.HasPrefix(line, " ") { // names are not broken
				assert.LessOrEqual(t, utf8.RuneCountInString(line), columns+1, line)
			}
		}
	}
}

func TestTheListSaysWhereAScenarioCanBePlayed(t *testing.T) {
	code, out, _ := invokeOn(t.Context(), plays(onServers, onEmbedded, lateHolder), "list")
	require.Equal(t, exitOK, code)
	assert.Equal(t, `on-servers  1 node, redis-server only
   It needs a disk.

on-embedded  1 node, embedded only
   It bends a clock.

late-holder  1 node, embedded or redis-server
   One is late.
   Admitted: It acts after its time.
`, out)
}

func TestDistanceCountsLetters(t *testing.T) {
	for _, tc := range []struct {
		a, b string
		want int
	}{
		{"", "", 0}, {"a", "", 1}, {"", "ab", 2}, {"lock", "lock", 0}, {"lock", "look", 1},
		{"lcok", "lock", 2}, {"kitten", "sitting", 3},
	} {
		assert.Equal(t, tc.want, distance(tc.a, tc.b), tc)
		assert.Equal(t, tc.want, distance(tc.b, tc.a), tc)
	}
}
