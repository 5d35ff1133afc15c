package main

import (
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2/server"
)

// fate is how a node dies in the middle of an acquire.
type fate uint8

const (
	beforeStoring fate = iota // the SET has reached the node, and the vote is lost with it
	afterStoring              // the node stores the vote, and its answer is lost
)

func (f fate) String() string {
	return [...]string{"before it stored its vote", "with its vote stored, unanswered"}[f]
}

// order is who comes first in an ambush.
type order uint8

const (
	victimsFirst   order = iota // the survivors execute the SET when the victims are dead
	survivorsFirst              // the victims die when the survivors have executed it
)

// ambush kills nodes in the middle of the next acquire of one name, each when
// the SET reaches it. The other side waits for that, so that things happen in the
// same order each time and no claim rests on chance.
type ambush struct {
	name  string
	nodes cluster
	fates map[int]fate
	order order
	begin time.Time
	dead  chan struct{} // closed when all victims are

	mu   sync.Mutex
	toll toll
}

// toll is what came of an ambush.
type toll struct {
	died   map[int]time.Duration // after the ambush was laid; victims that no SET has reached are missing
	stored int                   // survivors that had stored the vote when the last victim died
}

const (
	// pause keeps the second side silent for a little longer: the client should
	// have noticed what the first did, so that the votes show it.
	pause = 10 * time.Millisecond

	// patience is how long one side waits for the other at most. It is below the
	// node timeout: a victim that is never reached must not make the others fail.
	patience = embeddedTimeout / 2
)

// ambush lays one. Nodes that are up and have no fate survive.
func (c cluster) ambush(name string, o order, fates map[int]fate) *ambush {
	a := &ambush{
		name: name, nodes: c, fates: fates, order: o, begin: time.Now(),
		dead: make(chan struct{}), toll: toll{died: make(map[int]time.Duration)},
	}
	for i, e := range c {
		if e.down.Load() {
			continue
		}
		act := a.survive
		if _, doomed := fates[i]; doomed {
			act = func() bool { return a.die(i) }
		}
		e.srv.SetPreHook(a.onSet(act))
	}
	return a
}

// onSet makes a hook that acts on the SET of the name only.
func (a *ambush) onSet(act func() (done bool)) server.Hook {
	return func(_ *server.Peer, cmd string, args ...string) bool {
		return cmd == "SET" && len(args) > 0 && args[0] == a.name && act()
	}
}

// die kills node i. The server still has the SET in its hands, which it executes
// or not; no connection is left that could carry the answer.
func (a *ambush) die(i int) (done bool) {
	if a.order == survivorsFirst {
		for time.Since(a.begin) < patience && a.stored() < len(a.survivors()) {
			time.Sleep(100 * time.Microsecond)
		}
		time.Sleep(pause)
	}
	at, stored := time.Since(a.begin), a.stored() // the client can know before kill returns
	a.nodes[i].kill()
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, again := a.toll.died[i]; !again {
		a.toll.died[i], a.toll.stored = at, stored
		if len(a.toll.died) == len(a.fates) {
			close(a.dead)
		}
	}
	return a.fates[i] == beforeStoring
}

// survive lets a node execute the SET.
func (a *ambush) survive() (done bool) {
	if a.order == victimsFirst {
		select {
		case <-a.dead:
			time.Sleep(pause)
		case <-time.After(patience):
		}
	}
	return false
}

// survivors are the nodes that are up and stay so.
func (a *ambush) survivors() (up []*embedded) {
	for i, e := range a.nodes {
		if _, doomed := a.fates[i]; !doomed && !e.down.Load() {
			up = append(up, e)
		}
	}
	return up
}

// stored is how many survivors have a vote.
func (a *ambush) stored() (n int) {
	for _, e := range a.survivors() {
		if e.token(a.name) != "" {
			n++
		}
	}
	return n
}

// end takes the hooks off and tells what happened. The verdict can be there
// before the last victim is quite dead, so it waits for that.
func (a *ambush) end() toll {
	for _, e := range a.survivors() {
		e.srv.SetPreHook(nil)
	}
	select {
	case <-a.dead:
	case <-time.After(patience):
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range a.toll.died {
		<-a.nodes[i].gone
	}
	return a.toll
}
