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
//	held ──Detach──────────────► detached   Err matches ErrReleased
//	held ──end, or Extend finds─► lost      Err matches ErrLost
//	held ──Locker.Close────────► closed     Err matches ErrClosed
type Lease struct {
	locker *Locker
	name   string
	token  string
	ttl    time.Duration   // of the acquire
	fence  uint64          // the fencing token; 0: none. Set before the lease is held
	claims []claim         // one per node
	acks   *ackRule        // what its requests want of replicas; nil: nothing
	values context.Context // values of the call that obtained it, for hooks
	outer  *Lease          // of a nested lease: the outermost one, which has all the rest
	over   atomic.Bool     // = (err != nil), for lanes: nothing but the release is written any more

	due   time.Time     // these three are the agenda's
	early time.Duration // how much sooner it may be looked at
	place int           // in the agenda, from 1; 0: it is not there

	mu        sync.Mutex
	vouches   []*vouch    // claims[i]'s last promise; extends only lengthen it, and not once err is set
	denied    []time.Time // by node: when the last extension began that it refused; nil: none did
	held      bool
	err       error     // why it is not held any more; latched
	last      time.Time // with err: until when it had been good
	life      context.Context
	endLife   context.CancelCauseFunc
	limit     *vouch   // when the holder's own limit ends it, see WithMaxHold; nil: never
	renewal   *renewal // what the watchdog knows; nil: it does not renew this lease
	gaps      []gap    // nodes to be repaired again
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
	left := l.Validity()
	if l.Err() != nil {
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
	if l.outer != nil {
		return l.outer.Until()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return l.last
	}
	return l.until()
}

// until is Until for a lease that is held. Called with mu held.
func (l *Lease) until() time.Time {
	now := l.locker.cfg.clock.look()
	return now.mono.Add(l.left(now))
}

// Validity is how much longer the lease may act; 0 when it may not.
func (l *Lease) Validity() time.Duration {
	if l == nil {
		return 0
	}
	if l.outer != nil {
		return l.nestedValidity()
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
	if l.outer != nil {
		return l.nestedErr()
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
//   - ErrReleased, ErrClosed: it was used after Unlock, Detach or Close.
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
	if l.outer != nil && l.Err() == nil {
		return l.outer.Extend(ctx, ttl) // one operation, so hooks are told once
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
	l.extendAll(r)
	t, decided := r.wait(ctx.Done(), l.Done(), nil, nil)
	cfg.round(ctx, r, 0)
	err = l.Err()
	switch {
	case t.class() == refused && errors.Is(err, ErrLost):
		return &QuorumError{Round: r.record(0), class: ErrLost, lease: err}
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
//   - ErrReleased: the lease was detached, so nothing was sent.
//
// A second Unlock returns what the first did, and waits for it if need be.
func (l *Lease) Unlock(ctx context.Context) error {
	if l == nil {
		return errNilLease
	}
	if ctx == nil {
		ctx = background
	}
	if l.outer != nil {
		return l.unlockNested(ctx)
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
	l.finish(leaseError{"lease", l.name, ErrReleased, ""}, l.until())
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
	l.locker.root.agenda.remove(l)
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

// release asks every node for the release, and to tell others of it; round may be
// nil.
func (l *Lease) release(r *round) {
	requests := make([]request, len(l.claims))
	notice := l.notice()
	for i := range l.claims {
		requests[i] = request{kind: release, claim: &l.claims[i], round: r, notice: notice}
		l.claims[i].node.end(&requests[i])
	}
}

func (l *Lease) quorum() int { return quorumOf(len(l.claims)) }

// wrap says during which operation an error occurred.
func (l *Lease) wrap(k kind, err error) error { return l.during(k.String(), err) }

func (l *Lease) during(op string, err error) error {
	switch e := err.(type) {
	case leaseError:
		e.op = op
		return e
	case *LostError:
		said := *e
		said.op = op
		return &said
	}
	return fmt.Errorf("redlock: %s %s: %w", op, quote(l.name), err)
}

// leaseError says why a lease that was not lost may not act any more.
type leaseError struct {
	op, name string
	state    error // ErrReleased or ErrClosed
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
