package redlock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed58520471/redlock/faultinject"
)

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
				var hung []*faultinject.Injection
				for i, k := range kinds {
					switch k {
					case "grant":
						votes[i] = Granted
					case "refuse":
						votes[i] = Refused
						w.plant("a", time.Minute, i+1)
					case "error":
						votes[i] = Failed
						w.Inject(fmt.Sprintf(`on SET, node %d: error "OOM command not allowed"`, i+1))
					case "hang":
						votes[i] = Failed
						hung = append(hung, w.Inject(fmt.Sprintf("at 0s, node %d: hang", i+1)))
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
				for _, h := range hung {
					h.Stop()
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
		w.Inject("at 0s, node 4: hang\nat 0s, node 5: kill")
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

func TestEndOfAWaitSaysWhyAndAfterHowManyAttempts(t *testing.T) {
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(errors.New("the user went away"))
	for attempts, text := range []string{
		`redlock: lock "a": context canceled (the user went away) before the first attempt`,
		`redlock: lock "a": context canceled (the user went away) after 1 attempt`,
		`redlock: lock "a": context canceled (the user went away) after 2 attempts`,
	} {
		assert.EqualError(t, &waitError{"lock", "a", attempts, contextErr(ctx), nil}, text)
	}
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
			fail := func(where string) {
				w.Inject(fmt.Sprintf("on SET, %[1]s: error %[2]q\non EVAL, %[1]s: error %[2]q\non EVALSHA, %[1]s: error %[2]q", where, c.reply))
			}
			fail("nodes 1,2")
			lease, err := l.Lock(t.Context(), "a")
			require.NoError(t, err, c.reply)
			require.NoError(t, lease.Extend(t.Context(), time.Minute), c.reply)
			require.NoError(t, lease.Unlock(t.Context()), c.reply)
			time.Sleep(time.Second)

			fail("node 3")
			before := w.attempts(4, "a")
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
			assert.Equal(t, attempts, w.attempts(4, "a")-before, "attempts with %s", c.reply)
			time.Sleep(time.Second)
			w.requireNoKeys()
		})
	}
}
