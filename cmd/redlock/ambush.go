package main

import (
	"maps"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2/server"
)

// fate is how a node dies in the middle of an acquire.
type fate uint8

const (
	// beforeStoring: the SET has reached the node, and the vote is lost with it.
	beforeStoring fate = iota

	// afterStoring: the node stores the vote, and its answer is lost.
	afterStoring
)

func (f fate) String() string {
	return [...]string{"before it stored its vote", "with its vote stored, unanswered"}[f]
}

// order is who comes first in an ambush.
type order uint8

const (
	// victimsFirst: the survivors answer when the victims are dead.
	victimsFirst order = iota

	// survivorsFirst: the victims die when the survivors have answered.
	survivorsFirst
)

// ambush kills nodes in the middle of the next acquire of one name, each when
// the SET reaches it. The other side waits for that, so that the order of events
// is the same each time and a step does not claim what chance may have done.
type ambush struct {
	name  string
	nodes cluster
	order order
	begin time.Time

	victims, survivors muster
}

// pause keeps the second side silent for a little longer: the client should have
// noticed what the first did, so that the votes show it.
const pause = 10 * time.Millisecond

// patience is how long one side waits for the other at most. It is far below the
// node timeout: a victim that is never reached must not make the rest fail too.
const patience = 100 * time.Millisecond

// muster counts the nodes of one side that have acted.
type muster struct {
	all chan struct{} // closed when all have

	mu      sync.Mutex
	missing int
	at      map[int]time.Duration // by node, after the ambush was laid
}

func newMuster(size int) muster {
	return muster{all: make(chan struct{}), missing: size, at: make(map[int]time.Duration)}
}

func (m *muster) acted(i int, at time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, again := m.at[i]; again {
		return
	}
	m.at[i] = at
	if m.missing--; m.missing == 0 {
		close(m.all)
	}
}

func (m *muster) wait() {
	select {
	case <-m.all:
		time.Sleep(pause)
	case <-time.After(patience):
	}
}

// ambush lays one. All nodes that are up and have no fate survive.
func (c cluster) ambush(name string, o order, fates map[int]fate) *ambush {
	survivors := -len(fates)
	for _, e := range c {
		if !e.down.Load() {
			survivors++
		}
	}
	a := &ambush{
		name: name, nodes: c, order: o, begin: time.Now(),
		victims: newMuster(len(fates)), survivors: newMuster(survivors),
	}
	for i, e := range c {
		if e.down.Load() {
			continue
		}
		act := func() bool { return a.survive(i) }
		if f, doomed := fates[i]; doomed {
			act = func() bool { return a.die(i, f) }
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
func (a *ambush) die(i int, f fate) (done bool) {
	if a.order == survivorsFirst {
		a.survivors.wait()
	}
	at := time.Since(a.begin) // the client can know before kill returns
	a.nodes[i].kill()
	a.victims.acted(i, at)
	return f == beforeStoring
}

// survive lets node i execute the SET.
func (a *ambush) survive(i int) (done bool) {
	if a.order == victimsFirst {
		a.victims.wait()
	}
	a.survivors.acted(i, time.Since(a.begin))
	return false
}

// end takes the hooks off and tells when each victim died, after the ambush was
// laid. Victims that no SET has reached are missing. The verdict can be there
// before the last death is on record, so it waits for that.
func (a *ambush) end() map[int]time.Duration {
	select {
	case <-a.victims.all:
	case <-time.After(patience):
	}
	for _, e := range a.nodes {
		if !e.down.Load() {
			e.srv.SetPreHook(nil)
		}
	}
	a.victims.mu.Lock()
	defer a.victims.mu.Unlock()
	return maps.Clone(a.victims.at)
}
