package main

import (
	"context"
	"errors"
	"runtime"
	"time"

	"github.com/seed58520471/redlock"
	"github.com/seed58520471/redlock/faultinject"
)

// twoDie: three of five remain, which is a quorum.
func (d *demo) twoDie(ctx context.Context, s *step) {
	nodes := d.nodes.Nodes()
	a := &ambush{demo: d, second: nodes[:3], victims: []*victim{
		{Node: nodes[3], fate: beforeStoring}, {Node: nodes[4], fate: afterStoring},
	}}
	a.through = a.allDead
	lease, err := a.tryLock(ctx)
	s.take(d.alice.round())
	a.claims(s)
	if s.holds("alice", lease, err) && s.succeeds("a quorum confirms her unlock", lease.Unlock(ctx)) {
		s.empties(d, "the key is gone from the three that live")
	}
}

// thirdDies: two of five remain, and nobody can win.
func (d *demo) thirdDies(ctx context.Context, s *step) {
	nodes := d.nodes.Nodes()
	stored := 0
	a := &ambush{demo: d, second: nodes[2:3], victims: []*victim{{Node: nodes[2], fate: afterStoring}}}
	a.through = func() bool {
		stored = d.stored(nodes[:2])
		return stored == 2
	}
	lease, err := a.tryLock(ctx)
	s.take(d.alice.round())
	a.claims(s)
	if err == nil {
		lease.Unlock(ctx)
		s.check(false, "alice does not get the lock", "a minority gave it to her")
		return
	}
	s.Error = err.Error()
	s.check(errors.Is(err, redlock.ErrNoQuorum) && errors.As(err, new(*redlock.QuorumError)),
		"alice is told why, with the votes", "%s", class(err))
	s.check(a.verdict <= d.nodeTimeout+margin,
		"she knows within the node timeout", "%s", span(millis(a.verdict)))
	s.check(stored == 2, "the two that live had stored her vote", "%d", stored)
	s.empties(d, "both have nothing of it any more")
}

// comeBack: the dead return, two of them with votes of alice that she could not
// release. She must not be kept out by her own leftovers.
func (d *demo) comeBack(ctx context.Context, s *step) {
	stale := 0
	var dead []*faultinject.Node
	for _, n := range d.nodes.Nodes() {
		if d.token(n) != "" {
			stale++
		}
		if !n.Up() {
			dead = append(dead, n)
		}
	}
	s.check(stale == 2, "nodes 3 and 5 have died with a vote stored", "%s", plural(stale, "key", "keys"))
	var errs []error
	for _, n := range dead {
		errs = append(errs, n.Do(faultinject.Restart))
	}
	errs = append(errs, d.dialAll()...)
	if !s.succeeds("nodes 3, 4 and 5 are back on their old ports", errors.Join(errs...)) {
		return
	}
	time.Sleep(pause) // attempts to connect that began earlier are over, and cannot cost a vote
	lease, err := d.alice.Lock(ctx, d.name)
	s.take(d.alice.round())
	refused := s.Round.count(redlock.Refused)
	s.check(refused == 0, "no node refuses alice because of her own old votes", "%s", plural(refused, "does", "do"))
	if s.holds("alice", lease, err) && s.succeeds("a quorum confirms her unlock", lease.Unlock(ctx)) {
		s.empties(d, "no key is left on any node, long before the ttl")
	}
}

// end: everything stops.
func (d *demo) end(_ context.Context, s *step) {
	s.succeeds("alice closes, and no node owes a release", d.alice.Close())
	left := d.keys()
	s.check(len(left) == 0, "no key is on any node", "%s", plural(len(left), "key", "keys"))
	d.nodes.Close()
	open := len(d.addrs) - len(d.dialAll())
	s.check(open == 0, "no port is open", "%d of %d", open, len(d.addrs))
	begin, count := time.Now(), runtime.NumGoroutine()
	for count > d.goroutines && time.Since(begin) < time.Second {
		time.Sleep(time.Millisecond) // the last ones are on their way out
		count = runtime.NumGoroutine()
	}
	s.check(count <= d.goroutines, "no goroutine is left", "%d run, %d ran before", count, d.goroutines)
}
