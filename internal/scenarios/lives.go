package scenarios

import (
	"errors"
	"fmt"
	"time"
)

// A lease lives through what happens to a minority of its nodes, or to all of them
// if they forget nothing.

func init() {
	register(Scenario{
		Name:  "minority-evicts",
		Story: "Two of five nodes evict the lock's key. The lease lives on the other three, and through extensions.",
		Nodes: 5,
		Plan:  `at {0.3}, nodes 2,4: evict "orders"`,
		Play:  keepThrough,
	}, Scenario{
		Name:  "minority-flushed",
		Story: "Somebody deletes everything on two of five nodes. The lease lives on the other three.",
		Nodes: 5,
		Plan:  `at {0.3}, nodes 2,4: flushall`,
		Play:  keepThrough,
	}, Scenario{
		Name: "minority-restored",
		Story: "A node is restored from a copy in which a lock is held that was released since. " +
			"Nobody is blocked by it, and its ttl ends it.",
		Nodes:    3,
		Embedded: true,
		Play:     restored,
	}, Scenario{
		Name: "bare-majority",
		Story: "Two of five nodes are down, and one of the others is slow. The lock works, " +
			"and without a vote to spare.",
		Nodes: 5,
		Plan: `
			at 0s for {1.3}, nodes 1,2: kill
			at 0s for {1.3}, node 3: delay {0.01}`,
		Play: keepThrough,
	})
}

func init() { // nodes that come back with their data
	register(Scenario{
		Name: "rolling-restarts",
		Story: "All nodes restart with their data, one after the other, under a lease that is extended all the time. " +
			"Two are never away at once.",
		Nodes:    5,
		Embedded: true, // servers without persistence forget
		Plan:     rolling,
		Play:     keepThrough,
	}, Scenario{
		Name: "nodes-come-and-go",
		Story: "Two of five nodes die again and again, other ones each time, and come back with their data. " +
			"Clients go on.",
		Nodes:    5,
		Embedded: true,
		Plan: `
			at {0.2} for {0.12}, nodes 1,2: kill
			at {0.4} for {0.12}, nodes 3,4: kill
			at {0.6} for {0.12}, nodes 1,5: kill
			at {0.8} for {0.12}, nodes 2,3: kill
			at {1.0} for {0.12}, nodes 4,5: kill`,
		Play: workThrough,
	}, Scenario{
		Name: "everything-restarts",
		Story: "All nodes die at once under a lease, and come back with their data: it goes on, and nobody has " +
			"got in.",
		Nodes:    3,
		Embedded: true,
		Plan:     `at {0.3} for {0.2}, all: kill`,
		Play:     keepThrough,
	})
}

func init() { // where nodes are, and who knows of them
	register(Scenario{
		Name: "minority-far-away",
		Story: "Two of five nodes are on another continent. The lock takes as long as the third-fastest node, " +
			"and nobody waits for the others.",
		Nodes: 5,
		Play:  farAway,
	}, Scenario{
		Name: "server-listed-twice",
		Story: "A server is on the list of nodes under two names, and the other one is down. The two names alone " +
			"would be a majority: it must not vote twice.",
		Nodes: 2,
		Plan:  `at 0s for {0.5}, node 2: kill`,
		Play:  listTwice,
	}, Scenario{
		Name: "lists-differ",
		Story: "Two clients are configured with other nodes, of which they have one in common: each has a majority " +
			"of its own.",
		Nodes:      5,
		Play:       differ,
		TwoHolders: "all clients have to name the same nodes",
	})
}

const rolling = `
	at {0.3} for {0.08}, node 1: kill
	at {0.5} for {0.08}, node 2: kill
	at {0.7} for {0.08}, node 3: kill
	at {0.9} for {0.08}, node 4: kill
	at {1.1} for {0.08}, node 5: kill`

// keepThrough holds and extends a besieged lock while the plan strikes.
func keepThrough(w *World) error {
	a, b, err := w.pair()
	if err != nil {
		return err
	}
	h, err := a.getAll(w.TTL)
	if err != nil {
		return err
	}
	lift := b.besiege()
	defer lift()
	if err := h.keep(w.TTL * 6 / 5); err != nil {
		return err
	}
	if err := lift(); err != nil {
		return err
	}
	if err := h.letGo(); err != nil {
		return err
	}
	g, err := b.get()
	if err != nil {
		return err
	}
	return errors.Join(g.letGo(), w.clean())
}

func restored(w *World) error {
	a, b, err := w.pair()
	if err != nil {
		return err
	}
	h, err := a.Lock(orders, w.TTL/2, w.patience())
	if err != nil {
		return err
	}
	w.Sleep(w.TTL / 10)
	if err := h.Extend(w.TTL / 2); err != nil { // commands make copies
		return err
	}
	w.Sleep(w.TTL / 10)
	if err := h.letGo(); err != nil {
		return err
	}
	if _, err := w.Inject(`at {0.05}, node 2: restart as of {0.1}`); err != nil {
		return err
	}
	w.Sleep(w.TTL / 10)
	if w.Cluster.Node(2).Get(orders) != h.Token() {
		return errors.New("the node came back without the old lock")
	}
	g, err := b.get()
	if err != nil {
		return err
	}
	g.Act()
	return errors.Join(g.letGo(), b.clean())
}

// farAway takes, extends and releases a lock, and measures it where time is exact.
func farAway(w *World) error {
	a, b, err := w.pair()
	if err != nil {
		return err
	}
	for _, x := range []*Actor{a, b} {
		for n, line := range []time.Duration{2000, 2000, 1000, 60, 60} {
			w.Cluster.Client(x.Name).SetLine(n+1, w.TTL/line, w.TTL/line)
		}
		if err := x.warmUp(); err != nil {
			return err
		}
	}
	h, err := a.get()
	if err != nil {
		return err
	}
	h.Act()
	if err := h.letGo(); err != nil {
		return err
	}
	begin := time.Now()
	h, err = b.get()
	if err != nil {
		return err
	}
	if err := errors.Join(h.insist(), h.letGo()); err != nil {
		return err
	}
	if took, third := time.Since(begin), w.TTL/500; took > 4*third && w.exact() {
		return fmt.Errorf("three operations have taken %v, and the third-fastest node is %v away", took, third)
	}
	return b.findsFree()
}

func listTwice(w *World) error {
	w.List("a", 1, 1, 2)
	w.List("b", 1, 1, 2)
	a, b, err := w.pair()
	if err != nil {
		return err
	}
	if _, err := a.Lock(orders, w.TTL, w.TTL*2/5); err == nil {
		return errors.New("client a got the lock from one of two servers")
	}
	w.Sleep(w.TTL / 5)
	h, err := a.get()
	if err != nil {
		return err
	}
	lift := b.besiege()
	defer lift()
	w.Sleep(w.TTL / 5)
	if !h.Act() {
		return fmt.Errorf("the lease stands, but: %w", h.Err())
	}
	if err := lift(); err != nil {
		return err
	}
	return errors.Join(h.letGo(), b.findsFree())
}

func differ(w *World) error {
	w.List("a", 1, 2, 3)
	w.List("b", 3, 4, 5)
	a, b, err := w.pair()
	if err != nil {
		return err
	}
	h, err := a.get()
	if err != nil {
		return err
	}
	g, err := b.get()
	if err != nil {
		return err
	}
	h.Act()
	g.Act()
	w.Sleep(w.TTL / 50)
	return errors.Join(h.letGo(), g.letGo(), w.clean())
}
