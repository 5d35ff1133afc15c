package redlock

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// vouch takes in node i's promise to request k, counted from before the request
// was sent. A promise that comes when the lease is over does not bring it back.
func (l *Lease) vouch(i int, k kind, t0 instant, ttl time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	v := vouch{t0, l.locker.cfg.span(ttl)}
	if k == acquire {
		// All promises to an acquire end together, so a late one cannot bring a
		// lease back and the clocks need not be read.
		if l.vouches[i].span == 0 {
			l.vouches[i] = v
		}
		return
	}
	now := l.locker.cfg.clock.look()
	l.lookAt(now)
	if l.err == nil && v.left(now) > l.vouches[i].left(now) {
		l.vouches[i] = v
	}
}

// deny takes node i's promise back: the node itself says that the token is not
// there. Losses may be found one at a time, by extensions that each reach others.
func (l *Lease) deny(i int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return
	}
	end := until(l.vouches, l.quorum(), l.locker.cfg.clock.look())
	l.vouches[i] = vouch{}
	left := 0
	for _, v := range l.vouches {
		if v.span > 0 {
			left++
		}
	}
	if l.held && left < l.quorum() {
		l.finish(leaseError{"lease", l.name, ErrLost, fmt.Sprintf("%d of %d nodes still have it, %d needed", left, len(l.vouches), l.quorum())})
		l.last = end // the holder has until then to stop
		l.timer.Reset(0)
	}
}

// hold makes a won round a lease. False: it came too late to act, or the Locker
// closes.
func (l *Lease) hold(ctx context.Context) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	cfg := &l.locker.cfg
	left := validity(l.vouches, l.quorum(), cfg.clock.look()) - cfg.lead()
	if left <= 0 || !l.locker.root.remember(l) {
		return false
	}
	l.held = true
	l.values = background
	if len(cfg.hooks) > 0 {
		l.values = context.WithoutCancel(ctx)
	}
	l.timer = time.AfterFunc(left, l.onTimer)
	return true
}

// look compares the clocks with the end and latches a loss. It returns what is
// left until the end. Called with mu held.
func (l *Lease) look() time.Duration { return l.lookAt(l.locker.cfg.clock.look()) }

func (l *Lease) lookAt(now instant) time.Duration {
	left := validity(l.vouches, l.quorum(), now)
	if l.held && left <= l.locker.cfg.lead() {
		l.finish(leaseError{"lease", l.name, ErrLost, "its time is over"})
		l.timer.Reset(0) // the rest of what a loss means is done there
	}
	return left
}

// finish latches the end of a held lease. Called with mu held.
func (l *Lease) finish(why error) {
	if !l.held {
		return
	}
	l.held = false
	l.err, l.last = why, until(l.vouches, l.quorum(), l.locker.cfg.clock.look())
	l.over.Store(true)
	l.timer.Stop()
	if l.endLife != nil {
		l.endLife(why)
	}
}

// onTimer runs at the loss lead before the end, then, if the holder has not
// returned, at the end. Between the two a holder that was told is still
// stopping, so its keys stay.
func (l *Lease) onTimer() {
	l.mu.Lock()
	left := l.look()
	if l.held { // it was extended meanwhile
		l.timer.Reset(left - l.locker.cfg.lead())
		l.mu.Unlock()
		return
	}
	left, why := time.Until(l.last), l.err
	tell := !l.told && errors.Is(why, ErrLost) // else it was released as the timer ran out
	l.told = true
	waits := l.unlocked == nil && errors.Is(why, ErrLost) // for its holder, or its end
	over := waits && left <= 0
	if waits && !over {
		l.timer.Reset(left)
	}
	l.mu.Unlock()
	if over {
		l.abandon()
	}
	if tell {
		l.locker.cfg.lost(l.values, l, why)
	}
}

// abandon releases the keys of a lost lease whose holder has not returned.
func (l *Lease) abandon() {
	leave, err := l.locker.enter()
	if err != nil {
		return
	}
	defer leave()
	l.locker.root.forget(l)
	l.release(nil)
}
