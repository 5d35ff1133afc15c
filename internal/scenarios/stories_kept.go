package scenarios

import (
	"errors"
	"fmt"
	"time"
)

// The stories of this file are about locks that renew themselves, and about nodes
// that lose them meanwhile.

func init() { // the holder cannot renew
	for _, s := range []stroke{
		{"partitioned", "keeps what it sends, and lets it arrive later", "partition"},
		{"hung", "falls silent, with all its connections", "hang"},
		{"deaf", "brings its renewals, and no answer", "partition replies"},
		{"slow", "takes longer than anybody waits for an answer", "delay {0.2}"},
	} {
		register(Scenario{
			Name: "watchdog-" + s.name,
			Story: "The line between the holder of a lock that renews itself and a majority " + s.story +
				". The holder hears in time, before the one who waits can get the lock, and what arrives late harms nobody.",
			Nodes: 5,
			Plan:  "at {0.5} for {1.7}, nodes 1-3 from a: " + s.fault,
			Cued:  true,
			Play:  cannotRenew,
		})
	}
	register(Scenario{
		Name: "watchdog-starved",
		Story: "Nothing of the holder of a lock that renews itself arrives for longer than the ttl, and then all of it. " +
			"Somebody else holds the lock by then, and nothing comes back to life.",
		Nodes: 3,
		Plan:  "at {0.5} for {1.4}, all from a: partition",
		Cued:  true,
		Play:  cannotRenew,
	}, Scenario{
		Name: "watchdog-crashed",
		Story: "The client with a lock that renews itself is gone from one moment to the next. Who waits gets the lock " +
			"when its keys have ended, and not later.",
		Nodes: 3,
		Plan:  "at {0.5} for {2}, all from a: hang",
		Cued:  true,
		Play:  takeOver,
	})
}

func init() { // nodes forget
	register(Scenario{
		Name: "amnesia-one-by-one",
		Story: "One node after the other restarts without its data, two renewals apart, while somebody asks for the lock " +
			"all the time. Each is given it back before the next one forgets: the lease goes on.",
		Nodes: 3,
		Plan: `
			at {0.2}, node 1: restart empty
			at {1.0}, node 2: restart empty
			at {1.8}, node 3: restart empty`,
		Cued: true,
		Play: watchThrough(2.6),
	}, Scenario{
		Name: "amnesia-of-a-majority",
		Story: "A majority forgets a lock that renews itself. Its holder hears at the next renewal; what remains of the " +
			"lock is not given back to those who have forgotten it.",
		Nodes: 3,
		Plan:  `at {0.5}, nodes 1,2: evict "orders"`,
		Cued:  true,
		Play:  forgottenByMost(0.5),
	}, Scenario{
		Name: "amnesia-unheard",
		Story: "A majority forgets a lock that renews itself, and only one of these nodes can say so. The lease ends when " +
			"its time is over, since no renewal may bring back what so many have lost.",
		Nodes: 3,
		Plan: `
			at {0.5}, nodes 1,2: evict "orders"
			at {0.5} for {1.5}, node 2 from a: hang`,
		Cued: true,
		Play: forgottenByMost(1),
	}, Scenario{
		Name: "watchdog-flapping-node",
		Story: "A node comes and goes all the time under a lock that renews itself. The lease goes on without it, and " +
			"with it.",
		Nodes:    3,
		Embedded: true, // servers without persistence forget, and need a while to come up
		Plan:     flappingNode(),
		Cued:     true,
		Play:     watchThrough(2.4),
	}, Scenario{
		Name: "node-silent-and-back",
		Story: "A node is silent for so long that nobody asks it any more. The others are enough; when it is back, it " +
			"votes again at once.",
		Nodes: 3,
		Plan:  `at 0s for {2.4}, node 3: hang`,
		Play:  silentAndBack,
	})
}

func init() { // what crosses an unlock
	register(Scenario{
		Name: "unlock-during-extension",
		Story: "A lock is released while its extension is still on the way, which arrives after that and must leave " +
			"nothing.",
		Nodes: 3,
		RTT:   4 * time.Millisecond, // without any, a lane has one connection, on which nothing overtakes
		Play:  unlockDuring(`on EVALSHA key "orders" #1, nodes 1,2 from a: delay {0.2}`),
	}, Scenario{
		Name: "unlock-before-repair",
		Story: "A node that has forgotten the lock says so when it is asked for an extension, and the lock is being " +
			"released by then: it must not be given back.",
		Nodes: 3,
		RTT:   4 * time.Millisecond,
		Play:  unlockDuring(`on EVALSHA key "orders" #1, node 3 from a: delay {0.03} replies`),
	}, Scenario{
		Name: "unlock-during-repair",
		Story: "A node has forgotten the lock and is given it back at an extension. The lock is released while that is " +
			"still on the way, which arrives after that and must leave nothing.",
		Nodes: 3,
		RTT:   4 * time.Millisecond,
		Play:  unlockDuring(`on SET key "orders" #1, node 3 from a: delay {0.03}`),
	}, Scenario{
		Name: "late-repair",
		Story: "Two of five nodes are given back the lock that they have forgotten, and that arrives when somebody else " +
			"has the lock, who cannot do without them and must not lose it.",
		Nodes: 5,
		Play:  repairLate,
	})
}

func init() { // handing over
	register(Scenario{
		Name: "handed-over",
		Story: "A holder hands its lock over to another client while a third one waits for it, who gets it after that one " +
			"and not in between. The first one's late unlock hits nobody.",
		Nodes: 3,
		Play:  handedOver,
	}, Scenario{
		Name: "attached-twice",
		Story: "Two clients are handed the same lock at once. Not both have it, and it cannot be had again with the same " +
			"token.",
		Nodes: 5,
		Play:  attachedTwice,
	}, Scenario{
		Name: "message-lost",
		Story: "The nodes do not tell the one who waits that the lock was released. It gets the lock all the same, a " +
			"moment later.",
		Nodes: 3,
		Play:  messageLost,
	})
}

func flappingNode() (plan string) {
	for i := range 11 {
		plan += fmt.Sprintf("at {%.1f} for {0.1}, node 2: kill\n", float64(i+1)*0.2)
	}
	return plan
}

// keeps makes two clients, of whom the first has a lock that renews itself, and lets
// the plan start.
func (w *World) keeps() (h *Held, b *Actor, err error) {
	a, b, err := w.pair()
	if err != nil {
		return nil, nil, err
	}
	if err := errors.Join(a.warmUp(), b.warmUp()); err != nil {
		return nil, nil, err
	}
	if h, err = a.Keep(orders, w.TTL); err != nil {
		return nil, nil, err
	}
	return h, b, w.start()
}

// cannotRenew lets the plan cut off the holder, and demands that another one gets
// the lock and keeps it. That the first one has heard before is for Exclusive to say.
func cannotRenew(w *World) error {
	h, b, err := w.keeps()
	if err != nil {
		return err
	}
	next := b.await(4 * w.TTL)
	g, err := next.during(h)
	if err != nil {
		return fmt.Errorf("client b: the holder cannot renew, but: %w", err)
	}
	if h.Err() == nil {
		return errors.New("client b has the lock, and the holder has not heard")
	}
	for range 20 { // all arrives
		if !g.Act() {
			return fmt.Errorf("client b: the lease stands, but: %w", g.Err())
		}
		if h.Err() == nil {
			return errors.New("the first lease came back to life")
		}
		w.Sleep(w.TTL / 25)
	}
	h.Unlock() // hits nobody
	w.Sleep(w.TTL / 20)
	if !g.Act() {
		return fmt.Errorf("client b: the lease stands, but: %w", g.Err())
	}
	return errors.Join(g.letGo(), w.clean())
}

func takeOver(w *World) error {
	h, b, err := w.keeps()
	if err != nil {
		return err
	}
	w.Sleep(w.TTL / 2)
	gone := time.Now() // a renewal can have been sent just now, so its keys live for a ttl
	seen := make(chan error, 1)
	go func() { seen <- h.Mourn(gone.Add(w.TTL + w.patience())) }()
	g, err := b.Wait(orders, w.TTL, 3*w.TTL)
	if err != nil {
		return fmt.Errorf("client b: the holder is gone, but: %w", err)
	}
	if took := time.Since(gone); w.exact() && took > w.TTL+w.TTL/50 {
		return fmt.Errorf("client b had to wait for %v", took)
	}
	g.Act()
	if err := <-seen; err != nil {
		return err
	}
	w.Sleep(w.TTL / 5)
	return errors.Join(g.letGo(), w.clean())
}

// watchThrough holds a besieged lock that renews itself while the plan strikes.
func watchThrough(ttls float64) func(*World) error {
	return func(w *World) error {
		h, b, err := w.keeps()
		if err != nil {
			return err
		}
		lift := b.besiege()
		defer lift()
		if err := h.Watch(w.ttls(ttls)); err != nil {
			return err
		}
		if err := lift(); err != nil {
			return err
		}
		return errors.Join(h.letGo(), b.findsFree())
	}
}

// forgottenByMost demands that the lease is over so long after a majority forgot it.
func forgottenByMost(ttls float64) func(*World) error {
	return func(w *World) error {
		h, b, err := w.keeps()
		if err != nil {
			return err
		}
		forget := time.Now().Add(w.TTL / 2)
		if err := h.Mourn(forget.Add(w.ttls(ttls) + w.TTL/10)); err != nil {
			return err
		}
		for time.Now().Before(forget.Add(w.TTL * 6 / 5)) { // longer than it could have lived
			if again := w.Cluster.Node(1).Get(orders); again == h.Token() {
				return errors.New("node 1 was given back a lock that a majority has forgotten")
			}
			w.Sleep(w.TTL / 50)
		}
		if h.Err() == nil {
			return errors.New("the lease came back to life")
		}
		h.Unlock()
		g, err := b.get()
		if err != nil {
			return err
		}
		return errors.Join(g.letGo(), w.clean())
	}
}

func silentAndBack(w *World) error {
	a, b, err := w.pair()
	if err != nil {
		return err
	}
	work([]*Actor{a, b}, w.TTL*5/2)
	h, err := a.getAll(w.TTL)
	if err != nil {
		return err
	}
	if !h.everywhere() {
		return errors.New("node 3 is back, and not asked")
	}
	return errors.Join(h.letGo(), b.findsFree())
}

// unlockDuring unlocks while what follows an extension is late by the lines.
func unlockDuring(lines string) func(*World) error {
	return func(w *World) error {
		h, b, err := w.forgottenBy("node 3")
		if err != nil {
			return err
		}
		if _, err := w.Inject(lines); err != nil {
			return err
		}
		extended := make(chan struct{})
		go func() { h.Extend(w.TTL); close(extended) }()
		w.Sleep(w.TTL / 50)
		h.Unlock()
		<-extended
		w.Sleep(w.TTL / 4)
		return b.findsFree()
	}
}

// forgottenBy makes two clients, of whom the first has a lock that a minority has
// forgotten.
func (w *World) forgottenBy(nodes string) (h *Held, b *Actor, err error) {
	a, b, err := w.pair()
	if err != nil {
		return nil, nil, err
	}
	if err := errors.Join(a.warmUp(), b.warmUp()); err != nil {
		return nil, nil, err
	}
	if h, err = a.getAll(w.TTL); err != nil {
		return nil, nil, err
	}
	_, err = w.Inject("at 0s, " + nodes + `: evict "orders"`)
	return h, b, err
}

func repairLate(w *World) error {
	h, b, err := w.forgottenBy("nodes 4,5")
	if err != nil {
		return err
	}
	if _, err := w.Inject(`
		on SET key "orders" #1, nodes 4,5 from a: delay {0.5}
		at 0s for {0.8}, node 1 from b: hang`); err != nil {
		return err
	}
	if err := h.insist(); err != nil {
		return fmt.Errorf("a majority has extended the lease, but: %w", err)
	}
	w.Sleep(w.TTL / 50)
	h.Unlock()
	g, err := b.get()
	if err != nil {
		return err
	}
	for range 15 { // it arrives
		if !g.Act() {
			return fmt.Errorf("client b: the lease stands, but: %w", g.Err())
		}
		w.Sleep(w.TTL / 25)
	}
	if err := g.insist(); err != nil {
		return fmt.Errorf("client b: the lease stands, but: %w", err)
	}
	w.Sleep(w.TTL / 5) // node 1 can be reached again
	return errors.Join(g.letGo(), w.clean())
}

func handedOver(w *World) error {
	actors, err := w.Actors("a", "b", "c")
	if err != nil {
		return err
	}
	a, b, c := actors[0], actors[1], actors[2]
	if err := errors.Join(a.warmUp(), b.warmUp(), c.warmUp()); err != nil {
		return err
	}
	h, err := a.getAll(w.TTL)
	if err != nil {
		return err
	}
	h.Act()
	lift := c.besiege()
	defer lift()
	w.Sleep(w.TTL / 10)
	token, err := h.HandOver()
	if err != nil {
		return err
	}
	w.Sleep(w.TTL / 10) // it is nobody's, and free to nobody
	g, err := b.Attach(orders, token, w.TTL)
	if err != nil {
		return fmt.Errorf("client b was handed the lock, but: %w", err)
	}
	g.Act()
	if h.Lease.Unlock(w.ctx) == nil {
		return errors.New("who has handed the lock over has released it")
	}
	if err := g.keep(w.TTL / 5); err != nil {
		return err
	}
	if err := lift(); err != nil {
		return err
	}
	return errors.Join(g.letGo(), c.findsFree())
}

func attachedTwice(w *World) error {
	actors, err := w.Actors("a", "b", "c")
	if err != nil {
		return err
	}
	a, heirs := actors[0], actors[1:]
	for i, x := range actors { // each of the heirs is nearer to other nodes
		for n := range w.Cluster.Nodes() {
			far := w.TTL / 1000 * time.Duration((n+2*i)%5)
			w.Cluster.Client(x.Name).SetLine(n+1, far, far)
		}
		if err := x.warmUp(); err != nil {
			return err
		}
	}
	for range 5 {
		h, err := a.getAll(w.TTL / 2)
		if err != nil {
			return err
		}
		token, err := h.HandOver()
		if err != nil {
			return err
		}
		got := make([]*Held, len(heirs))
		attach := func(i int) func() error {
			return func() (err error) {
				if got[i], err = heirs[i].Attach(orders, token, w.TTL/2); err == nil {
					got[i].Act()
				}
				return nil // Exclusive knows whether both have it
			}
		}
		together(attach(0), attach(1))
		w.Sleep(w.TTL / 50)
		for i, g := range got {
			if g == nil {
				continue
			}
			if _, err := heirs[1-i].Attach(orders, token, w.TTL/2); err == nil {
				return errors.New("a lock was attached a second time")
			}
			g.Act()
			if err := g.letGo(); err != nil {
				return err
			}
		}
		if _, err := a.Attach(orders, token, w.TTL/2); err == nil && (got[0] != nil || got[1] != nil) {
			return errors.New("a lock was attached again after its release")
		}
	}
	return a.findsFree()
}

func messageLost(w *World) error {
	a, b, err := w.pair()
	if err != nil {
		return err
	}
	if err := errors.Join(a.warmUp(), b.warmUp()); err != nil {
		return err
	}
	h, err := a.get()
	if err != nil {
		return err
	}
	var g *Held
	return together(func() error {
		w.Sleep(w.TTL / 4)
		if _, err := w.Inject(`at 0s for {0.5}, all: lose messages`); err != nil {
			return err
		}
		h.Act()
		return h.letGo()
	}, func() (err error) {
		begin := time.Now()
		if g, err = b.Wait(orders, w.TTL, 4*w.TTL); err != nil {
			return fmt.Errorf("client b: the lock is free, but: %w", err)
		}
		if took := time.Since(begin) - w.TTL/4; w.exact() && took > time.Second+w.TTL/50 {
			return fmt.Errorf("client b has heard nothing and waited for %v", took)
		}
		g.Act()
		return errors.Join(g.letGo(), w.clean())
	})
}
