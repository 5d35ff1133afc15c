package scenarios

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// The network between clients and nodes fails: it keeps, loses, repeats nothing,
// and delivers what everybody has given up.

func init() {
	register(Scenario{
		Name: "partitions-flap",
		Story: "Partitions come and go, each in front of another majority, for a little longer than anybody waits. " +
			"Clients go on in between.",
		Nodes: 5,
		Plan:  flapping(),
		Play:  workThrough,
	}, Scenario{
		Name: "half-and-half",
		Story: "Each of two clients is cut off from another half of four nodes. Half of the nodes is no majority: " +
			"neither gets the lock before it is over.",
		Nodes: 4,
		Play:  workInHalves,
	}, Scenario{
		Name: "everything-hangs",
		Story: "All that is sent vanishes for a moment, and every connection with it, without a word. " +
			"An attempt in that moment fails in time; a later one connects anew.",
		Nodes: 3,
		Play:  hangEverything,
	}, Scenario{
		Name: "replies-cut-off",
		Story: "A majority executes what a client sends, and the client hears nothing of it. What it has stored " +
			"goes when it can be reached again.",
		Nodes: 5,
		Play: func(w *World) error {
			return giveUp(w, `at 0s for {0.4}, nodes 1-3 from a: partition replies`)
		},
	}, Scenario{
		Name: "old-sets-after-a-partition",
		Story: "A client's attempt is caught in a partition and given up. When the partition heals, all arrives: " +
			"the lock that nobody holds is gone soon.",
		Nodes: 3,
		Play: func(w *World) error {
			return giveUp(w, `at 0s for {0.4}, nodes 1,2 from a: partition`)
		},
	}, Scenario{
		Name: "sets-after-their-release",
		Story: "An attempt is given up and released on another connection, and its SETs arrive after that, " +
			"at a majority: the lock that nobody holds is gone soon.",
		Nodes: 3,
		Play: func(w *World) error {
			return giveUp(w, `on SET key "orders" #1, nodes 1,2 from a: delay {0.4}`)
		},
	}, Scenario{
		Name: "old-unlock-hits-nobody",
		Story: "A holder's unlock is caught in a partition. When it arrives, the lease has ended and another one " +
			"holds the lock, who must not lose it.",
		Nodes: 3,
		Play:  func(w *World) error { return arriveLate(w, (*Held).Unlock) },
	}, Scenario{
		Name: "old-extension-hits-nobody",
		Story: "A holder's extension is caught in a partition. When it arrives, the lease has ended and another " +
			"one holds the lock, who must not lose it.",
		Nodes: 3,
		Play: func(w *World) error {
			return arriveLate(w, func(h *Held) error { return h.Extend(w.TTL) })
		},
	})
}

func flapping() string {
	var plan strings.Builder
	for i, nodes := range []string{"1-3", "2-4", "3-5", "1,4,5", "1,2,5", "1-3"} {
		fmt.Fprintf(&plan, "at {%.1f} for {0.1}, nodes %s: partition\n", float64(i+1)*0.2, nodes)
	}
	return plan.String()
}

// workThrough lets clients come and go while the plan strikes.
func workThrough(w *World) error {
	a, b, err := w.pair()
	if err != nil {
		return err
	}
	work([]*Actor{a, b}, w.TTL*3/2)
	return b.findsFree()
}

func workInHalves(w *World) error {
	a, b, err := w.pair()
	if err != nil {
		return err
	}
	if err := errors.Join(a.warmUp(), b.warmUp()); err != nil {
		return err
	}
	if _, err := w.Inject(`
		at 0s for {0.6}, nodes 3,4 from a: partition
		at 0s for {0.6}, nodes 1,2 from b: partition`); err != nil {
		return err
	}
	work([]*Actor{a, b}, w.TTL)
	return b.findsFree()
}

func hangEverything(w *World) error {
	a, b, err := w.pair()
	if err != nil {
		return err
	}
	for _, x := range []*Actor{a, b} {
		if err := x.warmUp(); err != nil {
			return err
		}
	}
	if _, err := w.Inject(`at 0s for {0.2}, all: hang`); err != nil {
		return err
	}
	begin := time.Now()
	if h, err := a.TryLock(orders, w.TTL); err == nil {
		h.Unlock()
		return errors.New("client a got a lock from nodes that have heard nothing")
	}
	if took := time.Since(begin); took > w.TTL/2 {
		return fmt.Errorf("an attempt took %v", took)
	}
	w.Sleep(w.TTL / 5)
	h, err := a.get()
	if err != nil {
		return err
	}
	h.Act()
	return errors.Join(h.letGo(), b.findsFree())
}

// giveUp lets an attempt fail because of what is injected, and demands that others
// get the lock soon, before and after its leftovers have arrived.
func giveUp(w *World, lines string) error {
	a, b, err := w.pair()
	if err != nil {
		return err
	}
	if err := errors.Join(a.warmUp(), b.warmUp()); err != nil {
		return err
	}
	if _, err := w.Inject(lines); err != nil {
		return err
	}
	begin := time.Now()
	if h, err := a.TryLock(orders, w.TTL); err == nil {
		h.Unlock()
		return errors.New("client a got a lock from nodes that it has not heard of")
	}
	if h, err := b.TryLock(orders, w.TTL); err == nil { // where nothing is stored yet
		h.Act()
		h.Unlock()
	}
	w.Sleep(w.TTL*45/100 - time.Since(begin))
	h, err := b.Lock(orders, w.TTL, w.TTL/2)
	if err != nil {
		return fmt.Errorf("nobody holds the lock, but: %w", err)
	}
	h.Act()
	w.Sleep(w.TTL / 10)
	return errors.Join(h.letGo(), w.clean())
}

// arriveLate sends something for a lease whose time is over when it arrives.
func arriveLate(w *World, send func(*Held) error) error {
	actors, err := w.Actors("a", "b", "c")
	if err != nil {
		return err
	}
	a, b, c := actors[0], actors[1], actors[2]
	for _, x := range actors {
		if err := x.warmUp(); err != nil {
			return err
		}
	}
	h, err := a.Lock(orders, w.TTL/2, w.patience())
	if err != nil {
		return err
	}
	if _, err := w.Inject(`at 0s for {0.9}, all from a: partition`); err != nil {
		return err
	}
	begin := time.Now()
	h.Act()
	if send(h) == nil {
		return errors.New("nodes that have heard nothing have confirmed it")
	}
	g, err := b.Lock(orders, w.TTL, 2*w.TTL)
	if err != nil {
		return fmt.Errorf("client b: the lease of a has ended, but: %w", err)
	}
	lift := c.besiege()
	defer lift()
	w.Sleep(w.TTL*11/10 - time.Since(begin)) // all has arrived
	if err := g.insist(); err != nil {
		return fmt.Errorf("client b: the lease stands, but: %w", err)
	}
	g.Act()
	if err := lift(); err != nil {
		return err
	}
	h.Unlock()
	if !g.Act() {
		return fmt.Errorf("client b: the lease stands, but: %w", g.Err())
	}
	return errors.Join(g.letGo(), c.findsFree())
}
