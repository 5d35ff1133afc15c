package redlock

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Cause is why a lease was lost.
type Cause uint8

const (
	// CauseExpired: its time ran out, and it was not to be renewed.
	CauseExpired Cause = iota
	// CauseUnreachable: its time ran out because renewals reached no quorum.
	CauseUnreachable
	// CauseSuperseded: nodes said that they no longer have its token (taken over,
	// evicted, restarted empty, released by force), and those that are known to
	// have it are less than a quorum.
	CauseSuperseded
	// CausePaused: its time had run out before anybody looked, because the
	// process or the machine stood still or the clock was set.
	CausePaused
	// CauseMaxHold: the time that WithMaxHold allows was over.
	CauseMaxHold
)

func (c Cause) String() string {
	return [...]string{"expired", "unreachable", "superseded", "paused", "max hold"}[c]
}

// MarshalText is String, for logs and metrics.
func (c Cause) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// LostError says which lease was lost, and why. It matches ErrLost.
type LostError struct {
	Name  string    // of the lock
	Cause Cause     // why
	Until time.Time // until when a quorum kept others out, as far as is known

	op, why string
}

// Error prints the cause for people.
func (e *LostError) Error() string {
	return fmt.Sprintf("redlock: %s %s: %v: %s", e.op, quote(e.Name), ErrLost, e.why)
}

// Unwrap is ErrLost.
func (e *LostError) Unwrap() error { return ErrLost }

// vouch takes in node i's promise to request k, counted from before the request
// was sent. A promise that comes when the lease is over does not bring it back,
// nor does one that was asked for before a request to which the node has said no:
// answers that come over several connections can overtake each other.
func (l *Lease) vouch(i int, k kind, t0 instant, ttl time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.denied != nil && !t0.mono.After(l.denied[i]) {
		return
	}
	v := vouch{t0, l.locker.cfg.span(ttl)}
	if k == acquire {
		// All promises to an acquire end together, so a late one cannot bring a
		// lease back and the clocks need not be read.
		if l.vouches[i] == nil {
			l.vouches[i] = l.share(v)
		}
		return
	}
	now := l.locker.cfg.clock.look()
	l.lookAt(now)
	if l.err == nil && v.left(now) > l.vouches[i].left(now) {
		l.vouches[i] = l.share(v)
	}
}

// share keeps a promise once for all nodes that made it in the same round. Called
// with mu held.
func (l *Lease) share(v vouch) *vouch {
	for _, known := range l.vouches {
		if known != nil && *known == v {
			return known
		}
	}
	fresh := new(vouch)
	*fresh = v
	return fresh
}

// deny takes node i's promise back: the node itself says, to an extension that
// began at t0, that the token is not there. Losses may be found one at a time, by
// extensions that each reach others. (Or it says so to a raise of the fencing counter,
// which can be before the lease is held; t0 is then the beginning of the acquire.)
func (l *Lease) deny(i int, t0 instant) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.locker.cfg.clock.look()
	left := l.lookAt(now)
	if !l.held {
		l.vouches[i] = nil
		return
	}
	end := now.mono.Add(left) // the holder has until then to stop
	if l.denied == nil {
		l.denied = make([]time.Time, len(l.vouches))
	}
	if t0.mono.After(l.denied[i]) {
		l.denied[i] = t0.mono
	}
	l.vouches[i] = nil
	still, lead := 0, l.locker.cfg.lead()
	for _, v := range l.vouches {
		if v.left(now) > lead {
			still++
		}
	}
	if still < l.quorum() {
		l.lose(CauseSuperseded, fmt.Sprintf("%d of %d nodes are known to have it, %d needed", still, len(l.vouches), l.quorum()), end)
	}
}

// hold makes a won round a lease. False: it came too late to act, or the Locker
// closes.
func (l *Lease) hold(ctx context.Context, r *round) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	cfg := &l.locker.cfg
	now := cfg.clock.look()
	if cfg.maxHold > 0 {
		l.limit = &vouch{now, cfg.maxHold}
	}
	left := l.left(now) - cfg.lead()
	if left <= 0 {
		return false
	}
	l.values = background
	if len(cfg.hooks) > 0 {
		l.values = context.WithoutCancel(ctx)
	}
	if cfg.autoExtend {
		l.renewal = &renewal{at: l.renewAt(now)}
	}
	if r.fence != nil {
		l.fence = r.fence.token // which is final, since the round is won
		l.locker.root.fenced(r.twice)
	}
	l.held = true
	due, early := l.next(now, left)
	if !l.locker.root.remember(l, due, early) {
		l.held = false
	}
	return l.held
}

// left is how much longer the lease is good for. Called with mu held.
func (l *Lease) left(now instant) time.Duration {
	left := validity(l.vouches, l.quorum(), now)
	if l.limit != nil {
		left = min(left, l.limit.left(now))
	}
	return left
}

// look compares the clocks with the end and latches a loss. It returns what is
// left until the end. Called with mu held.
func (l *Lease) look() time.Duration { return l.lookAt(l.locker.cfg.clock.look()) }

func (l *Lease) lookAt(now instant) time.Duration {
	left := l.left(now)
	if l.held && left <= l.locker.cfg.lead() {
		cause, why := l.diagnose(now, left)
		l.lose(cause, why, now.mono.Add(left))
	}
	return left
}

// diagnose says why a lease's time is over. Called with mu held.
func (l *Lease) diagnose(now instant, left time.Duration) (Cause, string) {
	seen := now // by the clock that goes by itself only, as the agenda's timer sees it
	seen.wall, seen.asleep = -1<<62, 0
	switch {
	case l.limit != nil && l.limit.left(now) <= left:
		return CauseMaxHold, fmt.Sprintf("held for %v, which is as long as it may be", l.limit.span)
	case l.renewal == nil:
		return CauseExpired, "its time is over"
	case left <= 0 || l.left(seen) > l.locker.cfg.lead():
		return CausePaused, "its time was over before it could be renewed, since the process or machine stood still or the clock was set"
	case l.renewal.last != nil:
		return CauseUnreachable, fmt.Sprintf("it could not be renewed: %v (%v)", l.renewal.last.class, l.renewal.last.Round)
	}
	return CauseUnreachable, "it could not be renewed in time"
}

// lose ends a held lease because it may act no longer; end is until when others
// are kept out. The hooks are told by whoever notices first, since after that a
// holder's Unlock or a Close can take the lease off the agenda, on which the
// release follows at the end. Called with mu held.
func (l *Lease) lose(cause Cause, why string, end time.Time) {
	lost := &LostError{l.name, cause, end, "lease", why}
	l.finish(lost, end)
	l.tell(func(ctx context.Context, c *config) { c.lost(ctx, l, lost) })
	l.locker.root.agenda.set(l, time.Now(), 0)
}

// finish latches the end of a held lease. Called with mu held.
func (l *Lease) finish(why error, end time.Time) {
	if !l.held {
		return
	}
	l.held = false
	l.err, l.last = why, end
	l.over.Store(true)
	if l.endLife != nil {
		l.endLife(why)
	}
}

// attend does what is due: it renews a held lease or notices that its time is
// over; and at the end it releases a lost lease whose holder has not returned.
// Between the last two a holder that was told is still stopping, so its keys stay.
func (l *Lease) attend() {
	l.mu.Lock()
	now := l.locker.cfg.clock.look()
	left := l.lookAt(now)
	if l.held {
		gaps := l.dueGaps(now)
		late, fresh := l.keep(now)
		l.plan(now, left)
		l.mu.Unlock()
		l.send(late, fresh, gaps)
		return
	}
	left = time.Until(l.last)
	if l.unlocked != nil || !errors.Is(l.err, ErrLost) { // Unlock or Close sees to the rest
		l.locker.root.agenda.set(l, now.mono.Add(clocksApart), 0)
		l.mu.Unlock()
		return
	}
	if left > 0 {
		l.locker.root.agenda.set(l, l.last, 0)
	}
	l.mu.Unlock()
	if left <= 0 {
		l.abandon()
	}
}

// abandon releases the keys of a lost lease whose holder has not returned.
func (l *Lease) abandon() {
	leave, err := l.locker.enter()
	if err != nil {
		return
	}
	defer leave()
	l.locker.root.agenda.remove(l)
	l.release(nil)
}
