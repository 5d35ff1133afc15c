package redlock

import (
	"context"
	"fmt"
)

// Detach ends this handle without releasing the lock, so that another process
// can go on with it: hand it Name and Token, for its Locker's Attach. The ttl runs
// on meanwhile, so Extend first where the way is long; a lock that nobody
// attaches is free when its ttl ends.
//
// Detach returns once nothing of the token is under way to a node any more: at
// once as a rule, and after a node timeout where a node owes an answer. (Of a
// request that is never answered nobody knows; it cannot harm a lock that was
// attached.) From then on nothing is ever sent for the token, neither by Unlock,
// which returns ErrReleased, so that a deferred one does no harm, nor by Close.
// Like Unlock, Detach ignores the cancellation of ctx.
//
//   - nil: detached. Err matches ErrReleased.
//   - ErrLost: the lease was lost before. It is not detached, and cannot be
//     attached: another client may have the lock.
//   - ErrReleased: it was unlocked or detached before.
//   - ErrClosed: the Locker was closed and releases the lock.
//   - ErrInvalid: it is a nested lease; only the outermost one can be detached.
func (l *Lease) Detach(ctx context.Context) error {
	switch {
	case l == nil:
		return errNilLease
	case l.outer != nil:
		return invalid("lease %s is nested in another, and only the outermost one can be detached", quote(l.name))
	case ctx == nil:
		ctx = background
	}
	cfg := &l.locker.cfg
	op := Op{"detach", l.name}
	ctx = cfg.start(context.WithoutCancel(ctx), op)
	err := l.detach()
	cfg.done(ctx, op, l, err)
	return err
}

func (l *Lease) detach() error {
	leave, closed := l.locker.enter()
	if closed == nil {
		defer leave()
	}
	l.mu.Lock()
	l.look()
	err := l.err
	if err == nil && (closed != nil || !l.locker.root.agenda.remove(l)) {
		err = ErrClosed // Close has taken it, to release it
	}
	if err != nil {
		l.mu.Unlock()
		return l.during("detach", err)
	}
	why := leaseError{"lease", l.name, ErrReleased, "it was detached"}
	l.finish(why, l.until())
	// An Unlock from here on is a second one, after one that sends nothing.
	l.unlocked, l.unlockErr = make(chan struct{}), l.wrap(release, why)
	l.mu.Unlock()
	defer close(l.unlocked)

	// Writing and reading may take the timeout each.
	cfg := &l.locker.cfg
	r := newRound(detach, "detach", l, cfg.clock.start(), 0, 2*cfg.nodeTimeout)
	requests := make([]request, len(l.claims))
	for i := range l.claims {
		requests[i] = request{kind: detach, claim: &l.claims[i], round: r}
		l.claims[i].node.detach(&requests[i])
	}
	r.wait(nil, nil, nil, nil)
	return nil
}

// Attach takes over a lock that another handle, in this process or another, has
// given up with Detach: name and token are what that handle's Name and Token
// said. The lease is a new one, like one from Lock, with a fresh token, a higher
// fencing token if this Locker has WithFencing, and its ttl and owner label.
//
// Attach is one round, like TryLock: on each node the fresh token takes the
// place of exactly the old one. So of several who attach one token at most one
// succeeds, it succeeds once, and messages of the old token that are still under
// way find nothing of theirs. A node where the lock is absent does not take part.
//
//   - ErrLost (a *QuorumError): on so many nodes that token is not there any more
//     (expired, released, attached by somebody else) that it can never be
//     attached.
//   - ErrNoQuorum, ErrExpired (a *QuorumError): too few nodes answered, or too
//     late. The nodes that did have lost the old token, and the others may still
//     have it: another Attach with it can succeed while those are a quorum.
//   - ErrInvalid: ctx, name or token cannot be used. Nothing was sent.
//   - ErrClosed: the Locker was closed.
//   - an error of ctx: it ended first.
//
// After any error nothing of the fresh token stays on a node, as after Lock.
//
// The old lease must have been detached, or its holder be dead: a holder that
// goes on is not told before it extends.
func (l *Locker) Attach(ctx context.Context, name, token string) (*Lease, error) {
	if ctx == nil {
		return nil, errNilContext
	}
	if err := l.checkName(name); err != nil {
		return nil, err
	}
	if token == "" || len(token) > maxToken {
		return nil, invalid("the token has %d bytes; want 1 to %d", len(token), maxToken)
	}
	op := Op{"attach", name}
	ctx = l.cfg.start(ctx, op)
	lease, err := l.attach(ctx, op, token)
	l.cfg.done(ctx, op, lease, err)
	return lease, err
}

// maxToken leaves room for the tokens of other libraries; our own have at most
// 36 + 1 + maxOwner bytes.
const maxToken = 1024

func (l *Locker) attach(ctx context.Context, op Op, token string) (*Lease, error) {
	leave, err := l.enter()
	if err != nil {
		return nil, fmt.Errorf("redlock: attach %s: %w", quote(op.Name), err)
	}
	defer leave()
	if ctx.Err() != nil {
		return nil, &waitError{op.Kind, op.Name, 0, contextErr(ctx), nil}
	}
	lease, verdict, err := l.take(ctx, op, 0, l.newLease(op.Name), request{kind: attach}, token)
	switch {
	case err != nil:
		return nil, &waitError{op.Kind, op.Name, 1, err, nil}
	case verdict != nil:
		return nil, verdict
	}
	return lease, nil
}
