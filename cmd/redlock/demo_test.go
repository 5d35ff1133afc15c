package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/seed58520471/redlock/internal/realredis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestMain(m *testing.M) {
	redis.SetLogger(&logging.VoidLogger{})
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
	assert.NotEqual(t, "granted", thirdDies.Round.Votes[third].Outcome)
}

func TestTheDemoIsPlainTextUnlessOnATerminal(t *testing.T) {
	code, out, errs := invoke(t.Context(), "demo")
	require.Equal(t, exitOK, code, out+errs)
	assert.NotContains(t, out, "\x1b")
	assert.NotContains(t, out, "FAILED")
	assert.Contains(t, out, "All 8 steps did what they say")

	columns := make(map[int]int)
	for line := range strings.Lines(out) {
		if i := strings.Index(line, "granted "); strings.HasPrefix(line, "   node ") && i > 0 {
			columns[i]++
		}
	}
	assert.NotEmpty(t, columns)
	assert.LessOrEqual(t, len(columns), 2, "columns are aligned: ports have 4 or 5 digits")
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
}

func TestAWrongPasswordFailsTheDemoAndIsNotShown(t *testing.T) {
	servers := realredis.Start(t, 3, "--requirepass", password)
	for _, format := range []string{"--json=true", "--json=false"} {
		code, out, errs := invoke(t.Context(), "demo", format, "--nodes", nodesFlag(servers, "wr0ng/pass@"))
		assert.Equal(t, exitFailed, code)
		assert.Contains(t, out, "WRONGPASS")
		assert.NotContains(t, out+errs, "wr0ng")
		assert.Contains(t, errs, "step lock: it is not so that alice has the lock: ErrNoQuorum")
		if format == "--json=true" {
			d := parse(t, out)
			assert.False(t, d.OK)
			assert.Contains(t, d.Failed, "alice has the lock")
			require.Len(t, d.Steps, 1, "nothing is done after a failure")
		}
	}
}
