package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/seed58520471/redlock"
)

// lock: alice takes the lock.
func (d *demo) lock(ctx context.Context, s *step) {
	lease, err := d.alice.Lock(ctx, d.name)
	s.take(d.alice.round())
	d.lease = lease
	if s.holds("alice", lease, err) {
		s.spreads(d)
	}
}

// spreads waits for the votes that alice did not wait for: until they are there,
// bob could get one of them, and the next step be harder to read. Embedded nodes
// can be looked into; others get as long again as the quorum took.
func (s *step) spreads(d *demo) {
	if d.nodes == nil {
		time.Sleep(time.Duration(s.Round.Took) + pause)
		return
	}
	var stored int
	nodes := d.nodes.Nodes()
	begin := time.Now()
	for {
		stored = d.stored(nodes)
		if stored == len(nodes) || time.Since(begin) > d.nodeTimeout+margin {
			break
		}
		time.Sleep(100 * time.Microsecond)
	}
	s.check(stored == len(nodes), "those that she did not wait for grant it too", "%s, %s later",
		plural(stored, "node", "nodes"), span(millis(time.Since(begin))))
}

// holds files the claims about a lock that was just taken, and tells whether it
// was.
func (s *step) holds(who string, lease *redlock.Lease, err error) bool {
	if !s.succeeds(who+" has the lock", err) {
		return false
	}
	s.Validity = millis(lease.Validity())
	granted := s.Round.count(redlock.Granted)
	s.check(granted >= s.Round.Quorum, "a quorum granted it", "%s", plural(granted, "node", "nodes"))
	drift := ttl/100 + 2*time.Millisecond // the library's default
	most := ttl - time.Duration(s.Round.Took) - drift
	s.check(s.Validity > 0 && time.Duration(s.Validity) <= most,
		"validity <= ttl - elapsed - drift", "%s <= %v - %s - %v",
		span(s.Validity), ttl, span(s.Round.Took), drift)
	return true
}

// refuse: bob tries to take it too.
func (d *demo) refuse(ctx context.Context, s *step) {
	begin := time.Now()
	lease, err := d.bob.TryLock(ctx, d.name)
	took := time.Since(begin)
	s.take(d.bob.round())
	if err == nil {
		lease.Unlock(ctx)
		s.check(false, "bob does not get the lock", "he has it, and alice has it too")
		return
	}
	s.Error = err.Error()
	s.check(errors.Is(err, redlock.ErrHeld), "bob is told that another owner has it", "%s", class(err))
	s.refusers(d.alice.owner)
	s.check(took <= d.nodeTimeout+margin, "he knows within the node timeout", "%s", span(millis(took)))
	s.check(d.lease.Err() == nil, "alice still has it", "valid for %s", span(millis(d.lease.Validity())))
}

// refusers files the claim that so many nodes refuse that no quorum is possible,
// and that all of them name the owner.
func (s *step) refusers(owner string) {
	if s.Round == nil {
		return
	}
	refused := s.Round.count(redlock.Refused)
	blocking := len(s.Round.Votes) - s.Round.Quorum + 1
	var others []string
	for _, v := range s.Round.Votes {
		if v.Outcome == redlock.Refused.String() && v.Holder != owner {
			others = append(others, fmt.Sprintf("%s names %q", v.Node, v.Holder))
		}
	}
	found := plural(refused, "refuses", "refuse")
	if len(others) > 0 {
		found = strings.Join(others, ", ")
	}
	claim := fmt.Sprintf("%d or more nodes refuse, and all of them name %s", blocking, owner)
	s.check(refused >= blocking && len(others) == 0, claim, "%s", found)
}

// extend: alice keeps it for longer.
func (d *demo) extend(ctx context.Context, s *step) {
	before := d.lease.Validity()
	err := d.lease.Extend(ctx, 2*ttl)
	s.take(d.alice.round())
	if !s.succeeds(fmt.Sprintf("a quorum has her token and keeps it for %v more", 2*ttl), err) {
		return
	}
	s.Validity = millis(d.lease.Validity())
	s.check(time.Duration(s.Validity) > max(before, ttl), "her lease is valid for longer",
		"%s, was %s", span(s.Validity), span(millis(before)))
}

// unlock: alice releases it, and on embedded nodes bob has waited for that.
func (d *demo) unlock(ctx context.Context, s *step) {
	var bob <-chan waited
	if d.nodes != nil {
		bob = d.bobWaits(ctx)
	}
	begin := time.Now()
	err := d.lease.Unlock(ctx)
	s.take(d.alice.round())
	if !s.succeeds("a quorum confirms", err) {
		return
	}
	s.check(errors.Is(d.lease.Err(), redlock.ErrReleased), "her lease is over", "%s", class(d.lease.Err()))
	if d.nodes == nil {
		return
	}
	next := <-bob
	if !s.succeeds("bob, who has waited, has it", next.err) {
		return
	}
	took := next.at.Sub(begin)
	s.check(took <= d.nodeTimeout+margin, "he need not try until then: he is told", "%s after she began to unlock", span(millis(took)))
	s.succeeds("he unlocks", next.lease.Unlock(ctx))
	// A vote that bob did not wait for could still come, and be in alice's way
	// when she needs every node that lives.
	s.succeeds("bob closes, and no node owes a release", d.bob.Close())
	s.empties(d, "the key is gone from all nodes")
}

// waited is what came of bob's waiting.
type waited struct {
	lease *redlock.Lease
	err   error
	at    time.Time
}

// bobWaits returns when bob sleeps on the lock. He does after his second try: the
// first is refused, the nodes confirm that they will tell him, and what was released
// before that he finds by trying once more.
func (d *demo) bobWaits(ctx context.Context) <-chan waited {
	got := make(chan waited, 1)
	d.bob.round()
	go func() {
		lease, err := d.bob.Lock(ctx, d.name)
		got <- waited{lease, err, time.Now()}
	}()
	for begin := time.Now(); d.bob.attempts() < 2 && time.Since(begin) < margin; {
		time.Sleep(100 * time.Microsecond)
	}
	return got
}

// leave: is there anything left? A real server is asked by its votes: alice
// closes, which waits until every node has confirmed her releases, and then no
// node may refuse bob.
func (d *demo) leave(ctx context.Context, s *step) {
	const claim = "%s closes, and no node owes a release"
	if !s.succeeds(fmt.Sprintf(claim, "alice"), d.alice.Close()) {
		return
	}
	lease, err := d.bob.Lock(ctx, d.name)
	s.take(d.bob.round())
	refused := s.Round.count(redlock.Refused)
	s.check(refused == 0, "no node refuses bob", "%s", plural(refused, "does", "do"))
	if !s.holds("bob", lease, err) {
		return
	}
	s.succeeds("a quorum confirms his unlock", lease.Unlock(ctx))
	s.succeeds(fmt.Sprintf(claim, "bob"), d.bob.Close())
}

// empties files the claim that nothing is stored on nodes that live, or is not for
// much longer: what nobody waits for is released in the background. A release
// that got no answer is repeated after one node timeout, and then after two.
func (s *step) empties(d *demo, claim string) {
	begin := time.Now()
	for {
		left := d.keys()
		took := time.Since(begin)
		switch {
		case len(left) == 0 && took < time.Millisecond:
			s.check(true, claim, "at once")
			return
		case len(left) == 0:
			s.check(true, claim, "%s later", span(millis(took)))
			return
		case took > 3*d.nodeTimeout+margin:
			s.check(false, claim, "%s later there is still %s", span(millis(took)), strings.Join(left, ", "))
			return
		}
		time.Sleep(100 * time.Microsecond)
	}
}

// rollCall asks each node by itself. A quorum does without a node that is down or
// misspelt, and without the second vote of a server that is listed twice; but who
// checks servers wants to know of them. The rounds alone cannot tell: a node that
// is far away may have been in time for none of them.
func (d *demo) rollCall(ctx context.Context) {
	r := &d.report
	first := make(map[string]int) // who has stored a token
	for i := range d.urls {
		c, err := newClient(fmt.Sprintf("node %d", i+1), d.urls[i:i+1], d.nodeTimeout)
		if err != nil {
			r.Failed = err.Error() // not for URLs that were good before
			return
		}
		defer c.Close() // releases, when all have been asked
		lease, err := c.TryLock(ctx, d.name)
		switch votes := c.round().Votes; {
		case ctx.Err() != nil:
			r.Failed = "interrupted"
			return
		case err == nil:
			first[lease.Token()] = i
		case len(votes) == 1:
			v := votes[0]
			if twin, twice := first[v.Holder]; twice {
				r.warn(i, v.Node, "is the same server as node %d and must not vote twice", twin+1)
			} else if v.Outcome == redlock.Failed && !r.voted(i) {
				r.warn(i, v.Node, "never voted: %s", newVote(v).note())
			}
		}
	}
}
