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

// Redlock is the library under test, with its defaults except for the ttl.
func Redlock(w *World, client string) (Locks, error) {
	clients := w.Clients(client, clientOptions)
	l, err := redlock.New(clients, redlock.WithTTL(w.TTL))
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

type getLock = func(*redlock.Locker, context.Context, string) (*redlock.Lease, error)

func (l redlockLocks) get(how getLock, ctx context.Context, name string, ttl time.Duration) (Lease, error) {
	sibling, err := l.With(redlock.WithTTL(ttl))
	if err != nil {
		return nil, err
	}
	lease, err := how(sibling, ctx, name)
	if err != nil {
		return nil, err
	}
	return lease, nil
}
