package redlock

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
)

const (
	// samples are the round trips that are measured, one by one.
	samples = 5

	// probeTTL is how long a key of Check lives if it can neither be released nor
	// deleted.
	probeTTL = 5 * time.Second
)

// A reading is all that was read of one node. What is about it afterwards is pure.
type reading struct {
	node    string
	shape   shape
	silent  error // why it has told nothing more
	connect time.Duration
	trips   []time.Duration
	seen    *look // its clock; nil: not read
	before  *look // of an earlier Check; nil: there is none
	timeErr error // of TIME

	info    info
	infoErr error    // of INFO server
	fsync   string   // appendfsync; "": not read
	shards  []string // of a server that belongs to a cluster: the ids of all that do
	ageErr  error    // of LASTSAVE, where a guard needs that

	tries   []try // what was refused
	scripts knowledge

	members    membersView
	membersErr error
}

// shape is what kind of client leads to a node.
type shape uint8

const (
	plain    shape = iota
	cluster        // a ClusterClient: what it is asked without a key goes to any of its servers
	failover       // chosen by Sentinel
)

func shapeOf(client redis.UniversalClient) shape {
	switch c := client.(type) {
	case *redis.ClusterClient:
		return cluster
	case *redis.Client:
		if c.Options().Addr == "FailoverClient" {
			return failover
		}
	}
	return plain
}

// A look is one look at a node's clock.
type look struct {
	ours   instant
	theirs time.Duration // since 1970
	within time.Duration // the error: half of the round trip
	run    string        // the server's run id, "" if it is not told
}

// part is what a right is needed for.
type part uint8

const (
	forLocks   part = iota // every lock
	forScripts             // every lock, unless the server compares natively
	forSHA                 // saving traffic
	forNews                // telling waiters
	forFences
	forAcks
)

// try is something that a node refused.
type try struct {
	part part
	what string // the command
	name string // under which it was tried
	err  error
}

// A talk is Check's conversation with one node: on a connection of its own out of
// the client's pool, so that the lane notices nothing, and with the patience that
// connecting has, since a node that needs longer than the node timeout is to be
// found and not to be taken for silent.
type talk struct {
	reading
	n     *node
	d     dialer
	l     link
	clock clock
}

func newTalk(l *Locker, n *node) *talk {
	t := &talk{n: n, d: n.dialer, clock: l.cfg.clock}
	t.d.client, t.d.timeout, t.d.settled = n.dialer.patient, n.patient, new(atomic.Pointer[redis.Client])
	t.node, t.shape, t.info = n.name, shapeOf(t.d.client), make(info)
	return t
}

// open connects, or says why it could not. It tries twice: what was tried first may
// be an idle connection of the pool that the server has closed.
func (t *talk) open(parent context.Context) {
	ctx, cancel := context.WithTimeout(parent, t.n.patient)
	defer cancel()
	begin := time.Now()
	for range 2 {
		t.l, _ = t.d.lend()
		err := t.l.Process(ctx, command{redis.NewCmd(ctx, "ping")})
		r, err := readError(err)
		switch {
		case err == nil, r != broken && r != timeout && !noAccess(err):
			t.silent, t.connect = nil, time.Since(begin)
			return
		case parent.Err() != nil:
			t.silent = errUnread
		case r == timeout || ctx.Err() != nil:
			t.silent = opaque{fmt.Sprintf("not connected within %v", t.n.patient)}
		default:
			t.silent = err
		}
		t.close()
		if r != broken || ctx.Err() != nil {
			return
		}
	}
}

func (t *talk) close() {
	if t.l != nil {
		t.l.Close()
		t.l = nil
	}
}

// say sends commands in one go. False: the node has fallen silent, and nothing more
// is to be asked.
func (t *talk) say(ctx context.Context, cmds ...command) bool {
	if t.silent == nil && ctx.Err() != nil {
		t.silent = errUnread
	}
	if t.silent != nil {
		return false
	}
	t.d.exchange(t.l, cmds)
	for _, c := range cmds {
		if c.Err() == nil || c.Err() == redis.Nil {
			continue
		}
		switch r, err := readError(c.Err()); r {
		case timeout:
			t.silent = opaque{fmt.Sprintf("no answer within %v", t.d.timeout)}
		case broken:
			t.silent = err
		}
	}
	return t.silent == nil
}

func ask(args ...any) command { return command{redis.NewCmd(background, args...)} }

// read asks everything that concerns this node alone.
func (t *talk) read(ctx context.Context, l *Locker, prefixes []string) {
	if t.open(ctx); t.silent != nil {
		return
	}
	for range samples {
		if !t.time(ctx) {
			return
		}
	}
	if !t.settings(ctx, l.cfg.guard > 0) {
		return
	}
	for _, prefix := range prefixes {
		if !t.rights(ctx, l, prefix) {
			return
		}
	}
	if t.seen != nil {
		t.seen.run = t.info["run_id"]
	}
}

// time measures a round trip and the node's clock at once: TIME is a command that
// costs a server nothing else. The shortest round trip tells the time best.
func (t *talk) time(ctx context.Context) bool {
	cmd := ask("time")
	begin := t.clock.start()
	if !t.say(ctx, cmd) {
		return false
	}
	trip := time.Since(begin.mono)
	t.trips = append(t.trips, trip)
	theirs, ok := readTime(cmd.Val())
	if !ok {
		t.timeErr = cmd.Err()
		return true
	}
	if t.seen == nil || trip/2 < t.seen.within {
		half := trip / 2
		begin.mono, begin.wall = begin.mono.Add(half), begin.wall+int64(half)
		t.seen = &look{ours: begin, theirs: theirs, within: max(half, time.Microsecond)}
	}
	return true
}

// readTime reads what TIME answers.
func readTime(val any) (since1970 time.Duration, ok bool) {
	list, _ := val.([]any)
	if len(list) != 2 {
		return 0, false
	}
	seconds, err := strconv.ParseInt(fmt.Sprint(list[0]), 10, 64)
	micros, err2 := strconv.ParseInt(fmt.Sprint(list[1]), 10, 64)
	const most = int64(maxTTL/time.Second) * 250 // the year 2220; far from overflow
	if err != nil || err2 != nil || seconds < 0 || seconds > most || micros < 0 || micros >= 1e6 {
		return 0, false
	}
	return time.Duration(seconds)*time.Second + time.Duration(micros)*time.Microsecond, true
}

// settings reads how the server is set up. The sections are asked for one by one,
// since a server that does not have one of them refuses the whole command.
func (t *talk) settings(ctx context.Context, aged bool) bool {
	cmds := []command{
		ask("info", "server"), ask("info", "memory"), ask("info", "persistence"), ask("info", "replication"), ask("info", "cluster"),
		ask("config", "get", "appendfsync"), ask("lastsave"),
	}
	const sections = 5
	if !aged {
		cmds = cmds[:len(cmds)-1]
	}
	if !t.say(ctx, cmds...) {
		return false
	}
	for _, c := range cmds[:sections] {
		if text, ok := c.Val().(string); ok {
			t.info.parse(text)
		}
	}
	t.infoErr = cmds[0].Err()
	t.fsync = setting(cmds[sections].Val())
	if aged {
		t.ageErr = cmds[sections+1].Err()
	}
	if t.info["cluster_enabled"] != "1" {
		return true
	}
	nodes := ask("cluster", "nodes")
	if !t.say(ctx, nodes) {
		return false
	}
	text, _ := nodes.Val().(string)
	t.shards = clusterIDs(text)
	return true
}

// setting reads what CONFIG GET of one setting answers, in either protocol.
func setting(val any) string {
	switch v := val.(type) {
	case []any:
		if len(v) == 2 {
			return fmt.Sprint(v[1])
		}
	case map[any]any:
		for _, value := range v {
			return fmt.Sprint(value)
		}
	}
	return ""
}

// rights takes, extends and releases a lock of a random name under prefix with the
// very commands that a lane sends, and publishes to nobody. Each is refused or not for itself. A key that none of
// them could remove ends by itself.
func (t *talk) rights(ctx context.Context, l *Locker, prefix string) bool {
	name := prefix + strconv.FormatUint(rand.Uint64(), 36)
	lease := &Lease{locker: l, name: name, token: uuid.NewString(), claims: make([]claim, 1)}
	c := &lease.claims[0]
	*c = claim{lease: lease, node: t.n}
	r := &round{kind: acquire, lease: lease, proposal: l.root.propose(name, t.clock.start())}
	requests := []*request{{kind: acquire}, {kind: extend}, {kind: inspect}, {kind: release}, {kind: release}}
	if l.cfg.fencing {
		requests = slices.Insert(requests, 1, &request{kind: raise, number: 1})
	}
	if !(&request{kind: acquire, claim: c}).ballots() {
		requests = slices.Insert(requests, 0, &request{kind: acquire, native: true})
	}
	cmds := make([]command, 0, len(requests)+4)
	for i, q := range requests {
		q.claim, q.round, q.ttl, q.text = c, r, probeTTL, !q.native && i < len(requests)-1
		cmds = append(cmds, q.command(q.native, q.text))
	}
	cmds = append(cmds, ask("publish", releasedChannel+name, "check"), ask("del", name))
	if l.cfg.fencing {
		cmds = append(cmds, ask("del", fenceCounter(name)))
	}
	if l.cfg.acks != nil {
		cmds = append(cmds, ask("wait", 0, 1))
	}
	if !t.say(ctx, cmds...) {
		return false
	}
	for i, q := range requests {
		t.judge(q, cmds[i], prefix)
	}
	of := map[string]part{"publish": forNews, "wait": forAcks} // the others are for locks
	for i, cmd := range cmds[len(requests):] {
		p := of[cmd.Name()]
		if i > 1 && p == forLocks { // the counter's
			p = forFences
		}
		if err := cmd.Err(); err != nil {
			t.refused(p, cmd.Name(), prefix, err)
		}
	}
	t.listen(ctx, name, prefix)
	return true
}

// judge takes in what became of one of a lane's requests.
func (t *talk) judge(q *request, cmd command, prefix string) {
	r, _, err := q.read(cmd)
	switch {
	case r == noScript: // its EVAL was refused
	case r != refusal:
		if !q.native {
			t.scripts.scripts[q.script()] = true
		}
	case q.native && tooOld(err):
		t.scripts.old = true
	case !q.native && !q.text:
		t.scripts.noSHA = t.scripts.noSHA || shaDenied(err)
		t.refused(forSHA, cmd.Name(), prefix, err)
	default:
		p := forScripts
		switch {
		case q.fenced():
			p = forFences
		case q.native || q.ballots():
			p = forLocks
		}
		t.refused(p, strings.TrimSpace(cmd.Name()+" to "+q.kind.String()), prefix, err)
	}
}

func (t *talk) refused(p part, what, name string, err error) {
	t.tries = append(t.tries, try{p, what, name, err})
}

// listen subscribes to the channel of a name, on one more connection, as those who
// wait do.
func (t *talk) listen(parent context.Context, name, prefix string) {
	ctx, cancel := context.WithTimeout(parent, t.n.patient)
	defer cancel()
	ps := t.d.client.Subscribe(ctx)
	defer ps.Close()
	err := ps.Subscribe(ctx, releasedChannel+name)
	if err == nil {
		_, err = ps.ReceiveTimeout(ctx, t.n.patient)
	}
	switch r, _ := readError(err); {
	case err == nil || parent.Err() != nil:
	case r == timeout || ctx.Err() != nil:
		t.refused(forNews, "subscribe", prefix, opaque{fmt.Sprintf("no answer within %v", t.n.patient)})
	default:
		t.refused(forNews, "subscribe", prefix, withoutContext(err))
	}
}
