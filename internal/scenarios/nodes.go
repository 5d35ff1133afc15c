package scenarios

import (
	"fmt"
	"time"
)

func init() {
	register(Scenario{
		Name: "killed-after-set",
		Story: "A node dies when it has executed the SET and not answered. Two of three have: the lock is held. " +
			"The node comes back with the vote that nobody heard of, and unlocking cleans it too.",
		Nodes: 3,
		Plan:  `on SET #1, node 3: kill during for {0.1}`,
		Play:  lockAround,
	}, Scenario{
		Name: "killed-before-set",
		Story: "A node dies when the SET has arrived and is not executed. Two of three have: the lock is held. " +
			"The node comes back without a vote, and takes part in what follows.",
		Nodes: 3,
		Plan:  `on SET #1, node 3: kill before for {0.1}`,
		Play:  lockAround,
	})
}

// lockAround locks while the plan strikes, unlocks when the nodes are back, and
// demands that another client finds the lock free then.
func lockAround(w *World) error {
	actors, err := w.Actors("a", "b")
	if err != nil {
		return err
	}
	h, err := actors[0].Lock("orders", w.TTL, w.TTL)
	if err != nil {
		return fmt.Errorf("a majority was there, but: %w", err)
	}
	w.Sleep(w.TTL / 5)
	h.Act()
	if err := h.Unlock(); err != nil {
		return fmt.Errorf("a majority confirmed the unlock, but: %w", err)
	}
	g, err := actors[1].Lock("orders", w.TTL, w.TTL/2+time.Second)
	if err != nil {
		return fmt.Errorf("the lock is free, but: %w", err)
	}
	return g.Unlock()
}
