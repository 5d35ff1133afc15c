package scenarios

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/seed58520471/redlock"
)

// Locks is a lock client as the stories use it.
type Locks interface {
	TryLock(ctx context.Context, name string, ttl time.Duration) (Lease, error)
	Close() error
}

// Waiter is what Locks are that know how to wait for a lock.
type Waiter interface {
	Wait(ctx context.Context, name string, ttl time.Duration) (Lease, error)
}

// Keeper is what Locks are whose leases can renew themselves.
type Keeper interface {
	Keep(ctx context.Context, name string, ttl time.Duration) (Lease, error)
}

// Heir is what Locks are that can go on with a lock which another one's lease has
// given up, see Detacher.
type Heir interface {
	Attach(ctx context.Context, name, token string, ttl time.Duration) (Lease, error)
}

// Detacher is what Leases are that can be given up without a release.
type Detacher interface {
	Detach(ctx context.Context) error
}

// Fencer is what Leases are that have a fencing token.
type Fencer interface {
	Fence() uint64
}

// Lease is a lock that was obtained.
type Lease interface {
	Token() string
	Until() time.Time // until when the client believes to hold it; the zero time is for ever
	Err() error       // whether it may act
	Extend(ctx context.Context, ttl time.Duration) error
	Unlock(ctx context.Context) error
}

// Maker makes the lock client of an actor.
type Maker func(w *World, client string) (Locks, error)

// Redlock is the library under test, with its defaults except for the ttl, the guard and
// fencing tokens.
func Redlock(w *World, client string) (Locks, error) {
	clients := w.Clients(client, clientOptions)
	opts := []redlock.Option{redlock.WithTTL(w.TTL)}
	if w.Guard > 0 {
		opts = append(opts, redlock.WithRestartGuard(w.Guard))
	}
	if w.fenced {
		opts = append(opts, redlock.WithFencing())
	}
	l, err := redlock.New(clients, opts...)
	return redlockLocks{l}, err
}

// clientOptions are those of redlock's clients. Maintenance notifications are off,
// as in what redlock.Open makes: connections that find out at the same time that a
// server does not have them race for go-redis's settings.
func clientOptions(o *redis.Options) {
	o.PoolSize, o.DialerRetries = 40, 1
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
}

type redlockLocks struct{ *redlock.Locker }

func (l redlockLocks) TryLock(ctx context.Context, name string, ttl time.Duration) (Lease, error) {
	return l.get((*redlock.Locker).TryLock, ctx, name, ttl)
}

func (l redlockLocks) Wait(ctx context.Context, name string, ttl time.Duration) (Lease, error) {
	return l.get((*redlock.Locker).Lock, ctx, name, ttl)
}

func (l redlockLocks) Keep(ctx context.Context, name string, ttl time.Duration) (Lease, error) {
	return l.get((*redlock.Locker).TryLock, ctx, name, ttl, redlock.WithAutoExtend())
}

func (l redlockLocks) Attach(ctx context.Context, name, token string, ttl time.Duration) (Lease, error) {
	attach := func(l *redlock.Locker, ctx context.Context, name string) (*redlock.Lease, error) {
		return l.Attach(ctx, name, token)
	}
	return l.get(attach, ctx, name, ttl)
}

type getLock = func(*redlock.Locker, context.Context, string) (*redlock.Lease, error)

func (l redlockLocks) get(how getLock, ctx context.Context, name string, ttl time.Duration, more ...redlock.Option) (Lease, error) {
	sibling, err := l.With(append(more, redlock.WithTTL(ttl))...)
	if err != nil {
		return nil, err
	}
	lease, err := how(sibling, ctx, name)
	if err != nil {
		return nil, err
	}
	return lease, nil
}
