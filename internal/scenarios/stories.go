package scenarios

import (
	"fmt"
	"time"
)

// The stories of this file are those in which the servers do nothing wrong: what
// goes wrong is what clients send, when, and what they believe.
func init() {
	register(Scenario{
		Name: "crash-between-setnx-and-expire",
		Story: "A client dies when its first command about the lock was answered. What it has written " +
			"by then has to end by itself, or nobody gets the lock any more.",
		Nodes: 3,
		Plan:  `for {0.3} on any key "orders" #2-, all from a: cut before`,
		Play:  diesAfterFirstCommand,
	}, Scenario{
		Name: "getset-time-stamp",
		Story: "A client whose clock is ahead of the holder's asks for the lock. If the lock's end is " +
			"a time of day that clients write and compare, it is over for this one alone, who takes " +
			"it.",
		Nodes: 3,
		Play:  asksWhileHeld,
	}, Scenario{
		Name: "getset-by-two",
		Story: "A holder never comes back, and two clients find its lock expired at the same time. The " +
			"one that loses must not leave anything in place of what the winner has written.",
		Nodes: 3,
		RTT:   2 * time.Millisecond,
		Play:  bothFindItExpired,
	}, Scenario{
		Name: "get-then-del",
		Story: "A holder unlocks in time, and hears of it when the lock has been over for a while and " +
			"is somebody else's. It must not delete anything then.",
		Nodes: 3,
		Plan:  `at 0s for {0.15}, all from a: delay {0.3} replies`,
		Cued:  true,
		Play:  othersWaitWhileUnlocked(0.8),
	}, Scenario{
		Name: "constant-value",
		Story: "A holder unlocks when its time is over and somebody else has the lock, which must be " +
			"told from its own.",
		Nodes: 3,
		Play:  othersWaitWhileUnlocked(1.2),
	}, Scenario{
		Name: "release-sent-twice",
		Story: "The connection breaks when the release was executed and not answered. It is sent " +
			"again, and comes when somebody else has the lock.",
		Nodes: 3,
		Plan:  `for {0.4} on any key "orders" #1, all from a: cut during`,
		Cued:  true,
		Play:  othersWaitWhileUnlocked(0.3),
	}, Scenario{
		Name: "late-release",
		Story: "A release is under way for so long that its client has the lock again when it arrives. " +
			"It was meant for the attempt before and must not end this one.",
		Nodes: 3,
		Plan:  `at 0s for {0.15}, all from a: delay {0.5} requests`,
		Cued:  true,
		Play:  takesItAgain,
	}, Scenario{
		Name: "slow-answer",
		Story: "The answer to a client that asks for the lock takes half of the ttl. It is that much " +
			"less for which the lock is held, if at all.",
		Nodes: 3,
		Plan:  `at 0s for {0.3}, all from a: delay {0.5} replies`,
		Cued:  true,
		Play:  hearsLate,
	}, Scenario{
		Name: "work-outlives-ttl",
		Story: "The holder's work takes longer than the ttl. It looks at its lock at every step and " +
			"has to stop in time.",
		Nodes: 3,
		Play:  worksForTooLong,
	}, Scenario{
		Name: "holder-pauses",
		Story: "The holder looks at its lock, is paused for longer than the ttl, and acts on what it " +
			"saw. Somebody else holds the lock by then, who has it for itself as far as locks go.",
		Nodes: 3,
		Play:  pausesBeforeItActs,
		Residue: "no lock with a time limit can stop a holder between its look and its act; a resource " +
			"that compares fencing tokens refuses what it does",
	}, Scenario{
		Name: "renewal-starved",
		Story: "A holder renews its lock at every third of the ttl, until its renewals starve for " +
			"longer than the ttl. Somebody else has the lock when they go on, which must bring " +
			"nothing back to life.",
		Nodes: 3,
		Play:  renewsTooLate,
	})
}

// turn waits for the lock, holds it for a while, acting and looking all the time,
// and unlocks it. What the unlock returns may be a timeout on a slow machine; whoever
// waits next tells whether it was one.
func (a *Actor) turn(within, hold time.Duration) error {
	h, err := a.Lock(orders, a.TTL, within)
	if err != nil {
		return fmt.Errorf("client %s did not get the lock within %v: %w", a.Name, within, err)
	}
	h.work(hold)
	h.Unlock()
	return nil
}

// work acts again and again, as long as the lock allows it.
func (h *Held) work(d time.Duration) {
	begin := time.Now()
	for passed := time.Duration(0); h.Act() && passed < d; {
		passed = min(passed+h.actor.TTL/10, d)
		h.actor.Sleep(time.Until(begin.Add(passed)))
	}
}

// first makes actors, of whom the first one holds the lock. Time counts from then.
func (w *World) first(names ...string) (*Held, []*Actor, error) {
	actors, err := w.Actors(names...)
	if err != nil {
		return nil, nil, err
	}
	h, err := actors[0].Lock(orders, w.TTL, w.TTL)
	if err != nil {
		return nil, nil, fmt.Errorf("nobody else wants the lock yet, but: %w", err)
	}
	w.began = time.Now()
	return h, actors, nil
}

func diesAfterFirstCommand(w *World) error {
	actors, err := w.Actors("a", "b")
	if err != nil {
		return err
	}
	if h, err := actors[0].TryLock(orders, w.TTL); err == nil {
		h.Extend(w.TTL) // does not arrive, as nothing of a does any more
	}
	return actors[1].turn(w.ttls(2.5), w.ttls(0.1))
}

func asksWhileHeld(w *World) error {
	h, actors, err := w.first("a", "b")
	if err != nil {
		return err
	}
	return together(func() error {
		h.work(w.ttls(0.6))
		h.Unlock()
		return nil
	}, func() error {
		w.At(0.3)
		return actors[1].turn(w.ttls(2), w.ttls(0.1))
	})
}

func bothFindItExpired(w *World) error {
	_, actors, err := w.first("a", "b", "c")
	if err != nil {
		return err
	}
	w.At(1.1)
	return together(func() error {
		return actors[1].turn(w.ttls(0.8), w.ttls(0.1))
	}, func() error {
		return actors[2].turn(w.ttls(0.8), w.ttls(0.1))
	})
}

// othersWaitWhileUnlocked tells of two clients that wait while the holder unlocks,
// at a time in ttls. Each of them has it for half a ttl, one after the other.
func othersWaitWhileUnlocked(at float64) func(*World) error {
	return func(w *World) error {
		h, actors, err := w.first("a", "b", "c")
		if err != nil {
			return err
		}
		return together(func() error {
			w.At(at)
			if err := w.start(); err != nil { // if there is a plan
				return err
			}
			h.Unlock()
			return nil
		}, func() error {
			return actors[1].turn(w.ttls(2), w.ttls(0.5))
		}, func() error {
			return actors[2].turn(w.ttls(2), w.ttls(0.5))
		})
	}
}

func takesItAgain(w *World) error {
	h, actors, err := w.first("a", "b")
	if err != nil {
		return err
	}
	return together(func() error {
		w.At(0.7)
		if err := w.start(); err != nil {
			return err
		}
		h.Unlock()
		return actors[0].turn(w.ttls(2), w.ttls(0.5))
	}, func() error {
		w.At(1.1)
		return actors[1].turn(w.ttls(2), w.ttls(0.1))
	})
}

func hearsLate(w *World) error {
	h, actors, err := w.first("a", "b") // a is connected from here on
	if err != nil {
		return err
	}
	h.Unlock()
	return together(func() error {
		w.At(0.2)
		if err := w.start(); err != nil {
			return err
		}
		h, err := actors[0].TryLock(orders, w.TTL)
		if err == nil {
			h.work(w.TTL)
			h.Unlock()
		}
		return nil
	}, func() error {
		w.At(0.3)
		return actors[1].turn(w.ttls(2), w.ttls(0.2))
	})
}

func worksForTooLong(w *World) error {
	h, actors, err := w.first("a", "b")
	if err != nil {
		return err
	}
	return together(func() error {
		h.work(w.ttls(1.5))
		h.Unlock()
		return nil
	}, func() error {
		w.At(0.2)
		return actors[1].turn(w.ttls(2), w.ttls(0.3))
	})
}

func pausesBeforeItActs(w *World) error {
	h, actors, err := w.first("a", "b")
	if err != nil {
		return err
	}
	return together(func() error {
		if err := h.Err(); err != nil {
			return fmt.Errorf("the lock was just taken, but: %w", err)
		}
		w.At(1.3)
		h.ActBlindly()
		h.work(w.ttls(0.1)) // this time with a look
		h.Unlock()
		return nil
	}, func() error {
		w.At(0.2)
		return actors[1].turn(w.ttls(2), w.ttls(0.5))
	})
}

// renew extends, and tries again as long as there is something to extend.
func (h *Held) renew() error {
	for {
		err := h.Extend(h.actor.TTL)
		if err == nil || h.Err() != nil {
			return err
		}
		h.actor.Sleep(h.actor.TTL / 100)
	}
}

func renewsTooLate(w *World) error {
	h, actors, err := w.first("a", "b")
	if err != nil {
		return err
	}
	return together(func() error {
		for _, at := range []float64{1. / 3, 2. / 3} {
			w.At(at)
			if err := h.renew(); err != nil {
				return fmt.Errorf("the time to renew it had come, but: %w", err)
			}
			h.Act()
		}
		for _, at := range []float64{2, 2.4} { // while b holds it, and when it is free
			w.At(at)
			h.Extend(w.TTL)
			h.Act()
		}
		h.Unlock()
		return nil
	}, func() error {
		w.At(1)
		return actors[1].turn(w.ttls(2), w.ttls(0.6))
	})
}
