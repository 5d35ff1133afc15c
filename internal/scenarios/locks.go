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
	clients := w.Cluster.Client(client).Redis(roomy)
	l, err := redlock.New(clients, redlock.WithTTL(w.TTL))
	return redlockLocks{l}, err
}

// roomy sets go-redis up for many locks at a time. Its notifications of maintenance
// are off: clients that share the setting write it while others read it, which the
// race detector sees when several connect at once.
func roomy(o *redis.Options) {
	o.PoolSize, o.DialerRetries = 40, 1
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
}

type redlockLocks struct{ *redlock.Locker }

func (l redlockLocks) TryLock(ctx context.Context, name string, ttl time.Duration) (Lease, error) {
	sibling, err := l.With(redlock.WithTTL(ttl))
	if err != nil {
		return nil, err
	}
	lease, err := sibling.TryLock(ctx, name)
	if err != nil {
		return nil, err
	}
	return lease, nil
}
