package faultinject

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The node counts every 30 ms, so the value says when it is from.
func TestARestartAsOfAMomentLosesAtMostATenthOfASecondMore(t *testing.T) {
	for _, ago := range []time.Duration{0, 15 * ms, 100 * ms, 250 * ms, time.Second} {
		bubble(t, func(t *testing.T) {
			c := Start(t, 1)
			w := connect(t, c, "client", 1)
			for k := range 100 {
				w.do("INCR n", fmt.Sprintf(":%d", k+1))
				time.Sleep(30 * ms)
			}
			require.NoError(t, c.Node(1).Do(RestartAsOf(ago)))
			var n int
			_, err := fmt.Sscan(c.Node(1).Get("n"), &n)
			require.NoError(t, err)
			exact := 100 - int((ago+29*ms)/(30*ms)) + 1
			exact = min(exact, 100)
			assert.LessOrEqual(t, n, exact)
			assert.GreaterOrEqual(t, n, exact-4)
		})
	}
}

func TestARestartAsOfAMomentKnowsTheEndOfABurst(t *testing.T) {
	for ago, want := range map[time.Duration]string{
		0: "4", time.Second: "4", 9 * time.Second: "4", 11 * time.Second: "3", 19 * time.Second: "3", 21 * time.Second: "",
	} {
		bubble(t, func(t *testing.T) {
			c := Start(t, 1)
			w := connect(t, c, "client", 1)
			for k := range 4 {
				if k == 3 {
					time.Sleep(10 * time.Second)
				}
				w.do(fmt.Sprintf("SET k %d PX 60000", k+1), "+OK")
				time.Sleep(ms)
			}
			time.Sleep(10 * time.Second)
			require.NoError(t, c.Node(1).Do(RestartAsOf(ago)))
			keys, err := c.Node(1).Keys()
			require.NoError(t, err)
			if want == "" {
				assert.Empty(t, keys)
				return
			}
			ttl := map[string]time.Duration{"3": 40*time.Second - 2*ms, "4": 50*time.Second - ms}[want]
			assert.Equal(t, []Key{{Node: 1, Name: "k", Value: want, TTL: ttl}}, keys, "%v", ago)
		})
	}
}

func TestTheAdministratorsChangesAreInThePastToo(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := Start(t, 1)
		n := c.Node(1)
		connect(t, c, "client", 1).do("MSET a 1 b 2", "+OK")
		time.Sleep(time.Second)
		require.NoError(t, n.Do(Evict("a")))
		time.Sleep(time.Second)
		require.NoError(t, n.Do(FlushAll))
		time.Sleep(time.Second)
		require.NoError(t, n.Do(Kill))
		require.NoError(t, n.Do(RestartAsOf(1500*ms)))
		keys, err := n.Keys()
		require.NoError(t, err)
		assert.Equal(t, []Key{{Node: 1, Name: "b", Value: "2"}}, keys)
		require.NoError(t, n.Do(RestartAsOf(2500*ms)))
		keys, err = n.Keys()
		require.NoError(t, err)
		assert.Equal(t, []Key{{Node: 1, Name: "b", Value: "2"}}, keys, "what was lost has never been")
	})
}

func TestThePastReachesBackAMinute(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := Start(t, 1)
		w := connect(t, c, "client", 1)
		for k := range 100 {
			w.do(fmt.Sprintf("SET k %d", k), "+OK")
			time.Sleep(time.Second)
		}
		assert.Less(t, len(c.Node(1).past.copies), 65)
		require.NoError(t, c.Node(1).Do(RestartAsOf(time.Minute)))
		assert.Equal(t, "40", c.Node(1).Get("k"))
		assert.EqualError(t, c.Node(1).Do(RestartAsOf(time.Minute+1)), "faultinject: `restart as of 1m0.000000001s` is more than 1m0s ago")
	})
}

func TestEveryTypeOfValueSurvivesARestart(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := Start(t, 1)
		w := connect(t, c, "client", 1)
		w.do("SET string v", "+OK")
		w.do("RPUSH list a b a", ":3")
		w.do("HSET hash a 1 b 2", ":2")
		w.do("SADD set a b", ":2")
		w.do("ZADD zset 1.5 a -2 b", ":2")
		w.do("XADD stream 5-1 a b", "$3\r\n5-1")
		w.do("XADD drained 5-1 a b", "$3\r\n5-1")
		w.do("XTRIM drained MAXLEN 0", ":1")
		w.do("SELECT 9", "+OK")
		w.do("SET string nine PX 5000", "+OK")
		for range 2 {
			require.NoError(t, c.Node(1).Do(Restart))
		}
		w = connect(t, c, "client", 1)
		w.do("GET string", "$1\r\nv")
		w.do("LRANGE list 0 -1", "*3\r\n$1\r\na\r\n$1\r\nb\r\n$1\r\na")
		w.do("HGETALL hash", "*4\r\n$1\r\na\r\n$1\r\n1\r\n$1\r\nb\r\n$1\r\n2")
		w.do("SMEMBERS set", "*2\r\n$1\r\na\r\n$1\r\nb")
		w.do("ZRANGE zset 0 -1 WITHSCORES", "*4\r\n$1\r\nb\r\n$2\r\n-2\r\n$1\r\na\r\n$3\r\n1.5")
		w.do("XLEN stream", ":1")
		w.do("GET drained", "$-1")
		w.do("SELECT 9", "+OK")
		w.do("PTTL string", ":5000")
	})
}
