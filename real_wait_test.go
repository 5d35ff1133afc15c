package redlock_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/seed58520471/redlock"
	"github.com/seed58520471/redlock/internal/realredis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A wire counts the commands that are written to its connections.
type wire struct{ commands atomic.Int64 }

// dial makes connections of which every command is counted.
func (w *wire) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	return counted{conn, w}, err
}

type counted struct {
	net.Conn
	wire *wire
}

func (c counted) Write(b []byte) (int, error) {
	n := bytes.Count(b, []byte("\r\n*"))
	if bytes.HasPrefix(b, []byte("*")) {
		n++
	}
	c.wire.commands.Add(int64(n))
	return c.Conn.Write(b)
}

// A turnout is what became of people that wanted one lock again and again.
type turnout struct {
	Turns    []int         // of each of them
	Longest  time.Duration // that one waited
	Commands int64         // they sent
	Doubles  int           // turns that overlapped another's
	Fault    string
}

func (x turnout) total() (n int) {
	for _, t := range x.Turns {
		n += t
	}
	return n
}

// compete lets people want a lock for a while, and hold it for a moment each.
// visit is called while it is held, and tells whether somebody else was there.
func compete(c contention, visit func() (alone bool)) (x turnout) {
	w := &wire{}
	clients := make([]redis.UniversalClient, len(c.Addrs))
	for i, addr := range c.Addrs {
		clients[i] = redis.NewClient(&redis.Options{Addr: addr, Dialer: w.dial, PoolSize: c.PoolSize})
	}
	l, err := redlock.New(clients, defaults()...)
	if err != nil {
		return turnout{Fault: err.Error()}
	}
	var mu sync.Mutex
	x.Turns = make([]int, c.People)
	ctx, cancel := context.WithTimeout(context.Background(), c.Lasts)
	defer cancel()
	var wg sync.WaitGroup
	for i := range c.People {
		wg.Go(func() {
			for ctx.Err() == nil {
				begin := time.Now()
				lease, err := l.Lock(ctx, "orders")
				waited := time.Since(begin)
				alone := true
				if err == nil {
					if visit != nil {
						alone = visit()
					}
					time.Sleep(c.Hold)
					err = lease.Unlock(ctx)
				} else if ctx.Err() != nil {
					err = nil
				}
				mu.Lock()
				x.Longest = max(x.Longest, waited)
				if lease != nil {
					x.Turns[i]++
				}
				if !alone {
					x.Doubles++
				}
				if err != nil {
					x.Fault = err.Error()
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	x.Commands = w.commands.Load()
	if err := l.Close(); err != nil {
		x.Fault = err.Error()
	}
	return x
}

const contendEnv = "REDLOCK_CONTEND"

// contention is what a child process is to do.
type contention struct {
	Addrs    []string
	Resource string // a server that is none of the nodes; may be ""
	People   int
	Lasts    time.Duration
	Hold     time.Duration
	PoolSize int // 0: go-redis's default
}

// TestContenderProcess is no test, but what a child process of others does.
func TestContenderProcess(t *testing.T) {
	text := os.Getenv(contendEnv)
	if text == "" {
		t.Skip("for children only")
	}
	var c contention
	require.NoError(t, json.Unmarshal([]byte(text), &c))
	var visit func() bool
	if c.Resource != "" {
		r := redis.NewClient(&redis.Options{Addr: c.Resource})
		visit = func() bool {
			n := r.Incr(context.Background(), "inside").Val()
			return r.Decr(context.Background(), "inside").Val() == 0 && n == 1
		}
	}
	out, err := json.Marshal(compete(c, visit))
	require.NoError(t, err)
	fmt.Printf("turnout %s\n", out)
}

// contend runs so many children and returns what became of each.
func contend(t testing.TB, processes int, c contention) (all []turnout) {
	text, err := json.Marshal(c)
	require.NoError(t, err)
	results := make(chan turnout, processes)
	for range processes {
		cmd := exec.Command(os.Args[0], "-test.run=^TestContenderProcess$")
		cmd.Env = append(os.Environ(), contendEnv+"="+string(text))
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		go func() {
			x := turnout{Fault: "it said nothing"}
			for lines := bufio.NewScanner(out); lines.Scan(); {
				if line, ok := strings.CutPrefix(lines.Text(), "turnout "); ok {
					x = turnout{}
					if err := json.Unmarshal([]byte(line), &x); err != nil {
						x.Fault = err.Error()
					}
				}
			}
			cmd.Wait()
			results <- x
		}()
	}
	for range processes {
		all = append(all, <-results)
	}
	return all
}

func (ns nodes) addrs() (addrs []string) {
	for _, n := range ns {
		addrs = append(addrs, n.Addr)
	}
	return addrs
}

// BenchmarkContended is 16 goroutines that want one lock and hold it for a
// millisecond, on five servers, in one process and in four: how often it changes
// hands, what that costs, and how long one waits at most.
func BenchmarkContended(b *testing.B) {
	for _, processes := range []int{1, 4} {
		b.Run(fmt.Sprintf("processes=%d", processes), func(b *testing.B) {
			ns := nodes(realredis.Start(b, 5))
			const lasts = 5 * time.Second
			for b.Loop() {
				changes, commands, least := 0, int64(0), math.MaxInt
				longest := time.Duration(0)
				for _, x := range contend(b, processes, contention{
					Addrs: ns.addrs(), People: 16 / processes, Lasts: lasts, Hold: time.Millisecond,
				}) {
					require.Empty(b, x.Fault)
					changes += x.total()
					commands += x.Commands
					longest = max(longest, x.Longest)
					least = min(least, slices.Min(x.Turns))
				}
				b.ReportMetric(float64(changes)/lasts.Seconds(), "changes/s")
				b.ReportMetric(float64(commands)/float64(changes), "commands/change")
				b.ReportMetric(longest.Seconds()*1000, "ms-longest-wait")
				b.ReportMetric(float64(least), "least-turns")
			}
		})
	}
}

// Four processes with four goroutines each. What it is worth is shown by
// BenchmarkContended; here it must hold on any machine.
func TestProcessesPassALockOnAndEverybodyIsServed(t *testing.T) {
	ns := startNodes(t, 6)
	resource := ns[5]
	ns = ns[:5]
	all := contend(t, 4, contention{
		Addrs: ns.addrs(), Resource: resource.Addr, People: 4, Lasts: 5 * time.Second, Hold: time.Millisecond,
	})
	changes, commands := 0, int64(0)
	var longest time.Duration
	for _, x := range all {
		require.Empty(t, x.Fault)
		assert.Zero(t, x.Doubles, "two holders at once")
		assert.NotContains(t, x.Turns, 0, "somebody never had the lock")
		changes += x.total()
		commands += x.Commands
		longest = max(longest, x.Longest)
	}
	t.Logf("%d changes, %.1f commands each, the longest wait %v: %+v", changes, float64(commands)/float64(changes), longest, all)
	assert.LessOrEqual(t, commands, int64(60*changes))
	ns.eventuallyEmpty(t, soon)
	for _, n := range ns {
		assert.Empty(t, n.Client().PubSubChannels(t.Context(), "*").Val())
	}
}

func TestWaiterIsToldOfAReleaseByAnotherLocker(t *testing.T) {
	ns := startNodes(t, 5)
	a, b := ns.locker(t), ns.locker(t)
	ns.warm(t, a)
	ns.warm(t, b)
	const rounds = 30
	var trips, took []time.Duration
	for range rounds {
		time.Sleep(20 * time.Millisecond) // idle machines and caches, as for who is woken
		begin := time.Now()
		lease := lock(t, b, "free")
		trips = append(trips, time.Since(begin))
		unlock(t, lease)
	}
	ns.do(t, "config", "resetstat")
	for range rounds {
		lease := lock(t, a, "orders")
		got := make(chan time.Time)
		go func() {
			next, err := b.Lock(t.Context(), "orders")
			now := time.Now()
			if assert.NoError(t, err) {
				assert.NoError(t, next.Unlock(t.Context()))
			}
			got <- now
		}()
		require.Eventually(t, func() bool { // until the waiter sleeps
			return len(ns[4].Client().PubSubChannels(context.Background(), "*").Val()) > 0
		}, soon, tick)
		time.Sleep(20 * time.Millisecond)
		begin := time.Now()
		unlock(t, lease)
		took = append(took, (<-got).Sub(begin))
	}
	slices.Sort(trips)
	slices.Sort(took)
	t.Logf("from the unlock to the next holder: %v at the median, %v at the most; a free lock takes %v", took[len(took)/2], took[len(took)-1], trips[len(trips)/2])
	for _, n := range ns {
		assert.LessOrEqual(t, n.Calls("evalsha")+n.Calls("eval"), rounds*6, "it sleeps, and does not poll")
		assert.LessOrEqual(t, n.Calls("subscribe"), rounds)
	}
}

func TestWaitingForManyNamesTakesOneConnectionANodeAndNoneOfThePool(t *testing.T) {
	const names, pool = 200, 4
	ns := startNodes(t, 3)
	l := newLocker(t, ns.clients(t, pooled(pool)), redlock.WithWait(500*time.Millisecond))
	ns.warm(t, l)
	others := connections(t, ns[0]) - pool // the administrator's
	for i := range names {
		ns.do(t, "set", fmt.Sprint("name", i), "foreign", "px", 60_000)
	}
	for range 3 {
		var wg sync.WaitGroup
		for i := range names {
			wg.Go(func() {
				_, err := l.Lock(t.Context(), fmt.Sprint("name", i))
				assert.ErrorIs(t, err, redlock.ErrHeld)
				assert.NotContains(t, fmt.Sprint(err), "pool")
			})
		}
		time.Sleep(250 * time.Millisecond)
		for _, n := range ns {
			assert.LessOrEqual(t, connections(t, n), max(others, 1)+pool+1)
		}
		wg.Wait()
		for _, n := range ns {
			require.Eventually(t, func() bool {
				return len(n.Client().PubSubChannels(context.Background(), "*").Val()) == 0
			}, soon, tick)
		}
	}
	ns.do(t, "flushall")
	var wg sync.WaitGroup
	for i := range 100 { // and many who wait for one
		wg.Go(func() {
			patient, err := l.With(redlock.WithWait(time.Minute))
			if assert.NoError(t, err) {
				assert.NoError(t, patient.Do(t.Context(), "orders", func(context.Context) error { return nil }), i)
			}
		})
	}
	wg.Wait()
	ns.eventuallyEmpty(t, soon)
}

// connections is how many a server has.
func connections(t *testing.T, n *server) int {
	t.Helper()
	list, err := n.Client().ClientList(t.Context()).Result()
	require.NoError(t, err)
	return strings.Count(list, "\n")
}

// The holder's process is killed, so nobody tells anything: the keys' end is what
// the waiter knows.
func TestLockOfAKilledProcessIsTakenWhenItsKeysExpire(t *testing.T) {
	ns := startNodes(t, 3)
	l := ns.locker(t)
	ns.warm(t, l)
	const short = 700 * time.Millisecond
	ns.do(t, "set", "orders", "of one that is dead", "px", short.Milliseconds())
	begin := time.Now()
	lease, err := l.Lock(t.Context(), "orders")
	require.NoError(t, err)
	t.Logf("%v after the end", time.Since(begin)-short)
	assert.GreaterOrEqual(t, time.Since(begin), short-10*time.Millisecond)
	unlock(t, lease)
}
