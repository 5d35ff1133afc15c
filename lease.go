package redlock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Lease is a lock that was obtained. It may be used from any goroutine, and all
// its methods are safe on a nil Lease, which behaves like one that was lost.
//
// A lease goes one way only:
//
//	held ──Unlock──────────────► released   Err matches ErrReleased
//	held ──end, or Extend finds─► lost      Err matches ErrLost
//	held ──Locker.Close────────► closed     Err matches ErrClosed
type Lease struct {
	locker *Locker
	name   string
	token  string
	ttl    time.Duration   // of the acquire
	claims []claim         // one per node
	values context.Context // values of the call that obtained it, for hooks
	over   atomic.Bool     // = (err != nil), for lanes: nothing but the release is written any more

	mu        sync.Mutex
	vouches   []vouch // claims[i]'s last promise; extends only lengthen it, and not once err is set
	held      bool
	err       error     // why it is not held any more; latched
	last      time.Time // with err: until when it had been good
	life      context.Context
	endLife   context.CancelCauseFunc
	timer     *time.Timer // runs out at the loss, then at the end
	told      bool        // the Lost hook was called
	unlocked  chan struct{}
	unlockErr error
}

// Name is the lock's name, which is its key on the nodes.
func (l *Lease) Name() string {
	if l == nil {
		return ""
	}
	return l.name
}

// Token is the value under the lock's name on the nodes: a random UUID, followed
// by a colon and the owner label if there is one. Every attempt to lock draws a
// fresh one. Whoever knows it can release the lock.
func (l *Lease) Token() string {
	if l == nil {
		return ""
	}
	return l.token
}

// String names the lease and says whether it is held, without the token.
func (l *Lease) String() string {
	if l == nil {
		return "lease <nil>"
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	left := l.look()
	if l.err != nil {
		return fmt.Sprintf("lease %s: over", quote(l.name))
	}
	return fmt.Sprintf("lease %s: valid for %v", quote(l.name), left)
}

// GoString is String, so that no way of printing a lease shows its token.
func (l *Lease) GoString() string { return l.String() }

// Until is the time at which the lease ends unless it is extended, by this
// machine's clock: the moment up to which a quorum of nodes is certain to keep
// others out. For deciding whether to go on, use Validity, Err or Context, which
// also notice a clock that was set and a machine that was suspended.
func (l *Lease) Until() time.Time {
	if l == nil {
		return time.Time{}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return l.last
	}
	return until(l.vouches, l.quorum(), l.locker.cfg.clock.look())
}

// Validity is how much longer the lease may act; 0 when it may not.
func (l *Lease) Validity() time.Duration {
	if l == nil {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	left := l.look()
	if l.err != nil {
		return 0
	}
	return left
}

// Err is nil while the lease may act; afterwards it says for good why not: an
// error that matches ErrLost, ErrReleased or ErrClosed. It asks no node, only
// the local clock.
func (l *Lease) Err() error {
	if l == nil {
		return errNilLease
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.look()
	return l.err
}

// Done is closed when the lease may act no longer, the loss lead before its end
// at the latest.
func (l *Lease) Done() <-chan struct{} {
	if l == nil {
		return closedChan
	}
	return l.lifetime().Done()
}

// Extend sets the lease's end to ttl from now. It only lengthens: a ttl that
// would end earlier changes nothing. Like an acquire it needs a quorum of nodes
// that still hold the token, and counts from before it was sent.
//
//   - nil: extended.
//   - ErrNoQuorum (a *QuorumError): too few nodes answered. The lease stands
//     until its old end; Extend may be tried again.
//   - ErrLost: the lease may act no longer: its end had passed, also while
//     waiting for the answers, or its keys are gone from or taken over on so
//     many nodes that no quorum has it.
//   - ErrReleased, ErrClosed: it was used after Unlock or Close.
//   - ErrInvalid: the ttl is out of bounds, see WithTTL. Nothing was sent.
//   - an error of ctx: it ended first. The lease stands until its old end or, if
//     a quorum still says yes, its new one.
func (l *Lease) Extend(ctx context.Context, ttl time.Duration) error {
	if ctx == nil {
		return errNilContext
	}
	if l == nil {
		return errNilLease
	}
	cfg := &l.locker.cfg
	if err := cfg.checkTTL(ttl); err != nil {
		return err
	}
	ttl = ttl.Truncate(time.Millisecond)
	op := Op{"extend", l.name}
	ctx = cfg.start(ctx, op)
	err := l.extend(ctx, ttl)
	cfg.done(ctx, op, l, err)
	return err
}

func (l *Lease) extend(ctx context.Context, ttl time.Duration) error {
	cfg := &l.locker.cfg
	if err := l.Err(); err != nil {
		return l.wrap(extend, err)
	}
	if ctx.Err() != nil {
		return l.wrap(extend, contextErr(ctx))
	}
	leave, err := l.locker.enter()
	if err != nil {
		return l.wrap(extend, err)
	}
	defer leave()

	start := cfg.clock.start()
	r := newRound(extend, "extend", l, start, ttl, cfg.nodeTimeout)
	by := start.mono.Add(r.bound)
	requests := make([]request, len(l.claims))
	for i := range l.claims {
		requests[i] = request{kind: extend, claim: &l.claims[i], round: r, ttl: ttl, by: by}
		l.claims[i].node.push(&requests[i])
	}
	t, decided := r.wait(ctx.Done(), l.Done(), nil, nil)
	cfg.round(ctx, r, 0)
	err = l.Err()
	switch {
	case t.class() == refused && errors.Is(err, ErrLost):
		return &QuorumError{Round: r.record(0), class: ErrLost}
	case err != nil: // the end came first, whatever the nodes say
		return l.wrap(extend, err)
	case !decided:
		return l.wrap(extend, contextErr(ctx))
	case t.verdict() == won:
		return nil
	}
	return &QuorumError{Round: r.record(0), class: ErrNoQuorum}
}

// Unlock releases the lock on every node to which it may have gone, and returns
// when that is confirmed. It ignores the cancellation of ctx, so that a
// deferred Unlock works in a handler whose client has hung up; it takes one node
// timeout at the most. Whatever it returns, the lease is over, and nodes that
// did not answer are asked again in the background.
//
//   - nil: released. A quorum deleted the key; or, where the lease was granted by
//     so few nodes that one outage since prevents that, a quorum is free of it.
//   - ErrLost: the lease was over before; if nodes report it, on so many that no
//     quorum had it. Somebody else may have held the lock since. (A node whose
//     connection broke before it answered counts as having deleted the key if
//     that is gone when it is asked again.)
//   - ErrNoQuorum: too few nodes answered; keys may stay until their ttl ends.
//   - ErrClosed: the Locker was closed and released the lock then.
//
// A second Unlock returns what the first did, and waits for it if need be.
func (l *Lease) Unlock(ctx context.Context) error {
	if l == nil {
		return errNilLease
	}
	if ctx == nil {
		ctx = background
	}
	l.mu.Lock()
	if c := l.unlocked; c != nil {
		l.mu.Unlock()
		<-c
		return l.unlockErr
	}
	l.unlocked = make(chan struct{})
	l.look()
	before := l.err
	l.finish(leaseError{"lease", l.name, ErrReleased, ""})
	l.mu.Unlock()

	cfg := &l.locker.cfg
	op := Op{"unlock", l.name}
	ctx = cfg.start(context.WithoutCancel(ctx), op)
	defer close(l.unlocked)
	l.unlockErr = l.unlock(ctx, before)
	cfg.done(ctx, op, l, l.unlockErr)
	return l.unlockErr
}

func (l *Lease) unlock(ctx context.Context, before error) error {
	cfg := &l.locker.cfg
	leave, err := l.locker.enter()
	switch {
	case err != nil && before != nil:
		return l.wrap(release, before)
	case err != nil: // Close has seen to the release
		return l.wrap(release, err)
	}
	defer leave()
	l.locker.root.forget(l)
	r := newRound(release, "unlock", l, cfg.clock.start(), 0, cfg.nodeTimeout)
	l.release(r)
	t, _ := r.wait(nil, nil, nil, nil)
	cfg.round(ctx, r, 0)
	switch {
	case before != nil:
		return l.wrap(release, before)
	case t.verdict() == won:
		return nil
	case t.class() == refused:
		return &QuorumError{Round: r.record(0), class: ErrLost}
	case r.freed():
		return nil
	}
	return &QuorumError{Round: r.record(0), class: ErrNoQuorum}
}

// release asks every node for the release; round may be nil.
func (l *Lease) release(r *round) {
	requests := make([]request, len(l.claims))
	for i := range l.claims {
		requests[i] = request{kind: release, claim: &l.claims[i], round: r}
		l.claims[i].node.end(&requests[i])
	}
}

func (l *Lease) quorum() int { return quorumOf(len(l.claims)) }

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

// wrap says during which operation an error occurred.
func (l *Lease) wrap(k kind, err error) error {
	if e, ok := err.(leaseError); ok {
		e.op = k.String()
		return e
	}
	return fmt.Errorf("redlock: %v %s: %w", k, quote(l.name), err)
}

// leaseError says why a lease may not act any more.
type leaseError struct {
	op, name string
	state    error // ErrLost, ErrReleased or ErrClosed
	why      string
}

func (e leaseError) Error() string {
	s := fmt.Sprintf("redlock: %s %s: %v", e.op, quote(e.name), e.state)
	if e.why != "" {
		s += ": " + e.why
	}
	return s
}

func (e leaseError) Unwrap() error { return e.state }

var (
	errNilLease   = fmt.Errorf("redlock: nil lease: %w", ErrLost)
	errNilContext = invalid("the context is nil")

	closedChan = func() chan struct{} { c := make(chan struct{}); close(c); return c }()
)
