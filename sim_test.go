package redlock

import (
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/stretchr/testify/require"
)

func TestMain(m *testing.M) {
	redis.SetLogger(&logging.VoidLogger{})
	os.Exit(m.Run())
}

// world is a set of nodes for tests in virtual time: the real client and the
// real scripts on miniredis, over connections in memory that take as long as the
// test says. It lives inside one synctest bubble.
type world struct {
	t     *testing.T
	nodes []*simNode
}

// simNode is one server and the line to it.
type simNode struct {
	*miniredis.Miniredis
	name string

	rtt    atomic.Int64 // of the line, in nanoseconds; half on the way in, half on the way out
	hang   atomic.Bool  // bytes vanish both ways, dials never end
	refuse atomic.Bool  // dials fail, what is connected goes on
	mute   atomic.Bool  // requests arrive and are executed, replies vanish
	cut    atomic.Bool  // once: a request arrives and is executed, the connection ends instead of the reply
	forget atomic.Int64 // the line drops connections silent for so long, without a word; 0: never
	dials  atomic.Int64
	trips  atomic.Int64 // round trips that a dial costs
	noDial atomic.Bool  // dials never end, what is connected goes on
	hold   atomic.Bool  // a partition: bytes wait both ways and arrive when it heals, also those of connections given up meanwhile

	mu    sync.Mutex
	hooks []func(cmd string, args []string) string
	calls []string // commands in the order of their execution
	conns map[net.Conn]struct{}
}

func newWorld(t *testing.T, rtts ...time.Duration) *world {
	w := &world{t: t}
	for i, rtt := range rtts {
		m := miniredis.NewMiniRedis()
		m.ClockTTL(true)
		n := &simNode{Miniredis: m, name: fmt.Sprintf("10.0.0.%d:6379", i+1), conns: make(map[net.Conn]struct{})}
		n.rtt.Store(int64(rtt))
		n.start()
		w.nodes = append(w.nodes, n)
	}
	t.Cleanup(func() {
		for _, n := range w.nodes {
			n.kill()
		}
		time.Sleep(time.Minute) // whatever still runs out does so in virtual time
	})
	return w
}

// start brings the server up, with the data that it had.
func (n *simNode) start() {
	c, err := n.Miniredis.Dial()
	if err == nil {
		c.Close()
	}
	n.Server().SetPreHook(func(p *server.Peer, cmd string, args ...string) bool {
		n.mu.Lock()
		if !slices.Contains([]string{"PING", "HELLO", "CLIENT", "GET", "PTTL", "PEXPIRE", "DEL", "PUBLISH"}, cmd) {
			n.calls = append(n.calls, cmd+" "+strings.Join(args, " "))
		}
		hooks := n.hooks
		n.mu.Unlock()
		for _, h := range hooks {
			if reply := h(cmd, args); reply != "" {
				p.WriteError(reply)
				return true
			}
		}
		return false
	})
}

// kill ends the server and cuts its connections.
func (n *simNode) kill() {
	n.refuse.Store(true)
	n.cutAll()
	n.Miniredis.Close()
}

func (n *simNode) revive() {
	n.start()
	n.refuse.Store(false)
}

func (n *simNode) cutAll() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for c := range n.conns {
		c.Close()
	}
}

// on adds a hook that sees every command before it runs; what it returns goes
// out as an error reply instead.
func (n *simNode) on(h func(cmd string, args []string) string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.hooks = append(slices.Clone(n.hooks), h)
}

func (n *simNode) clearHooks() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.hooks = nil
}

// executed counts the commands that begin with prefix.
func (n *simNode) executed(prefix string) (k int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range n.calls {
		if strings.HasPrefix(c, prefix) {
			k++
		}
	}
	return k
}

func (n *simNode) log() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.calls)
}

func (n *simNode) Dial(ctx context.Context, _, _ string) (net.Conn, error) {
	n.dials.Add(1)
	if n.hang.Load() || n.hold.Load() || n.noDial.Load() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	time.Sleep(time.Duration(n.trips.Load() * n.rtt.Load()))
	if n.refuse.Load() {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: fmt.Errorf("connect: connection refused")}
	}
	far, err := n.Miniredis.Dial()
	if err != nil {
		return nil, err
	}
	near, line := net.Pipe()
	n.mu.Lock()
	n.conns[far] = struct{}{}
	n.mu.Unlock()
	var last atomic.Int64
	last.Store(time.Now().UnixNano())
	var dead atomic.Bool
	passes := func() bool {
		now := time.Now().UnixNano()
		if f := n.forget.Load(); f > 0 && now-last.Load() > f {
			dead.Store(true)
		}
		last.Store(now)
		if n.hang.Load() {
			dead.Store(true) // TCP never loses a piece from the middle
		}
		return !dead.Load()
	}
	go n.carry(line, far, passes)
	go func() {
		n.carry(far, line, func() bool {
			if n.cut.Swap(false) {
				far.Close()
				return false
			}
			if n.mute.Load() {
				dead.Store(true)
			}
			return passes()
		})
		n.mu.Lock()
		delete(n.conns, far)
		n.mu.Unlock()
	}()
	return near, nil
}

// carry moves bytes from one end to the other, half a round trip later.
func (n *simNode) carry(from, to net.Conn, passes func() bool) {
	type parcel struct {
		due  time.Time
		data []byte
	}
	ch := make(chan parcel, 1024)
	go func() {
		defer to.Close()
		for p := range ch {
			time.Sleep(time.Until(p.due))
			for n.hold.Load() {
				time.Sleep(time.Millisecond)
			}
			if _, err := to.Write(p.data); err != nil {
				break
			}
		}
		for range ch {
		}
	}()
	defer close(ch)
	defer from.Close()
	buf := make([]byte, 64<<10)
	for {
		k, err := from.Read(buf)
		if err != nil {
			return
		}
		if passes() {
			ch <- parcel{time.Now().Add(time.Duration(n.rtt.Load() / 2)), slices.Clone(buf[:k])}
		}
	}
}

// clients are made as users make them: go-redis's defaults, retries and all.
func (w *world) clients() []redis.UniversalClient {
	clients := make([]redis.UniversalClient, len(w.nodes))
	for i, n := range w.nodes {
		clients[i] = redis.NewClient(&redis.Options{Addr: n.name, Dialer: n.Dial})
	}
	w.t.Cleanup(func() {
		for _, c := range clients {
			c.Close()
		}
	})
	return clients
}

// locker opens a Locker on all nodes and lets it connect.
func (w *world) locker(opts ...Option) *Locker {
	w.t.Helper()
	l := w.cold(opts...)
	l.warm()
	return l
}

func (w *world) cold(opts ...Option) *Locker {
	w.t.Helper()
	l, err := New(w.clients(), opts...)
	require.NoError(w.t, err)
	w.t.Cleanup(func() { l.Close() })
	return l
}

// warm lets every lane connect and know its scripts, then waits for quiet.
func (l *Locker) warm() {
	for range 3 {
		if lease, err := l.TryLock(background, "warm-up"); err == nil {
			lease.Extend(background, l.cfg.ttl)
			lease.Unlock(background)
		}
		time.Sleep(2 * time.Second)
	}
}

// keys lists what is stored under name, a value per node; "" where nothing is.
func (w *world) keys(name string) []string {
	values := make([]string, len(w.nodes))
	for i, n := range w.nodes {
		values[i], _ = n.Get(name)
	}
	return values
}

func (w *world) requireNoKeys() {
	w.t.Helper()
	for _, n := range w.nodes {
		require.Empty(w.t, n.Keys(), "keys on %s", n.name)
	}
}

// plant stores a foreign token.
func (w *world) plant(name string, ttl time.Duration, nodes ...int) {
	for _, i := range nodes {
		w.nodes[i].Set(name, "foreign")
		if ttl > 0 {
			w.nodes[i].SetTTL(name, ttl)
		}
	}
}

func ms(n int) time.Duration { return time.Duration(n) * time.Millisecond }

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
