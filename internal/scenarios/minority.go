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
	{"killed", "die when they have executed the command and not answered, and come back with their data",
		"kill during for {0.3}"},
	{"hung", "stand still as the command arrives, and go on later where they stopped", "freeze for {0.3}"},
	{"slow", "take longer for the command than anybody waits for them", "delay {0.1}"},
	{"restarted-empty", "restart without their data as the command arrives", "restart empty"},
}

// moment is an operation, and the command that carries it.
type moment struct{ name, story, command string }

const two = "Two of five nodes %s, while "

var (
	acquiring = moment{"acquire", two + "a client takes the lock: the other three have granted it.", "SET"}
	extending = moment{"extend", two + "a holder extends: the other three have granted it.", "EVALSHA"}
	unlocking = moment{"unlock", two + "a holder unlocks: the lock is free at once, and clean soon.", "EVALSHA"}
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
}

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
	take := func() (*Held, error) { return a.getAll(w.TTL) }
	if m == acquiring {
		take = a.get
	}
	h, err := take()
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
