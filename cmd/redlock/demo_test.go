package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/seed58520471/redlock/faultinject"
	"github.com/seed58520471/redlock/internal/realredis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestMain(m *testing.M) {
	redis.SetLogger(&logging.VoidLogger{})
	os.Unsetenv(nodesVariable)
	os.Exit(m.Run())
}

// invoke runs the program as a shell would.
func invoke(ctx context.Context, args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = run(ctx, append([]string{"redlock"}, args...), &out, &errs)
	return code, out.String(), errs.String()
}

// document is what another program reads from --json.
type document struct {
	OK     bool
	Failed string
	Lock   string
	Nodes  int
	Quorum int
	Took   float64 `json:"took_ms"`
	Steps  []struct {
		Step   string
		OK     bool
		Checks []struct {
			Claim, Found string
			OK           bool
		}
		Round *struct {
			Op              string
			Quorum, Granted int
			Votes           []struct {
				Node, Outcome, Holder, Error string
				Latency                      float64 `json:"latency_ms"`
			}
		}
		Validity float64 `json:"validity_ms"`
		Error    string
	}
	Warnings []warning
}

func parse(t *testing.T, text string) (d document) {
	t.Helper()
	dec := json.NewDecoder(strings.NewReader(text))
	require.NoError(t, dec.Decode(&d))
	_, err := dec.Token()
	require.ErrorIs(t, err, io.EOF, "more than one document")
	return d
}

func (d document) requireOK(t *testing.T, names ...string) {
	t.Helper()
	var found []string
	for _, s := range d.Steps {
		found = append(found, s.Step)
		assert.True(t, s.OK, "step %s", s.Step)
		assert.NotEmpty(t, s.Checks, "step %s claims nothing", s.Step)
		for _, c := range s.Checks {
			assert.True(t, c.OK, "step %s: %s: %s", s.Step, c.Claim, c.Found)
		}
	}
	assert.Equal(t, names, found)
	assert.True(t, d.OK)
	assert.Empty(t, d.Failed)
}

func TestTheDemoDoesWhatItSays(t *testing.T) {
	begin := time.Now()
	code, out, errs := invoke(t.Context(), "demo", "--json")
	require.Equal(t, exitOK, code, errs)
	assert.Empty(t, errs)
	assert.Less(t, time.Since(begin), 10*time.Second)

	d := parse(t, out)
	d.requireOK(t, "lock", "refuse", "extend", "unlock", "two-die", "third-dies", "return", "end")
	assert.Equal(t, []warning{}, d.Warnings)
	assert.Equal(t, 5, d.Nodes)
	assert.Equal(t, 3, d.Quorum)
	assert.Positive(t, d.Took)
	for _, s := range d.Steps[:7] {
		require.NotNil(t, s.Round, s.Step)
		assert.Len(t, s.Round.Votes, 5, s.Step)
		assert.Equal(t, 3, s.Round.Quorum, s.Step)
	}

	lock, refuse, twoDie, thirdDies := d.Steps[0], d.Steps[1], d.Steps[4], d.Steps[5]
	assert.GreaterOrEqual(t, lock.Round.Granted, 3)
	assert.InDelta(t, 9_898, lock.Validity, 1_000)
	assert.Contains(t, refuse.Error, "held by another owner")
	for _, v := range refuse.Round.Votes {
		if v.Outcome == "refused" {
			assert.Equal(t, "alice", v.Holder)
			assert.Positive(t, v.Latency)
		}
	}
	assert.Equal(t, 3, twoDie.Round.Granted)
	assert.Contains(t, thirdDies.Error, "no quorum")
	assert.NotEqual(t, "granted", thirdDies.Round.Votes[2].Outcome)
}

func TestTheDemoIsPlainTextUnlessOnATerminal(t *testing.T) {
	code, out, errs := invoke(t.Context(), "demo")
	require.Equal(t, exitOK, code, out+errs)
	assert.NotContains(t, out, "\x1b")
	assert.NotContains(t, out, "FAILED")
	assert.Contains(t, out, "All 8 steps did what they say")
	assertNarrow(t, out)

	columns := make(map[int]int)
	for line := range strings.Lines(out) {
		if i := strings.Index(line, "granted "); strings.HasPrefix(line, "   node ") && i > 0 {
			columns[i]++
		}
	}
	assert.Len(t, columns, 1, "columns are aligned")
}

func TestAnInterruptedDemoFails(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	code, out, errs := invoke(ctx, "demo", "--json")
	assert.Equal(t, exitFailed, code)
	assert.Equal(t, "redlock: demo: interrupted\n", errs)
	assert.Equal(t, "interrupted", parse(t, out).Failed)
}

const password = "s3cret/w0rd@"

func nodesFlag(servers []*realredis.Server, password string) string {
	urls := make([]string, len(servers))
	for i, s := range servers {
		u := url.URL{Scheme: "redis", User: url.UserPassword("default", password), Host: s.Addr}
		urls[i] = u.String()
	}
	return strings.Join(urls, ",")
}

func TestTheDemoLeavesNothingOnRealServers(t *testing.T) {
	servers := realredis.Start(t, 3, "--requirepass", password)
	for _, format := range []string{"--json=true", "--json=false"} {
		code, out, errs := invoke(t.Context(), "demo", format, "--nodes", nodesFlag(servers, password))
		require.Equal(t, exitOK, code, out+errs)
		assert.NotContains(t, out, "s3cret")
		if format == "--json=true" {
			d := parse(t, out)
			d.requireOK(t, "lock", "refuse", "extend", "unlock", "end")
			assert.Equal(t, []warning{}, d.Warnings)
			assert.Regexp(t, "^redlock-demo/.{20}", d.Lock)
			assert.Equal(t, 3, d.Nodes)
			assert.Equal(t, 2, d.Quorum)
		}
	}
	for _, s := range servers {
		c := redis.NewClient(&redis.Options{Addr: s.Addr, Password: password})
		defer c.Close()
		keys, err := c.Keys(t.Context(), "*").Result()
		require.NoError(t, err)
		assert.Empty(t, keys, s.Addr)
	}
}

func TestADeadMinorityIsShownAndDoesNotMatter(t *testing.T) {
	servers := realredis.Start(t, 3)
	servers[1].Kill()
	code, out, errs := invoke(t.Context(), "demo", "--json", "--nodes", nodesFlag(servers, ""))
	require.Equal(t, exitOK, code, out+errs)
	d := parse(t, out)
	d.requireOK(t, "lock", "refuse", "extend", "unlock", "end")
	assert.NotEqual(t, "granted", d.Steps[0].Round.Votes[1].Outcome)
	require.Len(t, d.Warnings, 1)
	assert.Equal(t, servers[1].Addr, d.Warnings[0].Node)

	code, out, errs = invoke(t.Context(), "demo", "--nodes", nodesFlag(servers, ""))
	require.Equal(t, exitOK, code, out+errs)
	assertNarrow(t, out)
	assert.Regexp(t, `\nok  All 5 steps .*\nwarning  node 2 \(`+servers[1].Addr+`\) never voted: .*\n$`, out)
}

// startNodes starts embedded nodes that stand in for real ones.
func startNodes(t *testing.T, n int) (nodes *faultinject.Cluster, urls []string) {
	t.Helper()
	nodes = faultinject.Start(t, n)
	addrs, err := nodes.Addrs()
	require.NoError(t, err)
	return nodes, urlsOf(addrs)
}

// A quorum of the other two hides each of these, and often so fast that no row of
// the steps says more than "pending".
func TestAFaultThatTheQuorumHidesIsAWarning(t *testing.T) {
	mute, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer mute.Close()
	nodes, urls := startNodes(t, 3)
	nodes.Node(3).Do(faultinject.Kill)
	first, second := urls[0], urls[1]
	twin := strings.Replace(first, "127.0.0.1", "localhost", 1)
	for _, tc := range []struct {
		name, third, want string
	}{
		{"down", urls[2], "^never voted: .*refused"},
		{"mute", "redis://" + mute.Addr().String(), "^never voted: .*(no answer|timeout)"},
		{"misspelt", "redis://redlock.invalid:1", "^never voted: ."},
		{"listed twice", twin, "^is the same server as node 1 and must not vote twice$"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			code, out, errs := invoke(t.Context(), "demo", "--json", "--nodes", strings.Join([]string{first, second, tc.third}, ","))
			require.Equal(t, exitOK, code, out+errs)
			d := parse(t, out)
			d.requireOK(t, "lock", "refuse", "extend", "unlock", "end")
			require.Len(t, d.Warnings, 1)
			assert.Equal(t, 3, d.Warnings[0].Number)
			assert.Equal(t, tc.third, "redis://"+d.Warnings[0].Node)
			assert.Regexp(t, tc.want, d.Warnings[0].Text)
		})
	}
	assert.Empty(t, (&demo{nodes: nodes}).keys())
}

func TestUnlockDoesNotAskANodeThatNeverHadTheLock(t *testing.T) {
	nodes, urls := startNodes(t, 3)
	nodes.Node(1).Do(faultinject.Kill)
	code, out, errs := invoke(t.Context(), "demo", "--json", "--nodes", strings.Join(urls, ","))
	require.Equal(t, exitOK, code, out+errs)
	v := parse(t, out).Steps[3].Round.Votes[0]
	assert.Equal(t, "not asked", v.Outcome)
	assert.Equal(t, "it never had the lock", v.Error)
	assert.Zero(t, v.Latency)

	_, out, _ = invoke(t.Context(), "demo", "--nodes", strings.Join(urls, ","))
	assert.Regexp(t, `   node 1  127\.0\.0\.1:\d+  not asked +it never had the lock\n`, out)
}

func TestOneNodeIsSingular(t *testing.T) {
	_, urls := startNodes(t, 1)
	code, out, errs := invoke(t.Context(), "demo", "--nodes", urls[0])
	require.Equal(t, exitOK, code, out+errs)
	for _, want := range []string{"1 node, ", "needs 1 vote.\n", ": 1 node\n", ": 1 refuses\n"} {
		assert.Contains(t, out, want)
	}
	assert.NotRegexp(t, `\b1 (nodes[,\n]|votes|refuse\n|do\n)`, out)
}

func TestNodesCanComeFromTheEnvironment(t *testing.T) {
	_, urls := startNodes(t, 3)
	t.Setenv(nodesVariable, strings.Join(urls, ","))
	code, out, errs := invoke(t.Context(), "demo", "--json")
	require.Equal(t, exitOK, code, out+errs)
	assert.Equal(t, 3, parse(t, out).Nodes)

	code, out, errs = invoke(t.Context(), "demo", "--json", "--nodes", urls[1])
	require.Equal(t, exitOK, code, out+errs)
	assert.Equal(t, 1, parse(t, out).Nodes, "the flag comes first")
}

func TestANameMakesTheDemoFitAccessRules(t *testing.T) {
	servers := realredis.Start(t, 3, "--user", "default", "on", "nopass", "~app/*", "+@all")
	for _, tc := range []struct {
		args []string
		code int
	}{
		{[]string{"--name", "app/check"}, exitOK},
		{nil, exitFailed},
	} {
		args := append([]string{"demo", "--json", "--nodes", nodesFlag(servers, "")}, tc.args...)
		code, out, errs := invoke(t.Context(), args...)
		require.Equal(t, tc.code, code, out+errs)
		if d := parse(t, out); tc.code == exitOK {
			d.requireOK(t, "lock", "refuse", "extend", "unlock", "end")
			assert.Equal(t, "app/check", d.Lock)
			assert.Empty(t, d.Warnings)
		} else {
			assert.Contains(t, out, "NOPERM")
		}
	}
}

func TestAWrongPasswordFailsTheDemoAndIsNotShown(t *testing.T) {
	servers := realredis.Start(t, 3, "--requirepass", password)
	for _, format := range []string{"--json=true", "--json=false"} {
		code, out, errs := invoke(t.Context(), "demo", format, "--nodes", nodesFlag(servers, "wr0ng/pass@"))
		assert.Equal(t, exitFailed, code)
		assert.Contains(t, out, "WRONGPASS")
		assert.NotContains(t, out+errs, "wr0ng")
		assert.Contains(t, errs, "step lock: claim does not hold: alice has the lock (ErrNoQuorum)\n")
		if format == "--json=true" {
			d := parse(t, out)
			assert.False(t, d.OK)
			assert.Contains(t, d.Failed, "alice has the lock")
			require.Len(t, d.Steps, 1, "nothing is done after a failure")
		}
	}
}
