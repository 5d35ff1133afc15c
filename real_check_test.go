package redlock_test

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/seed58520471/redlock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// durable are options with which a server forgets nothing.
var durable = []string{"--appendonly", "yes", "--appendfsync", "always"}

// check is a Check that has to come to its end.
func check(t *testing.T, l *redlock.Locker, prefixes ...string) *redlock.Report {
	t.Helper()
	report, err := l.Check(t.Context(), prefixes...)
	require.NoError(t, err)
	t.Log(report)
	return report
}

// says lists the findings of a report: severity, what, and the number of the node.
// Round trips on a busy machine are as they are.
func (ns nodes) says(report *redlock.Report) []string {
	list := []string{}
	for _, f := range report.Findings {
		if f.What == "node-timeout" || f.What == "ttl" {
			continue
		}
		s := f.Severity.String() + " " + f.What
		for i, n := range ns {
			if f.Node == n.Addr {
				s += " " + string(rune('1'+i))
			}
		}
		list = append(list, s)
	}
	return list
}

// requireOnlyMembers checks that nothing else has stayed.
func (ns nodes) requireOnlyMembers(t *testing.T) {
	t.Helper()
	for _, n := range ns {
		keys := n.Client().Keys(t.Context(), "*").Val()
		require.Subset(t, []string{"redlock:members"}, keys, n.Addr)
	}
}

func TestCheckHasNothingToSayAboutWellServers(t *testing.T) {
	ns := startNodes(t, 3, durable...)
	for name, l := range map[string]*redlock.Locker{
		"New": ns.locker(t), "Open": ns.open(t, ""), "no pool": newLocker(t, ns.clients(t, pooled(1))), "small pool": newLocker(t, ns.clients(t, pooled(2))),
		"RESP2": newLocker(t, ns.clients(t, func(_ int, o *redis.Options) { o.Protocol = 2 })),
	} {
		for range 2 {
			report := check(t, l)
			assert.Empty(t, ns.says(report), name)
			for i, n := range report.Nodes {
				assert.Equal(t, ns[i].Addr, n.Node)
				assert.Regexp(t, `^(valkey )?\d+\.\d+\.\d+$`, n.Version)
				assert.Equal(t, "master", n.Role)
				assert.Equal(t, 5, n.Trips)
				assert.Positive(t, n.Min)
				assert.LessOrEqual(t, n.Offset.Abs(), n.OffsetWithin+time.Millisecond, "it is the same clock")
			}
		}
	}
	ns.requireOnlyMembers(t)
	members := ns[0].Client().HGetAll(t.Context(), "redlock:members").Val()
	assert.Len(t, members, 2, "its id, and one entry for all who are set up alike")
	for field, value := range members {
		if field != "id" {
			assert.Regexp(t, `^\d{10,}$`, value, "Lua prints no exponent")
		}
	}

	l := ns.locker(t, redlock.WithFencing())
	assert.Equal(t, []string{"info other-fencing"}, ns.says(check(t, l)))
	ns.requireOnlyMembers(t)
	lease := lock(t, l, "orders")
	assert.Positive(t, lease.Fence())
	unlock(t, lease)
}

func TestCheckFindsHowServersAreSetUp(t *testing.T) {
	for _, c := range []struct {
		about string
		make  func(t *testing.T, n *server)
		want  []string
	}{
		{"eviction", set("maxmemory-policy", "allkeys-lru", "maxmemory", "100mb"), []string{"error evicts 2"}},
		{"eviction of what has a ttl", set("maxmemory-policy", "volatile-lru", "maxmemory", "100mb"), []string{"error evicts 2"}},
		{"eviction without a limit", set("maxmemory-policy", "allkeys-lru"), []string{"info evicts 2"}},
		{"a limit", set("maxmemory", "100mb"), nil},
		{"no memory", set("maxmemory", "1"), []string{"error refuses 2", "warning memory 2", "info members-unknown 2"}},
		{"no log", set("appendonly", "no"), []string{"warning forgets 2"}},
		{"a log every second", set("appendfsync", "everysec"), []string{"info forgets-last-second 2"}},
		{"a log, no more", set("appendfsync", "no"), []string{"info forgets-last-second 2"}},
		{"replicas wanted", set("min-replicas-to-write", "1"), []string{"error refuses 2", "info members-unknown 2"}},
	} {
		t.Run(c.about, func(t *testing.T) {
			ns := startNodes(t, 3, durable...)
			c.make(t, ns[1])
			assert.ElementsMatch(t, c.want, ns.says(check(t, ns.locker(t))))
			ns.requireOnlyMembers(t)
		})
	}
}

// set changes settings of a server.
func set(pairs ...string) func(*testing.T, *server) {
	return func(t *testing.T, n *server) {
		for i := 0; i < len(pairs); i += 2 {
			require.NoError(t, n.Client().ConfigSet(t.Context(), pairs[i], pairs[i+1]).Err())
		}
	}
}

func TestCheckFindsTheSameServerUnderTwoNames(t *testing.T) {
	ns := startNodes(t, 2, durable...)
	_, port, err := net.SplitHostPort(ns[0].Addr)
	require.NoError(t, err)
	l := newLocker(t, nodes{ns[0], ns[0], ns[1]}.clients(t, func(i int, o *redis.Options) {
		if i == 1 {
			o.Addr = net.JoinHostPort("localhost", port)
		}
	}))
	report := check(t, l)
	require.Equal(t, []string{"error same-server"}, ns.says(report))
	assert.Equal(t, "localhost:"+port, report.Findings[0].Node)
	assert.Contains(t, report.Findings[0].Evidence, "run_id:")
	assert.Contains(t, report.Findings[0].Evidence, ns[0].Addr)
}

func TestCheckFindsReplicas(t *testing.T) {
	ns := startNodes(t, 4, durable...)
	host, port, err := net.SplitHostPort(ns[1].Addr)
	require.NoError(t, err)
	ns[3:].do(t, "replicaof", host, port)
	require.Eventually(t, func() bool {
		info := ns[3].Client().Info(context.Background(), "replication").Val()
		return strings.Contains(info, "master_link_status:up")
	}, soon, tick)
	three := ns[:3]
	assert.Equal(t, []string{"info replicas 2"}, ns.says(check(t, three.locker(t))))
	acks := three.locker(t, redlock.WithReplicaAck(1, 500*time.Millisecond))
	assert.Equal(t, []string{"error too-few-replicas 1", "error too-few-replicas 3"}, ns.says(check(t, acks)))

	wrong := nodes{ns[0], ns[1], ns[3]}
	report := check(t, wrong.locker(t))
	assert.Equal(t, []string{"error replica 3", "error refuses 3", "info replicas 2"}, wrong.says(report))
	for _, f := range report.Findings {
		if f.What == "replica" {
			assert.Contains(t, f.Evidence, "role:slave")
		}
	}
}

func TestCheckFindsShards(t *testing.T) {
	ns := startNodes(t, 4, append([]string{"--cluster-enabled", "yes"}, durable...)...)
	plain := startNodes(t, 1, durable...)
	ns[:1].do(t, "cluster", "addslotsrange", 0, 8000)
	ns[1:2].do(t, "cluster", "addslotsrange", 8001, 16383)
	ns[2:3].do(t, "cluster", "addslotsrange", 0, 16383)
	host, port, err := net.SplitHostPort(ns[1].Addr)
	require.NoError(t, err)
	ns[:1].do(t, "cluster", "meet", host, port)
	require.Eventually(t, func() bool {
		for _, n := range ns[:3] {
			if !strings.Contains(n.Client().ClusterInfo(context.Background()).Val(), "cluster_state:ok") {
				return false
			}
		}
		return strings.Count(ns[0].Client().ClusterNodes(context.Background()).Val(), "connected") == 2
	}, 2*soon, tick)

	list := nodes{ns[0], ns[1], plain[0]}
	says := list.says(check(t, list.locker(t)))
	assert.Contains(t, says, "error cluster-shard 1")
	assert.Contains(t, says, "error one-cluster 2")
	list = nodes{ns[2], plain[0], plain[0]}
	says = list.says(check(t, newLocker(t, []redis.UniversalClient{
		clusterOf(t, ns[2]), list[1:2].clients(t)[0], clusterOf(t, ns[0]),
	})))
	assert.Equal(t, []string{"warning cluster", "warning cluster"}, says)
	says = list.says(check(t, newLocker(t, []redis.UniversalClient{
		clusterOf(t, ns[0]), list[1:2].clients(t)[0], clusterOf(t, ns[1]),
	})))
	assert.Contains(t, says, "error one-cluster")
}

func clusterOf(t *testing.T, n *server) redis.UniversalClient {
	c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{n.Addr}})
	t.Cleanup(func() { c.Close() })
	return c
}

func TestCheckUnderTheLeastRights(t *testing.T) {
	ns := startNodes(t, 3, durable...)
	unknown := []string{
		"info info-unknown 1", "info clock-unknown 1", "info members-unknown 1",
		"info info-unknown 2", "info clock-unknown 2", "info members-unknown 2",
		"info info-unknown 3", "info clock-unknown 3", "info members-unknown 3",
	}
	const told = leastRights + " +evalsha +publish +subscribe +unsubscribe &redlock:released:locks:*"
	for _, c := range []struct {
		rights string
		opts   []redlock.Option
		prefix []string
		more   []string
	}{
		{told, nil, []string{"locks:"}, nil},
		{told, nil, nil, []string{
			"warning names-denied 1", "warning names-denied 2", "warning names-denied 3",
			"info channels-denied 1", "info channels-denied 2", "info channels-denied 3",
		}},
		{strings.Replace(told, "+evalsha", "", 1), nil, []string{"locks:"}, []string{"info evalsha-denied 1", "info evalsha-denied 2", "info evalsha-denied 3"}},
		{strings.Replace(told, "+pttl", "", 1), nil, []string{"locks:"}, []string{"error locks-denied 1", "error locks-denied 2", "error locks-denied 3"}},
		{told, []redlock.Option{redlock.WithFencing()}, []string{"locks:"}, []string{"error fencing-denied 1", "error fencing-denied 2", "error fencing-denied 3"}},
	} {
		ns.grant(t, c.rights)
		report := check(t, ns.asLocker(t, c.opts...), c.prefix...)
		assert.ElementsMatch(t, append(append([]string{}, unknown...), c.more...), ns.says(report), c.rights)
		ns.requireOnlyMembers(t)
	}

	ns.grant(t, told+" +info +config|get +time +hsetnx +hset +hget +hgetall +hdel ~redlock:members")
	assert.Empty(t, ns.says(check(t, ns.asLocker(t), "locks:")), "with these rights nothing is unknown")
	ns.grant(t, told+" +info +config|get +time +hsetnx +hset +hget +hgetall +hdel ~redlock:members ~redlock:fence:*")
	assert.Equal(t, []string{"info other-fencing"}, ns.says(check(t, ns.asLocker(t, redlock.WithFencing()), "locks:")))
	ns.requireOnlyMembers(t)

	wrong := newLocker(t, ns.clients(t, as("locker", "wrong")))
	for _, what := range ns.says(check(t, wrong)) {
		assert.Regexp(t, "^error no-access [123]$|^warning no-answer [123]$|^error no-quorum$", what)
	}
}

func TestCheckComparesClientsOnRealServers(t *testing.T) {
	ns := startNodes(t, 4, durable...)
	// A node that is no older than an entry may have come up since, and both ages are
	// told in whole seconds: let the nodes be older by more than a Check can take.
	ns.comeOfAge(t, 2*time.Second)
	a, b := ns[:3].locker(t), nodes{ns[3], ns[1], ns[2]}.locker(t)
	require.Empty(t, ns.says(check(t, a)))
	for _, l := range []*redlock.Locker{b, a} {
		report := check(t, l)
		require.Equal(t, []string{"error other-nodes"}, ns.says(report))
		for _, n := range ns {
			assert.Contains(t, report.Findings[0].Evidence, n.Addr)
		}
		assert.NotContains(t, report.Findings[0].Evidence, "ids")
	}
	ns.do(t, "del", "redlock:members")
	assert.Empty(t, ns.says(check(t, a)))
}

func TestCheckDoesNotWaitForAFrozenServer(t *testing.T) {
	ns := startNodes(t, 3, durable...)
	l := ns.locker(t, redlock.WithNodeTimeout(500*time.Millisecond))
	check(t, l)
	ns[1].Stop()
	begin := time.Now()
	report := check(t, l)
	assert.Less(t, time.Since(begin), 8*time.Second, "a frozen server is waited for as long as connecting may take, 2 s")
	assert.Equal(t, []string{"warning no-answer 2"}, ns.says(report))
	ns[1].Cont()
	assert.Empty(t, ns.says(check(t, l)))
}
