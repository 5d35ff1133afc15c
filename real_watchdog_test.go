//go:build unix

package redlock_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed58520471/redlock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// renewals counts what the watchdog of a Locker has achieved.
type renewals struct{ won atomic.Int64 }

func (r *renewals) option() redlock.Option {
	return redlock.WithHooks(redlock.Hooks{Round: func(_ context.Context, round redlock.Round) {
		if round.Op == "renew" && round.Count(redlock.Granted) >= round.Quorum {
			r.won.Add(1)
		}
	}})
}

// pass waits for so many more.
func (r *renewals) pass(t *testing.T, more int64) {
	t.Helper()
	target := r.won.Load() + more
	require.Eventually(t, func() bool { return r.won.Load() >= target }, soon, tick, "renewals")
}

// eachWay runs a test with a Locker made by New and one made by Open.
func eachWay(t *testing.T, count int, opts []redlock.Option, test func(t *testing.T, ns nodes, l *redlock.Locker, r *renewals)) {
	for name, make := range map[string]func(ns nodes, t *testing.T, opts ...redlock.Option) *redlock.Locker{
		"New":  func(ns nodes, t *testing.T, opts ...redlock.Option) *redlock.Locker { return ns.locker(t, opts...) },
		"Open": func(ns nodes, t *testing.T, opts ...redlock.Option) *redlock.Locker { return ns.open(t, "", opts...) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ns, r := startNodes(t, count), new(renewals)
			test(t, ns, make(ns, t, append(opts[:len(opts):len(opts)], redlock.WithAutoExtend(), r.option())...), r)
		})
	}
}

// requireLost waits for the end of a lease and returns why it ended, and when that
// was seen.
func requireLost(t *testing.T, lease *redlock.Lease, within time.Duration) (lost *redlock.LostError, seen time.Time) {
	t.Helper()
	select {
	case <-lease.Context(t.Context()).Done():
	case <-time.After(within):
		require.Fail(t, "the lease does not end")
	}
	seen = time.Now()
	require.ErrorAs(t, lease.Err(), &lost)
	require.ErrorIs(t, lost, redlock.ErrLost)
	require.Zero(t, lease.Validity())
	return lost, seen
}

// contenderOn makes the test binary one who wants the lock, too.
const contenderOn = "REDLOCK_TEST_CONTENDER_ON"

// rival tries to get "orders" all the time, and tells when it has it. Asked for
// an end, it tells how often it was refused.
func rival(l *redlock.Locker) error {
	fmt.Println("trying")
	for refused := 0; ; refused++ {
		lease, err := l.TryLock(context.Background(), "orders")
		if err == nil {
			fmt.Println("got it:", lease)
			return l.Close()
		}
		if errors.Is(err, redlock.ErrInvalid) || errors.Is(err, redlock.ErrClosed) {
			return err
		}
		fmt.Println("refused", refused)
		time.Sleep(5 * time.Millisecond)
	}
}

// Servers without persistence forget the lock when they are killed. One at a time,
// with time to repair in between, they take nothing from the holder and give
// nothing to others.
func TestALeaseSurvivesServersThatForgetOneAfterTheOther(t *testing.T) {
	opts := []redlock.Option{redlock.WithTTL(1500 * time.Millisecond), redlock.WithNodeTimeout(500 * time.Millisecond)}
	if addrs := os.Getenv(contenderOn); addrs != "" {
		beAside(addrs, rival, opts...)
	}
	if testing.Short() {
		t.Skip("kills servers one after the other")
	}
	const rounds = 10
	eachWay(t, 3, opts, func(t *testing.T, ns nodes, l *redlock.Locker, r *renewals) {
		lease := lock(t, l, "orders")
		ns.eventuallyHold(t, lease, soon)
		contender := startAside(t, contenderOn, ns)
		contender.hears(t, "trying")
		refused, got := new(atomic.Int64), new(atomic.Pointer[string])
		go listen(contender.said, refused, got)

		begin := time.Now()
		for round := range rounds {
			n := ns[round%len(ns)]
			n.Restart()
			require.Empty(t, n.Client().ConfigGet(t.Context(), "save").Val()["save"])
			ns.eventuallyHold(t, lease, soon)
			r.pass(t, 2) // the node vouches again
			require.NoError(t, lease.Err(), "after %d servers", round+1)
			if line := got.Load(); line != nil {
				require.Fail(t, "the contender says", *line)
			}
		}
		t.Logf("%d servers killed in %v, with %d renewals; the contender was refused %d times",
			rounds, time.Since(begin).Round(time.Millisecond), r.won.Load(), refused.Load())
		assert.Positive(t, refused.Load(), "it tried")

		unlock(t, lease)
		require.Eventually(t, func() bool { return got.Load() != nil }, soon, tick, "it would have been seen")
	})
}

// listen counts what a contender says.
func listen(said *bufio.Scanner, refused *atomic.Int64, got *atomic.Pointer[string]) {
	for said.Scan() {
		line := said.Text()
		var k int64
		if _, err := fmt.Sscanf(line, "refused %d", &k); err == nil {
			refused.Store(k)
			continue
		}
		got.Store(&line)
		return
	}
}

func TestALeaseThatAMajorityForgotIsLostAtTheNextRenewalAndNeverComesBack(t *testing.T) {
	const ttl = 3 * time.Second
	opts := []redlock.Option{redlock.WithTTL(ttl), redlock.WithNodeTimeout(500 * time.Millisecond)}
	eachWay(t, 3, opts, func(t *testing.T, ns nodes, l *redlock.Locker, r *renewals) {
		lease := lock(t, l, "orders")
		ns.eventuallyHold(t, lease, soon)
		r.pass(t, 1)
		ns.do(t, "config", "resetstat")
		flushed := make(chan error, 2)
		for _, n := range ns[:2] { // at once, lest a renewal comes in between and repairs the first
			go func() { flushed <- n.Client().FlushAll(t.Context()).Err() }()
		}
		require.NoError(t, errors.Join(<-flushed, <-flushed))
		lost, _ := requireLost(t, lease, ttl)
		assert.Equal(t, redlock.CauseSuperseded, lost.Cause)
		t.Log(lost)
		for until := time.Now().Add(ttl); time.Now().Before(until); time.Sleep(ttl / 100) {
			require.ErrorIs(t, lease.Err(), redlock.ErrLost)
			require.Zero(t, lease.Validity())
			for _, n := range ns[:2] {
				require.Zero(t, n.Client().Exists(t.Context(), "orders").Val(), n.Addr)
			}
		}
		for _, n := range ns {
			assert.Zero(t, n.Calls("set"), "nothing was put anywhere")
		}
		ns.eventuallyEmpty(t, soon)
		require.ErrorIs(t, lease.Extend(t.Context(), ttl), redlock.ErrLost)
		require.ErrorIs(t, lease.Unlock(t.Context()), redlock.ErrLost)
	})
}

func TestALeaseSurvivesAnOutageThatIsShorterThanItself(t *testing.T) {
	const ttl = 4 * time.Second
	opts := []redlock.Option{redlock.WithTTL(ttl), redlock.WithNodeTimeout(200 * time.Millisecond)}
	eachWay(t, 5, opts, func(t *testing.T, ns nodes, l *redlock.Locker, r *renewals) {
		lease := lock(t, l, "orders")
		ns.eventuallyHold(t, lease, soon)
		r.pass(t, 1)
		ns.each((*server).Stop)
		time.Sleep(ttl / 2) // a renewal fails, and the next
		left := lease.Validity()
		ns.each((*server).Cont)
		r.pass(t, 2)
		require.NoError(t, lease.Err())
		t.Logf("%v were left when the servers went on, %v after two renewals", left, lease.Validity())
		ns.eventuallyHold(t, lease, soon)
		unlock(t, lease)
		ns.eventuallyEmpty(t, soon)
	})
}

func TestALeaseIsLostInTimeByAnOutageThatIsLongerAndTheNextIsRenewedAgain(t *testing.T) {
	const (
		ttl  = 3 * time.Second
		lead = time.Second // so that what is seen late on a busy machine is still seen in time
	)
	opts := []redlock.Option{redlock.WithTTL(ttl), redlock.WithNodeTimeout(200 * time.Millisecond), redlock.WithLossLead(lead)}
	eachWay(t, 5, opts, func(t *testing.T, ns nodes, l *redlock.Locker, r *renewals) {
		lease := lock(t, l, "orders")
		ns.eventuallyHold(t, lease, soon)
		r.pass(t, 1)
		ns.each((*server).Stop)
		lost, seen := requireLost(t, lease, 2*ttl)
		assert.Equal(t, redlock.CauseUnreachable, lost.Cause)
		assert.True(t, seen.Before(lost.Until), "seen %v after its end", seen.Sub(lost.Until))
		t.Logf("seen %v before its end: %v", lost.Until.Sub(seen), lost)
		require.ErrorIs(t, lease.Unlock(t.Context()), redlock.ErrLost)
		ns.each((*server).Cont)

		ctx, cancel := context.WithTimeout(t.Context(), soon)
		defer cancel()
		next, err := l.Lock(ctx, "orders")
		require.NoError(t, err)
		r.pass(t, 4) // more than a ttl
		require.NoError(t, next.Err())
		require.ErrorIs(t, lease.Err(), redlock.ErrLost)
		ns.eventuallyHold(t, next, soon)
		unlock(t, next)
		ns.eventuallyEmpty(t, soon)
	})
}
