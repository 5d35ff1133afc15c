package scenarios

import (
	"errors"
	"fmt"
	"time"
)

// Stories of nodes that restart within the ttl, and of locks that are told to keep
// such a node from voting: World.Guard says for how long.

func init() {
	register(Scenario{
		Name: "guarded-majority-restarts-empty",
		Story: "A majority restarts without its data under a lease, while another client asks for the lock all " +
			"the time. With a restart guard as long as the ttl it gets nothing before the lease has ended.",
		Nodes: 3,
		Guard: 1,
		Plan:  `at 0s, nodes 1,2: restart empty`,
		Cued:  true,
		Play:  guarded,
	}, Scenario{
		Name: "guarded-clocks-set-after-a-restart",
		Story: "A majority restarts without its data under a lease, and then has its clocks set forward, so that its " +
			"servers look as if they had been up for long. Who had been connected before is not fooled.",
		Nodes:    3,
		Embedded: true,
		Guard:    1,
		Plan: `
			at 0s, nodes 1,2: restart empty
			at {0.001}, nodes 1,2: clock +{20}`,
		Cued: true,
		Play: guarded,
	})
}

// guarded holds a lock to its end, while another client asks for it all the time. It
// has to get it soon after the guard.
func guarded(w *World) error {
	a, b, err := w.pair()
	if err != nil {
		return err
	}
	// The nodes have only come up, and have to show that they are old enough.
	for _, x := range []*Actor{a, b} {
		h, err := x.Lock("warm-up", w.TTL, w.abstain()+w.patience())
		if err != nil {
			return fmt.Errorf("client %s: all nodes have come of age, but: %w", x.Name, err)
		}
		w.Sleep(w.TTL / 20)
		if err := h.letGo(); err != nil {
			return err
		}
	}
	h, err := a.getAll(w.TTL)
	if err != nil {
		return err
	}
	next := b.await(w.abstain() + 2*w.TTL)
	if err := w.start(); err != nil {
		return err
	}
	for h.Act() {
		w.Sleep(w.TTL / 50)
	}
	h.Unlock()
	g, err := next.get()
	if err != nil {
		return fmt.Errorf("client b: the guard is over, but: %w", err)
	}
	g.Act()
	return errors.Join(g.letGo(), w.clean())
}

// abstain is how long a node does not vote at the most, since servers tell their age
// in whole seconds.
func (w *World) abstain() time.Duration { return w.Guard + 3*time.Second }
