package redlock

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// renewal is what the watchdog knows of a lease that it renews. A lease's mutex
// guards it.
//
// A renewal is due when a third of the ttl has passed since the last one was
// sent, so that two may fail. One that reached no quorum is tried again, half a
// node timeout later, until the lease is lost; that is never for a single
// failure, and for good only when so many nodes deny the token that no quorum
// can have it (see deny).
type renewal struct {
	round *round       // under way
	at    time.Time    // when the next one begins, if none is
	last  *QuorumError // why the last one failed; nil when it did not
}

// watch makes the watchdog renew the lease from now on.
func (l *Lease) watch() {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.locker.cfg.clock.look()
	left := l.lookAt(now)
	if !l.held || l.renewal != nil {
		return
	}
	l.renewal = &renewal{at: l.renewAt(now)}
	l.plan(now, left)
}

// renewAt is when a third of the ttl has passed since the requests were sent that
// the lease rests on:
//
//	until = t0 + span, so t0 + ttl/3 = until − (span − ttl/3)
//
// One that was extended by hand for longer is renewed no later than others: that
// is how it hears that nodes have lost it, and how those are repaired.
func (l *Lease) renewAt(now instant) time.Time {
	rest := validity(l.vouches, l.quorum(), now) - (l.locker.cfg.span(l.ttl) - l.ttl/3)
	return now.mono.Add(min(rest, l.ttl/3))
}

// limited tells that the lease ends by WithMaxHold however often it is renewed.
func (l *Lease) limited(now instant) bool {
	return l.limit != nil && l.limit.left(now) <= validity(l.vouches, l.quorum(), now)
}

// next is when a held lease, which has that much left, must be looked at again,
// and by how much sooner it may be.
func (l *Lease) next(now instant, left time.Duration) (due time.Time, early time.Duration) {
	loss := now.mono.Add(left - l.locker.cfg.lead())
	due = loss
	if r := l.renewal; r != nil && !l.limited(now) {
		due, early = r.at, l.interval()
		if r.round != nil {
			due, early = r.round.start.mono.Add(r.round.bound), 0
		}
	}
	for _, g := range l.gaps {
		if g.at.Before(due) {
			due, early = g.at, 0
		}
	}
	if due.Before(loss) {
		return due, early
	}
	return loss, 0
}

func (l *Lease) plan(now instant, left time.Duration) {
	due, early := l.next(now, left)
	l.locker.root.agenda.set(l, due, early)
}

// keep sees to a held lease: it gives up a renewal that has taken too long and
// says whether another is to be sent. Called with mu held.
func (l *Lease) keep(now instant) (late, fresh *round) {
	r := l.renewal
	if r == nil || l.limited(now) {
		return nil, nil
	}
	if r.round != nil {
		if now.mono.Before(r.round.start.mono.Add(r.round.bound)) {
			return nil, nil
		}
		late, r.round, r.at = r.round, nil, now.mono
	}
	if r.at.After(now.mono.Add(l.interval())) {
		return late, nil
	}
	start := l.locker.cfg.clock.start()
	ttl := l.ttl
	if l.limit != nil {
		rest := l.limit.left(now) + drift(ttl, l.locker.cfg.leastDrift)
		ttl = min(ttl, rest.Truncate(time.Millisecond)+time.Millisecond)
	}
	fresh = newRound(extend, "renew", l, start, ttl, l.locker.cfg.nodeTimeout)
	fresh.then = func() { l.renewed(fresh) }
	r.round, l.gaps = fresh, nil // it tells anew what is missing
	return late, fresh
}

// send does what was found to do, without the mutex.
func (l *Lease) send(late, fresh *round, gaps []gap) {
	for _, g := range gaps {
		l.repair(g.node, g.round)
	}
	if late != nil {
		t := late.expire()
		l.mu.Lock()
		l.tellRound(late)
		if l.held && t.verdict() != won { // else the vote that was needed came at this very moment
			l.missed(late)
		}
		l.mu.Unlock()
	}
	if fresh != nil {
		l.extendAll(fresh)
	}
}

// renewed takes in the verdict on a renewal.
func (l *Lease) renewed(r *round) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.renewal.round != r { // it has just been given up
		return
	}
	l.renewal.round = nil
	t := r.close()
	l.tellRound(r)
	now := l.locker.cfg.clock.look()
	left := l.lookAt(now)
	if !l.held {
		return
	}
	if t.verdict() == won {
		l.renewal.last, l.renewal.at = nil, l.renewAt(now)
	} else {
		l.missed(r)
		l.renewal.at = now.mono.Add(l.locker.cfg.nodeTimeout / 2)
	}
	l.plan(now, left)
}

// missed notes a renewal that reached no quorum, and tells of the first in a row.
// Called with mu held.
func (l *Lease) missed(r *round) {
	err := &QuorumError{Round: r.record(0), class: ErrNoQuorum}
	first := l.renewal.last == nil
	l.renewal.last = err
	if first {
		l.tell(func(ctx context.Context, c *config) { c.atRisk(ctx, l, err) })
	}
}

// extendAll asks every node for an extension.
func (l *Lease) extendAll(r *round) {
	by := r.start.mono.Add(r.bound)
	requests := make([]request, len(l.claims))
	for i := range l.claims {
		requests[i] = request{kind: extend, claim: &l.claims[i], round: r, ttl: r.ttl, by: by}
		l.claims[i].node.push(&requests[i])
	}
}

// repair puts the token back on node i, which has not got it, for what remains of
// the extension that the others have granted. Only an extension that was won is
// followed by this: what a majority has forgotten must stay lost. The node vouches
// for the lease again from the next extension on.
func (l *Lease) repair(i int, r *round) {
	now := l.locker.cfg.clock.look()
	ttl := (r.ttl - elapsed(r.start, now)).Truncate(time.Millisecond)
	if ttl < time.Millisecond {
		return
	}
	c := &l.claims[i]
	c.node.push(&request{kind: repair, claim: c, round: r, ttl: ttl, by: now.mono.Add(l.locker.cfg.nodeTimeout)})
}

// A gap is a node that would not be repaired, because of another's token.
type gap struct {
	node  int
	round *round    // the extension that was won without it
	at    time.Time // when to try again
}

// repaired takes in the answer to a repair. Where another's token was in the way
// it is tried again soon: the tokens of those who wait for the lock come and go
// with each of their attempts, and would keep the node from the lease for ever.
// It takes a node's own word for each vote, so trying again can do no harm.
func (l *Lease) repaired(q *request, v Vote) {
	if v.Outcome != Refused || v.Err == errWrongType {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.locker.cfg.clock.look()
	if left := l.lookAt(now); l.held {
		pause := l.locker.cfg.nodeTimeout / 4
		pause = pause/2 + rand.N(pause)
		l.leave(gap{q.claim.index, q.round, now.mono.Add(pause)})
		l.plan(now, left)
	}
}

// leave notes a gap, one for each node however many extensions found it: each
// would be tried again, and again, until its ttl is over. The latest extension
// has the most of that left. Called with mu held.
func (l *Lease) leave(g gap) {
	for i := range l.gaps {
		if known := &l.gaps[i]; known.node == g.node {
			if g.round.start.mono.After(known.round.start.mono) {
				known.round = g.round
			}
			return
		}
	}
	l.gaps = append(l.gaps, g)
}

// dueGaps takes out the gaps to try again now. Called with mu held.
func (l *Lease) dueGaps(now instant) (due []gap) {
	l.gaps = slices.DeleteFunc(l.gaps, func(g gap) bool {
		if g.at.After(now.mono) {
			return false
		}
		due = append(due, g)
		return true
	})
	return due
}

// tell calls hooks for what happens by itself.
func (l *Lease) tell(what func(ctx context.Context, c *config)) {
	if cfg := &l.locker.cfg; len(cfg.hooks) > 0 {
		l.locker.root.teller.tell(func() { what(l.values, cfg) })
	}
}

// tellRound calls hooks for a renewal, as far as they keep up.
func (l *Lease) tellRound(r *round) {
	if l.locker.root.teller.keepsUp() {
		l.tell(func(ctx context.Context, c *config) { c.round(ctx, r, 0) })
	}
}

// A teller calls what it is given one after the other, on a goroutine that lives
// as long as there is something to tell. A hook that is slow must not keep the
// watchdog from other leases.
type teller struct {
	mu    sync.Mutex
	what  []func()
	quiet chan struct{} // closed when all is told; nil: it is
}

// maxUntold is how much may wait to be told before renewals are told no more. Ten
// thousand leases are renewed three thousand times a second with a ttl of 10 s,
// and a hook that hangs must not cost a process its memory.
const maxUntold = 1 << 12

// keepsUp tells whether the hooks do.
func (t *teller) keepsUp() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.what) < maxUntold
}

func (t *teller) tell(what func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.what = append(t.what, what)
	if t.quiet == nil {
		t.quiet = make(chan struct{})
		go t.run()
	}
}

// told returns a channel that is closed when what waits now has been told.
func (t *teller) told() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.quiet == nil {
		return closedChan
	}
	return t.quiet
}

func (t *teller) run() {
	for {
		t.mu.Lock()
		if len(t.what) == 0 {
			close(t.quiet)
			t.quiet, t.what = nil, nil
			t.mu.Unlock()
			return
		}
		what := t.what[0]
		t.what[0] = nil
		t.what = t.what[1:]
		t.mu.Unlock()
		what()
	}
}

// WithAutoExtend makes a watchdog renew the leases: every third of the ttl, until
// Unlock, Detach, Close, or the loss of the lease. Do always renews. Hooks.AtRisk is
// told of a renewal that reached no quorum while there is still time.
func WithAutoExtend() Option {
	return Option{name: "auto-extend", set: func(c *config) error { c.autoExtend = true; return nil }}
}

// WithMaxHold limits how long a lease can be held, however often it is extended;
// default without limit. It is lost then, with CauseMaxHold. It must leave at
// least 1 ms after the loss lead.
func WithMaxHold(d time.Duration) Option {
	return Option{name: "max hold", set: func(c *config) error {
		c.maxHold = d
		if d < minValidity {
			return fmt.Errorf("max hold is %v; want at least %v", d, minValidity)
		}
		return nil
	}}
}
