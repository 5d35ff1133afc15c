package redlock

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// wellNodes are readings about which nothing is to be said: n1, n2, …
func wellNodes(n int) []reading {
	rs := make([]reading, n)
	for i := range rs {
		rs[i] = reading{
			node: fmt.Sprintf("n%d", i+1), fsync: "always",
			trips: []time.Duration{ms(1), ms(2), ms(1)},
			seen:  &look{theirs: time.Hour, ours: instant{wall: int64(time.Hour)}, within: ms(1)},
			info: info{
				"redis_version": "7.2.4", "run_id": fmt.Sprint("run", i), "uptime_in_seconds": "86400",
				"role": "master", "connected_slaves": "0", "cluster_enabled": "0",
				"maxmemory": "1000", "used_memory": "500", "maxmemory_policy": "noeviction", "total_system_memory": "10000",
				"aof_enabled": "1", "aof_last_write_status": "ok", "rdb_last_bgsave_status": "ok", "rdb_last_save_time": "1",
			},
			members: membersView{id: fmt.Sprint("id", i+1), now: 100000},
		}
	}
	return rs
}

func wellConfig() config {
	cfg, _ := defaults().apply(nil, false)
	return cfg
}

// all sets a field of INFO on every node.
func all(field, value string) func(*config, []reading) {
	return func(_ *config, rs []reading) {
		for i := range rs {
			rs[i].info[field] = value
		}
	}
}

// second sets fields of INFO on n2.
func second(pairs ...string) func(*config, []reading) {
	return func(_ *config, rs []reading) {
		for i := 0; i < len(pairs); i += 2 {
			rs[1].info[pairs[i]] = pairs[i+1]
		}
	}
}

// refusing has n2 refuse something.
func refusing(p part, text string) func(*config, []reading) {
	return func(_ *config, rs []reading) { rs[1].tries = []try{{p, "cmd", "locks:", serverError(text)}} }
}

// serverError is an error reply.
type serverError string

func (e serverError) Error() string { return string(e) }
func (serverError) RedisError()     {}

var _ redis.Error = serverError("")

// entered has n1 know of another client.
func entered(age int64, m membership) func(*config, []reading) {
	return func(_ *config, rs []reading) {
		rs[0].members.of = append(rs[0].members.of, member{m, m.text(), rs[0].members.now - age})
	}
}

func both(fs ...func(*config, []reading)) func(*config, []reading) {
	return func(cfg *config, rs []reading) {
		for _, f := range fs {
			f(cfg, rs)
		}
	}
}

func fenced(cfg *config, _ []reading) { cfg.fencing = true }

// elsewhere is a client of two nodes that n1 to n3 know and one that they do not.
var elsewhere = membership{Nodes: []string{"n1", "n2", "n9"}, IDs: []string{"id1", "id2", "id9"}}

var judgeCases = []struct {
	about string
	nodes int // 0: 3
	make  func(*config, []reading)
	want  string // severity, what and node of every finding, in order
}{
	{"all is well", 0, func(*config, []reading) {}, ""},
	{"all is well with five", 5, func(*config, []reading) {}, ""},
	{"one node", 1, func(*config, []reading) {}, "warning few-nodes"},
	{"two nodes", 2, func(*config, []reading) {}, "warning few-nodes"},
	{"four nodes", 4, func(*config, []reading) {}, "info even-nodes"},

	{"one does not answer", 0, func(_ *config, rs []reading) { rs[1] = reading{node: "n2", silent: errUnread} }, "warning no-answer n2"},
	{"too few answer", 0, func(_ *config, rs []reading) {
		rs[1], rs[2] = reading{node: "n2", silent: errUnread}, reading{node: "n3", silent: errUnread}
	}, "error no-quorum; warning no-answer n2; warning no-answer n3"},
	{"INFO is denied", 0, func(_ *config, rs []reading) { rs[0].info, rs[0].infoErr = nil, errors.New("NOPERM") }, "info info-unknown n1"},

	{"one server twice", 0, second("run_id", "run0"), "error same-server n2"},
	{"one server three times", 0, all("run_id", "x"), "error same-server n2; error same-server n3"},
	{"one server twice, which does not tell its run id", 0, func(_ *config, rs []reading) {
		rs[0].info, rs[1].info = nil, nil
		rs[1].members.id = "id1"
	}, "error same-server n2"},
	{"two servers from one image", 0, func(_ *config, rs []reading) { rs[1].members.id = "id1" }, ""},

	{"a replica", 0, second("role", "slave", "master_host", "h", "master_port", "1"), "error replica n2"},
	{"valkey's word for a primary", 0, all("role", "primary"), ""},
	{"replicas of a primary", 0, second("connected_slaves", "2"), "info replicas n2"},
	{"a failover client", 0, func(_ *config, rs []reading) { rs[1].shape = failover }, "warning failover n2"},
	{"too few replicas to acknowledge", 0, func(cfg *config, rs []reading) {
		cfg.acks = &ackRule{2, ms(10)}
		rs[0].info["connected_slaves"], rs[1].info["connected_slaves"], rs[2].info["connected_slaves"] = "2", "1", "3"
	}, "error too-few-replicas n2"},

	{"a cluster client", 0, func(_ *config, rs []reading) { rs[1].shape = cluster; rs[1].info["run_id"] = "run0" }, "warning cluster n2"},
	{"a shard", 0, func(_ *config, rs []reading) { rs[1].info["cluster_enabled"], rs[1].shards = "1", []string{"a", "b"} }, "error cluster-shard n2"},
	{"three shards of one cluster", 0, func(_ *config, rs []reading) {
		for i := range rs {
			rs[i].info["cluster_enabled"], rs[i].shards = "1", []string{"a", "b", "c"}
		}
	}, "error cluster-shard n1; error one-cluster n2; error one-cluster n3"},
	{"clients of one cluster", 0, func(_ *config, rs []reading) {
		for i := range rs[:2] {
			rs[i].shape, rs[i].info["cluster_enabled"], rs[i].shards = cluster, "1", []string{"a", "b", "c"}
		}
	}, "error one-cluster n2; warning cluster n1; warning cluster n2"},

	{"eviction", 0, second("maxmemory_policy", "allkeys-lru"), "error evicts n2"},
	{"eviction of what has a ttl, as locks have", 0, second("maxmemory_policy", "volatile-ttl"), "error evicts n2"},
	{"eviction without a limit", 0, second("maxmemory_policy", "allkeys-lru", "maxmemory", "0"), "info evicts n2"},
	{"little memory", 0, second("used_memory", "900"), "warning memory n2"},
	{"enough memory", 0, second("used_memory", "899"), ""},
	{"little memory in the machine", 0, second("used_memory", "9500", "maxmemory", "0"), "warning memory n2"},

	{"a disk that fails", 0, second("rdb_last_bgsave_status", "err"), "warning disk n2"},
	{"a log that fails", 0, second("aof_last_write_status", "err"), "warning disk n2"},
	{"no log", 0, second("aof_enabled", "0"), "warning forgets n2"},
	{"a log every second", 0, func(_ *config, rs []reading) { rs[1].fsync = "everysec" }, "info forgets-last-second n2"},
	{"a log of which little is told", 0, func(_ *config, rs []reading) { rs[1].fsync = "" }, "info forgets-last-second n2"},

	{"an old version", 0, all("redis_version", "6.2.1"), "info version-old n1; info version-old n2; info version-old n3"},
	{"a very old version", 0, all("redis_version", "4.0.14"), "info version-old n1; info version-old n2; info version-old n3"},
	{"a very old version and fencing", 0, both(all("redis_version", "4.0.14"), fenced), "error version-old n1; error version-old n2; error version-old n3"},
	{"a version that is no number", 0, all("redis_version", "x"), ""},
	{"mixed versions", 0, second("redis_version", "7.0.15"), "info versions-mixed"},
	{"a relative of the same version", 0, second("valkey_version", "8.1.0"), "info versions-mixed"},

	{"no password", 0, func(_ *config, rs []reading) {
		rs[1] = reading{node: "n2", silent: serverError("NOAUTH Authentication required.")}
	}, "error no-access n2"},
	{"no password, lost meanwhile", 0, refusing(forLocks, "NOAUTH Authentication required."), "error locks-denied n2"},
	{"no memory", 0, refusing(forLocks, "OOM command not allowed"), "error refuses n2"},
	{"another slot", 0, refusing(forLocks, "MOVED 1 h:1"), "error refuses n2"},
	{"no SET", 0, refusing(forLocks, "NOPERM this user has no permissions to run the 'set' command"), "error locks-denied n2"},
	{"no PTTL in scripts", 0, refusing(forLocks, "ERR The user executing the script can't run this command or subcommand script: x"), "error locks-denied n2"},
	{"no scripts", 0, refusing(forScripts, "NOPERM this user has no permissions to run the 'eval' command"), "error locks-denied n2"},
	{"no scripts, Redis 8.4", 0, both(all("redis_version", "8.4.0"), refusing(forScripts, "NOPERM User x has no permissions to run the 'eval' command")), "info scripts-denied n2"},
	{"no scripts, Valkey 9", 0, both(all("valkey_version", "9.0.1"), refusing(forScripts, "ERR unknown command 'eval'")), "info scripts-denied n2"},
	{"no scripts, Valkey 8", 0, both(all("valkey_version", "8.1.0"), refusing(forScripts, "ERR unknown command 'eval'")), "error locks-denied n2"},
	{"scripts but no memory, Redis 8.4", 0, both(all("redis_version", "8.4.0"), refusing(forScripts, "OOM no")), "error refuses n2"},
	{"other names, 7.0", 0, refusing(forLocks, "NOPERM this user has no permissions to access one of the keys used as arguments"), "warning names-denied n2"},
	{"other names, 7.2", 0, refusing(forLocks, "NOPERM No permissions to access a key"), "warning names-denied n2"},
	{"no counters", 0, refusing(forFences, "NOPERM No permissions to access a key"), "error fencing-denied n2"},
	{"no WAIT", 0, refusing(forAcks, "NOPERM this user has no permissions to run the 'wait' command"), "error replicas-denied n2"},
	{"no EVALSHA", 0, refusing(forSHA, "ERR unknown command 'evalsha'"), "info evalsha-denied n2"},
	{"other names without EVALSHA", 0, refusing(forSHA, "NOPERM No permissions to access a key"), "warning names-denied n2"},
	{"no channels", 0, refusing(forNews, "NOPERM No permissions to access a channel"), "info channels-denied n2"},
	{"no members", 0, func(_ *config, rs []reading) { rs[1].membersErr = errors.New("NOPERM") }, "info members-unknown n2"},

	{"no TIME", 0, func(_ *config, rs []reading) { rs[1].seen, rs[1].timeErr = nil, errors.New("NOPERM") }, "info clock-unknown n2"},
	{"a clock ahead", 0, func(_ *config, rs []reading) { rs[1].seen.theirs += 2 * time.Second }, "warning clocks-apart; warning clock-offset n2"},
	{"a clock that may be right", 0, func(_ *config, rs []reading) {
		rs[1].seen.theirs += 2 * time.Second
		rs[1].seen.within = 1001 * time.Millisecond
	}, ""},
	{"our own clock ahead", 0, func(_ *config, rs []reading) {
		for i := range rs {
			rs[i].seen.theirs -= time.Minute
		}
	}, "warning clock-offset n1; warning clock-offset n2; warning clock-offset n3"},
	{"a clock behind and fencing", 0, both(fenced, func(_ *config, rs []reading) { rs[1].seen.theirs -= 11 * time.Minute }),
		"error clock-offset n2; warning clocks-apart"},
	{"clocks that agree over ten seconds", 0, drifting(10*time.Second, ms(5), ms(1)), ""},
	{"a clock that runs half a percent fast", 0, drifting(10*time.Second, ms(50), ms(1)), "warning clock-drift n2"},
	{"a clock that runs two percent slow", 0, drifting(10*time.Second, -ms(200), ms(1)), "error clock-drift n2"},
	{"a clock that may run fast", 0, drifting(time.Second, ms(200), ms(200)), ""},
	{"a clock of another process", 0, both(drifting(10*time.Second, ms(200), ms(1)), func(_ *config, rs []reading) { rs[1].before.run = "x" }), ""},

	{"a node that needs longer", 0, func(cfg *config, rs []reading) { rs[1].trips[2] = cfg.nodeTimeout + 1 },
		"warning node-timeout n2; warning ttl"},
	{"a node that always needs longer", 0, func(cfg *config, rs []reading) { rs[1].trips = []time.Duration{cfg.nodeTimeout} },
		"error node-timeout n2; warning ttl"},
	{"a short ttl", 0, func(cfg *config, _ []reading) { cfg.ttl = ms(99) }, "warning ttl"},

	{"another number of nodes", 0, entered(9, membership{Nodes: []string{"n1", "n2"}, IDs: []string{"id1", "id2"}}), "error other-nodes"},
	{"another node", 0, entered(9, elsewhere), "error other-nodes"},
	{"the same nodes, otherwise spelled", 0, entered(9, membership{Nodes: []string{"a", "b", "c"}, IDs: []string{"id1", "id2", "id3"}}), ""},
	{"the same nodes, of which one was down", 0, entered(9, membership{Nodes: []string{"n1", "n2", "n3"}, IDs: []string{"id1", "id2"}}), ""},
	{"another node or that which is down", 0, both(entered(9, elsewhere), func(_ *config, rs []reading) { rs[2] = reading{node: "n3", silent: errUnread} }),
		"warning no-answer n3"},
	{"another node or that which came up since", 0, both(entered(100, elsewhere), func(_ *config, rs []reading) { rs[2].info["uptime_in_seconds"] = "99" }), ""},
	{"another node although one came up before", 0, both(entered(100, elsewhere), func(_ *config, rs []reading) { rs[2].info["uptime_in_seconds"] = "101" }), "error other-nodes"},
	{"another node or one of unknown age", 0, both(entered(100, elsewhere), func(_ *config, rs []reading) { delete(rs[2].info, "uptime_in_seconds") }), "warning other-nodes"},
	{"another guard", 0, entered(9, membership{Nodes: []string{"n1", "n2", "n3"}, IDs: []string{"id1", "id2", "id3"}, Guard: 1}), "error other-guard"},
	{"fencing", 0, entered(9, membership{Nodes: []string{"n1", "n2", "n3"}, IDs: []string{"id1", "id2", "id3"}, Fencing: true}), "info other-fencing"},
}

// drifting has the clock of n2 gain so much in the time since an earlier look.
func drifting(over, gain, within time.Duration) func(*config, []reading) {
	return func(_ *config, rs []reading) {
		for i := range rs {
			now := time.Now()
			rs[i].seen.ours.mono, rs[i].seen.within = now, within
			rs[i].before = &look{ours: instant{mono: now.Add(-over)}, theirs: rs[i].seen.theirs - over, within: within}
		}
		rs[1].before.theirs -= gain
	}
}

func TestEachFindingIsMadeOfWhatWasReadAndOfNothingElse(t *testing.T) {
	for _, c := range judgeCases {
		n := c.nodes
		if n == 0 {
			n = 3
		}
		cfg, rs := wellConfig(), wellNodes(n)
		c.make(&cfg, rs)
		var got []string
		for _, f := range judge(&cfg, rs) {
			got = append(got, strings.TrimSpace(f.Severity.String()+" "+f.What+" "+f.Node))
			assert.NotEmpty(t, f.Advice, c.about)
			assert.NotEmpty(t, f.Evidence, c.about)
		}
		assert.Equal(t, c.want, strings.Join(got, "; "), c.about)
	}
}

func TestAGuardMakesUpForALogAndNeedsToBeTold(t *testing.T) {
	for _, c := range []struct {
		about   string
		guard   time.Duration
		fencing bool
		make    func(*reading)
		want    string
	}{
		{"no guard, all well", 0, false, func(*reading) {}, ""},
		{"guard, all well", time.Minute, false, func(*reading) {}, ""},
		{"no guard, forgets", 0, false, func(r *reading) { r.info["aof_enabled"] = "0" }, "warning forgets"},
		{"guard, forgets", time.Minute, false, func(r *reading) { r.info["aof_enabled"] = "0" }, ""},
		{"guard and fencing, forgets", time.Minute, true, func(r *reading) { r.info["aof_enabled"] = "0" }, "info forgets"},
		{"no guard, young", 0, false, func(r *reading) { r.info["uptime_in_seconds"] = "59" }, ""},
		{"guard, young", time.Minute, false, func(r *reading) { r.info["uptime_in_seconds"] = "59" }, "info young"},
		{"guard, old enough", time.Minute, false, func(r *reading) { r.info["uptime_in_seconds"] = "60" }, ""},
		{"no guard, LASTSAVE denied", 0, false, func(r *reading) { r.ageErr = errors.New("NOPERM") }, ""},
		{"guard, LASTSAVE denied", time.Minute, false, func(r *reading) { r.ageErr = errors.New("NOPERM") }, "error guard-denied"},
		{"guard, TIME denied", time.Minute, false, func(r *reading) { r.seen, r.timeErr = nil, errors.New("NOPERM") }, "error guard-denied"},
		{"guard, INFO denied", time.Minute, false, func(r *reading) { r.info, r.infoErr = nil, errors.New("NOPERM") }, "error guard-denied"},
		{"guard, no answer", time.Minute, false, func(r *reading) { r.silent = errUnread }, ""},
	} {
		r, got := wellNodes(1)[0], []string{}
		c.make(&r)
		tell := func(f Finding) {
			assert.Equal(t, "n1", f.Node)
			got = append(got, f.Severity.String()+" "+f.What)
		}
		judgeDisk(c.guard, c.fencing, r, tell)
		judgeGuard(c.guard, r, tell)
		assert.Equal(t, c.want, strings.Join(got, "; "), c.about)
	}
}

func TestEveryFindingIsDocumentedAndShown(t *testing.T) {
	source, err := os.ReadFile("check.go")
	require.NoError(t, err)
	_, doc, _ := strings.Cut(string(source), "A finding is one of these:")
	doc, _, ok := strings.Cut(doc, "What it may do")
	require.True(t, ok)
	documented := make(map[string]bool)
	for line := range strings.Lines(doc) {
		line, _, _ = strings.Cut(strings.TrimPrefix(line, "//\t"), "  ")
		for _, what := range regexp.MustCompile(`[a-z]+(-[a-z]+)*`).FindAllString(line, -1) {
			documented[what] = true
		}
	}
	shown := map[string]bool{"young": true, "guard-denied": true}
	for _, c := range judgeCases {
		for f := range strings.SplitSeq(c.want, "; ") {
			if fields := strings.Fields(f); len(fields) > 1 {
				shown[fields[1]] = true
			}
		}
	}
	assert.Equal(t, slices.Sorted(maps.Keys(shown)), slices.Sorted(maps.Keys(documented)))
}

func TestAnyMembershipCanBePrinted(t *testing.T) {
	m, ok := parseMembership(`{"nodes":["a\nb","` + strings.Repeat("x", 300) + `",""],"ids":["1"],"guard_ms":1500}`)
	require.True(t, ok)
	assert.Equal(t, `3 nodes "a\nb" `+strings.Repeat("x", 100)+` , guard 1.5s`, m.String())
	m.Nodes = make([]string, 1000)
	assert.Less(t, len(m.String()), 100)
	for _, text := range []string{"", "id", "{}", `{"nodes":[]}`, `{"nodes":["a"]}`, `{"nodes":1}`, strings.Repeat(" ", maxField) + elsewhere.text()} {
		_, ok := parseMembership(text)
		assert.False(t, ok, text)
	}
}
