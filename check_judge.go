package redlock

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// judge tells what is to be said about the nodes as they were read, the worst first.
// It is pure.
func judge(cfg *config, rs []reading) (found []Finding) {
	tell := func(f Finding) { found = append(found, f) }
	judgeNumber(rs, tell)
	judgeTwins(rs, tell)
	judgeCluster(rs, tell)
	judgeVersions(cfg, rs, tell)
	judgeClocks(rs, tell)
	for _, r := range rs {
		judgeAnswer(r, tell)
		judgeRole(cfg, r, tell)
		judgeMemory(r, tell)
		judgeDisk(cfg.guard, cfg.fencing, r, tell)
		judgeGuard(cfg.guard, r, tell)
		judgeRights(r, tell)
		judgeClock(cfg, r, tell)
	}
	judgePace(cfg, rs, tell)
	judgeMembers(cfg, rs, tell)
	first := make(map[string]int)
	for i, f := range found {
		if _, known := first[f.What]; !known {
			first[f.What] = i
		}
	}
	slices.SortStableFunc(found, func(a, b Finding) int {
		if a.Severity != b.Severity {
			return int(b.Severity) - int(a.Severity)
		}
		return first[a.What] - first[b.What]
	})
	return found
}

// judgeNumber says what the number of nodes is worth, and of those that answered.
func judgeNumber(rs []reading, tell func(Finding)) {
	n, quorum, answered := len(rs), quorumOf(len(rs)), 0
	for _, r := range rs {
		if r.silent == nil {
			answered++
		}
	}
	switch {
	case n < 3:
		tell(Finding{SeverityWarning, "", "few-nodes", plural(n, "node"),
			"use three or five nodes on independent machines: with fewer, no node may fail"})
	case n%2 == 0:
		tell(Finding{SeverityInfo, "", "even-nodes", plural(n, "node"),
			fmt.Sprintf("%d nodes would tolerate as many failures, %d; the last one only adds one that can fail", n-1, n-quorum)})
	}
	if answered < quorum {
		tell(Finding{SeverityError, "", "no-quorum", fmt.Sprintf("%d of %d nodes answered, %d needed", answered, n, quorum),
			"bring nodes back: no lock can be taken"})
	}
}

// judgeAnswer says why a node has told nothing, or not all.
func judgeAnswer(r reading, tell func(Finding)) {
	switch {
	case r.silent != nil && noAccess(r.silent):
		tell(Finding{SeverityError, r.node, "no-access", r.silent.Error(),
			"give this client a user and password that the node knows: it does not vote"})
	case r.silent != nil:
		tell(Finding{SeverityWarning, r.node, "no-answer", r.silent.Error(),
			"see whether it runs and can be reached from here; it does not vote, and what is not told of it here is not known"})
	}
	if r.infoErr != nil {
		tell(Finding{SeverityInfo, r.node, "info-unknown", "info: " + r.infoErr.Error(),
			"allow INFO to learn whether it is a primary, evicts keys, keeps them over a restart, or is another node under a second name; none of that is known"})
	}
}

// judgeTwins finds servers that are in the list more than once: by run id, or where
// that is not told by the id that they keep among their members.
func judgeTwins(rs []reading, tell func(Finding)) {
	first := make(map[string]string)
	for _, r := range rs {
		field, id := "run_id", r.info["run_id"]
		if id == "" {
			field, id = "id in "+membersKey, r.members.id
		}
		if id == "" || r.shape == cluster {
			continue
		}
		if name, twice := first[id]; twice {
			tell(Finding{SeverityError, r.node, "same-server", fmt.Sprintf("%s:%s is also that of %s", field, id, name),
				"name each server once: it votes once however often it is named, so fewer failures are survived than it seems"})
			continue
		}
		first[id] = r.node
	}
}

// judgeCluster finds nodes that are clusters or parts of one.
func judgeCluster(rs []reading, tell func(Finding)) {
	belongs := make(map[string]string) // id of a cluster's server: the node that told it first
	for _, r := range rs {
		if r.shape == cluster {
			tell(Finding{SeverityWarning, r.node, "cluster", "the client is a ClusterClient",
				"use a standalone primary: a shard that fails over within a ttl may have lost a vote, which can give a name to two"})
		}
		if r.info["cluster_enabled"] != "1" {
			continue
		}
		other := ""
		for _, id := range r.shards {
			if name := belongs[id]; name != "" {
				other = name
			}
		}
		for _, id := range r.shards {
			belongs[id] = r.node
		}
		switch {
		case other != "":
			tell(Finding{SeverityError, r.node, "one-cluster", "cluster_enabled:1, and it knows the servers of the cluster of " + other,
				"use independent servers: shards are no nodes, since a name is stored on one of them only"})
		case r.shape != cluster:
			tell(Finding{SeverityError, r.node, "cluster-shard", "cluster_enabled:1",
				"use a standalone primary, or a ClusterClient for the whole cluster: this server refuses the names of other shards"})
		}
	}
}

// judgeVersions finds servers that are too old, and mixtures.
func judgeVersions(cfg *config, rs []reading, tell func(Finding)) {
	products := make(map[string][]string)
	for _, r := range rs {
		if r.info.product() == "" {
			continue
		}
		products[r.info.product()] = append(products[r.info.product()], r.node)
		switch v := r.info.version(); {
		case v == 0:
		case v < 5000:
			f := Finding{SeverityInfo, r.node, "version-old", r.info.shows("redis_version"),
				"use 7.0 or later; before 5.0 scripts that read the time cannot write, which fencing, guards and the comparison of clients need"}
			if cfg.fencing || cfg.guard > 0 {
				f.Severity = SeverityError
			}
			tell(f)
		case v < 7000:
			tell(Finding{SeverityInfo, r.node, "version-old", r.info.shows("redis_version"),
				"use 7.0 or later, which takes a lock by one native command instead of a script"})
		}
	}
	if len(products) > 1 {
		var list []string
		for product, nodes := range products {
			list = append(list, product+" on "+strings.Join(nodes, " "))
		}
		slices.Sort(list)
		tell(Finding{SeverityInfo, "", "versions-mixed", strings.Join(list, ", "),
			"nothing to do during an upgrade; otherwise nodes that behave alike are easier to reason about"})
	}
}

// judgeRole finds nodes that are not the only copy of what they promise.
func judgeRole(cfg *config, r reading, tell func(Finding)) {
	role, replicas := r.info["role"], r.info["connected_slaves"]
	wanted := 0
	if cfg.acks != nil {
		wanted = cfg.acks.replicas
	}
	n, told := r.info.number("connected_slaves")
	switch {
	case role != "" && role != "master" && role != "primary":
		tell(Finding{SeverityError, r.node, "replica", r.info.shows("role") + ", of " + r.info["master_host"] + ":" + r.info["master_port"],
			"name its primary, or better an independent one: a replica grants nothing"})
		return
	case r.shape == failover:
		tell(Finding{SeverityWarning, r.node, "failover", "the client is a failover client, " + r.info.shows("role") + ", connected_slaves:" + replicas,
			"use a primary without failover: one that is promoted may lack votes, which can give a name to two; WithReplicaAck makes that rarer"})
	case told && n > 0 && cfg.acks == nil:
		tell(Finding{SeverityInfo, r.node, "replicas", r.info.shows("connected_slaves"),
			"let nothing promote a replica of it: it may lack votes, which can give a name to two; WithReplicaAck makes that rarer"})
	}
	if told && n < int64(wanted) {
		tell(Finding{SeverityError, r.node, "too-few-replicas", r.info.shows("connected_slaves") + fmt.Sprintf(", %d must acknowledge", wanted),
			"connect its replicas, or ask for fewer by WithReplicaAck: it does not vote"})
	}
}

// judgeMemory finds nodes that forget keys, or are about to refuse them.
func judgeMemory(r reading, tell func(Finding)) {
	policy, told := r.info["maxmemory_policy"]
	most, _ := r.info.number("maxmemory")
	used, _ := r.info.number("used_memory")
	if told && policy != "noeviction" {
		f := Finding{SeverityError, r.node, "evicts", r.info.shows("maxmemory_policy") + ", " + r.info.shows("maxmemory"),
			"CONFIG SET maxmemory-policy noeviction: when memory is short it drops locks that are held, which gives them to others"}
		if most == 0 {
			f.Severity = SeverityInfo
			f.Advice += "; as long as maxmemory is 0 it drops none"
		}
		tell(f)
	}
	limit, field := most, "maxmemory"
	if limit == 0 {
		field = "total_system_memory"
		limit, _ = r.info.number(field)
	}
	if limit > 0 && used >= limit/10*9 {
		tell(Finding{SeverityWarning, r.node, "memory", r.info.shows("used_memory") + ", " + r.info.shows(field),
			"give it more memory, or locks a server of their own: it will refuse locks (OOM), or be killed"})
	}
}

// judgeDisk says what a node forgets when it restarts. A restart guard makes up for
// it, but not for fencing counters.
func judgeDisk(guard time.Duration, fencing bool, r reading, tell func(Finding)) {
	if r.info["rdb_last_bgsave_status"] == "err" || r.info["aof_last_write_status"] == "err" {
		tell(Finding{SeverityWarning, r.node, "disk", r.info.shows("rdb_last_bgsave_status") + ", " + r.info.shows("aof_last_write_status"),
			"see to its disk: a server that cannot save refuses all writes by default (MISCONF)"})
	}
	aof, told := r.info["aof_enabled"]
	if !told || aof == "1" && r.fsync == "always" {
		return
	}
	advice := "set appendonly yes and appendfsync always, or keep restarted nodes from voting for a ttl: by WithRestartGuard on all clients, or by hand"
	f := Finding{SeverityWarning, r.node, "forgets", r.info.shows("aof_enabled") + ", " + r.info.shows("rdb_last_save_time"),
		advice + ". After a restart it has lost votes, which can give a name to two"}
	if aof == "1" {
		f = Finding{SeverityInfo, r.node, "forgets-last-second", r.info.shows("aof_enabled") + ", appendfsync:" + r.fsync,
			advice + ". When its machine loses power it has lost the votes of the last seconds, which can give a name to two"}
		if r.fsync == "" {
			f.Evidence = r.info.shows("aof_enabled") + ", CONFIG GET appendfsync is not allowed"
			f.Advice = advice + ". Whether it writes each vote to disk before it answers is not known"
		}
	}
	switch {
	case guard > 0 && !fencing:
		return
	case guard > 0:
		f.Severity = SeverityInfo
		f.Advice = "set appendonly yes and appendfsync always if the order of fencing tokens must not depend on clocks: the guard keeps a node that forgot from voting, and does not bring its fencing counters back"
	}
	tell(f)
}

// judgeGuard finds nodes that cannot tell how old they are, or are too young to vote.
func judgeGuard(guard time.Duration, r reading, tell func(Finding)) {
	if guard == 0 || r.silent != nil {
		return
	}
	for _, err := range []error{r.infoErr, r.ageErr, r.timeErr} {
		if err != nil {
			tell(Finding{SeverityError, r.node, "guard-denied", err.Error(),
				"allow INFO, LASTSAVE and TIME: without them the restart guard cannot tell how old the node is, and it does not vote"})
			return
		}
	}
	if up, told := r.info.number("uptime_in_seconds"); told && time.Duration(up)*time.Second < guard {
		tell(Finding{SeverityInfo, r.node, "young", r.info.shows("uptime_in_seconds") + fmt.Sprintf(", guard %v", guard),
			"nothing to do: it came up lately and will vote when it is older than the guard"})
	}
}

// judgeRights says what a node refused to do, a finding for each kind.
func judgeRights(r reading, tell func(Finding)) {
	for _, kind := range refusalKinds {
		var evidence []string
		for _, t := range r.tries {
			if whatOf(t, r.info.compares()) == kind.What {
				evidence = append(evidence, fmt.Sprintf("%s under %q: %v", t.what, t.name, t.err))
			}
		}
		if len(evidence) > 0 {
			kind.Node, kind.Evidence = r.node, evidence[0]
			if k := len(evidence) - 1; k > 0 {
				kind.Evidence += ", and " + plural(k, "other")
			}
			tell(kind)
		}
	}
	if r.membersErr != nil && r.silent == nil {
		tell(Finding{SeverityInfo, r.node, "members-unknown", r.membersErr.Error(),
			"allow EVAL, TIME, HSETNX, HSET, HGET, HGETALL, HDEL and PEXPIRE on " + membersKey +
				" to have clients compared that name different nodes or guards; that is not known"})
	}
}

// refusalKinds are the findings about what is refused, without node and evidence.
var refusalKinds = []Finding{
	{SeverityError, "", "refuses", "", "see to what the node says: until then it does not vote"},
	{SeverityError, "", "locks-denied", "", "grant the rights that locks need (SET, GET, DEL, PTTL, PEXPIRE, EVAL): without them it does not vote, or a lock can be taken and not be extended or released"},
	{SeverityWarning, "", "names-denied", "", "allow these keys if locks are to have such names, or tell Check prefixes that this user may use: the other rights are not known"},
	{SeverityError, "", "fencing-denied", "", "allow TIME and the keys " + fencePrefix + "*: without them WithFencing gets no vote"},
	{SeverityError, "", "replicas-denied", "", "allow WAIT: without it WithReplicaAck gets no vote"},
	{SeverityInfo, "", "scripts-denied", "", "allow EVAL, or see that DELEX (Valkey: DELIFEQ) and SET are allowed, by which locks are then extended and released; waiters are not told how long a lock will be held"},
	{SeverityInfo, "", "evalsha-denied", "", "allow EVALSHA to save traffic: every script is sent whole"},
	{SeverityInfo, "", "channels-denied", "", "allow PUBLISH, SUBSCRIBE and UNSUBSCRIBE on " + releasedChannel + "* for waiters to be told of releases; they poll, and each release leaves an entry in the ACL log"},
}

// whatOf tells under which finding a refusal goes.
func whatOf(t try, compares bool) string {
	denied := incurable(t.err)
	switch {
	case redis.HasErrorPrefix(t.err, "the restart guard needs"):
		return "guard-denied" // which judgeGuard has told
	case nameDenied(t.err) && t.part != forFences:
		return "names-denied"
	case t.part == forScripts && denied && compares:
		return "scripts-denied"
	case t.part == forSHA:
		return "evalsha-denied"
	case t.part == forNews:
		return "channels-denied"
	case !denied, redis.HasErrorPrefix(t.err, "MOVED"), redis.HasErrorPrefix(t.err, "CROSSSLOT"):
		return "refuses"
	case t.part == forAcks:
		return "replicas-denied"
	case t.part == forFences:
		return "fencing-denied"
	}
	return "locks-denied"
}

// noAccess tells that a server does not know this client, which denies it everything.
func noAccess(err error) bool {
	for _, prefix := range [...]string{"NOAUTH", "WRONGPASS", "Client sent AUTH", "invalid password"} {
		if redis.HasErrorPrefix(err, prefix) {
			return true
		}
	}
	return false
}
