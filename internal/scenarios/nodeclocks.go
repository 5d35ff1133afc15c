package scenarios

import (
	"errors"
	"fmt"
	"time"
)

// Keys end by the nodes' clocks, and leases by the client's.

func init() {
	register(Scenario{
		Name: "clocks-step-forward",
		Story: "The clocks of two of five nodes are set forward by more than the ttl: the key is gone there. " +
			"The lease lives on the other three.",
		Nodes:    5,
		Embedded: true,
		Plan:     `at {0.3}, nodes 2,4: clock +{1.5}`,
		Play:     keepThrough,
	}, Scenario{
		Name: "clocks-step-back",
		Story: "The clocks of two of five nodes are set back, so that a key lives longer there. When its holder " +
			"does not come back, nobody is kept out by that.",
		Nodes:    5,
		Embedded: true,
		Plan:     `at {0.3}, nodes 2,4: clock -{1}`,
		Play:     toTheEnd,
	}, Scenario{
		Name: "clocks-run-fast",
		Story: "All clocks run as fast as the drift margin covers, and answers come late. A holder that stays to " +
			"the end has stopped when the first one can get in.",
		Nodes:    3,
		Embedded: true,
		Plan:     `at 0s, all: rate 1.0085`,
		Play:     toTheEnd,
	}, Scenario{
		Name: "clocks-run-slow",
		Story: "All clocks run slower, by as much as the drift margin covers. The lock of a holder that does not " +
			"come back is free soon after its end.",
		Nodes:    3,
		Embedded: true,
		Plan:     `at 0s, all: rate 0.9915`,
		Play:     toTheEnd,
	})
}

// toTheEnd holds a lock to its end, and acts for as long as the lease allows, while
// another client asks for it all the time.
func toTheEnd(w *World) error {
	a, b, err := w.pair()
	if err != nil {
		return err
	}
	for _, n := range w.Cluster.Nodes() {
		w.Cluster.Client("a").SetLine(n.Number(), 0, w.TTL/40)
	}
	h, err := a.get()
	if err != nil {
		return err
	}
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for h.Act() {
			w.Sleep(w.TTL / 50)
		}
	}()
	defer func() { <-stopped }()
	w.Sleep(time.Until(h.Until()) - w.TTL/20)
	for begin := time.Now(); ; w.Sleep(w.TTL / 2000) {
		g, err := b.TryLock(orders, w.TTL)
		if err == nil {
			g.Act()
			w.Sleep(w.TTL / 100)
			return errors.Join(g.letGo(), w.clean())
		}
		if time.Since(begin) > w.TTL/2 {
			return fmt.Errorf("the lease has ended, but: %w", err)
		}
	}
}
