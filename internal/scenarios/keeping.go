package scenarios

import (
	"errors"
	"fmt"
	"time"
)

// What stories have in common whose leases renew themselves or are handed over.

// Keep takes a lock that renews itself, from every node that is up.
func (a *Actor) Keep(name string, ttl time.Duration) (*Held, error) {
	keeper, ok := a.locks.(Keeper)
	if !ok {
		return nil, errors.New("this lock does not renew itself")
	}
	for end := time.Now().Add(a.patience()); ; a.Sleep(a.TTL / 100) {
		seen := a.Cluster.History().Try(a.Name, name)
		lease, err := keeper.Keep(a.ctx, name, ttl)
		h, err := a.held(seen, lease, err)
		over := time.Now().After(end)
		switch {
		case err != nil && over:
			return nil, fmt.Errorf("client %s: a majority is there, but: %w", a.Name, err)
		case err != nil:
			continue
		}
		a.Sleep(a.TTL / 25)
		if over || h.everywhere() {
			return h, nil
		}
		h.Unlock()
	}
}

// everywhere tells that all nodes that are up have the lock.
func (h *Held) everywhere() bool {
	for _, n := range h.actor.Cluster.Nodes() {
		if n.Up() && n.Get(orders) != h.Token() {
			return false
		}
	}
	return true
}

// Look records how far a lease that renews itself has come, and acts if it may. On a
// machine that was busy with other things for a ttl the history has heard of no
// renewal, and must not hear of acts then.
func (h *Held) Look() (alive bool) {
	until := h.Until()
	if h.Err() != nil {
		return false
	}
	if h.actor.exact() || time.Now().Before(h.known) {
		h.known = until
		h.seen.Extend()
		h.seen.Extended(until)
		h.seen.Act()
	}
	return true
}

// Watch looks for d at a lease that renews itself. The error says that it was lost.
func (h *Held) Watch(d time.Duration) error {
	for end := time.Now().Add(d); time.Now().Before(end); h.nap() {
		if !h.Look() {
			return fmt.Errorf("the lease is over: %w", h.Err())
		}
	}
	return nil
}

// nap lets some time pass between two looks, and less of it shortly before the end
// that the history knows.
func (h *Held) nap() {
	h.actor.Sleep(max(min(h.actor.TTL/50, time.Until(h.known)/2), h.actor.TTL/1000))
}

// Mourn looks until the lease is lost, and demands that it is by some time.
func (h *Held) Mourn(by time.Time) error {
	for ; h.Look(); h.nap() {
		if time.Now().After(by) {
			return fmt.Errorf("the lease ought to be over since %v ago", time.Since(by))
		}
	}
	h.seen.Lost(h.Err())
	return nil
}

// HandOver gives the lock up without releasing it.
func (h *Held) HandOver() (token string, err error) {
	d, ok := h.Lease.(Detacher)
	if !ok {
		return "", errors.New("this lock cannot be handed over")
	}
	h.seen.Lost(errHandedOver)
	return h.Token(), d.Detach(h.actor.ctx)
}

// Attach goes on with a lock that was handed over.
func (a *Actor) Attach(name, token string, ttl time.Duration) (*Held, error) {
	heir, ok := a.locks.(Heir)
	if !ok {
		return nil, errors.New("this lock cannot be handed over")
	}
	seen := a.Cluster.History().Try(a.Name, name)
	lease, err := heir.Attach(a.ctx, name, token, ttl)
	return a.held(seen, lease, err)
}

// during waits for a client that waits, while a holder looks at its lease.
func (w *waiting) during(h *Held) (*Held, error) {
	for ; h.Look(); h.nap() {
		select {
		case <-w.done:
			return w.get()
		default:
		}
	}
	h.seen.Lost(h.Err())
	return w.get()
}
