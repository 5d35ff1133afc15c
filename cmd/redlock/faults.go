package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"time"

	"github.com/seed58520471/redlock"
)

// The nodes that die, counted from zero.
const (
	third  = 2
	fourth = 3
	fifth  = 4
)

// twoDie: three of five remain, which is a quorum.
func (d *demo) twoDie(ctx context.Context, s *step) {
	fates := map[int]fate{fourth: beforeStoring, fifth: afterStoring}
	a := d.nodes.ambush(d.name, victimsFirst, fates)
	lease, err := d.alice.TryLock(ctx, d.name)
	verdict := time.Since(a.begin)
	toll := a.end()
	s.take(d.alice.round())
	d.died(s, fates, toll, verdict)
	if s.holds("alice", lease, err) && s.succeeds("a quorum confirms her unlock", lease.Unlock(ctx)) {
		s.empties(d, liveNode, "the key is gone from the three that live")
	}
}

// thirdDies: two of five remain, and nobody can win.
func (d *demo) thirdDies(ctx context.Context, s *step) {
	fates := map[int]fate{third: afterStoring}
	a := d.nodes.ambush(d.name, survivorsFirst, fates)
	lease, err := d.alice.TryLock(ctx, d.name)
	verdict := time.Since(a.begin)
	toll := a.end()
	s.take(d.alice.round())
	d.died(s, fates, toll, verdict)
	if err == nil {
		lease.Unlock(ctx)
		s.check(false, "alice does not get the lock", "a minority gave it to her")
		return
	}
	s.Error = err.Error()
	s.check(errors.Is(err, redlock.ErrNoQuorum) && errors.As(err, new(*redlock.QuorumError)),
		"alice is told why, with the votes", "%s", class(err))
	s.check(verdict <= d.nodeTimeout+margin, "she knows within the node timeout", "%s", span(millis(verdict)))
	s.check(toll.stored == 2, "the two that live had stored her vote", "%d", toll.stored)
	s.empties(d, liveNode, "both have nothing of it any more")
}

// died files the claims about an ambush: each victim died after the SET was sent
// and before the verdict, and kept or lost the vote as it should.
func (d *demo) died(s *step, fates map[int]fate, toll toll, verdict time.Duration) {
	for i, e := range d.nodes {
		f, doomed := fates[i]
		if !doomed {
			continue
		}
		want := ""
		if f == afterStoring {
			want = d.alice.owner
		}
		claim := fmt.Sprintf("node %d died %v", i+1, f)
		at, reached := toll.died[i]
		stored := ownerOf(e.token(d.name))
		switch {
		case !reached:
			s.check(false, claim, "no SET has reached it")
		case stored != want:
			s.check(false, claim, "it has stored a vote for %q", stored)
		case s.Round != nil && s.Round.Votes[i].Outcome == redlock.Granted.String():
			s.check(false, claim, "its vote was counted")
		default:
			s.check(at < verdict, claim, "at %s of %s", span(millis(at)), span(millis(verdict)))
		}
	}
}

// comeBack: the dead return, two of them with votes of alice that she could not
// release. She must not be kept out by her own leftovers.
func (d *demo) comeBack(ctx context.Context, s *step) {
	stale := len(d.nodes.keys(anyNode))
	s.check(stale == 2, "nodes 3 and 5 have died with a vote stored", "%s", plural(stale, "key", "keys"))
	var errs []error
	for _, e := range d.nodes {
		if e.down.Load() {
			errs = append(errs, e.restart())
		}
	}
	if !s.succeeds("nodes 3, 4 and 5 are back on their old ports", errors.Join(errs...)) {
		return
	}
	time.Sleep(pause) // attempts to connect that began earlier are over, and cannot cost a vote
	lease, err := d.alice.Lock(ctx, d.name)
	s.take(d.alice.round())
	refused := s.Round.count(redlock.Refused)
	s.check(refused == 0, "no node refuses alice because of her own old votes", "%s", plural(refused, "does", "do"))
	if s.holds("alice", lease, err) && s.succeeds("a quorum confirms her unlock", lease.Unlock(ctx)) {
		s.empties(d, anyNode, "no key is left on any node, long before the ttl")
	}
}

// end: everything stops.
func (d *demo) end(_ context.Context, s *step) {
	s.succeeds("alice closes, and no node owes a release", d.alice.Close())
	left := d.nodes.keys(anyNode)
	s.check(len(left) == 0, "no key is on any node", "%s", plural(len(left), "key", "keys"))
	d.nodes.stop()
	open := 0
	for _, e := range d.nodes {
		if conn, err := net.Dial("tcp", e.addr); err == nil {
			conn.Close()
			open++
		}
	}
	s.check(open == 0, "no port is open", "%d of %d", open, len(d.nodes))
	begin, count := time.Now(), runtime.NumGoroutine()
	for count > d.goroutines && time.Since(begin) < time.Second {
		time.Sleep(time.Millisecond) // the last ones are on their way out
		count = runtime.NumGoroutine()
	}
	s.check(count <= d.goroutines, "no goroutine is left", "%d run, %d ran before", count, d.goroutines)
}
