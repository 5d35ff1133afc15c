package scenarios

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// naive is a lock client on node 1, as careful as one is on a single node; each
// mistake replaces something of it. A naive lease is for one goroutine.
type naive struct {
	client  string
	node    redis.UniversalClient // node 1
	nodes   []redis.UniversalClient
	options redis.Options // what is set of it: ReadTimeout, MaxRetries, MinRetryBackoff

	lock   func(context.Context, *naiveLease, time.Duration) error
	extend func(context.Context, *naiveLease, time.Duration) error
	unlock func(context.Context, *naiveLease) error
	look   func(*naiveLease) error
}

type naiveLease struct {
	*naive
	name, token string
	until       time.Time
	answered    []redis.UniversalClient // that have granted it; for quorums only
}

var errNaive = errors.New("somebody else's, or nobody's")

// withMistake makes naive locks.
func withMistake(mistake func(*World, *naive)) Maker {
	return func(w *World, client string) (Locks, error) {
		n := &naive{
			client: client, lock: setNXPX, extend: extendOwn, unlock: deleteOwn, look: lookAtTime,
			options: redis.Options{ReadTimeout: w.ttls(0.4), MaxRetries: -1},
		}
		if mistake != nil {
			mistake(w, n)
		}
		n.nodes = w.Cluster.Client(client).Redis(func(o *redis.Options) {
			o.ReadTimeout, o.MaxRetries = n.options.ReadTimeout, n.options.MaxRetries
			o.MinRetryBackoff, o.MaxRetryBackoff = n.options.MinRetryBackoff, n.options.MinRetryBackoff
			o.DialerRetries = 1
		})
		n.node = n.nodes[0]
		return n, nil
	}
}

func (n *naive) TryLock(ctx context.Context, name string, ttl time.Duration) (Lease, error) {
	l := &naiveLease{naive: n, name: name, token: uuid.NewString(), until: time.Now().Add(ttl)}
	if err := n.lock(ctx, l, ttl); err != nil {
		return nil, err
	}
	return l, nil
}

func (n *naive) Close() error { return nil }

func (l *naiveLease) Token() string                    { return l.token }
func (l *naiveLease) Until() time.Time                 { return l.until }
func (l *naiveLease) Err() error                       { return l.look(l) }
func (l *naiveLease) Unlock(ctx context.Context) error { return l.unlock(ctx, l) }

func (l *naiveLease) Extend(ctx context.Context, ttl time.Duration) error {
	until := time.Now().Add(ttl)
	err := l.extend(ctx, l, ttl)
	if err == nil {
		l.until = until
	}
	return err
}

// ok is nil if a command did what it was meant to.
func ok(done bool, err error) error {
	if err == nil && !done {
		err = errNaive
	}
	return err
}

// How a single node is used with care.

func setNXPX(ctx context.Context, l *naiveLease, ttl time.Duration) error {
	done, err := l.node.SetNX(ctx, l.name, l.token, ttl).Result()
	if err != nil { // it may have been done
		l.unlock(ctx, l)
	}
	return ok(done, err)
}

const (
	ifMine       = `return redis.call('get', KEYS[1]) == ARGV[1] and `
	deleteScript = ifMine + `redis.call('del', KEYS[1]) or 0`
	extendScript = ifMine + `redis.call('pexpire', KEYS[1], ARGV[2]) or 0`
)

func deleteOwn(ctx context.Context, l *naiveLease) error {
	return ok(l.node.Eval(ctx, deleteScript, []string{l.name}, l.token).Bool())
}

func extendOwn(ctx context.Context, l *naiveLease, ttl time.Duration) error {
	return ok(l.node.Eval(ctx, extendScript, []string{l.name}, l.token, ttl.Milliseconds()).Bool())
}

func lookAtTime(l *naiveLease) error { return ok(time.Now().Before(l.until), nil) }

// The mistakes.

func setNXThenExpire(_ *World, n *naive) {
	n.lock = func(ctx context.Context, l *naiveLease, ttl time.Duration) error {
		if err := ok(l.node.SetNX(ctx, l.name, l.token, 0).Result()); err != nil {
			return err
		}
		return l.node.PExpire(ctx, l.name, ttl).Err()
	}
}

// getSet stores when the lock ends by the client's clock, which is ahead by so
// many ttls.
func getSet(ahead map[string]float64) func(*World, *naive) {
	return func(w *World, n *naive) {
		n.lock = func(ctx context.Context, l *naiveLease, ttl time.Duration) error {
			now := time.Now().Add(w.ttls(ahead[n.client])).UnixNano()
			l.token = strconv.FormatInt(now+int64(ttl), 10)
			if done, err := l.node.SetNX(ctx, l.name, l.token, 0).Result(); done || err != nil {
				return err
			}
			found, err := l.node.Get(ctx, l.name).Result()
			if err != nil {
				return err
			}
			if end, _ := strconv.ParseInt(found, 10, 64); now < end {
				return errNaive
			}
			replaced, err := l.node.GetSet(ctx, l.name, l.token).Result()
			return ok(replaced == found, err)
		}
	}
}

func getThenDel(_ *World, n *naive) {
	n.unlock = func(ctx context.Context, l *naiveLease) error {
		if err := ok(l.hasKey(ctx)); err != nil {
			return err
		}
		return l.node.Del(ctx, l.name).Err()
	}
}

func (l *naiveLease) hasKey(ctx context.Context) (bool, error) {
	found, err := l.node.Get(ctx, l.name).Result()
	return found == l.token, err
}

func constantValue(_ *World, n *naive) {
	n.lock = func(ctx context.Context, l *naiveLease, ttl time.Duration) error {
		l.token = "locked"
		return setNXPX(ctx, l, ttl)
	}
}

// sendsAgain deletes while its time lasts, and has a client that sends again.
func sendsAgain(w *World, n *naive) {
	n.options.MaxRetries, n.options.MinRetryBackoff = 1, w.ttls(0.2)
	n.unlock = func(ctx context.Context, l *naiveLease) error {
		if err := l.look(l); err != nil {
			return err
		}
		return l.node.Del(ctx, l.name).Err()
	}
}

func oneTokenForAll(w *World, n *naive) {
	n.options.ReadTimeout = w.ttls(0.2)
	token := uuid.NewString()
	n.lock = func(ctx context.Context, l *naiveLease, ttl time.Duration) error {
		l.token = token
		return setNXPX(ctx, l, ttl)
	}
}

func countsFromTheAnswer(w *World, n *naive) {
	n.options.ReadTimeout = w.TTL
	n.lock = func(ctx context.Context, l *naiveLease, ttl time.Duration) error {
		err := setNXPX(ctx, l, ttl)
		l.until = time.Now().Add(ttl)
		return err
	}
}

func neverLooks(_ *World, n *naive) {
	n.lock = func(ctx context.Context, l *naiveLease, ttl time.Duration) error {
		l.until = time.Time{} // for ever, it thinks
		return setNXPX(ctx, l, ttl)
	}
	n.look = func(*naiveLease) error { return nil }
}

func extendsWhatIsThere(_ *World, n *naive) {
	n.extend = func(ctx context.Context, l *naiveLease, ttl time.Duration) error {
		return ok(l.node.PExpire(ctx, l.name, ttl).Result())
	}
}

func setsAgain(_ *World, n *naive) {
	n.extend = func(ctx context.Context, l *naiveLease, ttl time.Duration) error {
		return l.node.Set(ctx, l.name, l.token, ttl).Err()
	}
}

func givesUpAtOnce(_ *World, n *naive) {
	n.lock = func(ctx context.Context, l *naiveLease, ttl time.Duration) error {
		return ok(l.node.SetNX(ctx, l.name, l.token, ttl).Result())
	}
}

// cleansWhatAnswered is a quorum lock that releases the nodes that have granted it
// in so many words.
func cleansWhatAnswered(_ *World, n *naive) {
	n.lock = func(ctx context.Context, l *naiveLease, ttl time.Duration) error {
		for _, node := range l.nodes {
			if done, _ := node.SetNX(ctx, l.name, l.token, ttl).Result(); done {
				l.answered = append(l.answered, node)
			}
		}
		if len(l.answered) > len(l.nodes)/2 {
			return nil
		}
		l.unlock(ctx, l)
		return errNaive
	}
	n.unlock = func(ctx context.Context, l *naiveLease) (err error) {
		for _, node := range l.answered {
			err = errors.Join(err, node.Eval(ctx, deleteScript, []string{l.name}, l.token).Err())
		}
		return err
	}
}

// naiveLocks are locks with one mistake, the story that shows it, and what the
// checkers say of it then. Without the mistake a careful lock stands the story,
// unless no lock on a single node can.
var naiveLocks = []struct {
	name, story string
	mistake     func(*World, *naive)
	says        string
	careful     bool // a careful one stands it
}{
	{"setnx then expire", "crash-between-setnx-and-expire", setNXThenExpire, "for ever", true},
	{"setnx then expire, who waits", "crash-between-setnx-and-expire", setNXThenExpire, "nobody got", true},
	{"getset, one clock ahead", "getset-time-stamp", getSet(map[string]float64{"b": 1}), "two holders", true},
	{"getset, both at once", "getset-by-two", getSet(map[string]float64{"c": 0.001}), "which nobody won", true},
	{"get then del", "get-then-del", getThenDel, "two holders", true},
	{"constant value", "constant-value", constantValue, "two holders", true},
	{"del that is retried", "release-sent-twice", sendsAgain, "two holders", true},
	{"one token for all attempts", "late-release", oneTokenForAll, "two holders", true},
	{"counts from the answer", "slow-answer", countsFromTheAnswer, "two holders", true},
	{"never looks at work", "work-outlives-ttl", neverLooks, "two holders", true},
	{"never looks after a pause", "holder-pauses", neverLooks, "two holders", true},
	{"extends what is there", "renewal-starved", extendsWhatIsThere, "came back to life", true},
	{"sets again", "renewal-starved", setsAgain, "came back to life", true},
	{"single node that forgets", "primary-lost-before-replication", nil, "two holders", false},
	{"single node that evicts", "key-evicted", nil, "two holders", false},
	{"single node with a wrong clock", "clock-set-forward", nil, "two holders", false},
	{"gives up at once", "granted-but-unheard", givesUpAtOnce, "which nobody won", true},
	{"gives up in silence", "granted-in-silence", givesUpAtOnce, "which nobody won", true},
	{"quorum, cleaning what answered", "granted-but-unheard", cleansWhatAnswered, "which nobody won", true},
}

func TestNaiveLocksFallForTheirStory(t *testing.T) {
	for _, n := range naiveLocks {
		t.Run(n.name, func(t *testing.T) {
			s, found := Find(n.story)
			require.True(t, found)
			r := inBubble(t, s, withMistake(n.mistake))
			require.ErrorContains(t, r.Violation, n.says, "%s\n%s", s.Story, r.Report)
			t.Log(r.Violation)
		})
	}
}

// TestItIsTheMistake plays the same without it: what the checkers find must not
// come from anything else.
func TestItIsTheMistake(t *testing.T) {
	stood := make(map[string]bool)
	for _, n := range naiveLocks {
		if !n.careful || stood[n.story] {
			continue
		}
		stood[n.story] = true
		t.Run(n.story, func(t *testing.T) {
			s, _ := Find(n.story)
			r := inBubble(t, s, withMistake(nil))
			assert.NoError(t, r.Violation, "%s\n%s", s.Story, r.Report)
		})
	}
}
