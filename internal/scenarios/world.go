package scenarios

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed58520471/redlock/faultinject"
)

// World is where a scenario takes place.
type World struct {
	Cluster *faultinject.Cluster
	TTL     time.Duration // of the locks, and the measure of all other times
	Guard   time.Duration // for which locks are to keep a restarted node from voting; 0: not
	Servers bool          // the nodes are redis-server processes

	ctx      context.Context
	make     Maker
	began    time.Time // what At counts from
	seed     uint64
	plan     faultinject.Plan
	injected []*faultinject.Injection
	actors   []*Actor
	lists    map[string][]int // by client, the nodes that it knows; all, if there is no list
	shared   bool             // two holders are to be expected
	residue  error            // they
	fenced   bool             // locks have fencing tokens
}

// start lets the scenario's plan begin: its times count from here, and what is at
// 0s has begun when it returns. A play has a beginning before it if the scenario is
// Cued: in real time a step of the play can be late, and its plan must not be past
// then.
func (w *World) start() error {
	if len(w.plan.Events) == 0 {
		return nil
	}
	in, err := w.Cluster.Play(w.plan)
	if err == nil {
		w.injected = append(w.injected, in)
	}
	return err
}

// Inject lets something happen in the middle of the play, written as in a
// scenario's Plan. It has to strike before the end.
func (w *World) Inject(lines string) (*faultinject.Injection, error) {
	p, err := faultinject.ParsePlan(w.inTTLs(lines))
	if err != nil {
		return nil, err
	}
	p.Seed = w.seed
	in, err := w.Cluster.Play(p)
	if err == nil {
		w.injected = append(w.injected, in)
	}
	return in, err
}

func (w *World) fired() (sum int) {
	for _, in := range w.injected {
		sum += in.Fired()
	}
	return sum
}

// Sleep lets time pass.
func (w *World) Sleep(d time.Duration) { pause(w.ctx, d) }

// At lets time pass until so many ttls after the beginning, which is when the first
// holder has the lock if the play has one.
func (w *World) At(ttls float64) { w.Sleep(time.Until(w.began.Add(w.ttls(ttls)))) }

func (w *World) ttls(n float64) time.Duration { return time.Duration(n * float64(w.TTL)) }

// together plays parts of a story at the same time.
func together(parts ...func() error) error {
	errs := make([]error, len(parts))
	var wg sync.WaitGroup
	for i, part := range parts {
		wg.Go(func() { errs[i] = part() })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Actor is a client of a scenario: a process with a lock client of its own.
type Actor struct {
	*World
	Name  string
	locks Locks
}

// List sets which nodes, counted from 1, a client is told of when it is made.
// Without, it knows each node, once.
func (w *World) List(client string, nodes ...int) {
	if w.lists == nil {
		w.lists = make(map[string][]int)
	}
	w.lists[client] = nodes
}

// Clients are what Makers give to their locks: a go-redis client for each node that
// the client knows.
func (w *World) Clients(client string, adjust ...func(*redis.Options)) []redis.UniversalClient {
	all := w.Cluster.Client(client).Redis(adjust...)
	list, ok := w.lists[client]
	if !ok {
		return all
	}
	var some []redis.UniversalClient
	for i, n := range list {
		if slices.Contains(list[:i], n) { // the same server under another name
			some = append(some, w.Cluster.Client(client).Redis(adjust...)[n-1])
			continue
		}
		some = append(some, all[n-1])
	}
	return some
}

// Actor makes a client.
func (w *World) Actor(name string) (*Actor, error) {
	l, err := w.make(w, name)
	if err != nil {
		return nil, err
	}
	a := &Actor{World: w, Name: name, locks: l}
	w.actors = append(w.actors, a)
	return a, nil
}

// Actors makes several.
func (w *World) Actors(names ...string) (actors []*Actor, err error) {
	for _, name := range names {
		a, err := w.Actor(name)
		if err != nil {
			return nil, err
		}
		actors = append(actors, a)
	}
	return actors, nil
}

// Held is a lock in the hands of an actor, which records all that it does.
type Held struct {
	Lease
	actor *Actor
	seen  *faultinject.Attempt
	known time.Time // until when, as far as its history has heard
}

// TryLock tries once.
func (a *Actor) TryLock(name string, ttl time.Duration) (*Held, error) {
	return a.TryLockCtx(a.ctx, name, ttl)
}

// TryLockCtx tries once, with a context of its own.
func (a *Actor) TryLockCtx(ctx context.Context, name string, ttl time.Duration) (*Held, error) {
	seen := a.Cluster.History().Try(a.Name, name)
	lease, err := a.locks.TryLock(ctx, name, ttl)
	return a.held(seen, lease, err)
}

// Lock tries again and again, for as long as that may take. Its history has one
// attempt, which asks all the time: who waits does so between two tries too, and
// Progress has to see it.
func (a *Actor) Lock(name string, ttl, within time.Duration) (*Held, error) {
	seen := a.Cluster.History().Try(a.Name, name)
	end := time.Now().Add(within)
	for {
		lease, err := a.locks.TryLock(a.ctx, name, ttl)
		if err == nil || a.ctx.Err() != nil || time.Now().After(end) {
			return a.held(seen, lease, err)
		}
		a.Sleep(a.TTL / 100)
	}
}

// held records what came of an attempt.
func (a *Actor) held(seen *faultinject.Attempt, lease Lease, err error) (*Held, error) {
	if err != nil {
		seen.Failed(err)
		return nil, err
	}
	until := lease.Until()
	seen.Won(lease.Token(), until)
	h := &Held{Lease: lease, actor: a, seen: seen, known: until}
	if a.fenced {
		seen.Fence(h.fence())
	}
	return h, nil
}

// fence is the lease's fencing token, 0 if it has none.
func (h *Held) fence() uint64 {
	if f, ok := h.Lease.(Fencer); ok {
		return f.Fence()
	}
	return 0
}

// Wait gets a lock as one does who has to wait: by the lock's own means if it has
// any, see Waiter, else like Lock.
func (a *Actor) Wait(name string, ttl, within time.Duration) (*Held, error) {
	waiter, ok := a.locks.(Waiter)
	if !ok {
		return a.Lock(name, ttl, within)
	}
	ctx, cancel := context.WithTimeout(a.ctx, within)
	defer cancel()
	seen := a.Cluster.History().Try(a.Name, name)
	lease, err := waiter.Wait(ctx, name, ttl)
	return a.held(seen, lease, err)
}

// Act touches what the lock protects, after a look at the lease. It tells whether
// the lease allowed it.
func (h *Held) Act() bool {
	if h.Err() != nil {
		return false
	}
	h.seen.Act()
	return true
}

// ActBlindly does so without a look, as a holder does that was paused in between.
func (h *Held) ActBlindly() { h.seen.Act() }

// Extend asks for more time.
func (h *Held) Extend(ttl time.Duration) error {
	h.seen.Extend()
	err := h.Lease.Extend(h.actor.ctx, ttl)
	if err == nil {
		h.seen.Extended(h.Until())
	}
	return err
}

// Unlock gives the lock back.
func (h *Held) Unlock() error { return h.UnlockCtx(h.actor.ctx) }

// UnlockCtx gives the lock back, with a context of its own.
func (h *Held) UnlockCtx(ctx context.Context) error {
	h.seen.Release()
	err := h.Lease.Unlock(ctx)
	h.seen.Released(err)
	return err
}

// exact says whether with this ttl a moment's delay is the story's and never the
// machine's, which can hold up anything for a node timeout of real time.
func exact(ttl time.Duration) bool { return ttl > Real }

func (w *World) exact() bool { return exact(w.TTL) }

// settled is how long the aftermath of any scenario may take: less than the leases
// that were let go had left, in virtual time. A machine that is busy with other
// things can make every answer late, and every release be repeated for seconds; so
// real time has longer.
func settled(ttl time.Duration) time.Duration {
	if exact(ttl) {
		return ttl/2 + time.Second
	}
	return 10 * ttl
}

// settle waits for the aftermath. Real time is dear, so there it ends as soon as the
// nodes were found empty several times in a row: a machine that is busy can let a
// second pass between two looks, so time alone says nothing.
func settle(ctx context.Context, c *faultinject.Cluster, ttl time.Duration) {
	if exact(ttl) {
		pause(ctx, settled(ttl))
		return
	}
	const enough = 10
	begin := time.Now()
	for empty := 0; empty < enough && time.Since(begin) < settled(ttl) && ctx.Err() == nil; pause(ctx, ttl/50) {
		if empty++; c.NoKeys(isCounter) != nil {
			empty = 0
		}
	}
}

// check checks what must hold after every story, when all faults are over.
func (w *World) check() error {
	settle(w.ctx, w.Cluster, w.TTL)
	n := len(w.Cluster.Nodes())
	h := w.Cluster.History()
	h.Health(n, n) // so long it was watched
	stalled := 2*w.TTL + time.Second
	if !w.exact() {
		stalled += settled(w.TTL)
	}
	if w.Guard > 0 { // nobody can get the lock from nodes that abstain
		stalled += w.abstain()
	}
	exclusive := faultinject.Exclusive(h)
	if w.shared {
		w.residue, exclusive = exclusive, nil
	}
	return errors.Join(
		exclusive,
		faultinject.Tokens(h),
		faultinject.Orphans(h, settled(w.TTL)-w.TTL/10),
		faultinject.Progress(h, stalled),
		faultinject.FencesRise(h),
		w.noKeys(), // of what servers store, the history knows nothing
	)
}

// noKeys demands that nothing is left on the nodes but the counters of fenced names.
func (w *World) noKeys() error {
	if !w.fenced {
		return w.Cluster.NoKeys()
	}
	return errors.Join(w.Cluster.NoKeys(isCounter), counters(w.Cluster, func(string) bool { return true }))
}

func (w *World) close() {
	for _, a := range w.actors {
		a.locks.Close()
	}
}
