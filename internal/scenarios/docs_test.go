package scenarios

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var updateDocs = flag.Bool("update-docs", false, "write the list of scenarios")

const docs = "../../docs/scenarios.md"

func TestDocsListTheCatalogue(t *testing.T) {
	var b strings.Builder
	b.WriteString(`# Scenarios

The failures that ` + "`redlock chaos`" + ` plays, and that the tests demand of redlock to stand. Those of *redis-server* run on processes
that are killed, stopped and restarted; all others on embedded nodes, in virtual time when they are tests, and most of them on
processes too. What a scenario *admits* is what no lock with a time limit prevents, or the condition that it breaks on purpose.

| scenario | nodes | what happens |
|---|---|---|
`)
	for _, s := range Catalogue() {
		nodes := fmt.Sprint(s.Nodes)
		if s.Servers != nil {
			nodes += " redis-server"
		}
		story := strings.Join(strings.Fields(s.Story), " ")
		if admitted := s.Admits(); admitted != "" {
			story += " *Admitted:* " + admitted
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", s.Name, nodes, strings.ReplaceAll(story, "|", `\|`))
	}
	if *updateDocs {
		require.NoError(t, os.WriteFile(docs, []byte(b.String()), 0o600))
	}
	text, err := os.ReadFile(docs)
	require.NoError(t, err)
	assert.True(t, b.String() == string(text), "the list is out of date: go test ./internal/scenarios -run %s -update-docs", t.Name())
}
