package redlock

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed58520471/redlock/faultinject"
)

func TestQuantilesAreExactValuesOfTheLastExchanges(t *testing.T) {
	var r ring
	assert.Equal(t, Latencies{}, r.latencies())
	r.add(ms(7))
	assert.Equal(t, Latencies{1, ms(7), ms(7), ms(7), ms(7)}, r.latencies())
	r.add(ms(3))
	assert.Equal(t, Latencies{2, ms(3), ms(7), ms(7), ms(7)}, r.latencies())

	r = ring{}
	for i := range 100 {
		r.add(ms(100 - i))
	}
	assert.Equal(t, Latencies{100, ms(50), ms(90), ms(99), ms(100)}, r.latencies())
	for i := range 1000 {
		r.add(ms(i))
	}
	assert.Equal(t, Latencies{128, ms(935), ms(987), ms(998), ms(999)}, r.latencies(), "of 872…999")

	rng := rand.New(rand.NewPCG(1, 2))
	for n := 1; n < 300; n++ {
		var r ring
		var all []time.Duration
		for range n {
			d := time.Duration(rng.IntN(1000))
			all = append(all, d)
			r.add(d)
		}
		all = all[max(0, n-recent):]
		got := r.latencies()
		for percent, q := range map[int]time.Duration{50: got.P50, 90: got.P90, 99: got.P99, 100: got.Max} {
			below, upTo := 0, 0
			for _, d := range all {
				if d < q {
					below++
				}
				if d <= q {
					upTo++
				}
			}
			require.True(t, slices.Contains(all, q))
			require.True(t, below*100 < percent*len(all) && upTo*100 >= percent*len(all), "p%d of %d", percent, n)
		}
	}
}

func TestStatsCountWhatHappenedAndAskNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(10), ms(20), ms(30))
		l := w.cold(WithNodeTimeout(ms(500)))
		s := l.Stats()
		for _, n := range s.Nodes {
			assert.Equal(t, NodeStats{Node: n.Node, State: "new", Breaker: "closed"}, n)
		}
		w.Inject(`on SET key "slow" #1, node 2: delay 100ms`)
		l.warm()
		for i := range 200 {
			lease, err := l.TryLock(t.Context(), fmt.Sprint(i))
			require.NoError(t, err)
			require.NoError(t, lease.Unlock(t.Context()))
		}
		time.Sleep(time.Second)
		lease, err := l.TryLock(t.Context(), "slow")
		require.NoError(t, err)
		sibling, err := l.With(WithTTL(time.Minute))
		require.NoError(t, err)
		_, err = sibling.TryLock(t.Context(), "other")
		require.NoError(t, err)
		_, err = sibling.TryLock(t.Context(), "slow")
		require.ErrorIs(t, err, ErrHeld)
		time.Sleep(time.Second)

		before, begin := []int{len(w.log(1)), len(w.log(2)), len(w.log(3))}, time.Now()
		s = l.Stats()
		assert.Equal(t, begin, time.Now())
		synctest.Wait()
		assert.Equal(t, before, []int{len(w.log(1)), len(w.log(2)), len(w.log(3))})
		assert.Equal(t, s, sibling.Stats(), "siblings share it all")
		assert.Equal(t, 2, s.Held)
		assert.Zero(t, s.Owed)
		assert.GreaterOrEqual(t, s.Nodes[0].Refused+s.Nodes[1].Refused+s.Nodes[2].Refused, uint64(2), "the lock that was held")
		for i, n := range s.Nodes {
			rtt := ms(10 * (i + 1))
			assert.Equal(t, w.Node(i+1).Addr(), n.Node)
			assert.Equal(t, "connected", n.State)
			assert.Equal(t, "closed", n.Breaker)
			assert.Equal(t, recent, n.Latency.Count)
			assert.Equal(t, rtt, n.Latency.P50)
			assert.Equal(t, rtt, n.Latency.P90)
			assert.Equal(t, rtt, n.Latency.P99, "one of 128 is within the last hundredth")
			if i == 1 { // the slow one
				assert.Equal(t, rtt+ms(100), n.Latency.Max)
			} else {
				assert.Equal(t, rtt, n.Latency.Max)
			}
			assert.Zero(t, n.Timeouts+n.Broken+n.ConnectFailures+n.NotAsked+n.Opened+n.Forgiven+n.Repeated)
			assert.Zero(t, n.Silent)
			assert.Zero(t, n.Queued)
			assert.Equal(t, n.Connections, int(n.Connects))
			assert.GreaterOrEqual(t, n.Granted, uint64(2*200))
			assert.GreaterOrEqual(t, n.Requests, n.Exchanges)
		}
		require.NoError(t, lease.Unlock(t.Context()))
		assert.Equal(t, 1, l.Stats().Held)
		require.NoError(t, sibling.Close())
		assert.Zero(t, l.Stats().Held)
	})
}

func TestStatsShowANodeThatIsInTrouble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l, err := New(w.openLike(ms(500)))
		require.NoError(t, err)
		defer l.Close()
		l.warm()
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		time.Sleep(ms(10))
		w.Inject("at 0s, node 3: kill")
		require.NoError(t, lease.Unlock(t.Context()))
		for range 50 {
			if lease, err := l.TryLock(t.Context(), "a"); assert.NoError(t, err) {
				require.NoError(t, lease.Unlock(t.Context()))
			}
			time.Sleep(ms(100))
		}
		s := l.Stats()
		n := s.Nodes[2]
		assert.Equal(t, "down", n.State)
		assert.NotEqual(t, "closed", n.Breaker)
		assert.InDelta(t, 5*time.Second, n.Silent, float64(ms(200)))
		assert.Contains(t, n.LastError, "connection refused")
		assert.Equal(t, 1, n.Owed)
		assert.Equal(t, 1, s.Owed)
		assert.Equal(t, uint64(1), n.Repeated)
		assert.Positive(t, n.Opened)
		assert.Positive(t, n.NotAsked)
		assert.Positive(t, n.ConnectFailures)
		assert.Positive(t, n.Broken)
		assert.Zero(t, n.Connections)
		assert.Equal(t, "connected", s.Nodes[0].State)

		js, err := json.Marshal(s)
		require.NoError(t, err)
		var out Stats
		require.NoError(t, json.Unmarshal(js, &out))
		assert.Equal(t, s, out)
		assert.Contains(t, string(js), `"p99_ns":1000000`)

		require.NoError(t, w.Node(3).Do(faultinject.Restart))
		time.Sleep(5 * time.Second)
		s = l.Stats()
		assert.Equal(t, "connected", s.Nodes[2].State)
		assert.Empty(t, s.Nodes[2].LastError)
		assert.Zero(t, s.Owed)
	})
}

func TestHealthSaysWhetherALockCanBeTakenNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l, err := New(w.openLike(ms(500)))
		require.NoError(t, err)
		defer l.Close()
		h := l.Health()
		assert.True(t, h.OK(), "nothing speaks against it")
		assert.Equal(t, "3 of 3 nodes usable, 2 needed: 10.0.0.1:6379 new, 10.0.0.2:6379 new, 10.0.0.3:6379 new", h.String())

		l.warm()
		assert.NoError(t, l.Health().Err())
		one := w.Inject("at 0s, node 3: kill")
		time.Sleep(2 * keepAlive) // nobody locks, yet it is noticed
		h = l.Health()
		assert.True(t, h.OK())
		assert.Equal(t, "2 of 3 nodes usable, 2 needed: 10.0.0.1:6379 connected, 10.0.0.2:6379 connected, "+
			"10.0.0.3:6379 down (dial tcp 10.0.0.3:6379: connect: connection refused)", h.String())

		two := w.Inject("at 0s, node 2: hang")
		for range 20 {
			l.TryLock(t.Context(), "a")
			time.Sleep(ms(500))
		}
		h = l.Health()
		assert.False(t, h.OK())
		assert.ErrorIs(t, h.Err(), ErrNoQuorum)
		assert.Regexp(t, `^redlock: health: no quorum \(1 of 3 nodes usable, 2 needed: 10.0.0.1:6379 connected, 10.0.0.2:6379 down \(.*\), 10.0.0.3:6379 down \(dial .* connection refused\)\)$`, h.Err().Error())
		js, err := json.Marshal(h)
		require.NoError(t, err)
		var out Health
		require.NoError(t, json.Unmarshal(js, &out))
		assert.Equal(t, h, out)

		one.Stop()
		two.Stop()
		require.NoError(t, w.Node(3).Do(faultinject.Restart))
		time.Sleep(keepAlive + 3*time.Second)
		h = l.Health()
		assert.NoError(t, h.Err(), "a probe must become ready although nobody locks before")
		assert.Equal(t, 3, h.Usable)

		w.Inject(`on SET, nodes 2,3: error "OOM command not allowed"`)
		_, err = l.TryLock(t.Context(), "a")
		require.ErrorIs(t, err, ErrNoQuorum)
		time.Sleep(ms(10))
		assert.Equal(t, NodeHealth{w.Node(2).Addr(), true, "connected", "OOM command not allowed"}, l.Health().Nodes[1])
		assert.Equal(t, "OOM command not allowed", l.Stats().Nodes[2].Objection)

		sibling, err := l.With()
		require.NoError(t, err)
		require.NoError(t, sibling.Close())
		assert.ErrorIs(t, sibling.Health().Err(), ErrClosed)
		assert.NoError(t, l.Health().Err())
		require.NoError(t, l.Close())
		assert.False(t, l.Health().OK())
		assert.ErrorIs(t, l.Health().Err(), ErrClosed)
		assert.True(t, strings.HasPrefix(l.Health().String(), "closed; "))
	})
}

func TestHealthOfANodeThatHangsTurnsWithItsBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker()
		n := l.root.nodes[2]
		n.mu.Lock()
		n.heard(false)
		n.mu.Unlock()
		time.Sleep(ms(70))
		assert.Equal(t, NodeHealth{w.Node(3).Addr(), true, "connected", "no answer for 70ms"}, l.Health().Nodes[2])
		l.silence(2)
		h := l.Health()
		assert.Equal(t, 2, h.Usable)
		assert.Contains(t, h.String(), "10.0.0.3:6379 connected, not usable (no answer for ")
		assert.Equal(t, uint64(1), l.Stats().Nodes[2].Opened)
	})
}
