package compat

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-redsync/redsync/v4"
	rsredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/seed58520471/redlock"
	"github.com/seed58520471/redlock/internal/realredis"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
)

const (
	ttl  = 10 * time.Second
	soon = 10 * time.Second
	tick = 2 * time.Millisecond
)

func TestMain(m *testing.M) {
	redis.SetLogger(&logging.VoidLogger{})
	os.Exit(m.Run())
}

// shared are nodes that both libraries lock on.
type shared struct {
	servers []*realredis.Server
	ours    *redlock.Locker
	theirs  *redsync.Redsync
}

func start(t *testing.T) *shared {
	t.Helper()
	s := &shared{servers: realredis.Start(t, 5)}
	var clients []redis.UniversalClient
	var pools []rsredis.Pool
	for _, server := range s.servers {
		ours := redis.NewClient(&redis.Options{Addr: server.Addr})
		theirs := redis.NewClient(&redis.Options{Addr: server.Addr})
		t.Cleanup(func() { ours.Close(); theirs.Close() })
		clients = append(clients, ours)
		pools = append(pools, goredis.NewPool(theirs))
	}
	var err error
	s.ours, err = redlock.New(clients, redlock.WithTTL(ttl), redlock.WithNodeTimeout(time.Second))
	require.NoError(t, err)
	t.Cleanup(func() { s.ours.Close() })
	s.theirs = redsync.New(pools...)
	return s
}

// mutex is redsync's lock of that name, with as long a ttl as ours.
func (s *shared) mutex(name string, more ...redsync.Option) *redsync.Mutex {
	return s.theirs.NewMutex(name, append(more, redsync.WithExpiry(ttl), redsync.WithTimeoutFactor(0.1))...)
}

// eventually waits until all nodes have that value under name; "" where there is
// to be nothing.
func (s *shared) eventually(t *testing.T, name, value string) {
	t.Helper()
	require.Eventually(t, func() bool {
		for _, server := range s.servers {
			if got, _ := server.Client().Get(context.Background(), name).Result(); got != value {
				return false
			}
		}
		return true
	}, soon, tick)
}

func TestOurLockExcludesRedsync(t *testing.T) {
	s := start(t)
	lease, err := s.ours.Lock(t.Context(), "orders")
	require.NoError(t, err)
	s.eventually(t, "orders", lease.Token())

	m := s.mutex("orders")
	var taken *redsync.ErrTaken
	require.ErrorAs(t, m.TryLockContext(t.Context()), &taken)
	s.eventually(t, "orders", lease.Token()) // its roll-back leaves ours alone
	_, err = m.UnlockContext(t.Context())
	require.Error(t, err)
	s.eventually(t, "orders", lease.Token())

	require.NoError(t, lease.Extend(t.Context(), 2*ttl))
	require.NoError(t, lease.Unlock(t.Context()))
	s.eventually(t, "orders", "")
	require.NoError(t, m.TryLockContext(t.Context()))
	s.eventually(t, "orders", m.Value())

	require.NoError(t, lease.Unlock(t.Context()), "a second Unlock says what the first said")
	s.eventually(t, "orders", m.Value()) // and touches nothing
}

func TestRedsyncExcludesOurLock(t *testing.T) {
	s := start(t)
	m := s.mutex("orders")
	require.NoError(t, m.LockContext(t.Context()))
	s.eventually(t, "orders", m.Value())

	_, err := s.ours.TryLock(t.Context(), "orders")
	require.ErrorIs(t, err, redlock.ErrHeld)
	var verdict *redlock.QuorumError
	require.ErrorAs(t, err, &verdict)
	for _, v := range verdict.Round.Votes {
		if v.Outcome == redlock.Refused {
			require.Equal(t, m.Value(), v.Holder)
		}
	}
	s.eventually(t, "orders", m.Value()) // our roll-back leaves theirs alone

	ok, err := m.ExtendContext(t.Context())
	require.NoError(t, err)
	require.True(t, ok)
	ok, err = m.UnlockContext(t.Context())
	require.NoError(t, err)
	require.True(t, ok)
	s.eventually(t, "orders", "")
	lease, err := s.ours.TryLock(t.Context(), "orders")
	require.NoError(t, err)
	s.eventually(t, "orders", lease.Token())

	ok, err = m.UnlockContext(t.Context())
	require.False(t, ok, err)
	s.eventually(t, "orders", lease.Token())
}

func TestEachWaitsForTheOther(t *testing.T) {
	const rounds = 20
	s := start(t)
	var inside atomic.Int32
	work := func(context.Context) error {
		defer inside.Add(-1)
		if inside.Add(1) > 1 {
			return errors.New("both are inside")
		}
		time.Sleep(time.Millisecond) // long enough to be met
		return nil
	}
	var both errgroup.Group
	both.Go(func() error {
		for range rounds {
			if err := s.ours.Do(t.Context(), "orders", work); err != nil {
				return fmt.Errorf("ours: %w", err)
			}
		}
		return nil
	})
	both.Go(func() error {
		m := s.mutex("orders", redsync.WithTries(10000), redsync.WithRetryDelay(5*time.Millisecond))
		for range rounds {
			if err := m.LockContext(t.Context()); err != nil {
				return fmt.Errorf("theirs: %w", err)
			}
			err := work(t.Context())
			_, unlockErr := m.UnlockContext(t.Context())
			if err := errors.Join(err, unlockErr); err != nil {
				return fmt.Errorf("theirs: %w", err)
			}
		}
		return nil
	})
	require.NoError(t, both.Wait())
	s.eventually(t, "orders", "")
}

// What an expired or lost lock leaves behind must not be deleted by its late
// owner when the other library holds it now.
func TestALateUnlockLeavesTheOtherAlone(t *testing.T) {
	s := start(t)
	lease, err := s.ours.Lock(t.Context(), "orders")
	require.NoError(t, err)
	s.eventually(t, "orders", lease.Token())
	for _, server := range s.servers { // as if the ttl had passed there
		require.NoError(t, server.Client().Del(t.Context(), "orders").Err())
	}
	m := s.mutex("orders")
	require.NoError(t, m.LockContext(t.Context()))
	s.eventually(t, "orders", m.Value())

	require.ErrorIs(t, lease.Extend(t.Context(), 2*ttl), redlock.ErrLost)
	require.ErrorIs(t, lease.Unlock(t.Context()), redlock.ErrLost)
	s.eventually(t, "orders", m.Value())

	for _, server := range s.servers {
		require.NoError(t, server.Client().Del(t.Context(), "orders").Err())
	}
	next, err := s.ours.Lock(t.Context(), "orders")
	require.NoError(t, err)
	s.eventually(t, "orders", next.Token())
	ok, err := m.UnlockContext(t.Context())
	require.False(t, ok, err)
	s.eventually(t, "orders", next.Token())
	require.NoError(t, next.Unlock(t.Context()))
}
