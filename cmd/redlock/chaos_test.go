package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed58520471/redlock/faultinject"
	"github.com/seed58520471/redlock/internal/scenarios"
)

// chaosDocument is what another program reads from --json.
type chaosDocument struct {
	OK     bool
	Failed string
	TTL    float64 `json:"ttl_ms"`
	Seed   uint64
	Took   float64 `json:"took_ms"`
	Rows   []struct {
		Name                                   string
		Runs, Acquisitions, Faults, Violations int
		Took                                   float64 `json:"took_ms"`
		Admitted, Skipped, Error, Picture      string
	}
	Total      struct{ Runs, Acquisitions, Faults, Violations int }
	Violations []struct {
		Name, Title, Error, Report, Replay string
		Seed                               uint64
	}
}

func parseChaos(t *testing.T, text string) (d chaosDocument) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(text), &d), text)
	return d
}

// noneLeft fails the test if it leaves goroutines or processes.
func noneLeft(t *testing.T) {
	check := faultinject.Goroutines()
	t.Cleanup(func() {
		assert.NoError(t, check())
		assert.Empty(t, children(t))
	})
}

// children are the processes that this one has started, where that can be seen.
func children(t *testing.T) (pids []string) {
	all, err := filepath.Glob("/proc/[0-9]*/status")
	require.NoError(t, err)
	for _, file := range all {
		text, _ := os.ReadFile(file) // it may have ended just now
		if strings.Contains(string(text), fmt.Sprintf("\nPPid:\t%d\n", os.Getpid())) {
			pids = append(pids, file)
		}
	}
	return pids
}

// invokeOn runs the program on another stage.
func invokeOn(ctx context.Context, s stage, args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = exitCode(app(&out, &errs, s).Run(ctx, append([]string{"redlock", "chaos"}, args...)), &errs)
	return code, out.String(), errs.String()
}

func plays(all ...scenarios.Scenario) stage {
	return stage{catalogue: func() []scenarios.Scenario { return all }, storm: playStorm}
}

// believe lets some clients believe that they hold the same lock.
func believe(w *scenarios.World, clients ...string) {
	for _, c := range clients {
		w.Cluster.History().Try(c, "orders").Won("token of "+c, time.Now().Add(w.TTL))
	}
}

var (
	harmless = scenarios.Scenario{
		Name: "harmless", Story: "Nothing happens.", Nodes: 1,
		Play: func(w *scenarios.World) error { believe(w, "a"); return nil },
	}
	twoHolders = scenarios.Scenario{
		Name: "two-holders", Story: "Two hold it.", Nodes: 3,
		Play: func(w *scenarios.World) error { believe(w, "a", "b"); return nil },
	}
	lateHolder = scenarios.Scenario{
		Name: "late-holder", Story: "One is late.", Nodes: 1, Residue: "It acts after its time.",
		Play: func(w *scenarios.World) error {
			a := w.Cluster.History().Try("a", "orders")
			a.Won("token", time.Now())
			w.Sleep(time.Millisecond)
			a.Act()
			return nil
		},
	}
	unplayable = scenarios.Scenario{
		Name: "unplayable", Story: "Nobody sends what the plan waits for.", Nodes: 1,
		Plan: "on SET #1, node 1: kill during",
		Play: func(*scenarios.World) error { return nil },
	}
	onServers = scenarios.Scenario{
		Name: "on-servers", Story: "It needs a disk.", Nodes: 1, Servers: []string{"--appendonly", "yes"},
		Play: func(*scenarios.World) error { return nil },
	}
	onEmbedded = scenarios.Scenario{
		Name: "on-embedded", Story: "It bends a clock.", Nodes: 1, Embedded: true,
		Play: func(*scenarios.World) error { return nil },
	}
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
	listsDiffer := scenarios.Scenario{Name: "lists-differ", Story: "They do.", Nodes: 2, TwoHolders: "They must not."}
	code, out, _ := invokeOn(t.Context(), plays(onServers, onEmbedded, lateHolder, listsDiffer), "list")
	require.Equal(t, exitOK, code)
	assert.Equal(t, `on-servers  1 node, redis-server only
   It needs a disk.

on-embedded  1 node, embedded only
   It bends a clock.

late-holder  1 node, embedded or redis-server
   One is late.
   Admitted: It acts after its time.

lists-differ  2 nodes, embedded or redis-server
   They do.
   Admitted: They must not.
`, out)
}

func TestChaosExplainsCallsThatMakeNoSense(t *testing.T) {
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"rnu"}, `no such command: "rnu"`},
		{[]string{"run"}, "which scenario?"},
		{[]string{"run", "killed-aftr-set"}, `no such scenario: "killed-aftr-set"; similar are killed-after-set, `},
		{[]string{"run", "killed"}, "similar are killed-"},
		{[]string{"run", "killed-after-set", "xyzzy"}, `no such scenario: "xyzzy"; 'redlock chaos list' has all`},
		{[]string{"run", "[killed"}, `no such scenario: "[killed"; similar`},
		{[]string{"run", "redis://:s3cret@h:1"}, "no such scenario; "},
		{[]string{"run", "--all", "killed-after-set"}, "either names or --all"},
		{[]string{"run", "--all", "--runs", "0"}, "--runs 0 is not positive"},
		{[]string{"run", "--all", "--ttl", "1ms"}, "--ttl 1ms is not from 100ms to 1h0m0s"},
		{[]string{"run", "--all", "--workers", "0"}, "--workers 0 is not from 1 to 256"},
		{[]string{"run", "--all", "--seed", "-1"}, `invalid value "-1" for --seed: invalid syntax;`},
		{[]string{"run", "--all", "--ttl", "1"}, `invalid value "1" for --ttl: time: missing unit`},
		{[]string{"run", "--all", "--sgv", "f"}, "not defined: --sgv;"},
		{[]string{"run", "--all", "--svg", t.TempDir()}, "--svg: open "},
		{[]string{"soak", "--for", "0s"}, "--for 0s is not positive"},
		{[]string{"soak", "killed-after-set"}, "soak takes no arguments"},
		{[]string{"list", "killed-after-set"}, "list takes no arguments"},
	} {
		code, out, errs := invoke(t.Context(), append([]string{"chaos"}, tc.args...)...)
		assert.Equal(t, exitUsage, code, tc.args)
		assert.Empty(t, out, tc.args)
		assert.Regexp(t, `^redlock: .*; see 'redlock chaos.* --help'\n$`, errs, tc.args)
		assert.Contains(t, errs, tc.want, tc.args)
		assert.NotContains(t, errs, "s3cret", tc.args)
	}
}

func TestHelpOfChaosTeaches(t *testing.T) {
	for _, tc := range []struct {
		args []string
		want []string
	}{
		{nil, []string{"chaos run --all", "chaos soak --for 60s"}},
		{[]string{"--help"}, []string{"chaos list"}},
		{[]string{"list", "--help"}, []string{"Examples:", "--json"}},
		{[]string{"run", "--help"}, []string{"Examples:", "--redis", "--picture", "--svg FILE", "exit code", "admitted"}},
		{[]string{"soak", "--help"}, []string{"Examples:", "--for TIME", "--workers K", "exit code", "a fresh one"}},
	} {
		code, out, errs := invoke(t.Context(), append([]string{"chaos"}, tc.args...)...)
		assert.Equal(t, exitOK, code, tc.args)
		assert.Empty(t, errs, tc.args)
		for _, want := range tc.want {
			assert.Contains(t, out, want, tc.args)
		}
		assertNarrow(t, out)
	}
}

func TestProgressIsOneLineOnATerminalAndIsGoneInTheEnd(t *testing.T) {
	var b bytes.Buffer
	p := &progress{w: &b, terminal: true}
	p.show("a long line")
	p.show("short")
	p.show("short")
	p.clear()
	p.clear()
	assert.Equal(t, "\ra long line\rshort      \r     \r", b.String())

	b.Reset()
	p.show(strings.Repeat("é", 2*width))
	assert.Equal(t, width, utf8.RuneCountInString(b.String()), "with the carriage return")
}

func TestProgressIsLinesElsewhere(t *testing.T) {
	var b bytes.Buffer
	p := &progress{w: &b, every: time.Millisecond}
	shown := make(chan struct{}, 1)
	stop := p.watch(func() string {
		select {
		case shown <- struct{}{}:
		default:
		}
		return "as far as this"
	})
	<-shown
	stop()
	assert.Regexp(t, `^(as far as this\n)+$`, b.String())
}

// The null device stands in for a terminal: both are character devices.
func TestProgressKnowsATerminal(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("depends on the console")
	}
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	require.NoError(t, err)
	defer null.Close()
	t.Setenv("NO_COLOR", "1")
	t.Setenv("TERM", "xterm")
	assert.True(t, newProgress(null).terminal, "no escape codes are used")
	assert.False(t, newProgress(new(bytes.Buffer)).terminal)
	t.Setenv("COLUMNS", "")
	assert.Equal(t, width, columns(null))
	t.Setenv("TERM", "dumb")
	assert.False(t, newProgress(null).terminal)
	assert.Equal(t, 100, columns(null))
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
