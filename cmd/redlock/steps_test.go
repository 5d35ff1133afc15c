package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// testDemo is an embedded demo whose steps a test plays one by one.
func testDemo(t *testing.T) *demo {
	t.Helper()
	d, err := newEmbedded(300 * time.Millisecond)
	require.NoError(t, err)
	t.Cleanup(d.close)
	return d
}

// plant stores a value under a key on some nodes.
func (d *demo) plant(key, value string, nodes ...int) {
	clients := d.nodes.Client("mallory").Redis()
	for _, n := range nodes {
		clients[n-1].Set(context.Background(), key, value, 0)
	}
}

const anyUUID = "11111111-2222-4333-8444-555555555555"

// Each step is played in a world in which one thing that it claims is not true.
// It has to notice that, and say it.
func TestAClaimThatDoesNotHoldFailsItsStep(t *testing.T) {
	for _, tc := range []struct {
		name  string
		first []func(*demo) act // must succeed
		spoil func(*demo)
		then  func(*demo) act
		want  string
	}{
		{"three nodes belong to somebody else", nil,
			func(d *demo) { d.plant("orders/42", anyUUID+":mallory", 1, 2, 3) }, lockAct,
			"alice has the lock: ErrHeld"},
		{"the lock vanishes, and bob gets it", []func(*demo) act{lockAct},
			func(d *demo) { d.nodes.Inject("at 0s, all: flushall") }, refuseAct,
			"bob does not get the lock: he has it, and alice has it too"},
		{"somebody else is named", []func(*demo) act{lockAct},
			func(d *demo) {
				d.nodes.Inject("at 0s, all: flushall")
				d.plant("orders/42", anyUUID+":mallory", 1, 2, 3, 4, 5)
			}, refuseAct,
			`names "mallory"`},
		{"the keys are gone before the extension", []func(*demo) act{lockAct},
			func(d *demo) { d.nodes.Inject("at 0s, all: flushall") }, extendAct,
			"keeps it for 20s more: "},
		{"the keys are gone before the unlock", []func(*demo) act{lockAct},
			func(d *demo) { d.nodes.Inject("at 0s, all: flushall") }, unlockAct,
			"a quorum confirms: ErrLost"},
		{"a key stays behind", []func(*demo) act{lockAct},
			func(d *demo) { d.plant("litter", "x", 4) }, unlockAct,
			"node 4: litter"},
		{"a victim was dead before", nil,
			func(d *demo) { d.nodes.Inject("at 0s, node 4: kill") }, twoDieAct,
			"node 4 died before it stored its vote: no SET has reached it"},
		{"a victim had a vote for somebody else", nil,
			func(d *demo) { d.plant("orders/42", anyUUID+":mallory", 5) }, twoDieAct,
			`node 5 died with its vote stored, unanswered: it has stored a vote for "mallory"`},
		{"a victim dies too early", nil,
			func(d *demo) { d.nodes.Inject("on SET #1, node 5: kill before") }, twoDieAct,
			`node 5 died with its vote stored, unanswered: it has stored a vote for ""`},
		{"four nodes live, and a minority is none", nil,
			func(*demo) {}, thirdDiesAct,
			"alice does not get the lock"},
		{"nothing was stored by the dead", nil,
			func(*demo) {}, comeBackAct,
			"nodes 3 and 5 have died with a vote stored: 0 keys"},
		{"nobody can connect to a node that is back", nil,
			func(d *demo) { d.nodes.Inject("at 0s, node 4: kill\nat 0s, node 4: refuse") }, comeBackAct,
			"nodes 3, 4 and 5 are back on their old ports: dial tcp"},
		{"a key is left at the end", nil,
			func(d *demo) { d.plant("litter", "x", 1) }, endAct,
			"no key is on any node: 1 key"},
		{"goroutines are left at the end", nil,
			func(d *demo) { d.goroutines = 0 }, endAct,
			"no goroutine is left"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := testDemo(t)
			for _, first := range tc.first {
				require.NoError(t, d.play(t.Context(), silent{}, []act{first(d)}))
			}
			tc.spoil(d)
			err := d.play(t.Context(), silent{}, []act{tc.then(d), {"never", "", func(context.Context, *step) {
				t.Error("the run went on after a step that failed")
			}}})
			require.Error(t, err)
			assert.False(t, d.report.OK)
			assert.Equal(t, "demo: "+d.report.Failed, err.Error())
			last := d.report.Steps[len(d.report.Steps)-1]
			assert.False(t, last.OK)
			assert.Contains(t, last.allFailed(), tc.want)
		})
	}
}

func lockAct(d *demo) act      { return act{"lock", "", d.lock} }
func refuseAct(d *demo) act    { return act{"refuse", "", d.refuse} }
func extendAct(d *demo) act    { return act{"extend", "", d.extend} }
func unlockAct(d *demo) act    { return act{"unlock", "", d.unlock} }
func twoDieAct(d *demo) act    { return act{"two-die", "", d.twoDie} }
func thirdDiesAct(d *demo) act { return act{"third-dies", "", d.thirdDies} }
func comeBackAct(d *demo) act  { return act{"return", "", d.comeBack} }
func endAct(d *demo) act       { return act{"end", "", d.end} }

// allFailed is every claim that did not hold.
func (s *step) allFailed() string {
	var texts []string
	for _, c := range s.Checks {
		if !c.OK {
			texts = append(texts, c.Claim+": "+c.Found)
		}
	}
	return strings.Join(texts, "\n")
}

type silent struct{}

func (silent) begin(*report)     {}
func (silent) step(int, *step)   {}
func (silent) end(*report) error { return nil }

func TestColourChangesNothingButColour(t *testing.T) {
	s := &step{Title: "one", Round: &round{Op: "lock", Attempt: 2, Quorum: 2, Granted: 1, Votes: []vote{
		{Node: "a:1", Outcome: "granted", Latency: millis(time.Millisecond)},
		{Node: "longer:1", Outcome: "pending"},
		{Node: "b:1", Outcome: "refused", Latency: millis(2 * time.Second), Holder: "carol\x1b[31m"},
		{Node: "c:1", Outcome: "failed", Latency: millis(time.Microsecond), err: assert.AnError},
		{Node: "d:1", Outcome: "failed", err: errors.New(strings.Repeat("long ", 20) + "story")},
		{Node: "e:1", Outcome: notAsked, Error: "why"},
	}}, Checks: []check{{Claim: "good", OK: true}, {Claim: "bad", Found: strings.Repeat("very ", 15) + "bad"}}}
	r := &report{
		Nodes: 6, Quorum: 2, Lock: "a", TTL: millis(ttl), NodeTimeout: millis(time.Second),
		where: "here", Steps: []*step{s}, Warnings: []warning{{6, "e:1", "never voted: \x1b[31mno"}},
	}
	var texts [2]bytes.Buffer
	for i, colour := range []bool{false, true} {
		p := textReport{&texts[i], colour}
		p.begin(r)
		p.step(1, s)
		require.NoError(t, p.end(r))
	}
	assert.Contains(t, texts[1].String(), "\x1b[32mgranted  \x1b[0m")
	stripped := texts[1].String()
	for _, code := range []string{"0", bold, faint, red, green, yellow} {
		stripped = strings.ReplaceAll(stripped, "\x1b["+code+"m", "")
	}
	assert.Equal(t, texts[0].String(), stripped)
	assert.Equal(t, `6 nodes, here. A lock needs 2 votes.
Lock "a", ttl 10s, node timeout 1s.

1. one
   node 1  a:1       granted       1.00ms
   node 2  longer:1  pending               not waited for
   node 3  b:1       refused       2.000s  held by carol?[31m
   node 4  c:1       failed        0.00ms
           assert.AnError general error for testing
   node 5  d:1       failed        0.00ms
           long long long long long long long long long long long long long long
           long long long long long long story
   node 6  e:1       not asked             why
   lock, attempt 2: 1 of 6 granted, 2 needed, decided in 0.00ms
   ok      good
   FAILED  bad: very very very very very very very very very very very very very
           very very bad

FAILED  Stopped at step 1.
warning  node 6 (e:1) never voted: ?[31mno
`, texts[0].String())
}

// assertNarrow fails for lines that a terminal would wrap.
func assertNarrow(t *testing.T, text string) {
	t.Helper()
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		assert.LessOrEqual(t, utf8.RuneCountInString(line), width, line)
	}
}

func TestFoldLosesNothing(t *testing.T) {
	long := strings.Repeat("x", width)
	for text, want := range map[string]string{
		"":            "",
		"a  b":        "a  b",
		long:          long,
		"a " + long:   "a\n  " + long,
		long + " a b": long + "\n  a b",
	} {
		assert.Equal(t, want, fold(text, 5, 2))
	}
	fits := strings.Repeat("é", width-7) + " b"
	assert.Equal(t, fits, fold(fits, 5, 2))
	assert.Contains(t, fold(fits, 6, 2), "\n  b")
}

// A node that has voted in a step and does not any more is no secret: its row in a
// later step says so.
func TestANodeThatVotedOnceIsNotSaidToBeMute(t *testing.T) {
	d := testDemo(t)
	d.nodes.Inject("at 0s, nodes 1-2: kill")
	d.report.Steps = []*step{{}, {Round: &round{Votes: []vote{
		{Outcome: "pending"}, {Outcome: "refused"}, {Outcome: "pending"}, {Outcome: "failed"}, {Outcome: notAsked},
	}}}}
	d.rollCall(t.Context())
	require.Len(t, d.report.Warnings, 1)
	assert.Equal(t, 1, d.report.Warnings[0].Number)
	assert.Empty(t, d.report.Failed)
}

func TestAnInterruptedRollCallFails(t *testing.T) {
	d := testDemo(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	d.rollCall(ctx)
	assert.Equal(t, "interrupted", d.report.Failed)
	assert.Empty(t, d.report.Warnings)
}

func TestNoOutputShowsAWholeToken(t *testing.T) {
	for token, want := range map[string]string{
		anyUUID + ":alice":  "alice",
		anyUUID + ":a:b":    "a:b",
		anyUUID:             "11111111…",
		anyUUID + ":":       "11111111…",
		"short":             "short",
		"another program's": "another …",
		"ąćęłńóśźż":         "ąćęł…",
		"":                  "",
	} {
		assert.Equal(t, want, ownerOf(token))
	}
}

// The null device stands in for a terminal: both are character devices.
func TestColourIsForTerminals(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("depends on the console")
	}
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	require.NoError(t, err)
	defer null.Close()
	file, err := os.Create(t.TempDir() + "/out")
	require.NoError(t, err)
	defer file.Close()

	t.Setenv("TERM", "xterm")
	t.Setenv("NO_COLOR", "")
	assert.True(t, wantsColour(null))
	assert.False(t, wantsColour(file))
	assert.False(t, wantsColour(new(bytes.Buffer)))
	t.Setenv("TERM", "dumb")
	assert.False(t, wantsColour(null))
	t.Setenv("TERM", "xterm")
	t.Setenv("NO_COLOR", "1")
	assert.False(t, wantsColour(null))
}
