package redlock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestLockAndUnlockCostTheQuorumthFastestRoundTrip(t *testing.T) {
	for _, hung := range [][]int{{}, {3}, {4}, {3, 4}} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, ms(1), ms(20), ms(40), ms(80), ms(150))
			l := w.locker()
			for _, i := range hung {
				w.nodes[i].hang.Store(true)
			}
			begin := time.Now()
			lease, err := l.Lock(t.Context(), "orders")
			require.NoError(t, err)
			assert.Equal(t, ms(40), time.Since(begin), "lock with %v hung", hung)
			assert.Equal(t, 10*time.Second-ms(40)-ms(102), lease.Validity())

			begin = time.Now()
			require.NoError(t, lease.Extend(t.Context(), 20*time.Second))
			assert.Equal(t, ms(40), time.Since(begin), "extend with %v hung", hung)
			assert.Equal(t, 20*time.Second-ms(40)-ms(202), lease.Validity())

			begin = time.Now()
			require.NoError(t, lease.Unlock(t.Context()))
			assert.Equal(t, ms(40), time.Since(begin), "unlock with %v hung", hung)
		})
	}
}

func TestHungMajorityFailsAtTheNodeTimeoutAndRefusalsAtTheDecidingAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(20), ms(40), ms(80), ms(150))
		l := w.locker()
		w.plant("taken", time.Minute, 0, 1, 2, 3, 4)
		begin := time.Now()
		_, err := l.TryLock(t.Context(), "taken")
		assert.ErrorIs(t, err, ErrHeld)
		assert.Equal(t, ms(40), time.Since(begin))

		for i := range 3 {
			w.nodes[i].hang.Store(true)
		}
		begin = time.Now()
		_, err = l.TryLock(t.Context(), "orders")
		assert.ErrorIs(t, err, ErrNoQuorum)
		assert.NotErrorIs(t, err, ErrHeld)
		assert.NotErrorIs(t, err, context.DeadlineExceeded, "a node timeout is not the caller's deadline")
		assert.Equal(t, ms(500), time.Since(begin))
	})
}

func TestEveryNumberOfNodesToleratesItsMinority(t *testing.T) {
	for _, n := range []int{1, 2, 3, 4, 5, 7} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, make([]time.Duration, n)...)
			l := w.locker()
			for i := range n - quorumOf(n) {
				w.nodes[i].hang.Store(true)
			}
			lease, err := l.TryLock(t.Context(), "a")
			require.NoError(t, err, "N=%d", n)
			require.NoError(t, lease.Unlock(t.Context()))

			w.nodes[n-1].hang.Store(true)
			_, err = l.TryLock(t.Context(), "a")
			assert.ErrorIs(t, err, ErrNoQuorum, "N=%d with one more down", n)
		})
	}
}

func TestErrorIsTheSameWhateverTheOrderOfTheAnswers(t *testing.T) {
	// Every mix of three nodes that grant, refuse, answer with an error or do
	// not answer, and every order of their answers. Which class it is comes
	// from the dumb twin.
	outcomes := []string{"grant", "refuse", "error", "hang"}
	orders := [][]int{{1, 2, 3}, {1, 3, 2}, {2, 1, 3}, {2, 3, 1}, {3, 1, 2}, {3, 2, 1}}
	for mix := range 64 {
		kinds := []string{outcomes[mix%4], outcomes[mix/4%4], outcomes[mix/16]}
		for _, order := range orders {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, ms(10*order[0]), ms(10*order[1]), ms(10*order[2]))
				l := w.locker()
				votes := make([]Outcome, 3)
				for i, k := range kinds {
					switch k {
					case "grant":
						votes[i] = Granted
					case "refuse":
						votes[i] = Refused
						w.plant("a", time.Minute, i)
					case "error":
						votes[i] = Failed
						w.nodes[i].on(func(cmd string, _ []string) string {
							if cmd == "SET" {
								return "OOM command not allowed"
							}
							return ""
						})
					case "hang":
						votes[i] = Failed
						w.nodes[i].hang.Store(true)
					}
				}
				lease, err := l.TryLock(t.Context(), "a")
				win, c := twinFinal(votes)
				switch {
				case win:
					require.NoError(t, err, "%v %v", kinds, order)
					require.NoError(t, lease.Unlock(t.Context()))
				case c == refused:
					assert.ErrorIs(t, err, ErrHeld, "%v %v", kinds, order)
					assert.NotErrorIs(t, err, ErrNoQuorum)
				default:
					assert.ErrorIs(t, err, ErrNoQuorum, "%v %v", kinds, order)
					assert.NotErrorIs(t, err, ErrHeld)
				}
				for i := range w.nodes {
					w.nodes[i].hang.Store(false)
				}
				time.Sleep(time.Second)
				for i, v := range w.keys("a") {
					if kinds[i] == "refuse" {
						assert.Equal(t, "foreign", v)
					} else {
						assert.Empty(t, v, "node %d of %v %v", i, kinds, order)
					}
				}
			})
		}
	}
}

func TestQuorumErrorHasOneRowPerNodeOnOneLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(2), ms(3), ms(4), ms(5))
		l := w.locker()
		other := w.locker(WithOwner("billing-7"))
		w.nodes[3].hang.Store(true)
		w.nodes[4].kill()
		held, err := other.TryLock(t.Context(), "a")
		require.NoError(t, err)

		_, err = l.TryLock(t.Context(), "a")
		var q *QuorumError
		require.ErrorAs(t, err, &q)
		require.Len(t, q.Round.Votes, 5)
		assert.Equal(t, 3, q.Round.Quorum)
		assert.Equal(t, 3, q.Round.Count(Refused))
		assert.Equal(t, held.Token(), q.Round.Votes[0].Holder)
		assert.Equal(t, "billing-7", q.Round.Owner())
		assert.Equal(t, ms(1), q.Round.Votes[0].Latency)
		assert.Equal(t, "10.0.0.1:6379", q.Round.Votes[0].Node)
		assert.Equal(t, Pending, q.Round.Votes[3].Outcome, "nobody waited for the node that hangs")
		text := err.Error()
		assert.NotContains(t, text, "\n")
		assert.Contains(t, text, `lock "a": held by another owner`)
		assert.Contains(t, text, `"billing-7"`)
		assert.NotContains(t, text, held.Token(), "whoever knows the token can release the lock")
	})
}

func TestValidityCountsFromBeforeTheWinningAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(4), ms(4), ms(4))
		l := w.locker(WithTTL(time.Second), WithNodeTimeout(ms(500)), WithBackoff(Backoff{Min: ms(50), Max: ms(100)}))
		w.plant("a", ms(1200), 0, 1, 2)
		begin := time.Now()
		lease, err := l.Lock(t.Context(), "a")
		require.NoError(t, err)
		waited := time.Since(begin)
		assert.GreaterOrEqual(t, waited, ms(1200)-ms(4))
		assert.Less(t, waited, ms(1600))
		assert.Equal(t, time.Second-ms(4)-ms(12), lease.Validity(), "the wait does not count")
		require.NoError(t, lease.Unlock(t.Context()))

		w.nodes[0].rtt.Store(int64(ms(300)))
		w.nodes[1].rtt.Store(int64(ms(300)))
		lease, err = l.Lock(t.Context(), "b")
		require.NoError(t, err)
		assert.Equal(t, time.Second-ms(300)-ms(12), lease.Validity(), "the time of the winning attempt does")
		for i := range w.nodes {
			assert.False(t, lease.Until().After(time.Now().Add(w.nodes[i].TTL("b"))), "no node forgets before Until")
		}
	})
}

func TestQuorumThatComesTooLateIsExpiredAndReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(10), ms(10), ms(10))
		clock := &fakeClock{}
		l := w.locker(WithTTL(ms(200)), withClock(clock))
		w.nodes[0].on(func(cmd string, _ []string) string {
			if cmd == "SET" {
				clock.jump(ms(190)) // of the wall clock, while the votes are on their way
			}
			return ""
		})
		_, err := l.TryLock(t.Context(), "a")
		assert.ErrorIs(t, err, ErrExpired)
		assert.NotErrorIs(t, err, ErrHeld)
		assert.NotErrorIs(t, err, ErrNoQuorum)
		var q *QuorumError
		require.ErrorAs(t, err, &q)
		assert.GreaterOrEqual(t, q.Round.Count(Granted), 2)
		time.Sleep(ms(50))
		w.requireNoKeys()

		w.nodes[0].clearHooks()
		for _, n := range w.nodes {
			n.rtt.Store(int64(ms(250)))
		}
		begin := time.Now()
		_, err = l.TryLock(t.Context(), "a")
		assert.ErrorIs(t, err, ErrNoQuorum, "no vote is waited for past the point where it would come too late")
		assert.LessOrEqual(t, time.Since(begin), ms(196))
		time.Sleep(ms(600))
		w.requireNoKeys()
	})
}

func TestWaitEndsForItsOwnReasonAndKeepsTheLastVerdict(t *testing.T) {
	cause := errors.New("the user pressed the button")
	for _, c := range []struct {
		name     string
		opts     []Option
		ctx      func(context.Context) (context.Context, context.CancelFunc)
		is       []error
		isNot    []error
		from, to time.Duration
	}{
		{"cancelled", nil, func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancelCause(ctx)
			time.AfterFunc(ms(300), func() { cancel(cause) })
			return ctx, func() { cancel(nil) }
		}, []error{context.Canceled, cause, ErrHeld}, []error{context.DeadlineExceeded}, ms(300), ms(300)},
		{"past its deadline", nil, func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, ms(300))
		}, []error{context.DeadlineExceeded, ErrHeld}, []error{context.Canceled}, ms(300), ms(300)},
		{"used up", []Option{WithWait(ms(300))}, func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithCancel(ctx)
		}, []error{ErrHeld}, []error{context.Canceled, context.DeadlineExceeded}, ms(300), ms(310)},
		{"no wait at all", []Option{WithWait(0)}, func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithCancel(ctx)
		}, []error{ErrHeld}, []error{context.Canceled}, ms(2), ms(2)},
		{"three attempts", []Option{WithMaxAttempts(3)}, func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithCancel(ctx)
		}, []error{ErrHeld}, []error{context.Canceled}, ms(6), ms(9000)},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, ms(2), ms(2), ms(2))
			l := w.locker(append(c.opts, WithBackoff(Backoff{Min: 2 * time.Second, Max: 2 * time.Second}))...)
			w.plant("a", time.Minute, 0, 1, 2)
			before := w.nodes[0].executed("SET a")
			ctx, cancel := c.ctx(t.Context())
			defer cancel()
			begin := time.Now()
			lease, err := l.Lock(ctx, "a")
			took := time.Since(begin)
			assert.Nil(t, lease)
			for _, e := range c.is {
				assert.ErrorIs(t, err, e, c.name)
			}
			for _, e := range c.isNot {
				assert.NotErrorIs(t, err, e, c.name)
			}
			var q *QuorumError
			assert.ErrorAs(t, err, &q, "the rows are kept")
			assert.GreaterOrEqual(t, took, c.from, c.name)
			assert.LessOrEqual(t, took, c.to, c.name)
			if c.name == "three attempts" {
				assert.Equal(t, 3, w.nodes[0].executed("SET a")-before)
			}
			assert.Equal(t, []string{"foreign", "foreign", "foreign"}, w.keys("a"))
		})
	}
}

func TestContextThatHasEndedSendsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(2), ms(2), ms(2))
		l := w.locker()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		before := len(w.nodes[0].log())
		_, err := l.Lock(ctx, "a")
		assert.ErrorIs(t, err, context.Canceled)
		assert.NotErrorIs(t, err, ErrNoQuorum)
		time.Sleep(time.Second)
		assert.Len(t, w.nodes[0].log(), before)
	})
}

func TestLeaseWonAsTheContextEndsIsReturnedOrReleased(t *testing.T) {
	// The quorum arrives at 40 ms; the context ends at every millisecond around.
	for end := 30; end <= 50; end++ {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, ms(10), ms(40), ms(90))
			l := w.locker()
			ctx, cancel := context.WithTimeout(t.Context(), ms(end))
			defer cancel()
			lease, err := l.Lock(ctx, "a")
			if err == nil {
				assert.GreaterOrEqual(t, end, 40)
				require.NoError(t, lease.Err())
				require.NoError(t, lease.Unlock(ctx))
			} else {
				assert.LessOrEqual(t, end, 40)
				assert.ErrorIs(t, err, context.DeadlineExceeded)
			}
			time.Sleep(ms(200))
			w.requireNoKeys()
		})
	}
}

func TestNothingStaysAfterAFailedAcquireWhateverHappenedToTheAnswers(t *testing.T) {
	// The quorum is prevented on nodes 3-5; nodes 1 and 2 took the SET and
	// something went wrong with the answer.
	for _, fault := range []string{"no reply", "connection cut instead of the reply", "late", "caller gone", "caller gone before"} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, ms(1), ms(1), ms(1), ms(1), ms(1))
			l := w.locker(WithTTL(30*time.Second), WithNodeTimeout(ms(50)))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			w.plant("a", 30*time.Second, 2, 3, 4)
			for _, n := range w.nodes[:2] {
				n.on(func(cmd string, args []string) string {
					if cmd != "SET" || args[0] != "a" {
						return ""
					}
					switch fault {
					case "no reply":
						n.mute.Store(true)
						time.AfterFunc(ms(45), func() { n.mute.Store(false) })
					case "connection cut instead of the reply":
						n.cut.Store(true)
					case "late":
						time.Sleep(ms(2000))
					case "caller gone":
						cancel()
					}
					return ""
				})
			}
			if fault == "caller gone before" {
				time.AfterFunc(ms(1)/2, cancel)
				for _, n := range w.nodes[2:] {
					n.hang.Store(true)
				}
			}
			begin := time.Now()
			_, err := l.TryLock(ctx, "a")
			require.Error(t, err)
			if !strings.HasPrefix(fault, "caller") {
				assert.ErrorIs(t, err, ErrHeld)
			}
			assert.LessOrEqual(t, time.Since(begin), ms(50))
			bound := ms(150)
			if fault == "late" { // the server runs it after two seconds, and answers nobody
				bound += ms(2000) + ms(100)
			}
			time.Sleep(bound)
			values := w.keys("a")
			assert.Empty(t, values[0], fault)
			assert.Empty(t, values[1], fault)
			assert.Equal(t, "foreign", values[2])
		})
	}
}

func TestLostReplyNeverTurnsOurOwnLockIntoAnothers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker(WithNodeTimeout(ms(100)))
		cutOnce := func(n *simNode, verb string) {
			var once sync.Once
			n.clearHooks()
			n.on(func(cmd string, _ []string) string {
				if strings.HasPrefix(cmd, verb) {
					once.Do(func() { n.cut.Store(true) })
				}
				return ""
			})
		}
		for _, n := range w.nodes {
			cutOnce(n, "SET")
		}
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err, "executed, the connection ended before the reply, asked again: it is ours")
		for _, n := range w.nodes {
			cutOnce(n, "EVAL")
		}
		require.NoError(t, lease.Unlock(t.Context()), "the same for the release: it was ours")
		w.requireNoKeys()
	})
}

func TestSilentReplyIsNoQuorumAndNeverHeldOrLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker(WithNodeTimeout(ms(100)))
		for _, n := range w.nodes {
			n.mute.Store(true)
		}
		_, err := l.TryLock(t.Context(), "a")
		assert.ErrorIs(t, err, ErrNoQuorum)
		assert.NotErrorIs(t, err, ErrHeld)
		for _, n := range w.nodes {
			n.mute.Store(false)
		}
		lease, err := l.Lock(t.Context(), "a")
		require.NoError(t, err)
		for _, n := range w.nodes {
			n.mute.Store(true)
		}
		err = lease.Unlock(t.Context())
		assert.ErrorIs(t, err, ErrNoQuorum)
		assert.NotErrorIs(t, err, ErrLost)
		for _, n := range w.nodes {
			n.mute.Store(false)
		}
		time.Sleep(time.Second)
		w.requireNoKeys()
	})
}

func TestTimeoutOfADialIsNotTheCallersDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := redis.NewClient(&redis.Options{Addr: "10.0.0.1:6379", DialerRetries: 1, Dialer: func(context.Context, string, string) (net.Conn, error) {
			return nil, fmt.Errorf("dialling: %w", context.DeadlineExceeded)
		}})
		defer client.Close()
		l, err := New([]redis.UniversalClient{client})
		require.NoError(t, err)
		defer l.Close()
		_, err = l.TryLock(t.Context(), "a")
		assert.ErrorIs(t, err, ErrNoQuorum)
		assert.ErrorContains(t, err, "dialling")
		assert.NotErrorIs(t, err, context.DeadlineExceeded)
	})
}

func TestEveryErrorReplyOfAMinorityChangesNothingAndOfAMajorityHasItsClass(t *testing.T) {
	for _, c := range []struct {
		reply  string
		isHeld bool
		atOnce bool // no retry can cure it
	}{
		{reply: "READONLY You can't write against a read only replica."},
		{reply: "LOADING Redis is loading the dataset in memory"},
		{reply: "OOM command not allowed when used memory > 'maxmemory'."},
		{reply: "MISCONF Redis is configured to save RDB snapshots"},
		{reply: "BUSY Redis is busy running a script."},
		{reply: "MASTERDOWN Link with MASTER is down"},
		{reply: "CLUSTERDOWN The cluster is down"},
		{reply: "NOREPLICAS Not enough good replicas to write."},
		{reply: "ERR max number of clients reached"},
		{reply: "NOAUTH Authentication required.", atOnce: true},
		{reply: "WRONGPASS invalid username-password pair", atOnce: true},
		{reply: "NOPERM User default has no permissions", atOnce: true},
		{reply: "MOVED 3999 127.0.0.1:6381", atOnce: true},
		{reply: "WRONGTYPE Operation against a key holding the wrong kind of value", isHeld: true},
		{reply: "NOSCRIPT No matching script."},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, ms(1), ms(1), ms(1), ms(1), ms(1))
			l := w.locker(WithMaxAttempts(2), WithNodeTimeout(ms(100)))
			fail := func(cmd string, args []string) string {
				if cmd == "SET" || strings.HasPrefix(cmd, "EVAL") {
					return c.reply
				}
				return ""
			}
			w.nodes[0].on(fail)
			w.nodes[1].on(fail)
			lease, err := l.Lock(t.Context(), "a")
			require.NoError(t, err, c.reply)
			require.NoError(t, lease.Extend(t.Context(), time.Minute), c.reply)
			require.NoError(t, lease.Unlock(t.Context()), c.reply)
			time.Sleep(time.Second)

			w.nodes[2].on(fail)
			before := w.nodes[3].executed("SET a")
			_, err = l.Lock(t.Context(), "a")
			if c.isHeld {
				assert.ErrorIs(t, err, ErrHeld, c.reply)
				assert.NotErrorIs(t, err, ErrNoQuorum)
			} else {
				assert.ErrorIs(t, err, ErrNoQuorum, c.reply)
				assert.NotErrorIs(t, err, ErrHeld)
				assert.Contains(t, err.Error(), strings.Fields(c.reply)[0])
				var served redis.Error
				assert.ErrorAs(t, err, &served, "the node's error is wrapped")
			}
			attempts := 2
			if c.atOnce {
				attempts = 1
			}
			assert.Equal(t, attempts, w.nodes[3].executed("SET a")-before, "attempts with %s", c.reply)
			time.Sleep(time.Second)
			w.requireNoKeys()
		})
	}
}

func TestColdFirstLockSucceedsWithinItsWaitAndTheSecondCostsOneRoundTrip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(150), ms(150), ms(150))
		for _, n := range w.nodes {
			n.trips.Store(4)
		}
		l := w.cold(WithWait(5 * time.Second))
		lease, err := l.Lock(t.Context(), "a")
		require.NoError(t, err, "connecting must go on when the votes that waited for it have timed out")
		require.NoError(t, lease.Unlock(t.Context()))

		begin := time.Now()
		lease, err = l.Lock(t.Context(), "a")
		require.NoError(t, err)
		assert.Equal(t, ms(150), time.Since(begin))
		require.NoError(t, lease.Unlock(t.Context()))
	})
}

func TestLockAfterAnHourOfSilenceCostsOneRoundTrip(t *testing.T) {
	for name, sabotage := range map[string]func(*world){
		"a firewall that forgets idle connections": func(w *world) {
			for _, n := range w.nodes {
				n.forget.Store(int64(time.Minute))
			}
			time.Sleep(time.Hour)
		},
		"every connection dropped without a word once": func(w *world) {
			time.Sleep(30 * time.Minute)
			for _, n := range w.nodes {
				n.forget.Store(1) // what is connected now is dead from here on
			}
			time.Sleep(time.Minute)
			for _, n := range w.nodes {
				n.forget.Store(0)
			}
			time.Sleep(30 * time.Minute)
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, ms(40), ms(40), ms(40))
			l := w.locker()
			sabotage(w)
			begin := time.Now()
			lease, err := l.Lock(t.Context(), "a")
			require.NoError(t, err, name)
			assert.Equal(t, ms(40), time.Since(begin), name)
			require.NoError(t, lease.Unlock(t.Context()))
		})
	}
}

func TestDeadConnectionIsReplacedWithinTheSameAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(5), ms(5), ms(5))
		l := w.locker()
		for _, n := range w.nodes {
			n.cutAll() // the servers closed them, as they do with idle clients
		}
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		time.Sleep(ms(100))
		assert.Equal(t, []string{lease.Token(), lease.Token(), lease.Token()}, w.keys("a"))
	})
}

func TestPlainLockIsOneNativeCommandPerNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker()
		begin := make([]int, 3)
		for i, n := range w.nodes {
			begin[i] = len(n.log())
		}
		lease, err := l.Lock(t.Context(), "a")
		require.NoError(t, err)
		time.Sleep(ms(10))
		require.NoError(t, lease.Unlock(t.Context()))
		time.Sleep(ms(10))
		for i, n := range w.nodes {
			calls := n.log()[begin[i]:]
			require.Len(t, calls, 2)
			assert.Equal(t, fmt.Sprintf("SET a %s px 10000 nx get", lease.Token()), calls[0])
			assert.Regexp(t, "^EVALSHA [0-9a-f]{40} 1 a "+lease.Token()+"$", calls[1])
		}
	})
}

func TestOldServerGetsTheScript(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		for _, n := range w.nodes {
			n.on(func(cmd string, args []string) string {
				if cmd == "SET" && args[len(args)-1] == "get" { // the script's own SET ends otherwise
					return "ERR syntax error"
				}
				return ""
			})
		}
		l := w.cold()
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		assert.Equal(t, []string{lease.Token(), lease.Token(), lease.Token()}, w.keys("a"))
		_, err = l.TryLock(t.Context(), "a")
		assert.ErrorIs(t, err, ErrHeld)
		require.NoError(t, lease.Unlock(t.Context()))
		time.Sleep(ms(10))
		w.requireNoKeys()
		before := w.nodes[0].executed("SET a")
		lease, err = l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		time.Sleep(ms(10))
		assert.Equal(t, 1, w.nodes[0].executed("SET a")-before, "found out once: only the script's own SET")
		require.NoError(t, lease.Unlock(t.Context()))
	})
}

func TestScriptsSurviveFlushesAndServersThatWantTheText(t *testing.T) {
	for name, deny := range map[string]func(cmd string) string{
		"flushed each time": func(cmd string) string {
			if cmd == "EVALSHA" {
				return "NOSCRIPT No matching script. Please use EVAL."
			}
			return ""
		},
		"EVALSHA unknown": func(cmd string) string {
			if cmd == "EVALSHA" || cmd == "SCRIPT" {
				return "ERR unknown command 'EVALSHA', with args beginning with: "
			}
			return ""
		},
		"EVALSHA not permitted": func(cmd string) string {
			if cmd == "EVALSHA" || cmd == "SCRIPT" {
				return "NOPERM this user has no permissions to run the 'evalsha' command"
			}
			return ""
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, ms(1), ms(1), ms(1))
			l := w.locker()
			for _, n := range w.nodes {
				n.on(func(cmd string, _ []string) string { return deny(cmd) })
			}
			for range 3 {
				lease, err := l.TryLock(t.Context(), "a")
				require.NoError(t, err, name)
				require.NoError(t, lease.Extend(t.Context(), time.Minute), name)
				before := w.nodes[0].executed("EVAL")
				require.NoError(t, lease.Unlock(t.Context()), name)
				assert.LessOrEqual(t, w.nodes[0].executed("EVAL")-before, 2, "commands per node and call, %s", name)
				time.Sleep(ms(10))
				w.requireNoKeys()
			}
		})
	}
}

func TestScriptsDeniedIsToldByUnlockAndNeverHeldOrLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker(WithTTL(2 * time.Second))
		for _, n := range w.nodes {
			n.on(func(cmd string, _ []string) string {
				if strings.HasPrefix(cmd, "EVAL") {
					return "NOPERM no permissions to run the '" + cmd + "' command"
				}
				return ""
			})
		}
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		for _, err := range []error{lease.Extend(t.Context(), time.Minute), lease.Unlock(t.Context())} {
			assert.ErrorIs(t, err, ErrNoQuorum)
			assert.NotErrorIs(t, err, ErrHeld)
			assert.NotErrorIs(t, err, ErrLost)
			assert.ErrorContains(t, err, "NOPERM")
		}
		time.Sleep(2 * time.Second)
		w.requireNoKeys()
	})
}

func TestNamesAreTheKeysByteForByte(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker()
		names := []string{
			"my-lock", "a b", "\tq\n", "日本語-ключ", "a{b}c", "{x}{y}", "{}", "}{", "a:b", "redlock:released:a",
			strings.Repeat("k", 64<<10), "\x00\xff", "a", "a:fence", "A", " a",
		}
		var leases []*Lease
		for _, name := range names {
			lease, err := l.TryLock(t.Context(), name)
			require.NoError(t, err, "%.20q", name)
			_, err = l.TryLock(t.Context(), name)
			assert.ErrorIs(t, err, ErrHeld, "%.20q", name)
			leases = append(leases, lease)
		}
		time.Sleep(ms(10))
		for _, n := range w.nodes {
			assert.ElementsMatch(t, names, n.Keys())
		}
		for _, lease := range leases {
			require.NoError(t, lease.Unlock(t.Context()))
		}
		time.Sleep(ms(10))
		w.requireNoKeys()
	})
}

func TestOneServerUnderTwoNamesHasOneVote(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		w.nodes[1] = w.nodes[0] // another address, the same server
		l := w.locker(WithMaxAttempts(3))
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err, "two servers are a quorum of three")
		require.NoError(t, lease.Extend(t.Context(), time.Minute))
		w.nodes[2].Del("a")
		assert.Error(t, lease.Extend(t.Context(), time.Hour), "one server is not")
		assert.Less(t, lease.Validity(), time.Minute)
		lease.Unlock(t.Context())
		w.nodes[2].kill()
		_, err = l.Lock(t.Context(), "a")
		assert.ErrorIs(t, err, ErrNoQuorum)
		assert.ErrorContains(t, err, "must not vote twice")
		time.Sleep(time.Second)
		assert.Empty(t, w.nodes[0].Keys())
	})
}

func TestNodesThatWereDownAreUsedWhenTheyComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1), ms(1), ms(1))
		w.nodes[3].kill()
		w.nodes[4].kill()
		l := w.locker()
		w.plant("a", time.Minute, 2, 3, 4)
		_, err := l.TryLock(t.Context(), "a")
		require.Error(t, err, "three of five are needed, however many are reachable")
		time.Sleep(ms(500))
		assert.Equal(t, []string{"", "", "foreign", "foreign", "foreign"}, w.keys("a"))

		w.nodes[3].revive()
		w.nodes[4].revive()
		time.Sleep(2 * time.Second) // go-redis itself tries a refused address once a second
		lease, err := l.TryLock(t.Context(), "b")
		require.NoError(t, err)
		time.Sleep(time.Second)
		assert.Equal(t, 5, len(w.keys("b")))
		for i, v := range w.keys("b") {
			assert.Equal(t, lease.Token(), v, "node %d", i+1)
		}
	})
}

func TestContendersAllGetTheirTurnsAndNeverTwoAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(2), ms(3), ms(4), ms(5))
		var lockers []*Locker
		for range 3 {
			lockers = append(lockers, w.locker(WithWait(5*time.Minute)))
		}
		var inside, turns atomic.Int64
		var wg sync.WaitGroup
		for i := range 10 {
			wg.Go(func() {
				for range 20 {
					lease, err := lockers[i%3].Lock(t.Context(), "a")
					if !assert.NoError(t, err) {
						return
					}
					assert.EqualValues(t, 1, inside.Add(1))
					time.Sleep(ms(5))
					inside.Add(-1)
					turns.Add(1)
					assert.NoError(t, lease.Unlock(t.Context()))
				}
			})
		}
		wg.Wait()
		assert.EqualValues(t, 200, turns.Load())
		time.Sleep(time.Second)
		w.requireNoKeys()
	})
}

func TestWaitingForOurselvesFailsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker()
		sibling, err := l.With(WithTTL(time.Minute))
		require.NoError(t, err)
		lease, err := l.Lock(t.Context(), "a")
		require.NoError(t, err)
		ctx := lease.Context(t.Context())
		for _, locker := range []*Locker{l, sibling} {
			_, err = locker.Lock(ctx, "a")
			assert.ErrorIs(t, err, ErrHeld)
			assert.ErrorContains(t, err, "context")
		}
		inner, err := l.Lock(ctx, "b")
		require.NoError(t, err, "another name is another lock")
		require.NoError(t, inner.Unlock(ctx))
		require.NoError(t, lease.Unlock(ctx))
		lease, err = l.Lock(context.WithoutCancel(ctx), "a")
		require.NoError(t, err, "the outer lease is over")
		require.NoError(t, lease.Unlock(ctx))
	})
}

func TestDoHoldsTheLockAroundTheFunction(t *testing.T) {
	oops := errors.New("oops")
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker(WithTTL(time.Second))
		err := l.Do(t.Context(), "a", func(ctx context.Context) error {
			lease := FromContext(ctx)
			require.NotNil(t, lease)
			assert.Equal(t, "a", lease.Name())
			assert.NoError(t, ctx.Err())
			_, err := l.TryLock(t.Context(), "a")
			assert.ErrorIs(t, err, ErrHeld)
			return oops
		})
		assert.Equal(t, oops, err)
		time.Sleep(ms(10))
		w.requireNoKeys()

		assert.PanicsWithValue(t, "at the disco", func() {
			l.Do(t.Context(), "a", func(context.Context) error { panic("at the disco") })
		})
		time.Sleep(ms(10))
		w.requireNoKeys()

		done := make(chan struct{})
		go func() {
			defer close(done)
			l.Do(t.Context(), "a", func(context.Context) error { runtime.Goexit(); return nil })
		}()
		<-done
		time.Sleep(ms(10))
		w.requireNoKeys()

		ctx, cancel := context.WithCancel(t.Context())
		err = l.Do(ctx, "a", func(ctx context.Context) error { cancel(); return ctx.Err() })
		assert.ErrorIs(t, err, context.Canceled, "fn's own error")
		time.Sleep(ms(10))
		w.requireNoKeys()

		err = l.Do(t.Context(), "a", func(ctx context.Context) error {
			<-ctx.Done()
			assert.ErrorIs(t, context.Cause(ctx), ErrLost)
			return oops
		})
		assert.ErrorIs(t, err, oops)
		assert.ErrorIs(t, err, ErrLost)

		assert.ErrorIs(t, l.Do(t.Context(), "a", nil), ErrInvalid)

		err = l.Do(t.Context(), "a", func(ctx context.Context) error { l.Close(); <-ctx.Done(); return oops })
		assert.ErrorIs(t, err, oops)
		assert.ErrorIs(t, err, ErrClosed)
	})
}

func TestDoTellsAnUnlockWithoutAQuorumToHooksOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		var told error
		l := w.locker(WithHooks(Hooks{Done: func(_ context.Context, op Op, _ *Lease, err error) {
			if op.Kind == "unlock" {
				told = err
			}
		}}))
		err := l.Do(t.Context(), "a", func(context.Context) error {
			w.nodes[0].hang.Store(true)
			w.nodes[1].hang.Store(true)
			return nil
		})
		assert.NoError(t, err)
		assert.ErrorIs(t, told, ErrNoQuorum)
	})
}

func TestCloseEndsEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker()
		sibling, err := l.With(WithTTL(time.Minute))
		require.NoError(t, err)
		lease, err := l.Lock(t.Context(), "a")
		require.NoError(t, err)
		other, err := sibling.Lock(t.Context(), "b")
		require.NoError(t, err)
		ctx := other.Context(t.Context())

		waited := make(chan error)
		go func() { _, err := l.Lock(t.Context(), "b"); waited <- err }()
		time.Sleep(ms(50))
		require.NoError(t, l.Close())
		assert.ErrorIs(t, <-waited, ErrClosed)
		assert.ErrorIs(t, lease.Err(), ErrClosed)
		<-ctx.Done()
		assert.ErrorIs(t, context.Cause(ctx), ErrClosed)
		w.requireNoKeys()

		_, err = l.TryLock(t.Context(), "c")
		assert.ErrorIs(t, err, ErrClosed)
		_, err = sibling.TryLock(t.Context(), "c")
		assert.ErrorIs(t, err, ErrClosed)
		assert.ErrorIs(t, lease.Unlock(t.Context()), ErrClosed)
		assert.ErrorIs(t, lease.Extend(t.Context(), time.Minute), ErrClosed)
		assert.NoError(t, l.Close(), "again")
	})
}

func TestCloseOfASiblingEndsOnlyItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker()
		sibling, err := l.With(WithTTL(time.Minute))
		require.NoError(t, err)
		mine, err := l.Lock(t.Context(), "a")
		require.NoError(t, err)
		its, err := sibling.Lock(t.Context(), "b")
		require.NoError(t, err)
		require.NoError(t, sibling.Close())
		assert.ErrorIs(t, its.Err(), ErrClosed)
		assert.NoError(t, mine.Err())
		time.Sleep(ms(10))
		assert.Equal(t, []string{"", "", ""}, w.keys("b"))
		_, err = sibling.Lock(t.Context(), "b")
		assert.ErrorIs(t, err, ErrClosed)
		require.NoError(t, mine.Unlock(t.Context()))
	})
}

func TestCloseIsBoundedWhenNodesHangAndSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker()
		_, err := l.Lock(t.Context(), "a")
		require.NoError(t, err)
		for _, n := range w.nodes {
			n.hang.Store(true)
		}
		begin := time.Now()
		err = l.Close()
		assert.ErrorContains(t, err, "10.0.0.2:6379")
		assert.LessOrEqual(t, time.Since(begin), 3*time.Second)
	})
}

// fakeClock reads the bubble's clock, with a wall clock that tests can set and a
// machine that they can suspend.
type fakeClock struct {
	wall, asleep atomic.Int64
}

func withClock(c clock) Option {
	return Option{name: "clock", set: func(cfg *config) error { cfg.clock = c; return nil }}
}

func (c *fakeClock) jump(d time.Duration)  { c.wall.Add(int64(d)) }
func (c *fakeClock) sleep(d time.Duration) { c.asleep.Add(int64(d)) }
func (c *fakeClock) start() instant        { return c.look() }
func (c *fakeClock) look() instant {
	now := time.Now()
	return instant{mono: now, wall: now.UnixNano() + c.wall.Load(), asleep: time.Duration(c.asleep.Load())}
}
