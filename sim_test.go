package redlock

import (
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed58520471/redlock/faultinject"
)

func TestMain(m *testing.M) {
	redis.SetLogger(&logging.VoidLogger{})
	os.Exit(m.Run())
}

// world is a cluster in virtual time, inside one synctest bubble, and what its nodes
// have executed.
type world struct {
	*faultinject.Cluster
	t *testing.T

	mu    sync.Mutex
	calls map[int][]string // by node, in the order of execution
}

// newWorld starts a node for each round-trip time.
func newWorld(t *testing.T, rtts ...time.Duration) *world {
	t.Cleanup(func() { time.Sleep(time.Minute) }) // whatever still runs out does so in virtual time
	w := &world{t: t, calls: make(map[int][]string)}
	w.Cluster = faultinject.Start(t, len(rtts), faultinject.RTT(rtts...), faultinject.Watch(w.note))
	return w
}

// Inject lets events loose, and fails a test at whose end none of them has struck.
func (w *world) Inject(lines string) *faultinject.Injection {
	w.t.Helper()
	i := w.Cluster.Inject(lines)
	w.t.Cleanup(func() { assert.True(w.t, lines == "" || i.Fired() > 0, "nothing has struck of\n%v", i) })
	return i
}

func (w *world) note(node int, command []string) {
	if slices.Contains([]string{"PING", "HELLO", "CLIENT"}, command[0]) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls[node] = append(w.calls[node], strings.Join(command, " "))
}

// log is what a node has executed, but for what go-redis sends of its own accord.
func (w *world) log(node int) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.calls[node])
}

// executed counts the commands that begin with prefix.
func (w *world) executed(node int, prefix string) (k int) {
	for _, c := range w.log(node) {
		if strings.HasPrefix(c, prefix) {
			k++
		}
	}
	return k
}

// attempts counts the acquires of a name that a node has executed, in either form.
func (w *world) attempts(node int, name string) (k int) {
	for _, c := range w.log(node) {
		if args, ok := scriptCall(acquire, c); ok && args[0] == name || strings.HasPrefix(c, "SET "+name+" ") {
			k++
		}
	}
	return k
}

// scriptCall gives key and arguments of a command that is such a script's call.
func scriptCall(k kind, command string) (args []string, ok bool) {
	for _, begin := range []string{"EVALSHA " + hashes[k] + " 1 ", "EVAL " + sources[k] + " 1 "} {
		if rest, ok := strings.CutPrefix(command, begin); ok {
			return strings.Fields(rest), true
		}
	}
	return nil, false
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
	l, err := New(w.Clients(), opts...)
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

// stored is what a node has, or would have after a restart.
func (w *world) stored(node int) []faultinject.Key {
	n := w.Node(node)
	keys, err := n.Keys()
	require.NoError(w.t, err)
	return append(keys, n.Kept()...)
}

// keys lists what is stored under name, a value per node; "" where nothing is.
func (w *world) keys(name string) []string {
	values := make([]string, len(w.Nodes()))
	for i := range values {
		values[i] = w.key(i+1, name).Value
	}
	return values
}

func (w *world) key(node int, name string) faultinject.Key {
	for _, k := range w.stored(node) {
		if k.Name == name {
			return k
		}
	}
	return faultinject.Key{}
}

func (w *world) ttl(node int, name string) time.Duration { return w.key(node, name).TTL }

func (w *world) requireNoKeys() {
	w.t.Helper()
	for i := range w.Nodes() {
		require.Empty(w.t, w.stored(i+1))
	}
}

// plant stores a foreign token.
func (w *world) plant(name string, ttl time.Duration, nodes ...int) {
	for _, i := range nodes {
		require.NoError(w.t, w.Node(i).Set(name, "foreign", ttl))
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
