package scenarios

import (
	"errors"
	"fmt"
	"time"
)

// A majority fails. Nobody can get the lock then, whoever holds it has to stop in
// time, and when the majority is back it goes on.

func init() {
	for _, s := range []stroke{
		{"killed", "dies", "kill"},
		{"frozen", "stands still", "freeze"},
		{"partitioned", "is cut off by a partition that keeps everything until it heals", "partition"},
		{"hung", "falls silent, and all connections to it with it", "hang"},
	} {
		register(Scenario{
			Name: "majority-" + s.name + "-under-a-lease",
			Story: "A majority " + s.story + ", for longer than the lease can live. " +
				"The holder cannot extend and stops in time; when the majority is back, another one gets the lock.",
			Nodes: 5,
			Plan:  "at {0.5} for {1.3}, nodes 1-3: " + s.fault,
			Play:  loseMajority,
		}, Scenario{
			Name: "majority-" + s.name + "-in-a-wait",
			Story: "A majority " + s.story + " while one holds the lock and another waits for it. " +
				"The holder's unlock does not reach it; when it is back, the one who waits gets the lock.",
			Nodes: 5,
			Plan:  "at {0.2} for {0.5}, nodes 1-3: " + s.fault,
			Play:  waitForMajority,
		})
	}
	for _, s := range []struct {
		stroke
		embedded bool
	}{
		{stroke{"restarts-empty", "restarts without its data", "restart empty"}, false},
		{stroke{"is-flushed", "is emptied by hand", "flushall"}, false},
		{stroke{"sets-its-clocks", "has its clocks set forward by more than the ttl", "clock +{3.1}"}, true},
	} {
		register(Scenario{
			Name: "majority-" + s.name,
			Story: "A majority " + s.story + " under a lease and grants the lock again. " +
				"The holder hears of it at the next extension.",
			Nodes:      3,
			Embedded:   s.embedded,
			Plan:       "at {0.3}, nodes 1,2: " + s.fault,
			Play:       forgetful,
			TwoHolders: "a majority of the nodes forgets its votes within a ttl",
		})
	}
}

func loseMajority(w *World) error {
	a, b, err := w.pair()
	if err != nil {
		return err
	}
	h, err := a.get()
	if err != nil {
		return err
	}
	next := b.await(4 * w.TTL)
	for extended := time.Now(); h.Act(); w.Sleep(w.TTL / 50) {
		if time.Since(extended) > w.TTL/5 {
			extended = time.Now()
			h.Extend(w.TTL) // fails in the end; the lease says until when it stands
		}
		if time.Since(w.Cluster.History().Start()) > 3*w.TTL {
			return errors.New("the lease outlives its majority")
		}
	}
	g, err := next.get()
	if err != nil {
		return fmt.Errorf("client b: the majority is back, but: %w", err)
	}
	g.Act()
	h.Unlock() // hits nobody
	w.Sleep(w.TTL / 10)
	if !g.Act() {
		return fmt.Errorf("the lease of the next holder stands, but: %w", g.Err())
	}
	return errors.Join(g.letGo(), w.clean())
}

func waitForMajority(w *World) error {
	a, b, err := w.pair()
	if err != nil {
		return err
	}
	h, err := a.get()
	if err != nil {
		return err
	}
	next := b.await(4 * w.TTL)
	w.Sleep(w.TTL / 4)
	h.Act()
	h.Unlock() // cannot be confirmed
	g, err := next.get()
	if err != nil {
		return fmt.Errorf("client b: the majority is back, but: %w", err)
	}
	g.Act()
	return errors.Join(g.letGo(), w.clean())
}

// forgetful shows two holders, and that the first one learns of it.
func forgetful(w *World) error {
	a, b, err := w.pair()
	if err != nil {
		return err
	}
	h, err := a.Lock(orders, 3*w.TTL, w.patience()) // longer than it takes to start a server
	if err != nil {
		return err
	}
	g, err := b.Lock(orders, w.TTL, 5*w.TTL/2)
	if err != nil {
		return fmt.Errorf("a majority has forgotten the lock, but: %w", err)
	}
	w.Sleep(w.TTL / 50)
	g.Act()
	h.Act()
	if err := h.insist(); err == nil {
		return errors.New("a lease was extended that a majority has forgotten")
	}
	if h.Act() {
		return errors.New("the first holder does not know that its lease is lost")
	}
	h.Unlock()
	return errors.Join(g.letGo(), w.clean())
}
