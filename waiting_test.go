package redlock

import (
	"context"
	"fmt"
	"math"
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

// process is a Locker with clients of its own, as another process has it, so that
// faults can strike it alone.
func (w *world) process(name string, opts ...Option) *Locker {
	w.t.Helper()
	l, err := New(w.Client(name).Redis(), opts...)
	require.NoError(w.t, err)
	w.t.Cleanup(func() { l.Close() })
	l.warm()
	return l
}

// processes are so many of them, named a, b, c and so on, and all warm.
func (w *world) processes(n int, opts ...Option) map[string]*Locker {
	all := make(map[string]*Locker)
	var wg sync.WaitGroup
	for i := range n {
		who := string(rune('a' + i))
		l, err := New(w.Client(who).Redis(), opts...)
		require.NoError(w.t, err)
		w.t.Cleanup(func() { l.Close() })
		all[who] = l
		wg.Go(l.warm)
	}
	wg.Wait()
	return all
}

// waitFor is Lock on a goroutine of its own: when it returned is sent.
func waitFor(t *testing.T, l *Locker, name string) <-chan time.Time {
	got := make(chan time.Time, 1)
	go func() {
		lease, err := l.Lock(t.Context(), name)
		now := time.Now()
		if assert.NoError(t, err) {
			assert.NoError(t, lease.Unlock(t.Context()))
		}
		got <- now
	}()
	return got
}

// publish sends a message on a node, as anybody could.
func (w *world) publish(node int, channel, payload string) {
	w.t.Helper()
	require.NoError(w.t, w.Clients()[node-1].Publish(w.t.Context(), channel, payload).Err())
}

// evict deletes a key without telling anybody.
func (w *world) evict(name string, nodes ...int) {
	w.t.Helper()
	for _, n := range nodes {
		require.NoError(w.t, w.Node(n).Do(faultinject.Evict(name)))
	}
}

// hands is what happened to a lock that several want: who had it, and how long it
// lay idle in between.
type hands struct {
	mu      sync.Mutex
	inside  int
	turns   map[string]int
	longest time.Duration
	freed   time.Time
	idle    []time.Duration
}

// want locks, holds and unlocks until the time is over.
func (h *hands) want(t *testing.T, l *Locker, who string, hold, lasts time.Duration) {
	for end := time.Now().Add(lasts); time.Now().Before(end); {
		begin := time.Now()
		lease, err := l.Lock(t.Context(), "a")
		if !assert.NoError(t, err) {
			return
		}
		h.mu.Lock()
		h.inside++
		assert.Equal(t, 1, h.inside, "two holders")
		if h.turns == nil {
			h.turns = make(map[string]int)
		}
		h.turns[who]++
		h.longest = max(h.longest, time.Since(begin))
		if !h.freed.IsZero() {
			h.idle = append(h.idle, time.Since(h.freed))
		}
		h.mu.Unlock()
		time.Sleep(hold)
		h.mu.Lock()
		h.inside--
		h.freed = time.Now()
		h.mu.Unlock()
		assert.NoError(t, lease.Unlock(t.Context()))
	}
}

func (h *hands) total() (n int) {
	for _, k := range h.turns {
		n += k
	}
	return n
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

func TestSleeperSendsNothingButASafetyTryASecondAndWakesOnTheRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(40), ms(40), ms(40), ms(40), ms(40))
		a, b := w.process("a", WithTTL(time.Minute)), w.process("b")
		lease, err := a.Lock(t.Context(), "a")
		require.NoError(t, err)
		got := waitFor(t, b, "a")
		time.Sleep(time.Second)
		assert.Equal(t, 1, b.root.waiters())
		before := w.attempts(1, "a")
		time.Sleep(10 * time.Second)
		tries := w.attempts(1, "a") - before
		assert.LessOrEqual(t, tries, 10, "safety tries in 10 s")
		assert.GreaterOrEqual(t, tries, 8)
		begin := time.Now()
		require.NoError(t, lease.Unlock(t.Context()))
		assert.Less(t, (<-got).Sub(begin), 3*ms(40))
		assert.Zero(t, b.root.waiters())
	})
}

func TestHandOverAmongFourProcessesTakesLessThanThreeRoundTrips(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(40), ms(40), ms(40), ms(40), ms(40))
		var h hands
		var wg sync.WaitGroup
		for who, l := range w.processes(4) {
			wg.Go(func() { h.want(t, l, who, ms(5), time.Minute) })
		}
		wg.Wait()
		t.Logf("%d turns: %v; idle at the median %v, the longest wait %v", h.total(), h.turns, median(h.idle), h.longest)
		assert.Less(t, median(h.idle), 3*ms(40))
		for who, turns := range h.turns {
			assert.Greater(t, turns, h.total()/8, who)
		}
	})
}

func TestLockOfACrashedHolderIsTakenWhenItsKeysExpire(t *testing.T) {
	for _, rtt := range []time.Duration{ms(1), ms(40)} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, rtt, rtt, rtt)
			l := w.locker()
			var late []time.Duration
			for i := range 15 {
				name := fmt.Sprint("name", i)
				ttl := ms(1500 + 137*i)
				w.plant(name, ttl, 1, 2, 3)
				expires := time.Now().Add(ttl)
				late = append(late, (<-waitFor(t, l, name)).Sub(expires)-rtt)
			}
			assert.LessOrEqual(t, median(late), ms(10), "late by %v, the round trip of %v left out", late, rtt)
			assert.LessOrEqual(t, slices.Max(late), ms(150))
		})
	}
}

func TestSplitVoteOnAFreeLockIsOverInSomeRoundTrips(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1)/5, ms(1)/4, ms(1)/3, ms(1)/4, ms(1)/5)
		var h hands
		var wg sync.WaitGroup
		const lasts = 3 * time.Second
		for who, l := range w.processes(4) {
			// Each is nearer to other nodes, so that none gets a majority at once.
			i := int(who[0] - 'a')
			w.Inject(fmt.Sprintf("at 0s, node %d from %s: delay 300us\nat 0s, node %d from %s: delay 300us", 1+i, who, 1+(i+2)%5, who))
			wg.Go(func() { h.want(t, l, who, ms(1), lasts) })
		}
		wg.Wait()
		t.Logf("%d turns in %v: %v; idle at the median %v, the longest wait %v", h.total(), lasts, h.turns, median(h.idle), h.longest)
		assert.Greater(t, h.total(), 200*int(lasts.Seconds()))
		assert.Less(t, h.longest, ms(300))
	})
}

func TestProcessFarAwayGetsItsTurnsToo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		near, far := w.process("near"), w.process("far")
		w.Inject("at 0s, all from far: delay 40ms") // either way
		var h hands
		var wg sync.WaitGroup
		wg.Go(func() { h.want(t, near, "near", ms(1), 20*time.Second) })
		wg.Go(func() { h.want(t, far, "far", ms(1), 20*time.Second) })
		wg.Wait()
		t.Logf("%v, the longest wait %v", h.turns, h.longest)
		assert.Greater(t, h.turns["far"], 10)
		assert.Less(t, h.longest, 3*time.Second)
	})
}

func TestNobodyStarvesInOneProcessAndAllComeInTheirOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1)/5, ms(1)/5, ms(1)/5, ms(1)/5, ms(1)/5)
		l := w.locker()
		before := 0
		for n := 1; n <= 5; n++ {
			before += len(w.log(n))
		}
		var h hands
		var wg sync.WaitGroup
		for i := range 16 {
			wg.Go(func() { h.want(t, l, fmt.Sprint(i), ms(1), 2*time.Second) })
		}
		wg.Wait()
		commands := -before
		for n := 1; n <= 5; n++ {
			for _, c := range w.log(n) {
				if f := strings.Fields(c)[0]; f != "GET" && f != "DEL" && f != "PTTL" && f != "PUBLISH" { // of scripts
					commands++
				}
			}
		}
		least, most := math.MaxInt, 0
		for _, k := range h.turns {
			least, most = min(least, k), max(most, k)
		}
		t.Logf("%d turns, %d to %d each, %.1f commands each, the longest wait %v", h.total(), least, most, float64(commands)/float64(h.total()), h.longest)
		assert.Greater(t, h.total(), 2*650)
		assert.LessOrEqual(t, most-least, 2)
		assert.LessOrEqual(t, commands, 20*h.total())
		assert.LessOrEqual(t, h.longest, ms(60))
	})
}

func TestWaiterThatLeavesWakesTheNextAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker(WithTTL(time.Minute))
		sibling, err := l.With(WithWait(ms(700)))
		require.NoError(t, err)
		lease, err := l.Lock(t.Context(), "a")
		require.NoError(t, err)

		ctx, cancel := context.WithCancel(t.Context())
		failed := make(chan error, 3)
		wait := func(l *Locker, ctx context.Context) {
			go func() {
				_, err := l.Lock(ctx, "a")
				failed <- err
			}()
			time.Sleep(ms(10))
		}
		wait(l, ctx)               // the contender
		wait(l, ctx)               // in the middle
		wait(sibling, t.Context()) // behind, and its time is used up
		last := waitFor(t, l, "a") // stays
		time.Sleep(ms(100))
		assert.Equal(t, 4, l.root.waiters())
		tries := w.attempts(1, "a")
		begin := time.Now()
		cancel()
		for range 2 {
			assert.ErrorIs(t, <-failed, context.Canceled)
		}
		assert.Zero(t, time.Since(begin))
		time.Sleep(ms(10))
		assert.Equal(t, tries+1, w.attempts(1, "a"), "the next tries before it sleeps")
		err = <-failed
		assert.ErrorIs(t, err, ErrHeld)
		assert.NotErrorIs(t, err, context.Canceled)
		assert.LessOrEqual(t, time.Since(begin), ms(700))
		time.Sleep(ms(10))
		assert.Equal(t, 1, l.root.waiters())

		// The last one got its turn: it is told of the release.
		begin = time.Now()
		require.NoError(t, lease.Unlock(t.Context()))
		assert.LessOrEqual(t, (<-last).Sub(begin), ms(3))
		time.Sleep(time.Second)
		assert.Zero(t, l.remembered(), "nothing is remembered of a name that nobody waits for")
		w.requireNoKeys()
	})
}

func TestQueuedWaiterThatNeverHadItsTurnKnowsTheVerdict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker(WithTTL(time.Minute))
		lease, err := l.Lock(t.Context(), "a")
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		go l.Lock(ctx, "a")
		short, err := l.With(WithWait(ms(300)))
		require.NoError(t, err)
		for _, begin := range []time.Duration{0, ms(100)} { // before and after the contender's last try
			time.Sleep(begin)
			start := time.Now()
			_, err = short.Lock(t.Context(), "a")
			require.ErrorIs(t, err, ErrHeld)
			var q *QuorumError
			require.ErrorAs(t, err, &q)
			assert.GreaterOrEqual(t, q.Round.Count(Refused), 2)
			assert.Equal(t, "lock", q.Round.Op)
			assert.InDelta(t, ms(300), time.Since(start), float64(ms(2)))
		}
		_, err = short.With(WithMaxAttempts(1))
		require.NoError(t, err)
		begin := time.Now()
		_, err = l.TryLock(t.Context(), "a")
		assert.ErrorIs(t, err, ErrHeld)
		assert.Equal(t, ms(1), time.Since(begin), "who tries once does not queue")
		require.NoError(t, lease.Unlock(t.Context()))
	})
}

func TestOwnMessagesAreIgnoredAndOthersHeard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker()
		w.plant("a", time.Minute, 1, 2, 3)
		wait := waitFor(t, l, "a")
		time.Sleep(2 * time.Second)
		before := w.attempts(1, "a")
		for w.attempts(1, "a") == before { // the next safety try is a second away then
			time.Sleep(ms(1))
		}
		before = w.attempts(1, "a")
		for i := 1; i <= 3; i++ {
			w.publish(i, "redlock:released:a", l.root.id+":11111111")
		}
		time.Sleep(ms(100))
		assert.Equal(t, before, w.attempts(1, "a"))
		w.publish(1, "redlock:released:a", "another:11111111")
		time.Sleep(ms(100))
		assert.Equal(t, before+1, w.attempts(1, "a"), "one node's message is worth a try")
		w.evict("a", 1, 2, 3)
		<-wait
	})
}

// released is what the releases of a name have said on a node: true if they told
// others.
func (w *world) released(node int, name string) (told []bool) {
	for _, c := range w.log(node) {
		if args, ok := scriptCall(release, c); ok && args[0] == name {
			told = append(told, len(args) > 2)
		}
	}
	return told
}

func TestRollBackTellsOthersOnlyIfAQuorumMayHaveHadTheToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1), ms(1), ms(1))
		l := w.locker(WithNodeTimeout(ms(100)))
		lease, err := l.TryLock(t.Context(), "unlocked")
		require.NoError(t, err)
		require.NoError(t, lease.Unlock(t.Context()))

		w.plant("minority", time.Minute, 3, 4, 5)
		_, err = l.TryLock(t.Context(), "minority")
		require.ErrorIs(t, err, ErrHeld)

		w.plant("uncertain", time.Minute, 4, 5)
		w.Inject(`on SET key "uncertain", node 3: lose reply`)
		_, err = l.TryLock(t.Context(), "uncertain")
		require.ErrorIs(t, err, ErrNoQuorum)

		ctx, cancel := context.WithTimeout(t.Context(), 3*ms(1)/4)
		defer cancel()
		_, err = l.TryLock(ctx, "unanswered")
		require.ErrorIs(t, err, context.DeadlineExceeded)

		time.Sleep(time.Second)
		assert.Equal(t, []bool{true}, w.released(1, "unlocked"))
		assert.Equal(t, []bool{false}, w.released(1, "minority"))
		assert.Equal(t, []bool{false}, w.released(2, "minority"))
		assert.Empty(t, w.released(3, "minority"))
		assert.Equal(t, []bool{true}, w.released(1, "uncertain"))
		assert.Contains(t, w.released(3, "uncertain"), true, "of a claim that was repeated")
		assert.NotContains(t, w.released(3, "uncertain"), false)
		for n := 1; n <= 5; n++ {
			assert.NotContains(t, w.released(n, "unanswered"), false)
		}
	})
}

func TestWaiterWithoutScriptsOrWithoutSubscriptionsStillGetsTheLock(t *testing.T) {
	const denied = `error "NOPERM User has no permissions"`
	for _, c := range []struct {
		name, faults string
		most         time.Duration
	}{
		{"nobody may acquire by script", "at 0s on EVAL, all from b: " + denied + "\nat 0s on EVALSHA, all from b: " + denied, ms(10)},
		{"nobody may subscribe", "at 0s on SUBSCRIBE, all from b: " + denied, ms(600)},
		{"one may subscribe", "at 0s on SUBSCRIBE, nodes 1,2 from b: " + denied, ms(600)},
		{"two may subscribe", "at 0s on SUBSCRIBE, node 1 from b: " + denied, ms(10)},
		{"nobody is told", "at 0s, all: lose messages", ms(1150)},
		{"one is told", "at 0s, nodes 1,2: lose messages", ms(10)},
		{"all are told late", "at 0s, all: delay messages 300ms", ms(310)},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, ms(1), ms(1), ms(1))
			a, b := w.process("a", WithTTL(time.Minute)), w.process("b")
			w.Inject(c.faults)
			lease, err := a.Lock(t.Context(), "a")
			require.NoError(t, err)
			got := make(chan time.Time)
			go func() {
				_, err := b.Lock(t.Context(), "a")
				assert.NoError(t, err, c.name)
				got <- time.Now()
			}()
			time.Sleep(5 * time.Second)
			begin := time.Now()
			require.NoError(t, lease.Unlock(t.Context()))
			took := (<-got).Sub(begin)
			assert.LessOrEqual(t, took, c.most, c.name)
		})
	}
}

func TestOneForbiddenNameDoesNotKeepOthersFromBeingToldOf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		a, b := w.process("a", WithTTL(time.Minute)), w.process("b")
		w.Inject(`on SUBSCRIBE key "redlock:released:forbidden", all: error "NOPERM No permissions to access a channel"`)
		leases := make([]*Lease, 20)
		var got []<-chan time.Time
		name := func(i int) string {
			if i == 0 {
				return "forbidden"
			}
			return fmt.Sprint("name", i)
		}
		for i := range leases {
			var err error
			leases[i], err = a.Lock(t.Context(), name(i))
			require.NoError(t, err)
		}
		for i := range leases {
			got = append(got, waitFor(t, b, name(i)))
		}
		time.Sleep(3 * time.Second)
		for i, lease := range leases {
			begin := time.Now()
			require.NoError(t, lease.Unlock(t.Context()))
			took := (<-got[i]).Sub(begin)
			if i > 0 {
				assert.LessOrEqual(t, took, ms(10), name(i))
			}
		}
	})
}

func TestSubscriptionsAreOneConnectionANodeAndEndWithTheWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		const names, pool = 300, 4
		clients := w.Client("many").Redis(func(o *redis.Options) { o.PoolSize = pool })
		l, err := New(clients, WithWait(ms(500)), WithNodeTimeout(ms(50)))
		require.NoError(t, err)
		defer l.Close()
		l.warm()
		for i := range names {
			w.plant(fmt.Sprint("name", i), time.Minute, 1, 2, 3)
		}
		for range 5 {
			before := w.executed(1, "SUBSCRIBE")
			var wg sync.WaitGroup
			begin := time.Now()
			for i := range names {
				wg.Go(func() {
					_, err := l.Lock(t.Context(), fmt.Sprint("name", i))
					assert.ErrorIs(t, err, ErrHeld)
					assert.LessOrEqual(t, time.Since(begin), ms(550))
				})
			}
			time.Sleep(ms(300))
			assert.Equal(t, names, l.root.waiters())
			assert.Len(t, w.channels(1), names)
			assert.LessOrEqual(t, w.executed(1, "SUBSCRIBE")-before, names/2, "in batches")
			wg.Wait()
			time.Sleep(time.Second)
			assert.Empty(t, w.channels(1))
			assert.Zero(t, l.remembered())
		}
		time.Sleep(feedLinger + feedSilence)
		for _, f := range l.root.lines.feeds {
			l.root.lines.mu.Lock()
			assert.False(t, f.running, "the connection is closed after a while")
			l.root.lines.mu.Unlock()
		}
	})
}

// remembered counts the names of which something is kept for those who wait.
func (l *Locker) remembered() int {
	l.root.lines.mu.Lock()
	defer l.root.lines.mu.Unlock()
	return len(l.root.lines.of)
}

// channels are those to which somebody has subscribed on a node.
func (w *world) channels(node int) []string {
	w.t.Helper()
	list, err := w.Clients()[node-1].PubSubChannels(w.t.Context(), "*").Result()
	require.NoError(w.t, err)
	return list
}

// Public reports of other libraries, as numbered in the collection of cases.
