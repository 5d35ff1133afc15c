package faultinject

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// exists asserts that a key is there until it expires, exactly, some time from now.
func (w *wire) expires(key string, in time.Duration) {
	w.t.Helper()
	time.Sleep(in - ms)
	w.do("EXISTS "+key, ":1")
	time.Sleep(ms)
	w.do("EXISTS "+key, ":0")
}

func TestAClockStepMovesWhenKeysExpire(t *testing.T) {
	for step, left := range map[time.Duration]time.Duration{
		5 * time.Second:   45 * time.Second,
		-time.Hour:        time.Hour + 50*time.Second,
		-5 * time.Second:  55 * time.Second,
		49 * time.Second:  time.Second,
		-20 * time.Second: 70 * time.Second,
	} {
		bubble(t, func(t *testing.T) {
			c := Start(t, 2)
			w, other := connect(t, c, "client", 1), connect(t, c, "client", 2)
			w.do("SET k v PX 60000", "+OK")
			other.do("SET k v PX 60000", "+OK")
			w.do("SET forever v", "+OK")
			time.Sleep(10 * time.Second)
			i := c.Inject(fmt.Sprintf("at 0s, node 1: clock %v", signed(step)))
			assert.Equal(t, 1, i.Fired())
			w.do("PTTL k", fmt.Sprintf(":%d", left.Milliseconds()))
			other.do("PTTL k", ":50000")
			w.expires("k", left)
			w.do("PTTL forever", ":-1")
			w.do("SET new v PX 1000", "+OK")
			w.expires("new", time.Second)
		})
	}
}

func TestAClockStepForwardEndsKeysAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := Start(t, 1)
		w := connect(t, c, "client", 1)
		w.do("SET k v PX 60000", "+OK")
		require.NoError(t, c.Node(1).Do(ClockStep(time.Minute)))
		keys, err := c.Node(1).Keys()
		require.NoError(t, err)
		assert.Empty(t, keys)
		w.do("SET k w PX 60000 NX", "+OK")
		require.NoError(t, c.Node(1).Do(ClockStep(-time.Hour)))
		require.NoError(t, c.Node(1).Do(ClockStep(time.Hour)))
		w.do("PTTL k", ":60000")
	})
}

func TestAClockRateLetsKeysExpireEarlyOrLate(t *testing.T) {
	for rate, lives := range map[float64]time.Duration{2: 30 * time.Second, 0.5: 2 * time.Minute, 1000: 60 * ms, 1: time.Minute} {
		bubble(t, func(t *testing.T) {
			c := Start(t, 1)
			require.NoError(t, c.Node(1).Do(ClockRate(rate)))
			w := connect(t, c, "client", 1)
			w.do("SET k v PX 60000", "+OK")
			time.Sleep(lives / 2)
			w.do("PTTL k", ":30000")
			w.expires("k", lives/2)
		})
	}
	bubble(t, func(t *testing.T) {
		c := Start(t, 1)
		i := c.Inject("at 0s for 10s, all: rate 3")
		w := connect(t, c, "client", 1)
		w.do("SET k v PX 60000", "+OK")
		time.Sleep(20 * time.Second) // 30 s of it at first, then 10 s
		w.do("PTTL k", ":20000")
		assert.Equal(t, 1, i.Fired())
	})
}

func TestTheTimeCommandShowsTheNodesClock(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := Start(t, 1)
		w := connect(t, c, "client", 1)
		shown := func() time.Duration {
			w.send("TIME")
			m, err := w.receive()
			require.NoError(t, err)
			f := strings.Split(m, "\r\n")
			sec, err := strconv.ParseInt(f[2], 10, 64)
			require.NoError(t, err)
			usec, err := strconv.ParseInt(f[4], 10, 64)
			require.NoError(t, err)
			return time.Until(time.UnixMicro(sec*1_000_000 + usec))
		}
		assert.Zero(t, shown())
		require.NoError(t, c.Node(1).Do(ClockStep(time.Hour)))
		assert.Equal(t, time.Hour, shown())
		require.NoError(t, c.Node(1).Do(ClockStep(-2*time.Hour)))
		time.Sleep(time.Minute)
		assert.Equal(t, -time.Hour, shown())
		require.NoError(t, c.Node(1).Do(ClockRate(1.5)))
		time.Sleep(10 * time.Second)
		assert.Equal(t, -time.Hour+5*time.Second, shown())
		require.NoError(t, c.Node(1).Do(Restart))
		w = connect(t, c, "client", 1)
		assert.Equal(t, -time.Hour+5*time.Second, shown(), "a restart does not set the clock")
	})
}

// Ttls are times of the node's clock, over restarts too.
func TestAnUnpunctualNodeRestartsWithTheTtlsOfItsClock(t *testing.T) {
	for _, tc := range []struct {
		before, down Fault
		want         string
	}{
		{ClockStep(time.Hour), Kill, ":50000"},
		{ClockStep(-time.Hour), Kill, ":50000"},
		{ClockRate(2), Kill, ":40000"},
		{ClockStep(time.Hour), ClockStep(-time.Hour), ":3650000"},
		{ClockStep(time.Hour), ClockStep(20 * time.Second), ":30000"},
		{Thaw, ClockStep(-time.Hour), ":3650000"},
		{Thaw, ClockStep(2 * time.Minute), ":-2"},
	} {
		bubble(t, func(t *testing.T) {
			c := Start(t, 1)
			n := c.Node(1)
			require.NoError(t, n.Do(tc.before))
			w := connect(t, c, "client", 1)
			w.do("SET k v PX 60000", "+OK")
			time.Sleep(5 * time.Second)
			require.NoError(t, n.Do(Kill))
			require.NoError(t, n.Do(tc.down))
			time.Sleep(5 * time.Second)
			require.NoError(t, n.Do(Restart))
			connect(t, c, "client", 1).do("PTTL k", tc.want)
		})
	}
}
