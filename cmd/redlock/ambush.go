package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/seed58520471/redlock"
	"github.com/seed58520471/redlock/faultinject"
)

// ambush kills nodes in the middle of an acquire, each when the SET has reached
// it. The SET freezes the nodes that are to act second until the others are
// through, so that things happen in the same order each time and no claim rests on
// chance.
type ambush struct {
	*demo
	victims []*victim
	second  []*faultinject.Node
	through func() bool // tells whether the others are

	begin   time.Time
	verdict time.Duration // from the beginning until alice knew
}

// victim is a node that is killed.
type victim struct {
	*faultinject.Node
	fate faultinject.Fault

	struck *faultinject.Injection
	died   time.Duration // from the beginning
	dead   bool          // when alice had her verdict
}

var (
	beforeStoring = faultinject.Kill.Before() // the SET has reached the node, and the vote is lost with it
	afterStoring  = faultinject.Kill.During() // the node has stored the vote, and its answer is lost
)

// pause keeps the second side silent for a little longer: the client should have
// noticed what the first did, so that the votes show it.
const pause = 10 * time.Millisecond

// tryLock lets alice try to take the lock meanwhile.
func (a *ambush) tryLock(ctx context.Context) (*redlock.Lease, error) {
	for _, n := range a.second {
		defer a.onSet(n, faultinject.Freeze).Stop()
	}
	for _, v := range a.victims {
		v.struck = a.onSet(v.Node, v.fate)
		defer v.struck.Stop()
	}
	a.begin = time.Now()
	var direction sync.WaitGroup
	direction.Go(a.direct)
	defer direction.Wait()
	lease, err := a.alice.TryLock(ctx, a.name)
	a.verdict = time.Since(a.begin)
	for _, v := range a.victims {
		v.dead = !v.Up()
	}
	return lease, err
}

// onSet lets a fault strike the next SET of the lock's name at a node.
func (a *ambush) onSet(n *faultinject.Node, f faultinject.Fault) *faultinject.Injection {
	return a.nodes.Inject(fmt.Sprintf("on SET key %q #1, node %d: %v", a.name, n.Number(), f))
}

// direct lets the second side act when the first is through. It waits for that no
// longer than half the node timeout: a victim that is never reached must not make
// the others fail.
func (a *ambush) direct() {
	for time.Since(a.begin) < a.nodeTimeout/2 && !a.through() {
		time.Sleep(100 * time.Microsecond)
	}
	time.Sleep(pause)
	for _, v := range a.victims {
		if v.died == 0 {
			v.died = time.Since(a.begin) // now, if it is of the second side
		}
	}
	for _, n := range a.second {
		n.Do(faultinject.Thaw)
	}
}

// allDead is for victims that act first.
func (a *ambush) allDead() bool {
	all := true
	for _, v := range a.victims {
		switch {
		case v.Up():
			all = false
		case v.died == 0:
			v.died = time.Since(a.begin)
		}
	}
	return all
}

// claims files the claims about the victims: each died after the SET was sent and
// before the verdict, and kept or lost the vote as it should.
func (a *ambush) claims(s *step) {
	for _, v := range a.victims {
		claim, want := "node %d died before it stored its vote", ""
		if v.fate == afterStoring {
			claim, want = "node %d died with its vote stored, unanswered", a.alice.owner
		}
		claim = fmt.Sprintf(claim, v.Number())
		stored := ownerOf(a.token(v.Node))
		switch {
		case v.struck.Fired() == 0:
			s.check(false, claim, "no SET has reached it")
		case stored != want:
			s.check(false, claim, "it has stored a vote for %q", stored)
		case s.Round != nil && s.Round.Votes[v.Number()-1].Outcome == redlock.Granted.String():
			s.check(false, claim, "its vote was counted")
		default:
			s.check(v.dead && v.died < a.verdict, claim,
				"at %s of %s", span(millis(v.died)), span(millis(a.verdict)))
		}
	}
}
