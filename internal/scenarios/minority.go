package scenarios

import (
	"errors"
	"fmt"

	"github.com/seed58520471/redlock/faultinject"
)

// Two of five nodes fail, each way in the middle of each operation. Nobody may
// notice.

type stroke struct{ name, story, fault string }

var strokes = []stroke{
	{"killed", "die when they have executed the command and not answered, and come back with their data", "kill during for {0.3}"},
	{"hung", "stand still as the command arrives, and go on later where they stopped", "freeze for {0.3}"},
	{"slow", "take longer for the command than anybody waits for them", "delay {0.1}"},
	{"restarted-empty", "restart without their data as the command arrives", "restart empty"},
}

// moment is an operation, and the command that carries it.
type moment struct{ name, story, command string }

var (
	acquiring = moment{"acquire", "Two of five nodes %s, while a client takes the lock: the other three have granted it.", "SET"}
	extending = moment{"extend", "Two of five nodes %s, while a holder extends: the other three have granted it.", "EVALSHA"}
	unlocking = moment{"unlock", "Two of five nodes %s, while a holder unlocks: the lock is free at once, and clean soon.", "EVALSHA"}
)

func init() {
	for _, m := range []moment{acquiring, extending, unlocking} {
		for _, s := range strokes {
			strike := fmt.Sprintf("on %s key %q #1, nodes 2,4: %s", m.command, orders, s.fault)
			register(Scenario{
				Name:  m.name + "-minority-" + s.name,
				Story: fmt.Sprintf(m.story, s.story),
				Nodes: 5,
				Play:  func(w *World) error { return inTheMiddle(w, m, strike) },
			})
		}
	}
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
	}, Scenario{
		Name: "rolling-restarts",
		Story: "All nodes restart with their data, one after the other, under a lease that is extended all the time. " +
			"Two are never away at once.",
		Nodes:    5,
		Embedded: true, // servers without persistence forget
		Plan:     rolling,
		Play:     keepThrough,
	})
}

const rolling = `
	at {0.3} for {0.08}, node 1: kill
	at {0.5} for {0.08}, node 2: kill
	at {0.7} for {0.08}, node 3: kill
	at {0.9} for {0.08}, node 4: kill
	at {1.1} for {0.08}, node 5: kill`

// inTheMiddle lets the strike hit one operation of a holder whom somebody besieges.
func inTheMiddle(w *World, m moment, strike string) error {
	a, b, err := w.pair()
	if err != nil {
		return err
	}
	if err := a.warmUp(); err != nil {
		return err
	}
	var struck *faultinject.Injection
	inject := func(at moment) (err error) {
		if at == m {
			struck, err = w.Inject(strike)
		}
		return err
	}
	if err := inject(acquiring); err != nil {
		return err
	}
	h, err := a.get()
	if err != nil {
		return err
	}
	lift := b.besiege()
	defer lift()
	h.Act()
	w.Sleep(w.TTL * 2 / 5)
	if m == extending {
		if err := inject(extending); err != nil {
			return err
		}
		if err := h.insist(); err != nil {
			return fmt.Errorf("a majority has extended the lease, but: %w", err)
		}
		w.Sleep(w.TTL * 7 / 10) // past the first end
	}
	if !h.Act() {
		return fmt.Errorf("the lease stands, but: %w", h.Err())
	}
	if err := lift(); err != nil {
		return err
	}
	if err := inject(unlocking); err != nil {
		return err
	}
	if err := errors.Join(h.letGo(), b.findsFree()); err != nil {
		return err
	}
	if n := struck.Fired(); n != 2 && w.exact() {
		return fmt.Errorf("two nodes were to be struck, not %d", n)
	}
	return nil
}

// keepThrough holds and extends a besieged lock while the plan strikes.
func keepThrough(w *World) error {
	a, b, err := w.pair()
	if err != nil {
		return err
	}
	h, err := a.get()
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
