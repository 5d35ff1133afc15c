package redlock

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed58520471/redlock/faultinject"
)

// TestRandomSchedules runs lockers against nodes to which everything happens
// except forgetting, and checks what must hold under any schedule:
//   - no two leases of a name overlap in validity;
//   - a quorum holds the token when a lease is returned;
//   - every call keeps its bound and its error is one of the documented classes;
//   - when the nodes are well and every ttl has passed, nothing is left.
func TestRandomSchedules(t *testing.T) {
	t.Parallel()
	total := 0
	for seed := *firstSeed; seed < *firstSeed+uint64(*seeds); seed++ {
		synctest.Test(t, func(t *testing.T) { total += randomSchedule(t, seed) })
		if t.Failed() {
			t.Fatalf("go test -run '^TestRandomSchedules$' -seeds 1 -first-seed %d .", seed)
		}
	}
	assert.Greater(t, total, 20**seeds, "the schedules must leave room for leases")
	t.Logf("%d leases", total)
}

var (
	seeds     = flag.Int("seeds", 8, "random schedules to run")
	firstSeed = flag.Uint64("first-seed", 1, "seed of the first")
)

type tenure struct {
	from, to time.Time
	who      string
	story    []string
}

func (x tenure) String() string {
	return fmt.Sprintf("\n%s %s-%s\n  %s", x.who, x.from.Format("05.000000"), x.to.Format("05.000000"), strings.Join(x.story, "\n  "))
}

func (x *tenure) tell(format string, args ...any) {
	x.story = append(x.story, time.Now().Format("05.000000 ")+fmt.Sprintf(format, args...))
}

// users have a network path each to every node.
var users = []string{"a", "b", "c"}

// weather is a random plan: on each node one thing after the other.
func weather(seed uint64, nodes int, until time.Duration) string {
	kinds := []struct {
		most   int // milliseconds for which it lasts; 0: it happens
		shared bool
		text   string
	}{
		{800, false, "%s, %s: hang"},
		{1500, false, "%s, %s: partition"},
		{800, false, "%s, %s: refuse"},
		{3000, false, "%s, %s: delay 1ms+30ms"},
		{0, false, "%s, %s: cut"},
		{800, true, "%s, %s: kill"},
		{800, true, "%s, %s: freeze"},
		{400, false, "%s on any, %s: lose reply"},
		{400, false, "%s on any 30%%, %s: lose request"},
		{800, false, "%s on any 10%%, %s: cut during"},
		{800, false, "%s on any #1, %s: cut before"},
		{1500, false, "%s on SET 20%%, %s: delay 1ms+2s"},
		{1500, true, "%s on SET #1, %s: kill during for 300ms"},
		{1500, true, "%s on EVALSHA #1, %s: kill before for 300ms"},
		{300, true, `%s on SET, %s: error "LOADING Redis is loading"`},
		{300, true, `%s on EVALSHA, %s: error "NOSCRIPT No matching script"`},
		{300, true, `%s on any, %s: error "OOM command not allowed"`},
	}
	var plan strings.Builder
	fmt.Fprintln(&plan, "seed", seed)
	for n := 1; n <= nodes; n++ {
		r := rand.New(rand.NewPCG(seed, uint64(100+n)))
		for at := ms(r.IntN(1500)); at < until; at += ms(1 + r.IntN(1500)) {
			k := kinds[r.IntN(len(kinds))]
			where := fmt.Sprint("node ", n)
			if !k.shared && r.IntN(3) == 0 {
				where += " from " + users[r.IntN(len(users))]
			}
			when := fmt.Sprint("at ", at)
			if k.most > 0 {
				lasts := min(ms(1+r.IntN(k.most)), until-at)
				when += fmt.Sprint(" for ", lasts)
				at += lasts
			}
			fmt.Fprintf(&plan, k.text+"\n", when, where)
		}
	}
	return plan.String()
}

func randomSchedule(t *testing.T, seed uint64) int {
	random := rand.New(rand.NewPCG(seed, 7))
	rtts := make([]time.Duration, []int{1, 2, 3, 3, 5, 5}[random.IntN(6)])
	for i := range rtts {
		rtts[i] = time.Duration(random.IntN(30_000)) * time.Microsecond
		if random.IntN(2) == 0 {
			rtts[i] /= 50
		}
	}
	w := newWorld(t, rtts...)
	timeout := ms(50 + random.IntN(200))
	var lockers, roots []*Locker
	for i := range users {
		clients := w.Client(users[i]).Redis(func(o *redis.Options) {
			dial := o.Dialer
			if i == 1 {
				tuned(o, timeout)
			} else {
				o.DialTimeout, o.DialerRetries = ms(300), 1
			}
			// Dials that were given up keep their place in go-redis's pool; and an
			// exhausted pool cannot be used in two bubbles of one process.
			o.Dialer, o.PoolSize = dial, 40
		})
		if i == 2 {
			for k := range clients {
				clients[k] = stubborn{clients[k].(*redis.Client)}
			}
		}
		l, err := New(clients, WithNodeTimeout(timeout), WithTTL(ms(200+random.IntN(3000))))
		require.NoError(t, err)
		s, err := l.With(WithTTL(ms(100+random.IntN(1000))), WithMaxAttempts(5), WithBackoff(Backoff{Min: ms(1), Max: ms(20)}))
		require.NoError(t, err)
		roots = append(roots, l)
		lockers = append(lockers, l, s)
	}
	const longest = 8 * time.Second

	storm, calm := context.WithTimeout(t.Context(), 20*time.Second)
	defer calm()
	plan, err := faultinject.ParsePlan(weather(seed, len(rtts), 20*time.Second))
	require.NoError(t, err)
	struck, err := w.Play(plan)
	require.NoError(t, err)

	// In half of the runs one locker is closed in the middle.
	var closing sync.WaitGroup
	closed := make(map[*Locker]bool)
	if random.IntN(2) == 0 {
		l := lockers[random.IntN(len(lockers))]
		closed[l] = true
		if l == l.root.locker {
			for _, s := range lockers {
				closed[s] = closed[s] || s.root == l.root
			}
		}
		at := ms(random.IntN(15000))
		closing.Go(func() {
			time.Sleep(at)
			begin := time.Now()
			l.Close()
			assert.LessOrEqual(t, time.Since(begin), 5*timeout+8*time.Second, "Close")
		})
	}

	var mu sync.Mutex
	tenures := make(map[string][]tenure)
	quorum := quorumOf(len(rtts))
	var people sync.WaitGroup
	for i := range 12 {
		r := rand.New(rand.NewPCG(seed, uint64(200+i)))
		l := lockers[r.IntN(len(lockers))]
		people.Go(func() {
			for k := 0; storm.Err() == nil; k++ {
				name := fmt.Sprint("name", r.IntN(3))
				ctx, cancel := context.WithCancel(t.Context())
				if r.IntN(3) == 0 {
					ctx, cancel = context.WithTimeout(t.Context(), ms(r.IntN(500)))
				}
				begin := time.Now()
				var lease *Lease
				var err error
				if r.IntN(2) == 0 {
					lease, err = l.TryLock(ctx, name)
					assert.LessOrEqual(t, time.Since(begin), timeout, "TryLock")
				} else {
					if _, limited := ctx.Deadline(); !limited {
						ctx, cancel = context.WithTimeout(t.Context(), ms(r.IntN(2000)))
					}
					lease, err = l.Lock(ctx, name)
				}
				if errors.Is(err, ErrClosed) {
					assert.True(t, closed[l])
					cancel()
					return
				}
				if err != nil {
					classes := 0
					for _, c := range []error{ErrHeld, ErrNoQuorum, ErrExpired} {
						if errors.Is(err, c) {
							classes++
						}
					}
					assert.LessOrEqual(t, classes, 1, "%v", err)
					if ctx.Err() == nil {
						assert.Equal(t, 1, classes, "%v", err)
						assert.NotErrorIs(t, err, context.Canceled)
						assert.NotErrorIs(t, err, context.DeadlineExceeded)
					}
					cancel()
					time.Sleep(ms(r.IntN(100)))
					continue
				}
				ten := tenure{from: time.Now(), who: lease.Token()}
				ten.tell("won, until %v, keys %v, ttl %v, quorum of %d, took %v", lease.Until().Format("05.000000"), w.keys(name), lease.ttl, len(rtts), time.Since(begin))
				held := 0
				for _, v := range w.keys(name) {
					if v == lease.Token() {
						held++
					}
				}
				assert.GreaterOrEqual(t, held, quorum, "nodes with the token of a lease just returned")
				if e := lease.Err(); e != nil && !(closed[l] && errors.Is(e, ErrClosed)) {
					t.Errorf("a lease just returned: %v", e)
				}
				for range r.IntN(4) {
					time.Sleep(ms(r.IntN(300)))
					if r.IntN(2) == 0 {
						begin := time.Now()
						before := lease.Until()
						err := lease.Extend(ctx, min(ms(10+r.IntN(3000)), longest))
						ten.tell("extended, until %v, err %v, own %v, keys %v", lease.Until().Format("05.000000"), err, lease.Err(), w.keys(name))
						assert.LessOrEqual(t, time.Since(begin), timeout, "Extend")
						assert.False(t, lease.Until().Before(before))
						if err != nil && !errors.Is(err, ErrNoQuorum) && !errors.Is(err, ErrLost) && ctx.Err() == nil && !(closed[l] && errors.Is(err, ErrClosed)) && !errors.Is(err, ErrInvalid) {
							t.Errorf("Extend: %v", err)
						}
					}
				}
				ten.to = lease.Until()
				if e := lease.Err(); e != nil && !(closed[l] && errors.Is(e, ErrClosed)) {
					assert.ErrorIs(t, e, ErrLost)
				}
				if r.IntN(10) > 0 || closed[l] { // some never return
					if now := time.Now(); now.Before(ten.to) {
						ten.to = now
					}
					begin := time.Now()
					lost := lease.Err() != nil
					ten.tell("unlock, own err %v, until %v, keys %v", lease.Err(), lease.Until().Format("05.000000"), w.keys(name))
					err := lease.Unlock(ctx)
					assert.LessOrEqual(t, time.Since(begin), timeout, "Unlock")
					if closed[l] && errors.Is(err, ErrClosed) {
						// and its keys are gone all the same, see below
					} else if lost {
						assert.ErrorIs(t, err, ErrLost)
					} else if err != nil && time.Now().Before(lease.Until().Add(-ms(1))) {
						assert.ErrorIs(t, err, ErrNoQuorum, "nothing was forgotten")
					}
				}
				cancel()
				if errors.Is(lease.Err(), ErrClosed) {
					ten.to = ten.from // it ended some time before
				}
				mu.Lock()
				tenures[name] = append(tenures[name], ten)
				mu.Unlock()
			}
		})
	}
	people.Wait()
	struck.Stop()
	for _, n := range w.Nodes() {
		if !n.Up() {
			require.NoError(t, n.Do(faultinject.Restart))
		}
	}
	closing.Wait()
	leases := 0
	for name, list := range tenures {
		slices.SortFunc(list, func(a, b tenure) int { return cmp.Or(a.from.Compare(b.from), a.to.Compare(b.to)) })
		leases += len(list)
		var last tenure
		for _, x := range list {
			if x.from.Before(last.to) {
				t.Errorf("two holders of %s: %s and %s", name, last, x)
			}
			if x.to.After(last.to) {
				last = x
			}
		}
	}
	if leaveOpen := random.IntN(3) == 0; leaveOpen { // Close while there is something to do
		var hung string
		if random.IntN(2) == 0 {
			hung = "at 0s, node 1: hang"
		}
		struck := w.Cluster.Inject(hung) // there may be nothing to strike
		for _, l := range roots {
			begin := time.Now()
			l.Close()
			assert.LessOrEqual(t, time.Since(begin), 5*timeout+2*time.Second, "Close")
		}
		struck.Stop()
	}
	time.Sleep(2*longest + 10*time.Second)
	w.requireNoKeys()
	for _, l := range roots {
		for i, n := range l.root.nodes {
			for range 20 { // idle connections are being proven now and then
				n.mu.Lock()
				active := n.active
				n.mu.Unlock()
				if active == 0 {
					break
				}
				time.Sleep(ms(201))
			}
			n.mu.Lock()
			if !n.closed {
				assert.Empty(t, n.asked, "node %d", i+1)
				assert.Zero(t, n.outstanding)
				assert.Empty(t, n.debts.of)
				assert.Zero(t, n.queue.len)
				assert.Zero(t, n.active)
			}
			n.mu.Unlock()
		}
		assert.Empty(t, l.leases())
		l.Close()
		for _, n := range l.root.nodes {
			n.mu.Lock()
			assert.Empty(t, n.workers)
			n.mu.Unlock()
		}
	}
	return leases
}
