package scenarios

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// What stories about nodes and the network have in common.

const orders = "orders" // what the locks of stories protect

// pair makes the two clients of most stories.
func (w *World) pair() (a, b *Actor, err error) {
	actors, err := w.Actors("a", "b")
	if err != nil {
		return nil, nil, err
	}
	return actors[0], actors[1], nil
}

// patience is how long it may take to get a lock that is free: hardly anything, but
// for a machine that has other things to do.
func (w *World) patience() time.Duration {
	if w.exact() {
		return w.TTL / 4
	}
	return 3 * w.TTL
}

// warmUp lets a client connect to all nodes and teach them its scripts, so that
// faults can be bound to the very command that they are about.
func (a *Actor) warmUp() error {
	h, err := a.Lock("warm-up", a.TTL, a.patience())
	if err != nil {
		return err
	}
	a.Sleep(a.TTL / 20) // for those who answer after the majority
	if err := h.insist(); err != nil {
		return err
	}
	a.Sleep(a.TTL / 20)
	h.Unlock()
	a.Sleep(a.TTL / 20)
	return nil
}

// get takes the lock while a majority is there.
func (a *Actor) get() (*Held, error) {
	h, err := a.Lock(orders, a.TTL, a.patience())
	if err != nil {
		return nil, fmt.Errorf("client %s: a majority is there, but: %w", a.Name, err)
	}
	return h, nil
}

// getAll takes the lock from every node that is up: with a majority alone it could
// not do without any of them later. On a busy machine that may take a few attempts.
func (a *Actor) getAll(ttl time.Duration) (*Held, error) {
	for end := time.Now().Add(a.patience()); ; {
		h, err := a.Lock(orders, ttl, a.patience())
		if err != nil {
			return nil, fmt.Errorf("client %s: a majority is there, but: %w", a.Name, err)
		}
		a.Sleep(a.TTL / 25)
		everywhere := true
		for _, n := range a.Cluster.Nodes() {
			everywhere = everywhere && (!n.Up() || n.Get(orders) == h.Token())
		}
		if everywhere || time.Now().After(end) {
			return h, nil
		}
		h.Unlock()
	}
}

// insist extends a lock, again if that has failed and the lease stands.
func (h *Held) insist() error {
	for {
		err := h.Extend(h.actor.TTL)
		if err == nil || h.Err() != nil || h.actor.exact() {
			return err
		}
		h.actor.Sleep(h.actor.TTL / 50)
	}
}

// keep holds a lock for d with extensions, which may fail for as long as the lease
// stands.
func (h *Held) keep(d time.Duration) error {
	for end := time.Now().Add(d); time.Now().Before(end); {
		err := h.Extend(h.actor.TTL)
		for range 5 {
			if !h.Act() {
				return fmt.Errorf("the lease is over, its extension: %w", errors.Join(h.Err(), err))
			}
			h.actor.Sleep(h.actor.TTL / 25)
		}
	}
	return nil
}

// letGo unlocks while a majority is there.
func (h *Held) letGo() error {
	if err := h.Unlock(); err != nil && h.actor.exact() {
		return fmt.Errorf("client %s: a majority has confirmed the unlock, but: %w", h.actor.Name, err)
	}
	return nil
}

// besiege lets a client try all the time to get a lock that others hold. Lifting
// the siege tells whether it ever got in. It begins a moment later: the votes that
// a holder did not have to wait for are not for the besieger to catch.
func (a *Actor) besiege() (lift func() error) {
	ctx, cancel := context.WithCancel(a.ctx)
	result := make(chan error, 1)
	go func() {
		var found error
		pause(ctx, a.TTL/20)
		for ctx.Err() == nil {
			if h, err := a.TryLock(orders, a.TTL); err == nil {
				found = fmt.Errorf("client %s got a lock that was held", a.Name)
				h.Unlock()
			}
			pause(ctx, a.TTL/50)
		}
		result <- found
	}()
	return sync.OnceValue(func() error {
		cancel()
		return <-result
	})
}

// waiting is a client that waits for a lock.
type waiting struct {
	held *Held
	err  error
	done chan struct{}
}

// await lets a client wait for the lock.
func (a *Actor) await(within time.Duration) *waiting {
	w := &waiting{done: make(chan struct{})}
	go func() {
		defer close(w.done)
		w.held, w.err = a.Lock(orders, a.TTL, within)
	}()
	return w
}

func (w *waiting) get() (*Held, error) {
	<-w.done
	return w.held, w.err
}

// work lets clients take and release the lock for d.
func work(actors []*Actor, d time.Duration) {
	var wg sync.WaitGroup
	end := time.Now().Add(d)
	for _, a := range actors {
		wg.Go(func() {
			for time.Now().Before(end) && a.ctx.Err() == nil {
				if h, err := a.TryLock(orders, a.TTL); err == nil {
					h.Act()
					a.Sleep(a.TTL / 50)
					h.Act()
					h.Unlock()
				}
				a.Sleep(rand.N(a.TTL / 50))
			}
		})
	}
	wg.Wait()
}

// findsFree demands that a client gets the lock soon, and that nothing is left on
// any node when it has released it.
func (a *Actor) findsFree() error {
	h, err := a.Lock(orders, a.TTL, max(settled(a.TTL), a.patience()))
	if err != nil {
		return fmt.Errorf("client %s: the lock is free, but: %w", a.Name, err)
	}
	if err := h.letGo(); err != nil {
		return err
	}
	return a.clean()
}

// clean demands that all nodes are up and empty soon.
func (w *World) clean() error {
	for end := time.Now().Add(settled(w.TTL)); ; w.Sleep(w.TTL / 50) {
		err := w.noKeys()
		for _, n := range w.Cluster.Nodes() {
			if !n.Up() {
				err = errors.Join(err, fmt.Errorf("node %d is down", n.Number()))
			}
		}
		if err == nil || time.Now().After(end) {
			return err
		}
	}
}
