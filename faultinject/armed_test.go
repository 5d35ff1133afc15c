package faultinject

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAWindowHoldsForTriggersToo(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := Start(t, 1)
		i := c.Inject(`at 1s for 1s on SET #2-3, all: error "ERR struck"`)
		w := connect(t, c, "client", 1)
		set := func(want string) { w.do("SET k v", want) }
		set("+OK")
		time.Sleep(time.Second + ms)
		set("+OK") // the first of the window
		w.do("GET k", "$1\r\nv")
		set("-ERR struck")
		set("-ERR struck")
		set("+OK")
		time.Sleep(time.Second + ms)
		assert.Equal(t, 2, i.Fired())
		again := c.Inject(`for 1s on SET #2-, all: error "ERR struck"`)
		set("+OK")
		set("-ERR struck")
		time.Sleep(time.Second + ms)
		set("+OK")
		assert.Equal(t, 1, again.Fired())
	})
}

func TestATriggerLooksAtKindKeyAndClient(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := Start(t, 2)
		i := c.Inject(`on GET key "k", node 1 from a: error "ERR struck"`)
		a, b, other := connect(t, c, "a", 1), connect(t, c, "b", 1), connect(t, c, "a", 2)
		a.do("get k", "-ERR struck")
		a.do("MGET k", "*1\r\n$-1")
		a.do("GET kk", "$-1")
		b.do("GET k", "$-1")
		other.do("GET k", "$-1")
		assert.Equal(t, 1, i.Fired())
		i.Stop()
		any := c.Inject(`on any, node 2: error "ERR any"`)
		other.do("GET k", "-ERR any")
		other.do("PING", "-ERR any")
		assert.Equal(t, 2, any.Fired())
	})
}

// struckBy are the commands on each node, by their number there, that a plan
// strikes, with commands of several clients to several nodes in a random order.
func struckBy(t *testing.T, seed, order uint64) (struck [3]string) {
	bubble(t, func(t *testing.T) {
		c := Start(t, 3)
		p, err := ParsePlan(fmt.Sprintf("seed %d\non SET 30%%, all: error \"ERR struck\"", seed))
		require.NoError(t, err)
		_, err = c.Play(p)
		require.NoError(t, err)
		var conns [6]*wire
		for k := range conns {
			conns[k] = connect(t, c, fmt.Sprintf("c%d", k%2), k%3+1)
		}
		r := rand.New(rand.NewPCG(order, 0))
		for n := range struck {
			for len(struck[n]) < 200 {
				w := conns[n+3*r.IntN(2)]
				if r.IntN(2) == 0 {
					conns[r.IntN(6)].do("GET k", "$-1") // is not counted
				}
				w.send("SET x v")
				m, err := w.receive()
				require.NoError(t, err)
				struck[n] += m[:1]
				w.do("DEL x", fmt.Sprintf(":%d", map[byte]int{'+': 1}[m[0]]))
			}
		}
	})
	return struck
}

func TestAPartIsAFunctionOfTheSeedTheNodeAndTheCount(t *testing.T) {
	first := struckBy(t, 1, 1)
	assert.Equal(t, first, struckBy(t, 1, 2), "the order does not matter")
	assert.NotEqual(t, first, struckBy(t, 2, 1))
	assert.NotEqual(t, first[0], first[1])
	for _, s := range first {
		n := 0
		for _, c := range s {
			if c == '-' {
				n++
			}
		}
		assert.InDelta(t, 60, n, 25)
	}
}

func TestAPartIsTheSameUnderConcurrency(t *testing.T) {
	struck := func() (kinds [2]map[int]bool) {
		bubble(t, func(t *testing.T) {
			c := Start(t, 2)
			c.Inject(`on INCR 30%, all: delay 1us`)
			// A delayed one is executed later than its place says; the count is
			// what is compared.
			var wg sync.WaitGroup
			for k := range 4 {
				w := connect(t, c, "client", k%2+1)
				wg.Go(func() {
					for range 100 {
						w.send("INCR n")
						_, err := w.receive()
						assert.NoError(t, err)
					}
				})
			}
			wg.Wait()
			a := c.active[0]
			for n := range kinds {
				kinds[n] = make(map[int]bool)
				for k := range 200 {
					kinds[n][k] = a.random(uint64(n+1), uint64(k+1)) < 0.3
				}
				require.EqualValues(t, 200, a.count[n+1].Load())
			}
			want := 0
			for _, m := range kinds {
				for _, yes := range m {
					if yes {
						want++
					}
				}
			}
			assert.EqualValues(t, want, a.fired.Load())
		})
		return kinds
	}
	assert.Equal(t, struck(), struck())
}

func TestFaultsOfOneEventStrikeTogether(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := Start(t, 2, RTT(10*ms))
		i := c.Inject(`on SET, node 1: delay 30ms and flushall and lose reply
			at 1s for 1s, node 2: freeze and refuse and delay 5ms requests`)
		w, other := connect(t, c, "client", 1), connect(t, c, "client", 2)
		w.do("INCR old", ":1")
		begin := time.Now()
		w.send("SET k v")
		w.quiet(time.Second - time.Since(begin) - 20*ms)
		keys, err := c.Node(1).Keys()
		require.NoError(t, err)
		assert.Equal(t, []Key{{Node: 1, Name: "k", Value: "v"}}, keys)
		time.Sleep(20 * ms)
		_, err = c.Client("client").DialContext(t.Context(), "", other.RemoteAddr().String())
		assert.ErrorContains(t, err, "refused")
		other.send("PING")
		other.quiet(900 * ms)
		other.expect("+PONG")
		connect(t, c, "client", 2)
		assert.Equal(t, 1+1+2+1, i.Fired(), "a command, a freeze, a dial that was slow, and refused, a message")
	})
}

func TestTheEndOfAKillLeavesANodeAloneThatRunsAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := Start(t, 1)
		i := c.Inject("at 0s for 2s, all: kill\nat 1s for 2s, all: kill")
		require.False(t, c.Node(1).Up())
		time.Sleep(ms)
		require.NoError(t, c.Node(1).Do(Restart))
		w := connect(t, c, "client", 1)
		time.Sleep(time.Second) // the second kill
		_, err := w.receive()
		require.Error(t, err)
		require.NoError(t, c.Node(1).Do(RestartEmpty))
		w = connect(t, c, "client", 1)
		time.Sleep(3 * time.Second)
		w.do("PING", "+PONG")
		assert.Equal(t, 2, i.Fired())
	})
}

func TestStopEndsWhatStrikesAndDisarmsTheRest(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := Start(t, 2)
		i := c.Inject(`
			at 0s, node 1: kill
			at 0s, node 2: partition
			at 0s, node 2: rate 2
			at 1s, node 2: flushall
			on SET, all: lose reply`)
		require.False(t, c.Node(1).Up())
		i.Stop()
		i.Stop()
		assert.True(t, c.Node(1).Up())
		w := connect(t, c, "client", 2)
		w.do("SET k v PX 10000", "+OK")
		time.Sleep(5 * time.Second)
		w.do("PTTL k", ":5000")
		assert.Equal(t, 2, i.Fired(), "the kill, and the rate")
	})
}

func TestCheckNamesWhatHasNeverStruck(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := Start(t, 2)
		require.NoError(t, c.Node(1).Do(Kill))
		i := c.Inject("seed 3\nat 0s, all: freeze\nat 0s, node 1: kill\non SET, all: lose reply\nat 0s, all: cut")
		assert.EqualError(t, i.Check(), `faultinject: event 2 has never struck: at 0s, node 1: kill
faultinject: event 3 has never struck: on SET, all: lose reply
faultinject: event 4 has never struck: at 0s, all: cut`)
		assert.Equal(t, `seed 3
at 0s, all: freeze   # struck 1 time
at 0s, node 1: kill   # struck 0 times
on SET, all: lose reply   # struck 0 times
at 0s, all: cut   # struck 0 times
`, i.String())
		p, err := ParsePlan(i.String())
		require.NoError(t, err, "what is reported can be played")
		assert.EqualValues(t, 3, p.Seed)
		connect(t, c, "client", 2)
		connect(t, c, "client", 2)
		assert.Equal(t, 2, c.Inject("at 0s, all: cut").Fired())
	})
}

func TestPlayRefusesWhatTheClusterCannotDo(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := Start(t, 2)
		for line, want := range map[string]string{
			"at 0s, nodes 2-3: hang":      `faultinject: event 2, "at 0s, nodes 2-3: hang": the cluster has 2 nodes`,
			"at 0s, client nobody: pause": `faultinject: event 2, "at 0s, client nobody: pause": client nobody has no process: see Client.SetProcess`,
			"at 0s, client client: pause": `faultinject: event 2, "at 0s, client client: pause": client client has no process: see Client.SetProcess`,
		} {
			c.Client("client")
			p, err := ParsePlan("at 0s, all: kill\n" + line)
			require.NoError(t, err)
			_, err = c.Play(p)
			assert.EqualError(t, err, want)
		}
		_, err := c.Play(Plan{Events: []Event{{}}})
		assert.EqualError(t, err, `faultinject: event 1, "at 0s, all: ": no fault`)
		assert.True(t, c.Node(1).Up(), "nothing has begun")
		assert.Len(t, c.clients, 1)
		assert.Empty(t, c.played)
		require.NoError(t, c.Close())
		_, err = c.Play(Plan{})
		assert.EqualError(t, err, "faultinject: the cluster is closed")
	})
}

func TestInjectFailsTheTestThatHasABadLine(t *testing.T) {
	tb := &fakeTB{}
	c := Start(tb, 1)
	defer tb.end()
	assert.PanicsWithValue(t, tb, func() { c.Inject("at 0s, all: nonsense") })
	assert.Contains(t, tb.log.String(), `faultinject: plan, line 1, "at 0s, all: nonsense": expected a fault`)
	alone, err := New(1)
	require.NoError(t, err)
	defer alone.Close()
	assert.Panics(t, func() { alone.Inject("at 0s, node 2: hang") })
}

func TestTimesOfAPlanCountFromItsBeginning(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := Start(t, 3)
		time.Sleep(time.Second)
		begin := time.Now()
		c.Inject("at 3s, node 3: kill\nat 1s, node 1: kill\nat 2s, node 2: kill")
		for n := range 3 {
			time.Sleep(time.Until(begin.Add(time.Duration(n+1)*time.Second - 1)))
			require.True(t, c.Node(n+1).Up())
			time.Sleep(1 + 1)
			require.False(t, c.Node(n+1).Up())
		}
	})
}

func TestANodeIsWellAgainWhenATriggerCanStrikeNoMore(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := Start(t, 3)
		w := connect(t, c, "client", 1)
		healthy := func() int { c.mu.Lock(); defer c.mu.Unlock(); return c.healthy }
		c.Inject(`on SET #2, node 1: error "ERR struck"`)
		w.do("SET k v", "+OK")
		assert.Equal(t, 2, healthy())
		w.do("SET k v", "-ERR struck")
		assert.Equal(t, 3, healthy())
		endless := c.Inject(`on SET 50%, node 1: error "ERR struck"`)
		w.do("GET k", "$1\r\nv")
		assert.Equal(t, 2, healthy())
		endless.Stop()
		assert.Equal(t, 3, healthy())
	})
}
