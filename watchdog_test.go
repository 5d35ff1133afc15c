package redlock

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// contend makes another client try for a name every interval, until stop. It must
// never get it while the lease may act.
func (w *world) contend(name string, every time.Duration, lease *Lease) (stop func()) {
	l := w.locker(WithTTL(time.Second))
	quit, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for tick := time.NewTicker(every); ; {
			select {
			case <-quit:
				return
			case <-tick.C:
				if thief, err := l.TryLock(background, name); err == nil {
					assert.Zero(w.t, lease.Validity(), "two holders")
					thief.Unlock(background)
				}
			}
		}
	}()
	return func() { close(quit); <-ended }
}

func TestWatchdogRenewsEveryThirdOfTheTTLUntilUnlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(20), ms(20), ms(20))
		l := w.locker(WithTTL(9*time.Second), WithAutoExtend())
		lease, err := l.Lock(t.Context(), "a")
		require.NoError(t, err)
		begin := time.Now()
		for range 1000 {
			time.Sleep(100 * time.Millisecond)
			require.NoError(t, lease.Err())
			for i := range w.Nodes() {
				require.Greater(t, w.ttl(i+1, "a"), 5900*time.Millisecond-ms(20))
			}
		}
		renewals := w.executed(1, "EVALSHA "+hashes[extend]+" 1 a")
		held := time.Since(begin)
		assert.InDelta(t, float64(held/(3*time.Second)), renewals, 3, "once every third of the ttl, a tick early at the most")
		require.NoError(t, lease.Unlock(t.Context()))
		executed := len(w.log(1))
		time.Sleep(time.Minute)
		assert.Len(t, w.log(1), executed, "nothing is sent after the unlock")
		w.requireNoKeys()
	})
}

func TestNobodyRenewsALeaseThatDidNotAskForIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker(WithTTL(time.Second))
		lease, err := l.Lock(t.Context(), "a")
		require.NoError(t, err)
		<-lease.Done()
		var lost *LostError
		require.ErrorAs(t, lease.Err(), &lost)
		assert.Equal(t, CauseExpired, lost.Cause)
		assert.Equal(t, lease.Until(), lost.Until)
		assert.Zero(t, w.executed(1, "EVALSHA "+hashes[extend]+" 1 a"))
	})
}

func TestLeaseSurvivesAnySequenceOfSingleEmptyRestarts(t *testing.T) {
	t.Parallel()
	for _, n := range []int{3, 5} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, slices.Repeat([]time.Duration{ms(10)}, n)...)
			l := w.locker(WithAutoExtend())
			lease, err := l.Lock(t.Context(), "a")
			require.NoError(t, err)
			defer w.contend("a", 211*time.Millisecond, lease)()
			r := rand.New(rand.NewPCG(1, uint64(n)))
			for i := range 200 {
				node := r.IntN(n) + 1
				w.Inject(fmt.Sprintf("at %v, node %d: restart empty", time.Duration(r.Int64N(int64(time.Second))), node))
				time.Sleep(2*lease.locker.cfg.ttl/3 + 2*time.Second) // two renewals
				require.NoError(t, lease.Err(), "restart %d, of node %d", i, node)
			}
			require.NoError(t, lease.Unlock(t.Context()))
		})
	}
}

func TestLeaseWhoseKeysAMajorityForgotIsLostAndStaysLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(10), ms(10), ms(10))
		var told []error
		l := w.locker(WithAutoExtend(), WithHooks(Hooks{Lost: func(_ context.Context, _ *Lease, err error) { told = append(told, err) }}))
		lease, err := l.Lock(t.Context(), "a")
		require.NoError(t, err)
		until := lease.Until()
		w.Inject("at 1s, nodes 1,3: flushall")
		<-lease.Done()
		var lost *LostError
		require.ErrorAs(t, lease.Err(), &lost)
		assert.Equal(t, CauseSuperseded, lost.Cause)
		assert.Equal(t, until, lost.Until, "the holder has until then to stop")
		assert.Contains(t, lost.Error(), "1 of 3 nodes are known to have it, 2 needed")
		time.Sleep(time.Until(until) - ms(1))
		assert.Equal(t, []string{"", lease.Token(), ""}, w.keys("a"), "nothing is put back, and what is there stays for the holder to stop")
		time.Sleep(ms(20))
		synctest.Wait()
		w.requireNoKeys()
		require.Len(t, told, 1)
		assert.ErrorIs(t, told[0], ErrLost)
		assert.ErrorIs(t, lease.Unlock(t.Context()), ErrLost)
	})
}

func TestRepairIsNeverSentForAnExtensionThatWasNotWon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(10), ms(10), ms(10))
		l := w.locker(WithTTL(time.Second))
		lease, err := l.Lock(t.Context(), "a")
		require.NoError(t, err)
		time.Sleep(ms(20))
		w.Inject("at 0s, node 1: evict \"a\"")
		w.Inject(`at 0s for 300ms on any, node 2: error "LOADING Redis is loading the dataset in memory"`)
		time.Sleep(ms(10))
		require.ErrorIs(t, lease.Extend(t.Context(), time.Second), ErrNoQuorum)
		time.Sleep(ms(100))
		assert.Empty(t, w.keys("a")[0], "a majority may have forgotten it")
		time.Sleep(ms(400))
		require.NoError(t, lease.Extend(t.Context(), time.Second))
		time.Sleep(ms(30))
		assert.Equal(t, lease.Token(), w.keys("a")[0])
		assert.LessOrEqual(t, w.ttl(1, "a"), w.ttl(2, "a"), "it is put back for the rest of the lease only")
		require.NoError(t, lease.Unlock(t.Context()))
		time.Sleep(ms(20))
		w.requireNoKeys()
	})
}

func TestUnlockWhileARepairIsInFlightLeavesNothing(t *testing.T) {
	for _, fault := range []string{
		"at 0s on SET, node 1: delay 100ms requests",
		"at 0s on SET, node 1: delay 100ms replies",
		"on SET #1, node 1: lose request",
		"on SET #1, node 1: lose reply",
		"on SET #1, node 1: cut after",
	} {
		t.Run(fault, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, ms(10), ms(10), ms(10))
				l := w.locker(WithAutoExtend(), WithTTL(3*time.Second))
				lease, err := l.Lock(t.Context(), "a")
				require.NoError(t, err)
				time.Sleep(ms(20))
				w.Inject("at 0s, node 1: evict \"a\"")
				w.Inject(fault)
				extends := w.executed(2, "EVALSHA "+hashes[extend]+" 1 a")
				for w.executed(2, "EVALSHA "+hashes[extend]+" 1 a") == extends {
					time.Sleep(ms(1))
				}
				time.Sleep(ms(12)) // the renewal was won, the repair is on its way
				require.NoError(t, lease.Unlock(t.Context()))
				time.Sleep(5 * time.Second)
				w.requireNoKeys()
			})
		})
	}
}

func TestWatchdogOutlivesTransientFailures(t *testing.T) {
	for name, c := range map[string]struct {
		plan string
		ends bool
	}{
		"an outage shorter than the lease": {"at 250ms, all: cut\nat 250ms for 200ms, all: refuse", false},
		"a partition shorter than it":      {"at 250ms for 300ms, all: partition", false},
		"an outage longer than the lease":  {"at 250ms, all: cut\nat 250ms for 1250ms, all: refuse", true},
		"a node that flaps":                {"at 1s, node 1: cut\nat 1s for 1s, node 1: refuse\nat 3s, node 1: cut\nat 3s for 1s, node 1: refuse\nat 5s, node 1: cut\nat 5s for 1s, node 1: refuse", false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, ms(2), ms(2), ms(2))
				l := w.locker(WithTTL(900*time.Millisecond), WithAutoExtend())
				lease, err := l.Lock(t.Context(), "a")
				require.NoError(t, err)
				defer w.contend("a", 50*time.Millisecond, lease)()
				w.Inject(c.plan)
				if c.ends {
					<-lease.Done()
					assert.True(t, time.Now().Before(lease.Until()))
					var lost *LostError
					require.ErrorAs(t, lease.Err(), &lost)
					assert.Equal(t, CauseUnreachable, lost.Cause)
					require.ErrorIs(t, lease.Unlock(t.Context()), ErrLost)
					lease, err = l.Lock(t.Context(), "a") // the second lock is renewed like the first
					require.NoError(t, err)
				}
				for range 70 {
					time.Sleep(100 * time.Millisecond)
					require.NoError(t, lease.Err())
				}
				require.GreaterOrEqual(t, strings.Count(strings.Join(w.keys("a"), " "), lease.Token()), 2)
				require.NoError(t, lease.Unlock(t.Context()))
			})
		})
	}
}

func TestWatchdogTellsOfATakeOverAndLeavesTheThiefAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(2), ms(2), ms(2))
		l := w.locker(WithTTL(600*time.Millisecond), WithAutoExtend())
		lease, err := l.Lock(t.Context(), "a")
		require.NoError(t, err)
		time.Sleep(300 * time.Millisecond)
		w.plant("a", 5*time.Second, 1, 2)
		taken := time.Now()
		<-lease.Done()
		assert.LessOrEqual(t, time.Since(taken), 200*time.Millisecond+ms(10), "at the next renewal")
		var lost *LostError
		require.ErrorAs(t, lease.Err(), &lost)
		assert.Equal(t, CauseSuperseded, lost.Cause)
		time.Sleep(time.Second)
		assert.Equal(t, []string{"foreign", "foreign", ""}, w.keys("a"))
		assert.Equal(t, 5*time.Second-time.Since(taken), w.ttl(1, "a"), "its time was not touched")
		w.Inject("at 0s, nodes 1,2: evict \"a\"")
		time.Sleep(2 * time.Second)
		w.requireNoKeys()
		assert.ErrorIs(t, lease.Unlock(t.Context()), ErrLost)
	})
}

func TestAtRiskIsToldOnceInARowAndBeforeTheLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(2), ms(2), ms(2))
		var mu sync.Mutex
		var told []string
		l := w.locker(WithTTL(3*time.Second), WithAutoExtend(), WithHooks(Hooks{
			AtRisk: func(_ context.Context, lease *Lease, err error) {
				mu.Lock()
				defer mu.Unlock()
				told = append(told, "at risk")
				assert.Positive(t, lease.Validity())
				var q *QuorumError
				assert.ErrorAs(t, err, &q)
				assert.ErrorIs(t, err, ErrNoQuorum)
				assert.Equal(t, "renew", q.Round.Op)
			},
			Lost: func(context.Context, *Lease, error) {
				mu.Lock()
				defer mu.Unlock()
				told = append(told, "lost")
			},
		}))
		lease, err := l.Lock(t.Context(), "a")
		require.NoError(t, err)
		w.Inject("at 900ms for 1s, nodes 1,2: partition")
		time.Sleep(5 * time.Second)
		require.NoError(t, lease.Err())
		assert.Equal(t, []string{"at risk"}, told)
		w.Inject("at 0s, nodes 1,2: hang")
		<-lease.Done()
		synctest.Wait()
		assert.Equal(t, []string{"at risk", "at risk", "lost"}, told)
	})
}

func TestMaxHoldEndsALeaseHoweverItIsExtended(t *testing.T) {
	for _, auto := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, ms(2), ms(2), ms(2))
			opts := []Option{WithTTL(time.Second), WithMaxHold(5 * time.Second)}
			if auto {
				opts = append(opts, WithAutoExtend())
			}
			l := w.locker(opts...)
			begin := time.Now()
			lease, err := l.Lock(t.Context(), "a")
			require.NoError(t, err)
			if !auto {
				require.NoError(t, lease.Extend(t.Context(), time.Minute))
				assert.InDelta(t, 5*time.Second, lease.Validity(), float64(ms(10)))
			}
			<-lease.Done()
			assert.InDelta(t, 5*time.Second-l.cfg.lead(), time.Since(begin), float64(ms(3)))
			var lost *LostError
			require.ErrorAs(t, lease.Err(), &lost)
			assert.Equal(t, CauseMaxHold, lost.Cause)
			time.Sleep(time.Until(lost.Until) + ms(10))
			w.requireNoKeys()
		})
	}
}

func TestContextEndsSoonAfterASuspensionAlthoughTimersKnowNothing(t *testing.T) {
	for name, move := range map[string]func(*fakeClock){
		"suspended":                 func(c *fakeClock) { c.sleep(time.Minute) },
		"the wall clock goes ahead": func(c *fakeClock) { c.jump(time.Minute) },
	} {
		for _, auto := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, ms(2), ms(2), ms(2))
				clock := &fakeClock{}
				clock.jump(-time.Hour)
				opts := []Option{withClock(clock), WithTTL(30 * time.Second)}
				if auto {
					opts = append(opts, WithAutoExtend())
				}
				l := w.locker(opts...)
				lease, err := l.Lock(t.Context(), "a")
				require.NoError(t, err)
				ctx := lease.Context(t.Context())
				time.Sleep(time.Second)
				move(clock)
				moved := time.Now()
				<-ctx.Done()
				assert.LessOrEqual(t, time.Since(moved), clocksApart, name)
				var lost *LostError
				require.ErrorAs(t, context.Cause(ctx), &lost)
				if auto {
					assert.Equal(t, CausePaused, lost.Cause)
				}
			})
		}
	}
}

func TestLeasesOfManyNamesAreRenewedTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(2), ms(2), ms(2))
		l := w.locker(WithAutoExtend())
		const many = 600
		var held sync.WaitGroup
		for i := range many {
			held.Go(func() {
				time.Sleep(time.Duration(i) * ms(10)) // they are not obtained together
				_, err := l.Lock(t.Context(), fmt.Sprint("lock ", i))
				assert.NoError(t, err)
			})
		}
		held.Wait()
		before := l.root.nodes[0].snapshot()
		time.Sleep(30 * time.Second)
		after := l.root.nodes[0].snapshot()
		renewals, batches := after.Requests-before.Requests, after.Batches-before.Batches
		assert.GreaterOrEqual(t, renewals, uint64(9*many))
		assert.LessOrEqual(t, batches, renewals/10)
		t.Logf("%d renewals in %d batches", renewals, batches)
		leases := l.leases()
		assert.Len(t, leases, many)
		for _, lease := range leases {
			assert.NoError(t, lease.Err())
		}
	})
}

func TestRenewalNeverOutlivesTheRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(3), ms(4), ms(5))
		l := w.locker(WithTTL(200*time.Millisecond), WithAutoExtend())
		var mu sync.Mutex
		released := make(map[string]time.Time)
		var all sync.WaitGroup
		for g := range 16 {
			all.Go(func() {
				r := rand.New(rand.NewPCG(8, uint64(g)))
				for range 60 {
					name := fmt.Sprint("lock ", r.IntN(20))
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(r.Int64N(int64(ms(30)))))
					if r.IntN(2) == 0 {
						ctx, cancel = context.WithCancel(t.Context())
					}
					lease, err := l.Lock(ctx, name)
					cancel()
					if err != nil {
						continue
					}
					time.Sleep(time.Duration(r.Int64N(int64(ms(150)))))
					if err := lease.Unlock(t.Context()); err != nil {
						assert.ErrorIs(t, err, ErrLost)
					}
					mu.Lock()
					released[lease.Token()] = time.Now()
					mu.Unlock()
				}
			})
		}
		all.Wait()
		time.Sleep(700 * time.Millisecond)
		w.requireNoKeys()
		require.NotEmpty(t, released)
		executed := make([]int, 3)
		for i := range executed {
			executed[i] = len(w.log(i + 1))
		}
		time.Sleep(10 * time.Second)
		for i, k := range executed {
			assert.Len(t, w.log(i+1), k, "nothing follows")
		}
	})
}

func TestSlowHookKeepsTheWatchdogFromNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(2), ms(2), ms(2))
		l := w.locker(WithTTL(time.Second), WithHooks(Hooks{
			Round: func(_ context.Context, r Round) {
				if r.Op == "renew" {
					time.Sleep(time.Minute)
				}
			},
			Lost: func(context.Context, *Lease, error) { time.Sleep(time.Minute) },
		}))
		short, err := l.Lock(t.Context(), "short")
		require.NoError(t, err)
		auto, err := l.With(WithAutoExtend())
		require.NoError(t, err)
		kept, err := auto.Lock(t.Context(), "kept")
		require.NoError(t, err)
		<-short.Done()
		time.Sleep(20 * time.Second)
		assert.NoError(t, kept.Err())
		require.NoError(t, kept.Unlock(t.Context()))
		time.Sleep(2 * time.Hour)
	})
}

func TestAgendaAgreesWithANaiveTwin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(3, 9))
		a := &agenda{clock: &fakeClock{}, running: true} // nothing runs by itself
		leases := make([]*Lease, 40)
		for i := range leases {
			leases[i] = &Lease{ttl: time.Duration(1+r.IntN(20)) * time.Second}
		}
		in := make(map[*Lease]bool)
		for range 20000 {
			l := leases[r.IntN(len(leases))]
			due := time.Now().Add(time.Duration(r.Int64N(int64(2 * time.Second))))
			early := time.Duration(r.Int64N(int64(clocksApart)))
			switch r.IntN(4) {
			case 0:
				if !in[l] {
					a.add(l, due, early)
					in[l] = true
				}
			case 1:
				a.set(l, due, early)
			case 2:
				a.remove(l)
				delete(in, l)
			default:
				time.Sleep(time.Duration(r.Int64N(int64(ms(50)))))
			}
			got := make(map[*Lease]bool)
			for _, l := range a.due(a.clock.look()) {
				require.False(t, got[l])
				got[l] = true
			}
			for _, l := range leases {
				require.Equal(t, in[l] && !l.due.Add(-l.early).After(time.Now()), got[l])
			}
			require.Len(t, a.leases, len(in))
		}
	})
}

func TestWatchdogHearsOfALossAlsoAfterALongExtensionByHand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(2), ms(2), ms(2))
		l := w.locker(WithTTL(3*time.Second), WithAutoExtend())
		lease, err := l.Lock(t.Context(), "a")
		require.NoError(t, err)
		require.NoError(t, lease.Extend(t.Context(), time.Hour))
		time.Sleep(time.Minute)
		assert.Greater(t, lease.Validity(), 58*time.Minute, "no renewal shortens it")
		w.Inject("at 0s, nodes 1,2: flushall")
		gone := time.Now()
		<-lease.Done()
		assert.Less(t, time.Since(gone), time.Second+ms(10))
		require.ErrorIs(t, lease.Unlock(t.Context()), ErrLost)
	})
}
