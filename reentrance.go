package redlock

import (
	"context"
	"errors"
	"time"
)

// A nested lease is a handle on a lease that its own work already has. It is
// told by its context and by nothing else. The tempting alternatives, a count
// per process, goroutine or owner label, let whoever shares that identity in;
// and one unlock that failed leaves a count behind that makes every later lock
// of the process look like a re-entry, while all others starve.
//
// So there is no count at all: each handle knows whether it was unlocked and
// asks the outermost lease for the rest. A handle that leaks holds nothing up,
// and there is nothing to get out of step.

// outermost is the lease that stands on the nodes.
func (l *Lease) outermost() *Lease {
	if l.outer != nil {
		return l.outer
	}
	return l
}

// entered is the lease of that name from whose Context ctx comes, unless it was
// released: what is over by the holder's own wish is locked anew. One that was
// lost stays, for its work goes on without a lock and has to hear of it.
func (l *Locker) entered(ctx context.Context, name string) *Lease {
	if !l.cfg.reentrant {
		return nil
	}
	own, ok := ctx.Value(heldKey{l.root, name}).(*Lease)
	if !ok || errors.Is(own.Err(), ErrReleased) {
		return nil
	}
	return own
}

// reenter is lock for a name that the caller has.
func (l *Locker) reenter(ctx context.Context, op Op, outer *Lease) (*Lease, error) {
	told := Op{"reenter", op.Name}
	ctx = l.cfg.start(ctx, told)
	lease, err := l.nest(ctx, op, outer)
	l.cfg.done(ctx, told, lease, err)
	return lease, err
}

func (l *Locker) nest(ctx context.Context, op Op, outer *Lease) (*Lease, error) {
	leave, err := l.enter()
	if err != nil {
		return nil, outer.during(op.Kind, err)
	}
	defer leave()
	// The lease comes first: when it is over, so is the ctx, and that says less.
	if err := outer.Err(); err != nil {
		return nil, outer.during(op.Kind, err)
	}
	if l.cfg.fencing && outer.Fence() == 0 {
		return nil, errUnfenced(op.Name)
	}
	if ctx.Err() != nil {
		return nil, &waitError{op.Kind, op.Name, 0, contextErr(ctx), nil}
	}
	return &Lease{locker: l, name: outer.name, token: outer.token, ttl: outer.ttl, outer: outer}, nil
}

// nestedErr is the handle's own end, or the outermost lease's. Both are latched,
// and Unlock keeps the one that came first.
func (l *Lease) nestedErr() error {
	l.mu.Lock()
	err := l.err
	l.mu.Unlock()
	if err != nil {
		return err
	}
	return l.outer.Err()
}

func (l *Lease) nestedValidity() (left time.Duration) {
	left = l.outer.Validity()
	if l.nestedErr() != nil {
		return 0
	}
	return left
}

// nestedLifetime is a child of the outermost lease's: it ends with that one and
// for the same cause, and drops out of it when the handle is unlocked.
func (l *Lease) nestedLifetime() context.Context {
	parent := l.outer.lifetime()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.life != nil {
		return l.life
	}
	if l.err != nil { // whatever ended the outermost one came later
		parent = background
	}
	l.life, l.endLife = context.WithCancelCause(parent)
	if l.err != nil {
		l.endLife(l.err)
	}
	return l.life
}

// unlockNested ends the handle and sends nothing.
func (l *Lease) unlockNested(ctx context.Context) error {
	over := l.outer.Err()
	l.mu.Lock()
	if c := l.unlocked; c != nil {
		l.mu.Unlock()
		<-c
		return l.unlockErr
	}
	l.unlocked = make(chan struct{})
	l.err = over
	if over == nil {
		l.err = leaseError{"lease", l.name, ErrReleased, ""}
	} else {
		l.unlockErr = l.wrap(release, over)
	}
	if l.endLife != nil {
		l.endLife(l.err)
	}
	l.mu.Unlock()

	cfg := &l.locker.cfg
	op := Op{"leave", l.name}
	defer close(l.unlocked)
	ctx = cfg.start(context.WithoutCancel(ctx), op)
	cfg.done(ctx, op, l, l.unlockErr)
	return l.unlockErr
}
