package scenarios

import (
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"
)

// The stories of this file are about fencing tokens. That those of later holders are
// higher, and all are different, is checked after each of them, whatever happens.

func init() {
	register(Scenario{
		Name: "fences-over-changing-majorities",
		Story: "Another node than before refuses everything at each of thirty acquisitions, so that each " +
			"majority is another one, and the nodes' counters differ from the beginning. The fencing tokens " +
			"rise from holder to holder.",
		Nodes:  3,
		Fenced: true,
		Play:   changeMajorities,
	}, Scenario{
		Name: "fences-under-a-flapping-node",
		Story: "A node is cut off and comes back again and again while eight clients take and release a lock " +
			"hundreds of times. It has missed many numbers each time, and the fencing tokens rise.",
		Nodes:  3,
		Fenced: true,
		RTT:    2 * time.Millisecond,
		Plan:   flaps(2),
		Play:   takeTurns,
	}, Scenario{
		Name: "fences-leave-counters-only",
		Story: "A hundred names are locked with fencing tokens once each, and some of them in vain. What stays on " +
			"the nodes is one counter per name, for a week, and nothing else.",
		Nodes:  3,
		Fenced: true,
		Play:   lockManyNames,
	}, Scenario{
		Name: "fences-after-an-expiry",
		Story: "A holder with a fencing token never comes back. The one who gets the lock when its time is over " +
			"has a higher one.",
		Nodes:  3,
		Fenced: true,
		Play:   outliveAHolder,
	}, Scenario{
		Name: "fences-after-counters-are-lost",
		Story: "All nodes lose all that they have, the lock and its fencing counter. The second holder has a higher " +
			"fencing token all the same, since the clocks are right, and the resource refuses the first one.",
		Nodes:      3,
		Fenced:     true,
		Play:       loseCounters,
		TwoHolders: "a majority of the nodes forgets its votes within a ttl",
	}, Scenario{
		Name: "fences-raise-cut-off",
		Story: "A client's votes show that the fencing counters differ, and its connections to those that it has to " +
			"raise break again and again. It does not get the lock, leaves nothing behind, and no number is given twice.",
		Nodes:  3,
		Fenced: true,
		Play:   cutRaises,
	}, Scenario{
		Name: "fences-refuse-a-paused-holder",
		Story: "The holder looks at its lock, is paused for longer than the ttl, and writes on what it saw. " +
			"Somebody else has written by then, and the resource refuses the lower fencing token.",
		Nodes:  3,
		Fenced: true,
		Play:   refusePausedHolder,
	})
}

// flaps cuts a node off again and again, in a plan.
func flaps(node int) (plan string) {
	for i := range 10 {
		plan += fmt.Sprintf("\nat {%.2f} for {0.05}, node %d: partition", 0.1*float64(i+1), node)
	}
	return plan
}

// plantCounters sets counters that differ, and are beyond all proposals.
func (w *World) plantCounters() error {
	var errs []error
	for i, n := range w.Cluster.Nodes() {
		errs = append(errs, n.Set(counterOf(orders), strconv.FormatUint(1<<52+uint64(10*i), 10), counterLives))
	}
	return errors.Join(errs...)
}

func changeMajorities(w *World) error {
	a, b, err := w.pair()
	if err != nil {
		return err
	}
	if err := errors.Join(a.warmUp(), b.warmUp(), w.plantCounters()); err != nil {
		return err
	}
	for i := range 30 {
		in, err := w.Inject(fmt.Sprintf(`on any key %q, node %d: error "OOM command not allowed"`, orders, i%3+1))
		if err != nil {
			return err
		}
		h, err := []*Actor{a, b}[i%2].get()
		if err != nil {
			return err
		}
		h.Act()
		// A vote that is still to be sent when the lock is released is not sent at all.
		for end := time.Now().Add(w.TTL / 4); in.Fired() == 0 && time.Now().Before(end); {
			w.Sleep(w.TTL / 500)
		}
		err = h.letGo()
		w.Sleep(w.TTL / 500)
		in.Stop()
		if err != nil {
			return err
		}
	}
	return w.clean()
}

func takeTurns(w *World) error {
	actors, err := w.Actors("a", "b", "c", "d", "e", "f", "g", "h")
	if err != nil {
		return err
	}
	var mu sync.Mutex
	turns, end := 0, time.Now().Add(w.ttls(1.1))
	parts := make([]func() error, len(actors))
	for i, a := range actors {
		parts[i] = func() error {
			for time.Now().Before(end) {
				h, err := a.Wait(orders, w.TTL, w.patience())
				if err != nil {
					continue // the others have had it all the time
				}
				h.Act()
				w.Sleep(w.TTL / 400)
				h.Unlock()
				mu.Lock()
				turns++
				mu.Unlock()
			}
			return nil
		}
	}
	err = together(parts...)
	if turns < 200 && w.exact() {
		return fmt.Errorf("there were %d turns in %v: %w", turns, w.ttls(1.1), errors.Join(err))
	}
	return errors.Join(err, w.clean())
}

func lockManyNames(w *World) error {
	a, b, err := w.pair()
	if err != nil {
		return err
	}
	const names = 100
	for i := range names {
		name := fmt.Sprintf("order-%d", i)
		h, err := a.Lock(name, w.TTL, w.patience())
		if err != nil {
			return err
		}
		if i%10 == 0 {
			if g, err := b.TryLock(name, w.TTL); err == nil {
				g.Unlock()
				return fmt.Errorf("%s has two holders", name)
			}
		}
		if err := h.letGo(); err != nil {
			return err
		}
	}
	if err := w.clean(); err != nil {
		return err
	}
	left := make(map[string]bool)
	for _, n := range w.Cluster.Nodes() {
		keys, err := n.Keys()
		if err != nil {
			return err
		}
		for _, k := range keys {
			left[k.Name] = true
		}
	}
	if len(left) != names {
		return fmt.Errorf("%d names have left %d keys", names, len(left))
	}
	return nil
}

func outliveAHolder(w *World) error {
	h, actors, err := w.first("a", "b")
	if err != nil {
		return err
	}
	g, err := actors[1].Lock(orders, w.TTL, 2*w.TTL)
	if err != nil {
		return fmt.Errorf("the first holder's time is over, but: %w", err)
	}
	g.Act()
	if h.Act() {
		return errors.New("the first holder goes on")
	}
	h.Unlock() // too late
	return errors.Join(g.letGo(), w.clean())
}

// resource is what locks protect that compares fencing tokens.
type resource struct {
	mu      sync.Mutex
	highest uint64
}

// write tells whether the resource has taken a write of the holder, who has looked at
// its lock before.
func (r *resource) write(h *Held) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := h.fence()
	if n < r.highest || n == 0 {
		return false
	}
	r.highest = n
	h.seen.Act()
	return true
}

func loseCounters(w *World) error {
	a, b, err := w.pair()
	if err != nil {
		return err
	}
	h, err := a.Lock(orders, 3*w.TTL, w.patience())
	if err != nil {
		return err
	}
	var r resource
	if !r.write(h) {
		return errors.New("the resource refuses the first holder")
	}
	w.Sleep(w.TTL / 20)
	if _, err := w.Inject(`at 0s, all: flushall`); err != nil {
		return err
	}
	g, err := b.get()
	if err != nil {
		return err
	}
	if !r.write(g) {
		return fmt.Errorf("the second holder has %d, and the resource has seen %d", g.fence(), r.highest)
	}
	w.Sleep(w.TTL / 50)
	if h.Err() == nil && r.write(h) {
		return errors.New("the resource takes a write of the first holder after one of the second")
	}
	h.Unlock() // hits nobody
	w.Sleep(w.TTL / 20)
	if !r.write(g) {
		return errors.New("the resource refuses the second holder")
	}
	return errors.Join(g.letGo(), w.clean())
}

func cutRaises(w *World) error {
	a, b, err := w.pair()
	if err != nil {
		return err
	}
	if err := errors.Join(a.warmUp(), b.warmUp(), w.plantCounters()); err != nil {
		return err
	}
	// The first command with the counter is the vote, the others raise.
	in, err := w.Inject(fmt.Sprintf(`on any key %q #2-, nodes 1,2 from a: cut before`, counterOf(orders)))
	if err != nil {
		return err
	}
	h, err := a.TryLock(orders, w.TTL)
	switch {
	case err == nil && w.exact():
		return fmt.Errorf("client a got the lock with %d, which one node has", h.fence())
	case err == nil:
		h.Unlock()
	}
	g, err := b.get()
	if err != nil {
		return err
	}
	g.Act()
	w.Sleep(w.TTL / 50)
	in.Stop()
	if err := g.letGo(); err != nil {
		return err
	}
	if h, err = a.get(); err != nil {
		return err
	}
	return errors.Join(h.letGo(), w.clean())
}

func refusePausedHolder(w *World) error {
	h, actors, err := w.first("a", "b")
	if err != nil {
		return err
	}
	var r resource
	return together(func() error {
		if !r.write(h) || h.Err() != nil {
			return errors.New("the first holder cannot write")
		}
		w.At(1.4)
		if r.write(h) {
			return errors.New("the resource takes a write of the first holder after one of the second")
		}
		h.Unlock()
		return nil
	}, func() error {
		w.At(0.2)
		g, err := actors[1].Lock(orders, w.TTL, w.ttls(2))
		if err != nil {
			return err
		}
		if !r.write(g) {
			return fmt.Errorf("the second holder has %d, and the resource has seen %d", g.fence(), r.highest)
		}
		w.Sleep(w.ttls(0.5))
		return g.letGo()
	})
}
