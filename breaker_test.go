package redlock

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed58520471/redlock/faultinject"
)

// gateOf is the state of node i's breaker, and how often it was open.
func (l *Locker) gateOf(i int) (state string, opened uint64) {
	n := l.root.nodes[i]
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.gate.state(), n.gate.shuts
}

// silence makes node i's lane believe that it had no answers for long enough.
func (l *Locker) silence(i int) {
	n := l.root.nodes[i]
	for range tripAfter {
		n.mu.Lock()
		n.heard(false)
		n.mu.Unlock()
		time.Sleep(max(tripSpan, 2*n.gate.timeout) / (tripAfter - 1))
	}
}

// silent makes nodes silent in one of several ways.
func (w *world) silent(fault, nodes string) *faultinject.Injection {
	plan := "at 0s, " + nodes + ": " + fault
	if fault == "refuse" {
		plan += "\nat 0s, " + nodes + ": cut"
	}
	return w.Inject(plan)
}

// rowOf is node i's vote in a lost round.
func rowOf(t *testing.T, err error, i int) Vote {
	t.Helper()
	var verdict *QuorumError
	require.ErrorAs(t, err, &verdict)
	return verdict.Round.Votes[i]
}

func TestGateShutsOnlyAfterSeveralSilencesOverSomeTime(t *testing.T) {
	for _, c := range []struct {
		about   string
		heard   []bool
		every   time.Duration
		timeout time.Duration
		state   string
	}{
		{"two silences, however far apart", []bool{false, false}, time.Hour, ms(50), "closed"},
		{"a hundred at once", make([]bool, 100), ms(1), ms(50), "closed"},
		{"three, over less than the span", make([]bool, 3), tripSpan/2 - 1, ms(50), "closed"},
		{"three, over the span", make([]bool, 3), tripSpan / 2, ms(50), "open"},
		{"three, over less than two timeouts", make([]bool, 3), ms(2999), 3 * time.Second, "closed"},
		{"three, over two timeouts", make([]bool, 3), ms(3000), 3 * time.Second, "open"},
		{"an answer in between", []bool{false, false, true, false, false}, time.Hour, ms(50), "closed"},
		{"an answer after", []bool{false, false, false, true}, time.Second, ms(50), "closed"},
	} {
		synctest.Test(t, func(t *testing.T) {
			g := gate{timeout: c.timeout}
			for i, yes := range c.heard {
				if i > 0 {
					time.Sleep(c.every)
				}
				g.heard(yes)
			}
			assert.Equal(t, c.state, g.state(), c.about)
			probe, err := g.admit(nil, false)
			assert.Nil(t, probe)
			assert.Equal(t, c.state == "closed", err == nil, c.about)
		})
	}
}

func TestGateLetsOneVoteTryAfterAPauseThatDoesNotGrow(t *testing.T) {
	for timeout, pause := range map[time.Duration]time.Duration{
		ms(1): ms(200), ms(500): ms(250), time.Minute: ms(500),
	} {
		synctest.Test(t, func(t *testing.T) {
			g := gate{timeout: timeout}
			for range 3 {
				g.heard(false)
				time.Sleep(max(tripSpan, 2*timeout) / 2)
			}
			time.Sleep(pause)
			for range 5 {
				probe, err := g.admit(nil, false)
				require.NoError(t, err)
				require.NotNil(t, probe)
				_, err = g.admit(nil, false)
				assert.ErrorContains(t, err, "being tried at the moment")

				probe(errNoVerdict) // it was dropped before it was written
				probe, err = g.admit(nil, false)
				require.NoError(t, err, "the next one may try")
				probe(errNoVerdict)
				g.heard(false)
				time.Sleep(pause - ms(10))
				_, err = g.admit(opaque{"refused"}, false)
				assert.EqualError(t, err, fmt.Sprintf("not asked: no answer for %v (refused), next try in 10ms", time.Since(g.since).Round(ms(1))))
				time.Sleep(ms(10) + 1)
			}
			assert.Equal(t, uint64(6), g.shuts)
			g.heard(true)
			assert.Equal(t, "closed", g.state())
		})
	}
}

func TestVotesAreNotAskedOfANodeThatIsSilent(t *testing.T) {
	for _, fault := range []string{"hang", "kill", "freeze", "partition", "refuse"} {
		t.Run(fault, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, ms(1), ms(1), ms(1))
				l, err := New(w.openLike(ms(500)))
				require.NoError(t, err)
				defer l.Close()
				l.warm()
				gone := w.silent(fault, "node 3")
				begin := time.Now()
				for state, _ := l.gateOf(2); state == "closed"; state, _ = l.gateOf(2) {
					require.Less(t, time.Since(begin), 8*time.Second)
					lease, err := l.TryLock(t.Context(), "a")
					require.NoError(t, err)
					time.Sleep(ms(50))
					require.NoError(t, lease.Unlock(t.Context()))
				}
				t.Log("open after", time.Since(begin))
				assert.GreaterOrEqual(t, time.Since(begin), tripSpan)

				before := l.lane(2)
				for range 100 {
					lease, err := l.TryLock(t.Context(), "b")
					require.NoError(t, err)
					require.NoError(t, lease.Unlock(t.Context()))
				}
				after := l.lane(2)
				assert.Greater(t, after.NotAsked-before.NotAsked, uint64(95))

				begin = time.Now()
				gone.Stop()
				if fault == "kill" {
					require.NoError(t, w.Node(3).Do(faultinject.Restart))
				}
				for voted := false; !voted; {
					require.Less(t, time.Since(begin), time.Second)
					lease, err := l.TryLock(t.Context(), "c")
					require.NoError(t, err)
					time.Sleep(ms(10))
					voted = w.keys("c")[2] != ""
					require.NoError(t, lease.Unlock(t.Context()))
					time.Sleep(ms(10))
				}
				t.Log("votes again after", time.Since(begin))
				time.Sleep(15 * time.Second)
				w.requireNoKeys()
			})
		})
	}
}

func TestExtensionsAndReleasesPassTheGateAndOpenIt(t *testing.T) {
	for _, what := range []string{"extend", "unlock", "inspect", "ping", "connect"} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, ms(1), ms(1), ms(1))
				l := w.locker(WithTTL(time.Minute))
				lease, err := l.TryLock(t.Context(), "a")
				require.NoError(t, err)
				time.Sleep(ms(10))
				l.silence(2)
				state, _ := l.gateOf(2)
				require.Equal(t, "half-open", state) // its pause is over
				n := l.root.nodes[2]
				n.mu.Lock()
				probe, err := n.gate.admit(nil, false) // somebody's vote takes long
				n.mu.Unlock()
				require.NoError(t, err)
				defer probe(errNoVerdict)

				other, err := l.TryLock(t.Context(), "b")
				require.NoError(t, err)
				time.Sleep(ms(10))
				assert.Empty(t, w.keys("b")[2], "no vote is asked for")
				assert.Equal(t, 1, w.executed(3, "SET a"))
				assert.Zero(t, w.executed(3, "SET b"))
				require.NoError(t, other.Unlock(t.Context()))
				state, _ = l.gateOf(2)
				require.Equal(t, "half-open", state, "nothing has been sent")

				switch what {
				case "extend":
					extends := w.executed(3, "EVALSHA "+hashes[extend])
					require.NoError(t, lease.Extend(t.Context(), time.Hour))
					time.Sleep(ms(10))
					assert.Equal(t, extends+1, w.executed(3, "EVALSHA "+hashes[extend]))
					assert.Greater(t, w.ttl(3, "a"), time.Minute)
				case "unlock":
					require.NoError(t, lease.Unlock(t.Context()))
					time.Sleep(ms(10))
					assert.Empty(t, w.keys("a")[2])
				case "inspect":
					in, err := l.Inspect(t.Context(), "a")
					require.NoError(t, err)
					assert.Equal(t, 3, in.Holders)
				case "ping":
					time.Sleep(keepAlive)
				case "connect":
					w.Inject("at 0s, node 3: cut")
					time.Sleep(2 * keepAlive)
				}
				state, _ = l.gateOf(2)
				assert.Equal(t, "closed", state)
				other, err = l.TryLock(t.Context(), "b")
				require.NoError(t, err)
				time.Sleep(ms(10))
				assert.Equal(t, other.Token(), w.keys("b")[2])
			})
		})
	}
}

func TestGateStaysOpenThroughWhatPasses(t *testing.T) {
	for about, plan := range map[string]string{
		"a restart that breaks all connections": "at 1s, node 3: cut\nat 1s for 300ms, node 3: refuse",
		"one slow exchange":                     "on SET #20, node 3: delay 4s",
		"a pause of the server":                 "at 1s for 900ms, node 3: freeze",
		"a node that flaps":                     "at 1s for 400ms, node 3: hang\nat 2s for 400ms, node 3: hang\nat 3s, node 3: cut\nat 3s for 400ms, node 3: refuse\nat 4s for 400ms, node 3: freeze",
		"replies with errors":                   `at 0s for 5s on any, node 3: error "LOADING Redis is loading the dataset in memory"`,
		"connections that break now and then":   "on SET 30%, node 3: cut during",
	} {
		t.Run(about, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, ms(5), ms(5), ms(5)) // long enough a line for several connections
				l, err := New(w.openLike(ms(500)))
				require.NoError(t, err)
				defer l.Close()
				l.warm()
				w.Inject(plan)
				for i := range 600 {
					go func() {
						if lease, err := l.TryLock(t.Context(), fmt.Sprint(i)); err == nil {
							lease.Unlock(t.Context())
						}
					}()
					time.Sleep(ms(10))
				}
				_, opened := l.gateOf(2)
				assert.Zero(t, opened)
				assert.Zero(t, l.lane(2).NotAsked)
			})
		})
	}
}

func TestCallersWhoGiveUpNeverShutAGateAndLeaveTheTryToTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker()
		w.Inject("on SET, all: delay 39ms")
		for i := range 200 {
			ctx, cancel := context.WithTimeout(t.Context(), ms(1+i%39))
			_, err := l.Lock(ctx, fmt.Sprint(i))
			assert.ErrorIs(t, err, context.DeadlineExceeded)
			cancel()
			time.Sleep(ms(20))
		}
		for i := range 3 {
			_, opened := l.gateOf(i)
			assert.Zero(t, opened)
		}
		time.Sleep(time.Second)
		w.requireNoKeys()

		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		time.Sleep(ms(100))
		for i := range 3 {
			l.silence(i)
		}
		slow := w.Inject("on EVALSHA, all: delay 400ms")
		go lease.Extend(t.Context(), time.Hour)
		time.Sleep(ms(2))
		for range 5 {
			ctx, cancel := context.WithTimeout(t.Context(), ms(10))
			_, err := l.Lock(ctx, "b") // waits behind the extension, as the one that may try
			assert.ErrorIs(t, err, context.DeadlineExceeded)
			assert.NotErrorIs(t, err, ErrNoQuorum, "no round was decided: the nodes were to be asked")
			cancel()
			state, _ := l.gateOf(2)
			assert.Equal(t, "half-open", state)
		}
		assert.Zero(t, l.lane(0).NotAsked)
		slow.Stop()
		require.NoError(t, lease.Unlock(t.Context()))
		time.Sleep(time.Second)
		w.requireNoKeys()
	})
}

func TestAttemptFailsAtOnceWhenNoNodeIsAskedAndLockHasItWhenTheyAreBack(t *testing.T) {
	// Of nodes that refuse connections go-redis takes no notice for up to a second;
	// of those that swallow what is sent, a try under way must be given up first.
	// That is so without a gate. It adds its pause, and Lock its own.
	const bound = 1600 * time.Millisecond
	for _, timeout := range []time.Duration{ms(50), ms(500)} {
		for _, fault := range []string{"hang", "kill", "freeze", "partition", "refuse"} {
			t.Run(fmt.Sprint(fault, " ", timeout), func(t *testing.T) {
				for _, extra := range []time.Duration{0, ms(111), ms(222), ms(333), ms(444)} {
					synctest.Test(t, func(t *testing.T) {
						w := newWorld(t, ms(1), ms(1), ms(1), ms(1), ms(1))
						l, err := New(w.openLike(timeout), WithNodeTimeout(timeout), WithTTL(30*time.Second))
						require.NoError(t, err)
						defer l.Close()
						l.warm()
						gone := w.silent(fault, "nodes 2-5")
						var atOnce, attempts atomic.Int64
						waiting, err := l.With(WithHooks(Hooks{Round: func(_ context.Context, r Round) {
							attempts.Add(1)
							if r.Took == 0 {
								atOnce.Add(1)
							}
						}}))
						require.NoError(t, err)
						var had atomic.Pointer[Lease]
						var when time.Time
						done := make(chan struct{})
						go func() {
							defer close(done)
							lease, err := waiting.Lock(t.Context(), "a")
							if assert.NoError(t, err) {
								when = time.Now()
								had.Store(lease)
							}
						}()
						time.Sleep(8*time.Second + 4*timeout + extra)
						if fault != "refuse" { // which takes no time either way
							assert.Positive(t, atOnce.Load())
						}
						_, err = l.TryLock(t.Context(), "b")
						require.ErrorIs(t, err, ErrNoQuorum)
						assert.Less(t, attempts.Load(), int64(10*12+100), "no busy loop")
						require.Nil(t, had.Load())

						back := time.Now()
						gone.Stop()
						if fault == "kill" {
							for i := 2; i <= 4; i++ {
								require.NoError(t, w.Node(i).Do(faultinject.Restart))
							}
						}
						<-done
						assert.LessOrEqual(t, when.Sub(back), bound)
						require.NoError(t, had.Load().Unlock(t.Context()))
						time.Sleep(time.Minute)
					})
				}
			})
		}
	}
}

func TestLockDoesNotSpinWhenNobodyIsAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 0, 0, 0) // where being refused takes no time
		var rounds atomic.Int64
		l, err := New(w.openLike(ms(500)), WithBackoff(Backoff{Min: 1, Max: 1}), WithHooks(Hooks{
			Round: func(context.Context, Round) { rounds.Add(1) },
		}))
		require.NoError(t, err)
		defer l.Close()
		l.warm()
		for i := range 3 {
			l.silence(i)
		}
		w.Inject("at 0s, all: hang")
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, err = l.Lock(ctx, "a")
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		assert.ErrorIs(t, err, ErrNoQuorum)
		assert.ErrorContains(t, err, "not asked: no answer for ")
		assert.IsType(t, errNotAsked{}, rowOf(t, err, 0).Err)
		assert.Less(t, rounds.Load(), int64(500))
	})
}

func TestRequestsThatNobodyWantedAnyMoreAreNoSilences(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l, err := New(w.openLike(ms(500)), WithNodeTimeout(ms(500)))
		require.NoError(t, err)
		defer l.Close()
		l.warm()
		w.Inject("at 0s, node 3: hang")
		// One exchange times out, then connecting does, which takes 2 s a time.
		for begin := time.Now(); time.Since(begin) < 4*time.Second; time.Sleep(ms(10)) {
			lease, err := l.TryLock(t.Context(), "a")
			require.NoError(t, err)
			require.NoError(t, lease.Unlock(t.Context()))
		}
		require.Greater(t, l.lane(2).GivenUp, uint64(100))
		_, opened := l.gateOf(2)
		assert.Zero(t, opened, "two silences and hundreds that were not sent")
	})
}
