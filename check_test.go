package redlock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	miniserver "github.com/alicebob/miniredis/v2/server"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed58520471/redlock/faultinject"
)

// newWellWorld is newWorld with nodes that answer INFO and CONFIG GET in a way that
// leaves Check nothing to say; different changes that, by node.
func newWellWorld(t *testing.T, different map[int]string, rtts ...time.Duration) *world {
	t.Cleanup(func() { time.Sleep(time.Minute) })
	w := &world{t: t, calls: make(map[int][]string)}
	var started atomic.Int64
	w.Cluster = faultinject.Start(t, len(rtts), faultinject.RTT(rtts...), faultinject.Watch(w.note), faultinject.Setup(func(m *miniredis.Miniredis) {
		number, begin := started.Add(1), time.Now()
		m.Server().SetPreHook(func(p *miniserver.Peer, cmd string, args ...string) bool {
			switch strings.ToLower(strings.Join(append([]string{cmd}, args...), " ")) {
			case "config get appendfsync":
				p.WriteStrings([]string{"appendfsync", "always"})
			case "info server":
				p.WriteBulk(fmt.Sprintf("%s\r\nredis_version:7.0.15\r\nrun_id:run%d\r\nuptime_in_seconds:%d\r\n",
					different[int(number)], number, int(time.Since(begin).Seconds())))
			case "info memory":
				p.WriteBulk("maxmemory:1000\r\nused_memory:10\r\nmaxmemory_policy:noeviction\r\n")
			case "info persistence":
				p.WriteBulk("aof_enabled:1\r\n")
			case "info replication":
				p.WriteBulk("role:master\r\nconnected_slaves:0\r\n")
			case "info cluster":
				p.WriteBulk("cluster_enabled:0\r\n")
			default:
				return false
			}
			return true
		})
	}))
	return w
}

// check is a Check that comes to its end.
func (w *world) check(l *Locker, prefixes ...string) *Report {
	w.t.Helper()
	report, err := l.Check(w.t.Context(), prefixes...)
	require.NoError(w.t, err)
	return report
}

// say lists the findings of a report: severity, what, and the number of the node.
func (w *world) say(report *Report) string {
	var list []string
	for _, f := range report.Findings {
		s := f.Severity.String() + " " + f.What
		for i := range w.Nodes() {
			if f.Node == w.Node(i+1).Addr() {
				s += fmt.Sprint(" ", i+1)
			}
		}
		list = append(list, s)
	}
	return strings.Join(list, "; ")
}

// leftovers are the keys on a node but for the one that Check leaves on purpose.
func (w *world) leftovers(node int) (names []string) {
	for _, k := range w.stored(node) {
		if k.Name != membersKey {
			names = append(names, k.Name)
		}
	}
	return names
}

func TestCheckOfWellNodesMeasuresAndFindsNothing(t *testing.T) {
	for _, opts := range [][]Option{nil, {WithFencing()}} {
		synctest.Test(t, func(t *testing.T) {
			w := newWellWorld(t, nil, ms(5), ms(1), ms(2), ms(4), ms(3))
			report := w.check(w.cold(opts...))
			t.Log(report)
			assert.Empty(t, report.Findings)
			assert.Equal(t, SeverityNone, report.Worst())
			assert.Equal(t, 3, report.Quorum)
			assert.Equal(t, ms(3), report.Lock)
			assert.Equal(t, ms(4), report.LockOneDown)
			assert.Equal(t, ms(50), report.NodeTimeout)
			assert.Equal(t, ms(150), report.TTL)
			for i, n := range report.Nodes {
				assert.Equal(t, w.Node(i+1).Addr(), n.Node)
				rtt := []time.Duration{ms(5), ms(1), ms(2), ms(4), ms(3)}[i]
				assert.Equal(t, [3]time.Duration{rtt, rtt, rtt}, [3]time.Duration{n.Min, n.Median, n.Max})
				assert.Equal(t, samples, n.Trips)
				assert.Equal(t, rtt/2, n.OffsetWithin)
				assert.LessOrEqual(t, n.Offset.Abs(), n.OffsetWithin)
				assert.Equal(t, "7.0.15", n.Version)
				assert.Equal(t, "master", n.Role)
				assert.GreaterOrEqual(t, n.Connect, rtt)
				assert.Zero(t, n.DriftOver)
				assert.Empty(t, w.leftovers(i+1))
				assert.Equal(t, 24*time.Hour, w.ttl(i+1, membersKey).Round(time.Second))
			}
			assert.Less(t, report.Took, ms(5)*30)
		})
	}
}

func TestCheckWarmsTheLocker(t *testing.T) {
	for _, opts := range [][]Option{nil, {WithFencing()}} {
		synctest.Test(t, func(t *testing.T) {
			w := newWellWorld(t, nil, ms(1), ms(2), ms(3))
			l := w.cold(append(opts, WithOwner("x"))...)
			w.check(l)
			before := l.Stats()
			calls := []int{len(w.log(1)), len(w.log(2)), len(w.log(3))}
			begin := time.Now()
			lease, err := l.TryLock(t.Context(), "a")
			require.NoError(t, err)
			assert.Equal(t, ms(2), time.Since(begin), "one round trip to the second fastest")
			time.Sleep(ms(5))
			begin = time.Now()
			require.NoError(t, lease.Extend(t.Context(), time.Minute))
			assert.Equal(t, ms(2), time.Since(begin))
			time.Sleep(ms(5))
			begin = time.Now()
			require.NoError(t, lease.Unlock(t.Context()))
			assert.Equal(t, ms(2), time.Since(begin))
			time.Sleep(ms(5))
			for i, s := range l.Stats().Nodes {
				assert.Equal(t, before.Nodes[i].Connects, s.Connects, "no dial")
				for _, c := range w.log(i + 1)[calls[i]:] {
					assert.NotContains(t, c, "EVAL ", "the script is known")
				}
			}
		})
	}
}

func TestCheckTakesNothingFromTheLanes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWellWorld(t, nil, ms(1), ms(1), ms(1))
		var told atomic.Int64
		l := w.locker(WithHooks(Hooks{Round: func(context.Context, Round) { told.Add(1) }}))
		rounds := told.Load()
		w.Inject("on INFO, node 3: delay 500ms")
		done := make(chan struct{})
		go func() { defer close(done); w.check(l) }()
		time.Sleep(ms(30))
		for range 10 {
			begin := time.Now()
			lease, err := l.TryLock(t.Context(), "a")
			require.NoError(t, err)
			require.NoError(t, lease.Unlock(t.Context()))
			assert.Equal(t, ms(2), time.Since(begin))
		}
		<-done
		assert.Equal(t, rounds+20, told.Load(), "hooks are told of locks only")
		for _, n := range l.Stats().Nodes {
			assert.Equal(t, 1, n.Connections)
			assert.Zero(t, n.Failed)
		}
	})
}

func TestCheckReportsNodesThatDoNotAnswer(t *testing.T) {
	for _, c := range []struct {
		about, plan, want string
		most              time.Duration
	}{
		{"one is dead", "at 0s, node 2: kill", "warning no-answer 2", 2 * time.Second},
		{"one hangs from the beginning", "at 0s, node 2: hang", "warning no-answer 2", 2100 * time.Millisecond},
		{"one falls silent after its connection", "on TIME #3, node 2: lose reply", "warning no-answer 2", 2100 * time.Millisecond},
		{"one breaks its connection", "on TIME #3, node 2: cut before", "warning no-answer 2", 2100 * time.Millisecond},
		{"one falls silent while it is asked for its settings", "on INFO #1, node 2: lose reply", "warning no-answer 2", 2100 * time.Millisecond},
		{"one falls silent when asked who it is", `on EVAL key "redlock:members" #1, node 2: lose reply`, "warning no-answer 2", 2100 * time.Millisecond},
		{"one falls silent when told who we are", `on EVAL key "redlock:members" #2, node 2: lose reply`, "warning no-answer 2", 2100 * time.Millisecond},
		{"a majority hangs", "at 0s, nodes 1,2: hang", "error no-quorum; warning no-answer 1; warning no-answer 2", 2100 * time.Millisecond},
		{"all are dead", "at 0s, all: kill", "error no-quorum; warning no-answer 1; warning no-answer 2; warning no-answer 3", 2 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWellWorld(t, nil, ms(1), ms(2), ms(3))
			l := w.cold()
			w.Inject(c.plan)
			time.Sleep(ms(1))
			begin := time.Now()
			report := w.check(l)
			t.Log(c.about, report)
			assert.Equal(t, c.want, w.say(report), c.about)
			assert.LessOrEqual(t, time.Since(begin), c.most, c.about)
			for i, n := range report.Nodes {
				assert.Equal(t, strings.Contains(c.want, fmt.Sprint("no-answer ", i+1)), n.Err != nil, c.about)
				assert.NotErrorIs(t, n.Err, context.DeadlineExceeded)
			}
		})
	}
}

func TestANodeThatNeedsLongerThanTheNodeTimeoutIsMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWellWorld(t, nil, ms(1), ms(2), ms(80))
		l := w.cold(WithNodeTimeout(ms(50)))
		report := w.check(l)
		assert.Equal(t, "error node-timeout 3", w.say(report))
		assert.Equal(t, ms(240), report.NodeTimeout)
		assert.Contains(t, report.Findings[0].Evidence, "80ms")
		better, err := New(w.Clients(), WithNodeTimeout(report.NodeTimeout))
		require.NoError(t, err)
		defer better.Close()
		assert.Empty(t, w.check(better).Findings)
	})
}

func TestCheckFindsWhatIsRefused(t *testing.T) {
	for _, c := range []struct{ about, plan, want string }{
		{"all is denied", `on any, node 2: error "NOAUTH Authentication required."`, "error no-access 2"},
		{"no memory", `on SET, node 2: error "OOM command not allowed when used memory > 'maxmemory'."`, "error refuses 2"},
		{"it cannot save", `on SET, node 2: error "MISCONF Redis is configured to save"`, "error refuses 2"},
		{"loading", `on SET, node 2: error "LOADING Redis is loading the dataset in memory"`, "error refuses 2"},
		{"no SET", `on SET, node 2: error "NOPERM this user has no permissions to run the 'set' command"`, "error locks-denied 2"},
		{"an old server", `on SET #1, node 2: error "ERR syntax error"`, ""},
		{"no scripts", `on EVAL, node 2: error "NOPERM this user has no permissions to run the 'eval' command"`, "error locks-denied 2; info members-unknown 2"},
		{"no EVALSHA", `on EVALSHA, node 2: error "NOPERM this user has no permissions to run the 'evalsha' command"`, "info evalsha-denied 2"},
		{"no PUBLISH", `on PUBLISH, node 2: error "NOPERM this user has no permissions to run the 'publish' command"`, "info channels-denied 2"},
		{"no SUBSCRIBE", `on SUBSCRIBE, node 2: error "NOPERM this user has no permissions to run the 'subscribe' command"`, "info channels-denied 2"},
		{"subscriptions are swallowed", `on SUBSCRIBE, node 2: lose reply`, "info channels-denied 2"},
		{"subscriptions break", `on SUBSCRIBE, node 2: cut before`, "info channels-denied 2"},
		{"no INFO", `on INFO, node 2: error "NOPERM this user has no permissions to run the 'info' command"`, "info info-unknown 2"},
		{"no CONFIG", `on CONFIG, node 2: error "NOPERM this user has no permissions to run the 'config' command"`, "info forgets-last-second 2"},
		{"no TIME", `on TIME, node 2: error "NOPERM this user has no permissions to run the 'time' command"`, "info clock-unknown 2"},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWellWorld(t, nil, ms(1), ms(2), ms(3))
			l := w.cold()
			w.Inject(c.plan)
			report := w.check(l)
			assert.Equal(t, c.want, w.say(report), c.about)
			for _, f := range report.Findings {
				assert.NotEmpty(t, f.Evidence, c.about)
			}
			time.Sleep(probeTTL)
			for i := range 3 {
				assert.Empty(t, w.leftovers(i+1), c.about)
			}
		})
	}
}

// What is refused in one form is done in another from the first lock on.
func TestCheckTeachesTheLaneWhatIsRefused(t *testing.T) {
	for _, refused := range []string{`on SET, all: error "ERR syntax error"`, `on EVALSHA, all: error "NOPERM x"`} {
		synctest.Test(t, func(t *testing.T) {
			w := newWellWorld(t, nil, ms(1), ms(1), ms(1))
			l := w.cold()
			struck := w.Inject(refused)
			w.check(l)
			before := struck.Fired()
			lease, err := l.TryLock(t.Context(), "a")
			require.NoError(t, err)
			require.NoError(t, lease.Unlock(t.Context()))
			assert.Equal(t, before, struck.Fired(), "nothing was tried that is refused")
		})
	}
}

func TestANameThatIsDeniedSaysNothingAboutTheCommand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWellWorld(t, nil, ms(1), ms(1), ms(1))
		l := w.cold()
		w.check(l)
		denied := w.Inject(`on EVALSHA, all: error "NOPERM No permissions to access a key"`)
		report := w.check(l)
		assert.Equal(t, "warning names-denied 1; warning names-denied 2; warning names-denied 3", w.say(report))
		denied.Stop()
		calls := len(w.log(1))
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		require.NoError(t, lease.Unlock(t.Context()))
		time.Sleep(ms(5))
		for _, c := range w.log(1)[calls:] {
			assert.NotContains(t, c, "EVAL ", "EVALSHA is not refused")
		}
	})
}

func TestCheckUsesThePrefixesThatItIsGiven(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWellWorld(t, nil, ms(1), ms(1), ms(1))
		l := w.cold()
		w.check(l, "locks:", "jobs:")
		under := make(map[string]int)
		for _, c := range w.log(1) {
			if words := strings.Fields(c); words[0] == "SET" && words[len(words)-1] == "get" {
				before, _, _ := strings.Cut(words[1], ":")
				under[before]++
			}
		}
		assert.Equal(t, map[string]int{"locks": 1, "jobs": 1}, under)

		for _, bad := range []string{fencePrefix, fencePrefix + "x", strings.Repeat("x", maxName)} {
			report, err := l.Check(t.Context(), "locks:", bad)
			assert.ErrorIs(t, err, ErrInvalid)
			assert.Nil(t, report)
		}
		var none context.Context
		_, err := l.Check(none)
		assert.ErrorIs(t, err, ErrInvalid)
	})
}

func TestTheEndOfTheContextEndsACheckWithWhatWasFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWellWorld(t, map[int]string{1: "maxmemory_policy:allkeys-lru"}, ms(1), ms(1), ms(1))
		l := w.cold()
		w.Inject("at 0s, node 3: hang")
		ctx, cancel := context.WithTimeoutCause(t.Context(), ms(300), errors.New("enough"))
		defer cancel()
		begin := time.Now()
		report, err := l.Check(ctx)
		assert.Equal(t, ms(300), time.Since(begin))
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		assert.ErrorContains(t, err, "enough")
		require.NotNil(t, report)
		assert.Equal(t, "error evicts 1; warning no-answer 3", w.say(report))

		begin = time.Now()
		report, err = l.Check(ctx)
		assert.Nil(t, report)
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Zero(t, time.Since(begin))
	})
}

func TestCloseEndsACheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWellWorld(t, nil, ms(1), ms(1), ms(1))
		l := w.cold()
		sibling, err := l.With(WithFencing())
		require.NoError(t, err)
		w.Inject("at 0s, node 3: hang")
		var all sync.WaitGroup
		check := func(l *Locker, begun bool) {
			all.Go(func() {
				report, err := l.Check(t.Context())
				assert.ErrorIs(t, err, ErrClosed)
				assert.Equal(t, begun, report != nil)
			})
			time.Sleep(ms(100))
		}
		check(sibling, true)
		check(sibling, false) // waits for its turn
		require.NoError(t, sibling.Close())
		check(l, true)
		check(l, false)
		require.NoError(t, l.Close())
		all.Wait()
		_, err = l.Check(t.Context())
		assert.ErrorIs(t, err, ErrClosed)
	})
}

func TestChecksTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWellWorld(t, nil, ms(1), ms(1), ms(1))
		l := w.cold()
		w.Inject("on INFO #1, node 3: delay 200ms")
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() { assert.Empty(t, w.check(l).Findings) })
		}
		time.Sleep(ms(100))
		ctx, cancel := context.WithTimeout(t.Context(), ms(50))
		defer cancel()
		report, err := l.Check(ctx)
		assert.Nil(t, report)
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		all.Wait()
	})
}
