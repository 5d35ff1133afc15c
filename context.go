package redlock

import "context"

// Context returns a copy of parent that ends with the lease: its cause is then
// what Err says. Work under the lock should use it. It carries the lease for
// FromContext.
//
// The context is told by the local clock, without asking any node, and so it
// ends before another client can obtain the lock. It cannot stop work that
// does not look at it. After a suspension of the machine, or when its wall clock
// was set, Err and Validity tell the truth at once, the context within a quarter of
// a second (or ttl/20 if that is less). It has no deadline of its own, because the
// lease can be extended; Validity tells what is left.
func (l *Lease) Context(parent context.Context) context.Context {
	if parent == nil {
		parent = background
	}
	if l == nil {
		ctx, cancel := context.WithCancelCause(parent)
		cancel(errNilLease)
		return ctx
	}
	parent = context.WithValue(parent, leaseKey{}, l)
	parent = context.WithValue(parent, heldKey{l.locker.root, l.name}, l.outermost())
	ctx, cancel := context.WithCancelCause(parent)
	life := l.lifetime()
	if life.Err() != nil {
		cancel(context.Cause(life))
		return ctx
	}
	stop := context.AfterFunc(life, func() { cancel(context.Cause(life)) })
	context.AfterFunc(ctx, func() { stop() }) // the parent ended first: the lease need not remember
	return ctx
}

type (
	leaseKey struct{}
	heldKey  struct {
		root *root
		name string
	}
)

// FromContext returns the innermost lease, nested ones included, whose Context ctx
// is or descends from, as inside Do; nil, on which every method is safe, when there is none.
func FromContext(ctx context.Context) *Lease {
	if ctx == nil {
		return nil
	}
	l, _ := ctx.Value(leaseKey{}).(*Lease)
	return l
}

// lifetime is the context that ends with the lease, made when first asked for.
func (l *Lease) lifetime() context.Context {
	if l.outer != nil {
		return l.nestedLifetime()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.life == nil {
		l.life, l.endLife = context.WithCancelCause(background)
	}
	l.look()
	if l.err != nil {
		l.endLife(l.err)
	}
	return l.life
}
