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
)

// TestRandomSchedules runs lockers against nodes to which everything happens
// except forgetting, and checks what must hold under any schedule:
//   - no two leases of a name overlap in validity;
//   - a quorum holds the token when a lease is returned;
//   - every call keeps its bound and its error is one of the documented classes;
//   - when the nodes are well and every ttl has passed, nothing is left.
func TestRandomSchedules(t *testing.T) {
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
	for i := range 3 {
		var clients []redis.UniversalClient
		for _, n := range w.nodes {
			// Dials that were given up keep their place in go-redis's pool; and an
			// exhausted pool cannot be used in two bubbles of one process.
			o := &redis.Options{Addr: n.name, Dialer: n.Dial, DialTimeout: ms(300), DialerRetries: 1, PoolSize: 40}
			if i == 1 {
				o = tuned(o, timeout)
				o.Dialer, o.PoolSize = n.Dial, 40
			}
			c := redis.NewClient(o)
			t.Cleanup(func() { c.Close() })
			clients = append(clients, c)
		}
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

	// The weather.
	storm, calm := context.WithTimeout(t.Context(), 20*time.Second)
	defer calm()
	var weather sync.WaitGroup
	for i, n := range w.nodes {
		r := rand.New(rand.NewPCG(seed, uint64(100+i)))
		weather.Go(func() {
			pause := func(most int) {
				select {
				case <-storm.Done():
				case <-time.After(ms(1 + r.IntN(most))):
				}
			}
			for storm.Err() == nil {
				pause(1500)
				switch r.IntN(9) {
				case 0:
					n.hang.Store(true)
					pause(800)
					n.hang.Store(false)
				case 1:
					n.kill()
					pause(800)
					n.revive()
				case 2:
					n.cutAll()
				case 3:
					n.mute.Store(true)
					pause(400)
					n.mute.Store(false)
				case 4:
					n.cut.Store(true)
				case 5:
					n.rtt.Store(int64(ms(r.IntN(60))))
				case 6:
					n.hold.Store(true)
					pause(1500)
					n.hold.Store(false)
				case 7:
					n.refuse.Store(true)
					pause(800)
					n.refuse.Store(false)
				case 8:
					n.on(func(cmd string, _ []string) string {
						if cmd == "SET" || cmd == "EVAL" || cmd == "EVALSHA" {
							return []string{"LOADING Redis is loading", "NOSCRIPT No matching script", "OOM command not allowed"}[len(cmd)%3]
						}
						return ""
					})
					pause(300)
					n.clearHooks()
				}
			}
			n.cut.Store(false)
			n.rtt.Store(int64(rtts[i]))
		})
	}

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
	quorum := quorumOf(len(w.nodes))
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
				ten.tell("won, until %v, keys %v, ttl %v, quorum of %d, took %v", lease.Until().Format("05.000000"), w.keys(name), lease.ttl, len(w.nodes), time.Since(begin))
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
	weather.Wait()
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
		if random.IntN(2) == 0 {
			w.nodes[0].hang.Store(true)
		}
		for _, l := range roots {
			begin := time.Now()
			l.Close()
			assert.LessOrEqual(t, time.Since(begin), 5*timeout+2*time.Second, "Close")
		}
		w.nodes[0].hang.Store(false)
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
		l.root.mu.Lock()
		assert.Empty(t, l.root.leases)
		l.root.mu.Unlock()
		l.Close()
		for _, n := range l.root.nodes {
			n.mu.Lock()
			assert.Empty(t, n.workers)
			n.mu.Unlock()
		}
	}
	return leases
}
