package scenarios

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
)

// botched is a quorum lock in a hundred lines, as many have written it, with the
// mistakes that some of them made. Without any it stands much.
type botched struct {
	quorum      int  // 0 is a majority
	noRollBack  bool // a lost attempt stays on the nodes
	someRelease bool // only nodes that are known to have granted are released
	blind       bool // release and extend do not look whose key it is
	noMargin    bool // for clocks that run at other rates
	deaf        bool // the lease stands for its ttl, whatever extensions said
	fromReply   bool // the ttl counts from the last answer
	anyVote     bool // an extension needs one node only
	credulous   bool // a node that has the token already has granted
}

func (n botched) maker(w *World, client string) (Locks, error) {
	l := &botchedLocks{botched: n, timeout: w.TTL / 20}
	l.clients = w.Clients(client, func(o *redis.Options) {
		o.MaxRetries, o.ContextTimeoutEnabled, o.DialerRetries = 1, true, 1
	})
	for _, c := range l.clients {
		c.Ping(context.Background()) // for it waits for connections no longer than for answers
	}
	if l.quorum == 0 {
		l.quorum = len(l.clients)/2 + 1
	}
	return l, nil
}

type botchedLocks struct {
	botched
	clients []redis.UniversalClient
	timeout time.Duration
}

var (
	botchedRelease = redis.NewScript(`
		if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
		return 0`)
	botchedExtend = redis.NewScript(`
		if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
		return 0`)
	blindRelease = redis.NewScript(`return redis.call('DEL', KEYS[1])`)
	blindExtend  = redis.NewScript(`return redis.call('PEXPIRE', KEYS[1], ARGV[2])`)

	errBotched = errors.New("no quorum")
)

type question = func(context.Context, redis.UniversalClient) bool

// ask asks all nodes and says which of them have said yes.
func (l *botchedLocks) ask(what question) (yes []bool, count int) {
	ctx, cancel := context.WithTimeout(context.Background(), l.timeout)
	defer cancel()
	yes = make([]bool, len(l.clients))
	var wg sync.WaitGroup
	for i, c := range l.clients {
		wg.Go(func() { yes[i] = what(ctx, c) })
	}
	wg.Wait()
	for _, y := range yes {
		if y {
			count++
		}
	}
	return yes, count
}

func (l *botchedLocks) script(s *redis.Script, name string, args ...any) question {
	return func(ctx context.Context, c redis.UniversalClient) bool {
		n, err := s.Run(ctx, c, []string{name}, args...).Int()
		return err == nil && n == 1
	}
}

func (l *botchedLocks) TryLock(_ context.Context, name string, ttl time.Duration) (Lease, error) {
	token, start := uuid.NewString(), time.Now()
	yes, count := l.ask(func(ctx context.Context, c redis.UniversalClient) bool {
		ok, err := c.SetNX(ctx, name, token, ttl).Result()
		if l.credulous && err == nil && !ok {
			had, _ := c.Get(ctx, name).Result()
			ok = had == token
		}
		return err == nil && ok
	})
	if l.fromReply {
		start = time.Now()
	}
	lease := &botchedLease{locks: l, name: name, token: token, granted: yes, until: start.Add(ttl - l.margin(ttl))}
	if count < l.quorum {
		if !l.noRollBack {
			lease.release()
		}
		return nil, errBotched
	}
	return lease, nil
}

func (l *botchedLocks) margin(ttl time.Duration) time.Duration {
	if l.noMargin {
		return 0
	}
	return ttl/100 + 2*time.Millisecond
}

func (l *botchedLocks) Close() error { return nil }

type botchedLease struct {
	locks       *botchedLocks
	name, token string
	granted     []bool

	mu    sync.Mutex
	until time.Time
	lost  bool
}

func (h *botchedLease) Token() string { return h.token }

func (h *botchedLease) Until() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.until
}

func (h *botchedLease) Err() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.lost || !time.Now().Before(h.until) {
		return errBotched
	}
	return nil
}

func (h *botchedLease) Extend(_ context.Context, ttl time.Duration) error {
	script, start := botchedExtend, time.Now()
	if h.locks.blind {
		script = blindExtend
	}
	_, count := h.locks.ask(h.locks.script(script, h.name, h.token, ttl.Milliseconds()))
	h.mu.Lock()
	defer h.mu.Unlock()
	switch quorum := h.locks.quorum; {
	case count < quorum && !h.locks.deaf && !(h.locks.anyVote && count > 0):
		h.lost = true
		return errBotched
	case h.lost:
		return errBotched
	}
	h.until = start.Add(ttl - h.locks.margin(ttl))
	return nil
}

func (h *botchedLease) release() int {
	script := botchedRelease
	if h.locks.blind {
		script = blindRelease
	}
	run := h.locks.script(script, h.name, h.token)
	_, count := h.locks.ask(func(ctx context.Context, c redis.UniversalClient) bool {
		for i, known := range h.locks.clients {
			if known == c && h.locks.someRelease && !h.granted[i] {
				return false
			}
		}
		return run(ctx, c)
	})
	return count
}

func (h *botchedLease) Unlock(context.Context) error {
	h.mu.Lock()
	h.lost = true
	h.mu.Unlock()
	if h.release() < h.locks.quorum {
		return errBotched
	}
	return nil
}

// A find is a story that a mistake makes a difference to, and what is said of it.
type find struct{ story, says string }

// botchedFinds are mistakes with the stories that find them.
var botchedFinds = []struct {
	mistake string
	lock    botched
	finds   []find
}{
	{"its quorum is one node", botched{quorum: 1}, []find{
		{"half-and-half", "two holders"}, {"extend-minority-restarted-empty", "got a lock that was held"},
		{"minority-evicts", "got a lock that was held"}, {"minority-flushed", "got a lock that was held"},
		{"partitions-flap", "two holders"}}},
	{"its quorum is half of the nodes", botched{quorum: 2}, []find{{"half-and-half", "two holders"}}},
	{"it does not roll back", botched{noRollBack: true}, []find{
		{"acquire-replies-cut", "which nobody won"}, {"granted-in-silence", "which nobody won"}}},
	{"it releases only where it knows of a grant", botched{someRelease: true}, []find{
		{"killed-after-set", "still stored"}, {"acquire-minority-slow", "still stored"}}},
	{"it releases and extends what is not its own", botched{blind: true}, []find{
		{"old-unlock-hits-nobody", "the lease stands, but"}, {"majority-frozen-under-a-lease", "two holders"}}},
	{"it keeps no margin", botched{noMargin: true}, []find{{"clocks-run-fast", "two holders"}}},
	{"it counts from the reply", botched{fromReply: true}, []find{{"clocks-run-fast", "two holders"}}},
	{"it does not hear that an extension has failed", botched{deaf: true}, []find{
		{"majority-killed-under-a-lease", "outlives its majority"},
		{"majority-partitioned-under-a-lease", "outlives its majority"}}},
	{"one node extends a lease", botched{anyVote: true}, []find{
		{"majority-killed-under-a-lease", "outlives its majority"}}},
	{"it believes in every yes", botched{credulous: true}, []find{
		{"server-listed-twice", "from one of two servers"}}},

	// What it has in any case.
	{"it does not spread its attempts", botched{}, []find{
		{"split-votes-even", "everybody has had the lock"}, {"split-votes-odd", "everybody has had the lock"}}},
	{"it releases once", botched{}, []find{
		{"sets-after-their-release", "which nobody won"}, {"unlock-minority-hung", "still stored"},
		{"replies-cut-off", "which nobody won"}, {"old-sets-after-a-partition", "which nobody won"}}},
}

// Each mistake is found by stories that say so of no lock without it: what they say
// comes from nothing else.
func TestScenariosFindTheMistakesOfOtherLocks(t *testing.T) {
	for _, test := range botchedFinds {
		t.Run(test.mistake, func(t *testing.T) {
			for _, f := range test.finds {
				s, ok := Find(f.story)
				if !assert.True(t, ok, f.story) {
					continue
				}
				r := inBubble(t, s, test.lock.maker)
				assert.ErrorContains(t, r.Violation, f.says, "%s\n%s", f.story, r.Report)
				if test.lock == (botched{}) {
					continue
				}
				if r = inBubble(t, s, botched{}.maker); r.Violation != nil {
					assert.NotContains(t, r.Violation.Error(), f.says, "%s without the mistake", f.story)
				}
			}
		})
	}
}
