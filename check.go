package redlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"
)

// checkPrefix begins the names under which Check tries what it may do, unless it is
// given others.
const checkPrefix = "redlock:check:"

// longCheck is how long a node may take in all, whatever its client makes of the
// timeouts that it is given.
const longCheck = 10 * time.Second

// Check looks at the nodes and at what lies between, and reports what can break
// locks or makes them slow, with evidence and advice. It is for the start of a
// program, for operators, and for looking again from time to time; Report.Worst
// says at a glance whether all is well. A finding is one of these:
//
//	no-quorum no-answer no-access refuses                  the nodes do not work
//	few-nodes even-nodes same-server                       there are fewer than it seems
//	replica failover replicas too-few-replicas             what one has granted, another may not know
//	cluster cluster-shard one-cluster                      they are parts of something
//	evicts memory disk forgets forgets-last-second         they forget, or will refuse
//	young guard-denied                                     the restart guard keeps them from voting
//	locks-denied names-denied fencing-denied
//	replicas-denied scripts-denied evalsha-denied
//	channels-denied                                        rights are missing
//	version-old versions-mixed
//	clock-offset clock-drift clocks-apart                  of wall clocks
//	node-timeout ttl                                       too short for the measured round trips
//	other-nodes other-guard other-fencing                  another client is set up in another way
//	info-unknown clock-unknown members-unknown             it could not be read
//
// What it may do is found out by doing it: on every node it takes, extends and
// releases a lock of a random name, publishes to nobody, and subscribes. Those names
// begin with prefixes, by default with "redlock:check:". Where a user is limited to
// keys like locks:*, say Check(ctx, "locks:"). Nothing of that stays.
//
// What stays, for a day, is the key redlock:members on each node, in which Check
// enters how its Locker is set up: the nodes' addresses, restart guard, and whether
// it fences. So Check finds other clients that name different nodes or have another
// guard, provided that they have called Check too and the two have a node in common.
// Nothing else looks at that key, so locks cost nothing more.
//
// A clock's drift is the difference between two looks at it, so a first Check has
// none. Each compares with the one before, or with the last that is ten seconds old
// at least; the error, in DriftWithin, is the round trip divided by the time between
// them. To have it at once, call Check, wait a second, and call it again.
//
// Check also warms the Locker: afterwards every node that answered is connected and
// has the scripts, so the first lock is one round trip. It borrows a connection of
// each client's pool and opens another one for a moment. All nodes are asked
// at the same time, some fifteen round trips each. One that is silent is waited for
// as long as connecting may take: four node timeouts, at least a second, at most five
// seconds; one that falls silent meanwhile, as long again; and none, whatever its
// client does, for longer than 20 s. Checks of a Locker and its siblings take turns.
//
// What could not be known is a finding too, so the error says nothing about the nodes:
//
//   - nil: the report is complete.
//   - an error of ctx, or ErrClosed: that came first. The report is complete as far as
//     nodes had answered; nil if nothing had been sent.
//   - ErrInvalid: ctx is nil, or a prefix cannot begin the name of a lock. Nothing was
//     sent.
func (l *Locker) Check(ctx context.Context, prefixes ...string) (*Report, error) {
	if ctx == nil {
		return nil, errNilContext
	}
	if len(prefixes) == 0 {
		prefixes = []string{checkPrefix}
	}
	for _, p := range prefixes {
		if err := l.checkName(p + "x"); err != nil {
			return nil, err
		}
	}
	leave, err := l.enter()
	if err == nil && ctx.Err() != nil {
		leave()
		err = contextErr(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("redlock: check: %w", err)
	}
	defer leave()
	if err := l.turn(ctx); err != nil {
		return nil, fmt.Errorf("redlock: check: %w", err)
	}
	defer func() { <-l.root.checks }()
	begin := time.Now()
	e := newExamination(l, prefixes)
	err = e.run(ctx)
	report := e.report()
	report.Took = time.Since(begin)
	if err != nil {
		err = fmt.Errorf("redlock: check: %w", err)
	}
	return report, err
}

// turn waits until no other Check of the Locker or its siblings is under way: go-redis
// does not bear two first connections of one client at the same time.
func (l *Locker) turn(ctx context.Context) error {
	select {
	case l.root.checks <- struct{}{}:
		return nil
	case <-ctx.Done():
		return contextErr(ctx)
	case <-l.closed:
	case <-l.root.closing:
	}
	return ErrClosed
}

// An examination is one Check. Every node is talked to by a goroutine of its own,
// which also returns the connection, however late; what it has learned it hands over
// as a copy. So a node that is stuck keeps neither the report nor another node.
type examination struct {
	*Locker
	prefixes []string
	readings []reading   // by node
	met      chan told   // that have been read, and know their ids
	done     chan told   // that have seen the members
	own      *membership // set before known is closed; nil: the check is over
	known    chan struct{}
}

type told struct {
	node int
	reading
}

func newExamination(l *Locker, prefixes []string) *examination {
	n := len(l.root.nodes)
	e := &examination{
		Locker: l, prefixes: prefixes, readings: make([]reading, n),
		met: make(chan told, n), done: make(chan told, n), known: make(chan struct{}),
	}
	for i := range e.readings {
		t := newTalk(l, l.root.nodes[i])
		t.silent = errUnread
		e.readings[i] = t.reading
	}
	return e
}

// run talks to all nodes, and tells what ended that early.
func (e *examination) run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	e.root.workers.Go(func() error {
		select {
		case <-e.closed:
		case <-e.root.closing:
		case <-ctx.Done():
			return nil
		}
		cancel(ErrClosed)
		return nil
	})
	var warm sync.WaitGroup
	warm.Go(func() { e.touch(ctx, nil) })
	if e.cfg.acks != nil {
		warm.Go(func() { e.touch(ctx, e.cfg.acks) })
	}
	for i := range e.readings {
		e.root.workers.Go(func() error { e.visit(ctx, i); return nil })
	}
	e.collect(ctx, e.met, len(e.readings))
	answered := 0
	for _, r := range e.readings {
		if r.silent == nil {
			answered++
		}
	}
	if own, ok := membershipOf(&e.cfg, e.readings); ok {
		e.own = &own
	}
	close(e.known)
	e.collect(ctx, e.done, answered)
	warm.Wait()
	for i, r := range e.readings {
		e.root.nodes[i].teach(r.scripts)
	}
	e.compare()
	switch {
	case ctx.Err() == nil:
		return nil
	case errors.Is(context.Cause(ctx), ErrClosed):
		return ErrClosed
	}
	return contextErr(ctx)
}

// visit talks to one node.
func (e *examination) visit(ctx context.Context, i int) {
	t := newTalk(e.Locker, e.root.nodes[i])
	defer t.close()
	t.read(ctx, e.Locker, e.prefixes)
	if t.silent == nil && t.info["role"] != "slave" { // a replica has nothing to enter, and refusing that ends the connection
		t.meet(ctx)
	}
	e.met <- told{i, t.reading}
	if t.silent != nil {
		return
	}
	select {
	case <-e.known:
	case <-ctx.Done():
		return
	}
	if e.own != nil {
		t.register(ctx, *e.own)
	}
	e.done <- told{i, t.reading}
}

// collect takes in what so many nodes have to say, as long as there is time.
func (e *examination) collect(ctx context.Context, from <-chan told, nodes int) {
	timer := time.NewTimer(longCheck)
	defer timer.Stop()
	for ; nodes > 0; nodes-- {
		select {
		case t := <-from:
			e.readings[t.node] = t.reading
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// touch has every lane connect, by asking for something that is not there; with acks
// on the connections that are for waiting for replicas.
func (e *examination) touch(ctx context.Context, acks *ackRule) {
	nobody := &Lease{locker: e.Locker, acks: acks, name: e.prefixes[0] + strconv.FormatUint(rand.Uint64(), 36)}
	nobody.claims = make([]claim, 0, len(e.root.nodes))
	patience := time.Duration(0)
	for i, n := range e.root.nodes {
		nobody.claims = append(nobody.claims, claim{lease: nobody, node: n, index: i})
		patience = max(patience, n.patient)
	}
	start := e.cfg.clock.start()
	r := newRound(inspect, "check", nobody, start, 0, patience)
	requests := make([]request, len(nobody.claims))
	for i := range requests {
		requests[i] = request{kind: inspect, claim: &nobody.claims[i], round: r, by: start.mono.Add(patience)}
		nobody.claims[i].node.push(&requests[i])
	}
	r.wait(ctx.Done(), nil, nil, nil)
	nobody.over.Store(true)
	for i := range requests {
		nobody.claims[i].node.withdraw(&requests[i])
	}
}

// teach tells the lane what was found out about the server that it is connected to.
// Should it be another one by now, that refuses what it does not know, and the lane
// finds out as always.
func (n *node) teach(k knowledge) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.linked() {
		return
	}
	for i, known := range k.scripts {
		n.server.scripts[i] = n.server.scripts[i] || known
	}
	n.server.old = n.server.old || k.old
	n.server.noSHA = n.server.noSHA || k.noSHA
}

// compare looks up what was seen of the clocks before, and remembers what is seen now
// for the next time.
func (e *examination) compare() {
	r := e.root
	if r.looks == nil {
		r.looks = make([]*look, len(r.nodes))
	}
	for i := range e.readings {
		seen, before := e.readings[i].seen, r.looks[i]
		if seen == nil {
			continue
		}
		e.readings[i].before = before
		if before == nil || before.run != seen.run || seen.ours.mono.Sub(before.ours.mono) >= lookAgain {
			r.looks[i] = seen
		}
	}
}

// report sums up.
func (e *examination) report() *Report {
	t := pace(quorumOf(len(e.readings)), e.readings)
	report := &Report{
		Findings: judge(&e.cfg, e.readings), Quorum: quorumOf(len(e.readings)),
		Lock: t.lock, LockOneDown: t.oneDown, NodeTimeout: t.nodeTimeout, TTL: t.ttl,
	}
	for _, r := range e.readings {
		report.Nodes = append(report.Nodes, r.row())
	}
	return report
}

// row is what a report has of a node.
func (r reading) row() NodeReport {
	up, _ := r.info.number("uptime_in_seconds")
	n := NodeReport{
		Node: r.node, Version: r.info.product(), Role: r.info["role"], Uptime: time.Duration(up) * time.Second,
		Connect: r.connect, Trips: len(r.trips), Err: r.silent,
	}
	n.Min, n.Median, n.Max = spread(r.trips)
	if r.seen != nil {
		n.Offset, n.OffsetWithin = r.seen.offset(), r.seen.within
		rate, within, over := r.seen.drift(r.before)
		n.Drift, n.DriftWithin, n.DriftOver = rate*1e6, within*1e6, over
	}
	return n
}
