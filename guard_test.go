package redlock

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const guardTime = 10 * time.Second // as long as the default ttl

// guardedWorld has three nodes that are old enough to vote.
func guardedWorld(t *testing.T) *world {
	w := newWorld(t, ms(2), ms(2), ms(2))
	time.Sleep(guardTime + 3*time.Second)
	return w
}

// flavours are the options with which the guard has to work.
func flavours(t *testing.T, test func(t *testing.T, opts ...Option)) {
	for name, opts := range map[string][]Option{"plain": nil, "fenced": {WithFencing()}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { test(t, opts...) })
		})
	}
}

// young counts the rows of an error whose nodes abstain.
func young(t *testing.T, err error) (k int) {
	t.Helper()
	require.ErrorIs(t, err, ErrNoQuorum)
	var e *QuorumError
	require.ErrorAs(t, err, &e)
	for _, v := range e.Round.Votes {
		if strings.Contains(v.String(), "failed") && strings.Contains(v.String(), "it restarted lately and abstains for another ") {
			k++
		}
	}
	return k
}

// intrude tries to get the lock all the time, until it does or the time is over.
func intrude(l *Locker, within time.Duration) (lease *Lease, err error) {
	for end := time.Now().Add(within); time.Now().Before(end); time.Sleep(ms(50)) {
		if lease, err = l.TryLock(background, "a"); err == nil {
			return lease, nil
		}
	}
	return nil, err
}

// Without the guard a majority that forgets within the ttl gives the name to a second
// holder. With it there is none, neither for a client that had been connected before
// nor for one that comes after; and later the nodes vote again.
func TestMajorityThatForgotGivesANameToNobodyWhileItMayBeHeld(t *testing.T) {
	for name, opts := range map[string][]Option{
		"plain": nil, "fenced": {WithFencing()},
		"guarded": {WithRestartGuard(guardTime)}, "guarded and fenced": {WithRestartGuard(guardTime), WithFencing()},
	} {
		for _, late := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, late %t", name, late), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := guardedWorld(t)
					a, b := w.locker(opts...), w.locker(opts...)
					lease, err := a.TryLock(t.Context(), "a")
					require.NoError(t, err)
					w.Inject(`at 0s, nodes 1,2: restart empty`)
					begin := time.Now()
					if late {
						b = w.cold(opts...)
					}
					other, err := intrude(b, time.Minute)
					require.NoError(t, err)
					if strings.HasPrefix(name, "guarded") {
						assert.ErrorIs(t, lease.Err(), ErrLost)
						assert.InDelta(t, guardTime, time.Since(begin), float64(3*time.Second))
						assert.GreaterOrEqual(t, time.Since(begin), guardTime)
					} else {
						assert.NoError(t, lease.Err(), "two holders")
						require.NoError(t, other.Err())
					}
					require.NoError(t, other.Unlock(t.Context()))
					lease.Unlock(t.Context())
				})
			})
		}
	}
}

// A clock that is set after the start makes the server look old. Who had been
// connected before goes by the run id; who comes only now cannot know better.
func TestClockThatIsSetAfterARestartFoolsOnlyNewcomers(t *testing.T) {
	flavours(t, func(t *testing.T, opts ...Option) {
		opts = append(opts, WithRestartGuard(guardTime))
		w := guardedWorld(t)
		a, b := w.locker(opts...), w.locker(opts...)
		lease, err := a.TryLock(t.Context(), "a")
		require.NoError(t, err)
		w.Inject("at 0s, nodes 1,2: restart empty\nat 1ms, nodes 1,2: clock +1h")
		time.Sleep(ms(10))
		begin := time.Now()

		_, err = b.TryLock(t.Context(), "a")
		assert.Equal(t, 2, young(t, err))
		before := len(w.log(1))
		_, err = intrude(b, lease.Validity())
		assert.Equal(t, 2, young(t, err))
		assert.NotContains(t, strings.Join(w.log(1)[before:], "\n"), "propose", "not even asked for its vote")
		require.ErrorIs(t, lease.Err(), ErrLost)
		other, err := intrude(b, time.Minute)
		require.NoError(t, err)
		assert.GreaterOrEqual(t, time.Since(begin), guardTime)
		assert.Less(t, time.Since(begin), guardTime+ms(200))
		require.NoError(t, other.Unlock(t.Context()))
		lease.Unlock(t.Context())
		time.Sleep(guardTime)

		lease, err = a.TryLock(t.Context(), "a")
		require.NoError(t, err)
		w.Inject("at 0s, nodes 1,2: restart empty\nat 1ms, nodes 1,2: clock +1h")
		time.Sleep(ms(10))
		newcomer := w.cold(opts...)
		second, err := newcomer.TryLock(t.Context(), "a")
		require.NoError(t, err, "documented with WithRestartGuard")
		assert.NoError(t, lease.Err())
		second.Unlock(t.Context())
		lease.Unlock(t.Context())
	})
}

// A repair is a vote, to which both halves of the guard apply. An extension is none:
// a node that says yes to it has the token.
func TestRestartedNodeIsRepairedOnlyAfterTheGuard(t *testing.T) {
	flavours(t, func(t *testing.T, opts ...Option) {
		for step, lasts := range map[string]time.Duration{"+1h": guardTime, "-8s": guardTime + 8*time.Second} {
			w := guardedWorld(t)
			opts := append(slices.Clone(opts), WithRestartGuard(guardTime), WithAutoExtend())
			a := w.locker(opts...)
			lease, err := a.TryLock(t.Context(), "a")
			require.NoError(t, err)
			time.Sleep(ms(10))
			w.Inject("at 0s, node 1: restart empty\nat 1ms, node 1: clock " + step)
			for range 98 {
				time.Sleep(lasts / 100)
				require.Empty(t, w.keys("a")[0])
			}
			assert.Contains(t, a.Health().String(), "not usable (it restarted lately and abstains for another ")
			time.Sleep(2 * guardTime)
			assert.Equal(t, lease.Token(), w.keys("a")[0])
			assert.Zero(t, a.Stats().Nodes[0].Abstains)

			w.Inject(`at 0s, node 2: restart`) // with its data
			require.NoError(t, lease.Extend(t.Context(), guardTime))
			w.Inject(`at 0s for 1s, node 3: hang`)
			require.NoError(t, lease.Extend(t.Context(), guardTime), "node 1 counts again, and node 2 though it restarted")
			require.NoError(t, lease.Unlock(t.Context()))
		}
	})
}

// An exchange that waits for replicas has connections of its own.
func TestGuardLooksAtConnectionsForReplicaAcksToo(t *testing.T) {
	flavours(t, func(t *testing.T, opts ...Option) {
		w := newReplicated(t, ms(2), ms(2), ms(2))
		time.Sleep(guardTime + 3*time.Second)
		opts = append(opts, WithRestartGuard(guardTime), WithReplicaAck(1, ms(20)))
		a, b := w.locker(opts...), w.locker(opts...)
		lease, err := a.TryLock(t.Context(), "a")
		require.NoError(t, err)
		w.Inject("at 0s, nodes 1,2: restart empty\nat 1ms, nodes 1,2: clock +1h")
		time.Sleep(ms(10))
		_, err = b.TryLock(t.Context(), "a")
		assert.Equal(t, 2, young(t, err))
		_, err = intrude(b, lease.Validity())
		assert.Equal(t, 2, young(t, err))
		require.ErrorIs(t, lease.Err(), ErrLost)
		other, err := intrude(b, guardTime)
		require.NoError(t, err)
		require.NoError(t, other.Unlock(t.Context()))
		lease.Unlock(t.Context())
	})
}

func TestAttachWaitsForTheGuardToo(t *testing.T) {
	flavours(t, func(t *testing.T, opts ...Option) {
		w := guardedWorld(t)
		a := w.locker(append(opts, WithRestartGuard(guardTime))...)
		lease, err := a.TryLock(t.Context(), "a")
		require.NoError(t, err)
		require.NoError(t, lease.Detach(t.Context()))
		w.Inject(`at 0s, nodes 1,2: restart`)
		time.Sleep(ms(10))
		for _, l := range []*Locker{a, w.cold(append(opts, WithRestartGuard(guardTime))...)} {
			_, err = l.Attach(t.Context(), "a", lease.Token())
			assert.Equal(t, 2, young(t, err))
		}
		assert.Equal(t, lease.Token(), w.keys("a")[0])
		time.Sleep(guardTime)
	})
}

func TestWaiterGetsTheLockWhenTheGuardIsOver(t *testing.T) {
	flavours(t, func(t *testing.T, opts ...Option) {
		w := guardedWorld(t)
		l := w.locker(append(opts, WithRestartGuard(guardTime))...)
		w.Inject(`at 0s, nodes 1,2: restart empty`)
		time.Sleep(ms(10))
		begin, before := time.Now(), w.executed(3, "EVALSHA")
		lease, err := l.Lock(t.Context(), "a")
		require.NoError(t, err)
		assert.GreaterOrEqual(t, time.Since(begin), guardTime)
		assert.Less(t, time.Since(begin), guardTime+3*time.Second)
		assert.Less(t, w.executed(3, "EVALSHA")-before, 50, "the third node is asked about once a second, lock and release")
		require.NoError(t, lease.Unlock(t.Context()))
	})
}

// It waits as long as the script has told it, and is not late by more.
func TestNewcomerWaitsForAsLongAsNodesTell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(2), ms(2), ms(2))
		l := w.cold(WithRestartGuard(30 * time.Second))
		begin := time.Now()
		lease, err := l.Lock(t.Context(), "a")
		require.NoError(t, err)
		assert.InDelta(t, 32*time.Second, time.Since(begin), float64(time.Second))
		require.NoError(t, lease.Unlock(t.Context()))
	})
}

// What was written before the server died is not written to the next one.
func TestVoteThatWasAskedForBeforeARestartIsNotAskedForAfterIt(t *testing.T) {
	flavours(t, func(t *testing.T, opts ...Option) {
		w := guardedWorld(t)
		a := w.locker(append(opts, WithRestartGuard(guardTime))...)
		b := w.locker(append(opts, WithRestartGuard(guardTime))...)
		held, err := a.TryLock(t.Context(), "a")
		require.NoError(t, err)
		w.Inject(`at 0s, nodes 1,2: evict "a"`) // so that they come up without it
		w.Inject("on EVALSHA key \"a\" #1, nodes 1,2: kill before for 1ns\nat 3ms, nodes 1,2: clock +1h")
		_, err = b.TryLock(t.Context(), "a")
		assert.Equal(t, 2, young(t, err))
		assert.NoError(t, held.Err())
		time.Sleep(ms(100))
		assert.Equal(t, []string{"", "", held.Token()}, w.keys("a"))
		held.Unlock(t.Context())
		time.Sleep(guardTime)
		assert.Equal(t, []string{"", "", ""}, w.keys("a"))
	})
}

func TestGuardCostsOneCommandForEachConnectionAndNoneForALock(t *testing.T) {
	flavours(t, func(t *testing.T, opts ...Option) {
		w := guardedWorld(t)
		l := w.locker(append(opts, WithRestartGuard(guardTime))...)
		begin := len(w.log(1))
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		require.NoError(t, lease.Unlock(t.Context()))
		synctest.Wait()
		assert.Len(t, w.log(1)[begin:], 2)
		time.Sleep(time.Minute) // of pings
		assert.EqualValues(t, l.Stats().Nodes[0].Connects, w.executed(1, "INFO"))
	})
	synctest.Test(t, func(t *testing.T) {
		w := guardedWorld(t)
		l := w.locker()
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		require.NoError(t, lease.Unlock(t.Context()))
		assert.Zero(t, w.executed(1, "INFO"))
		assert.Positive(t, w.executed(1, "SET a"), "one native command without the guard")
	})
}

func TestGuardThatCannotWorkSaysSoAtOnce(t *testing.T) {
	for reply, says := range map[string]string{
		"NOPERM User locker has no permissions to run the 'info' command": "the restart guard needs INFO server: NOPERM User locker",
		"ERR unknown command 'info'":                                      "the restart guard needs INFO server: ERR unknown command",
	} {
		synctest.Test(t, func(t *testing.T) {
			w := guardedWorld(t)
			l := w.cold(WithRestartGuard(guardTime))
			denial := w.Inject(fmt.Sprintf(`on INFO, nodes 1,2: error "%s"`, reply))
			begin := time.Now()
			_, err := l.Lock(t.Context(), "a")
			require.ErrorIs(t, err, ErrNoQuorum)
			assert.Less(t, time.Since(begin), ms(100))
			var e *QuorumError
			require.ErrorAs(t, err, &e)
			assert.Equal(t, 2, strings.Count(e.Error(), says), "%v", e)
			assert.ErrorContains(t, e.Round.Votes[0].Err, says)
			assert.Contains(t, l.Health().String(), says)
			assert.False(t, l.Health().OK())
			time.Sleep(ms(100))
			for _, node := range []int{1, 2} {
				assert.Zero(t, w.executed(node, "EVAL"))
			}
			denial.Stop() // rights can be given at any time
			time.Sleep(20 * time.Second)
			assert.True(t, l.Health().OK())
			lease, err := l.TryLock(t.Context(), "a")
			if err != nil {
				lease, err = l.TryLock(t.Context(), "a")
			}
			require.NoError(t, err)
			require.NoError(t, lease.Unlock(t.Context()))
		})
	}
}

// An error that may pass is not held against the node for longer than it lasts.
func TestServerThatIsBusyWhenItIsAskedForItsRunIDIsAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := guardedWorld(t)
		l := w.cold(WithRestartGuard(guardTime))
		w.Inject(`at 0s for 2s on INFO, nodes 1,2: error "BUSY Redis is busy running a script"`)
		_, err := l.TryLock(t.Context(), "a")
		require.ErrorIs(t, err, ErrNoQuorum)
		assert.ErrorContains(t, err, "BUSY")
		lease, err := l.Lock(t.Context(), "a")
		require.NoError(t, err)
		require.NoError(t, lease.Unlock(t.Context()))
	})
}

func TestTTLsAboveTheGuardAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := guardedWorld(t)
		l := w.locker(WithTTL(5*time.Second), WithRestartGuard(guardTime))
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		before := len(w.log(1))
		err = lease.Extend(t.Context(), guardTime+ms(1))
		require.ErrorIs(t, err, ErrInvalid)
		assert.ErrorContains(t, err, "ttl is 10.001s and the restart guard 10s")
		_, err = l.With(WithTTL(time.Minute))
		require.ErrorIs(t, err, ErrInvalid)
		assert.ErrorContains(t, err, "ttl is 1m0s and the restart guard 10s")
		_, err = l.With(WithRestartGuard(time.Minute))
		require.ErrorIs(t, err, ErrInvalid)
		assert.ErrorContains(t, err, "restart guard belongs to the nodes")
		assert.Len(t, w.log(1), before)
		require.NoError(t, lease.Extend(t.Context(), guardTime))
		require.NoError(t, lease.Unlock(t.Context()))
	})
	for _, c := range []struct {
		opts []Option
		says string
	}{
		{[]Option{WithRestartGuard(0)}, "restart guard is 0s; want at least the ttl"},
		{[]Option{WithRestartGuard(-time.Second)}, "restart guard is -1s; want at least the ttl"},
		{[]Option{WithRestartGuard(2 * maxTTL)}, "want at most 8760h0m0s"},
		{[]Option{WithRestartGuard(9 * time.Second)}, "ttl is 10s and the restart guard 9s; want no more than that"},
	} {
		_, err := New([]redis.UniversalClient{deaf(t)}, c.opts...)
		require.ErrorIs(t, err, ErrInvalid)
		assert.ErrorContains(t, err, c.says)
	}
}

func TestGuardNeedsClientsWhoseConnectionsCanBeToldApart(t *testing.T) {
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})
	defer cluster.Close()
	alone := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", PoolSize: 1})
	defer alone.Close()
	_, err := New([]redis.UniversalClient{cluster, alone, deaf(t)}, WithRestartGuard(guardTime))
	require.ErrorIs(t, err, ErrInvalid)
	assert.ErrorContains(t, err, "client 1 is a *redis.ClusterClient; the restart guard needs a *redis.Client")
	assert.ErrorContains(t, err, "client 2 has a pool of 1 connections; the restart guard needs at least 2")
	assert.NotContains(t, err.Error(), "client 3")
}

func TestServerHasToBeOlderThanTheGuardByTheGrainOfItsClocks(t *testing.T) {
	for guard, age := range map[time.Duration]int64{
		0: 0, ms(1): 3, time.Second: 3, time.Second + 1: 4, 10 * time.Second: 12, maxTTL: 365*24*3600 + 2,
	} {
		assert.Equal(t, age, (&config{guard: guard}).leastAge(), guard)
	}
}

func TestAbstentionLastsUntilAQuorumIsPossible(t *testing.T) {
	e := &QuorumError{Round: Round{Quorum: 3, Votes: make([]Vote, 5)}}
	for i, left := range []time.Duration{5, 3, 0, 8, 0} {
		if left > 0 {
			e.Round.Votes[i] = Vote{Outcome: Failed, Err: errYoung{left * time.Second}}
		}
	}
	assert.Equal(t, 3*time.Second, e.abstention(), "then three can vote")
	e.Round.Votes[1] = Vote{Outcome: Granted}
	assert.Zero(t, e.abstention(), "three can vote")
}

// Votes that were answered here took no time, and must not be asked for again in none.
func TestAttemptThatAskedTooFewNodesIsNotRepeatedAtOnce(t *testing.T) {
	for _, why := range []error{errYoung{time.Second}, errUnguarded{errGivenUp}} {
		e := &QuorumError{Round: Round{Quorum: 2, Votes: []Vote{
			{Outcome: Failed, Err: why}, {Outcome: Failed, Err: errNotAsked{}}, {Outcome: Granted},
		}}}
		assert.Equal(t, unaskedPause, e.tookAtLeast())
		e.Round.Votes[1].Err = errGivenUp
		assert.Zero(t, e.tookAtLeast())
	}
}

// One that was set back makes it look younger, even as if it were yet to start.
func TestServerWhoseClockWasSetBackAbstainsForLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(2), ms(2), ms(2))
		time.Sleep(15 * time.Second) // node 3 is old enough
		w.Inject("at 0s, nodes 1,2: clock -1m")
		l := w.cold(WithRestartGuard(guardTime))
		begin := time.Now()
		_, err := l.TryLock(t.Context(), "a")
		assert.Equal(t, 2, young(t, err))
		lease, err := l.Lock(t.Context(), "a")
		require.NoError(t, err)
		assert.InDelta(t, 57*time.Second, time.Since(begin), float64(2*time.Second))
		require.NoError(t, lease.Unlock(t.Context()))
	})
}
