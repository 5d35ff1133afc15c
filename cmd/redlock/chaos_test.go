package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed58520471/redlock/faultinject"
	"github.com/seed58520471/redlock/internal/realredis"
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

func TestAScenarioIsPlayedOnEmbeddedNodesAndOnServers(t *testing.T) {
	for _, on := range []string{"--redis=false", "--redis"} {
		t.Run(on, func(t *testing.T) {
			if on == "--redis" {
				realredis.Need(t)
			}
			noneLeft(t)
			svg := filepath.Join(t.TempDir(), "picture.svg")
			code, out, errs := invoke(t.Context(), "chaos", "run", "killed-after-set", on, "--json", "--picture", "--svg", svg)
			require.Equal(t, exitOK, code, out+errs)
			d := parseChaos(t, out)
			assert.True(t, d.OK)
			assert.Equal(t, 1000.0, d.TTL)
			assert.Equal(t, uint64(1), d.Seed)
			assert.Positive(t, d.Took)
			assert.Empty(t, d.Violations)
			require.Len(t, d.Rows, 1)
			row := d.Rows[0]
			assert.Equal(t, "killed-after-set", row.Name)
			assert.Equal(t, 1, row.Runs)
			assert.GreaterOrEqual(t, row.Acquisitions, 2)
			assert.Positive(t, row.Faults)
			assert.Contains(t, row.Picture, "on SET #1, node 3: kill during")
			assert.Equal(t, row.Acquisitions, d.Total.Acquisitions)
			picture, err := os.ReadFile(svg)
			require.NoError(t, err)
			assert.Contains(t, string(picture), "killed-after-set, seed 1")
		})
	}
}

// All that can come of a scenario, in one table.
func TestAViolationIsShownInFullAndWhatIsAdmittedIsNone(t *testing.T) {
	noneLeft(t)
	svg := filepath.Join(t.TempDir(), "picture.svg")
	s := plays(harmless, lateHolder, twoHolders, unplayable)
	code, out, errs := invokeOn(t.Context(), s,
		"run", "--all", "--runs", "2", "--seed", "7", "--ttl", "200ms", "--workers", "8", "--svg", svg)
	assert.Equal(t, exitFailed, code)
	assert.Equal(t, "redlock: chaos: 2 violations in two-holders; unplayable could not be played\n", errs)
	assert.NotContains(t, out, "\x1b")
	assert.True(t, strings.HasPrefix(out, `4 scenarios, 2 times. ttl 200ms, seed 7.

             runs  acquisitions  faults  violations
harmless        2             2       0           0
late-holder     2             2       0           0
two-holders     2             4       0           2
unplayable      2             0       0           0
total           8             8       0           2

admitted: late-holder: `), out)
	assert.Contains(t, out, "not played: unplayable: seed ")
	assert.Contains(t, out, "has never struck")
	for _, seed := range []string{"7", "8"} {
		assert.Contains(t, out, "\nVIOLATION in two-holders, seed "+seed+"\n   Two hold it.\n\n   faultinject: two holders of \"orders\"")
		assert.Contains(t, out, "   To play it again: redlock chaos run two-holders --seed "+seed+" --ttl 200ms\n")
	}
	assert.Contains(t, out, "   TWO HOLDERS ")
	assert.Contains(t, out, "\nFAILED  2 violations in two-holders; unplayable could not be played. ")
	picture, err := os.ReadFile(svg)
	require.NoError(t, err)
	assert.Contains(t, string(picture), "two-holders, seed ")
}

func TestViolationsAreCountedAllAndShownSome(t *testing.T) {
	code, out, errs := invokeOn(t.Context(), plays(twoHolders),
		"run", "two-holders", "--json", "--runs", "5", "--ttl", "100ms", "--workers", "5")
	assert.Equal(t, exitFailed, code)
	d := parseChaos(t, out)
	assert.False(t, d.OK)
	assert.Equal(t, "redlock: chaos: "+d.Failed+"\n", errs)
	assert.Equal(t, 5, d.Total.Violations)
	require.Len(t, d.Violations, violationsShown)
	v := d.Violations[0]
	assert.Equal(t, "two-holders", v.Name)
	assert.Contains(t, v.Error, "two holders")
	assert.Contains(t, v.Report, "TWO HOLDERS")
	assert.Equal(t, fmt.Sprintf("redlock chaos run two-holders --seed %d --ttl 100ms", v.Seed), v.Replay)
}

func TestScenariosThatCannotBePlayedHereAreSkipped(t *testing.T) {
	t.Run("without redis-server", func(t *testing.T) {
		t.Setenv("PATH", t.TempDir())
		code, out, errs := invokeOn(t.Context(), plays(harmless), "run", "--all", "--redis")
		assert.Equal(t, exitFailed, code)
		assert.Empty(t, out)
		assert.Equal(t, "redlock: chaos: redis-server is not in PATH; --redis needs it\n", errs)

		code, out, errs = invokeOn(t.Context(), plays(harmless, onServers), "run", "--all", "--ttl", "100ms")
		assert.Equal(t, exitOK, code, errs)
		assert.Contains(t, out, "\nskipped: on-servers: redis-server is not in PATH\n")
		assert.Contains(t, out, "\nok  No lock broke in 1 run, ")

		code, _, errs = invokeOn(t.Context(), plays(onServers), "run", "on-servers")
		assert.Equal(t, exitFailed, code)
		assert.Equal(t, "redlock: chaos: nothing was played\n", errs)
	})
	t.Run("on redis-server", func(t *testing.T) {
		realredis.Need(t)
		noneLeft(t)
		code, out, errs := invokeOn(t.Context(), plays(onEmbedded, onServers, harmless), "run", "on-*", "--redis", "--ttl", "100ms")
		assert.Equal(t, exitOK, code, errs)
		assert.Contains(t, out, "\nskipped: on-embedded: it is for embedded nodes only\n")
		assert.Contains(t, out, "\non-servers     1 ")
		assert.NotContains(t, out, "harmless")
	})
}

func TestAnInterruptEndsScenariosAndKeepsWhatIsKnown(t *testing.T) {
	for _, tc := range []struct {
		name    string
		clients []string
		admits  string
		want    string
	}{
		{"nothing is wrong", []string{"a"}, "", "interrupted"},
		{"two hold it", []string{"a", "b"}, "", "1 violation in patient; interrupted"},
		{"two may hold it", []string{"a", "b"}, "that is the story", "interrupted"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			noneLeft(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			patient := scenarios.Scenario{
				Name: "patient", Nodes: 3, TwoHolders: tc.admits, Play: func(w *scenarios.World) error {
					believe(w, tc.clients...)
					cancel()
					w.Sleep(time.Hour)
					return errors.New("it was woken")
				},
			}
			begin := time.Now()
			code, out, errs := invokeOn(ctx, plays(patient), "run", "--all", "--json", "--runs", "100", "--workers", "1")
			assert.Less(t, time.Since(begin), 10*time.Second)
			assert.Equal(t, exitFailed, code)
			assert.Equal(t, "redlock: chaos: "+tc.want+"\n", errs)
			d := parseChaos(t, out)
			assert.Equal(t, tc.want, d.Failed)
			assert.Equal(t, len(d.Violations), d.Total.Runs, "a run that was broken off is none")
		})
	}
}

// A busy machine may have time for one storm only; that of seed 38 breaks hundreds of
// commands.
func TestNoStormBreaksALock(t *testing.T) {
	noneLeft(t)
	begin := time.Now()
	code, out, errs := invoke(t.Context(), "chaos", "soak", "--for", "2s", "--json", "--seed", "38", "--workers", "1")
	require.Equal(t, exitOK, code, out+errs)
	assert.Less(t, time.Since(begin), 20*time.Second)
	d := parseChaos(t, out)
	assert.True(t, d.OK)
	assert.Equal(t, uint64(38), d.Seed)
	assert.Positive(t, d.Total.Runs)
	assert.Positive(t, d.Total.Acquisitions)
	assert.Positive(t, d.Total.Faults)
}

func TestAnInterruptEndsStorms(t *testing.T) {
	noneLeft(t)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	begin := time.Now()
	code, out, errs := invoke(ctx, "chaos", "soak", "--for", "1h")
	assert.Less(t, time.Since(begin), 10*time.Second)
	assert.Equal(t, exitFailed, code, out)
	assert.Equal(t, "redlock: chaos: interrupted\n", errs)
	assert.Regexp(t, `^Storms for 1h0m0s, \d+ at a time\. ttl 1s, seed \d+\.\n`, out)
	assert.Contains(t, out, "\nFAILED  interrupted. ")
}

// The first violation ends all storms; one that is under way then is not counted.
func TestASoakEndsWithTheFirstViolation(t *testing.T) {
	s := stage{storm: func(ctx context.Context, seed uint64, _ time.Duration) outcome {
		o := outcome{row: "a network", title: fmt.Sprintf("storm %d", seed), seed: seed, acquisitions: 2}
		switch {
		case seed == 12:
			o.violation, o.report = errors.New("two holders"), "at 0s, all: partition\n"
		case seed > 12:
			<-ctx.Done()
			o.violation = errors.New("it is not clean")
		}
		return o
	}}
	code, out, errs := invokeOn(t.Context(), s, "soak", "--for", "1h", "--seed", "10", "--workers", "3")
	assert.Equal(t, exitFailed, code)
	assert.Equal(t, "redlock: chaos: 1 violation in a network\n", errs)
	assert.Regexp(t, `(?s)^Storms for 1h0m0s, 3 at a time\. ttl 1s, seed 10\.

           runs  acquisitions  faults  violations
a network     3             6       0           1
total         3             6       0           1

VIOLATION in a network, seed 12
   storm 12

   two holders

   at 0s, all: partition

   To play it again: redlock chaos soak --seed 12 --workers 1 --for 1s

FAILED  1 violation in a network\. [0-9.]+ms\.
$`, out)
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
		{[]string{"run", "--all", "--seed", "-1"}, "invalid value"},
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
