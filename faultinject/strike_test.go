package faultinject

import (
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Whether a SET was executed, and what its client got, is exact for each fault that
// ends a connection or a node at a command.
func TestAFaultOnACommandStrikesWhereItSays(t *testing.T) {
	for _, tc := range []struct {
		fault    string
		executed bool
		got      string // the reply, or the error
		restarts bool
	}{
		{"kill before", false, "EOF", false},
		{"kill during", true, "EOF", false},
		{"kill after", true, "+OK", false},
		{"kill before for 2s", false, "EOF", true},
		{"kill during for 2s", true, "EOF", true},
		{"kill after for 2s", true, "+OK", true},
		{"cut before", false, "reset", false},
		{"cut during", true, "reset", false},
		{"cut after", true, "+OK", false},
		{"lose request", false, "silence", false},
		{"hang", false, "silence", false},
		{"lose reply", true, "silence", false},
		{`error "OOM no"`, false, "-OOM no", false},
	} {
		t.Run(tc.fault, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				c := Start(t, 2, RTT(10*ms))
				i := c.Inject("on SET #3, node 1: " + tc.fault)
				w, other := connect(t, c, "client", 1), connect(t, c, "client", 1)
				connect(t, c, "client", 2).do("SET k other", "+OK") // each node counts for itself
				w.do("SET k 1", "+OK")
				other.do("SET k 2", "+OK")
				w.do("GET k", "$1\r\n2")
				assert.Zero(t, i.Fired())
				w.send("SET k 3")
				assert.Equal(t, tc.got, outcome(t, w))
				assert.Equal(t, 1, i.Fired())
				assert.NoError(t, i.Check())
				killed := strings.HasPrefix(tc.fault, "kill")
				require.Equal(t, !killed, c.Node(1).Up())
				if !killed {
					other.do("PING", "+PONG")
				}
				if tc.restarts {
					time.Sleep(2*time.Second - 11*ms)
					require.False(t, c.Node(1).Up())
					time.Sleep(11 * ms)
				} else if killed {
					require.NoError(t, c.Node(1).Do(Restart))
				}
				want := map[bool]string{false: "2", true: "3"}[tc.executed]
				assert.Equal(t, want, c.Node(1).Get("k"))
				connect(t, c, "client", 1).do("GET k", "$1\r\n"+want)
			})
		})
	}
}

// outcome is the answer to the last command, and checks that nothing comes after it.
func outcome(t *testing.T, w *wire) string {
	require.NoError(t, w.SetReadDeadline(time.Now().Add(20*ms)))
	got, err := w.receive()
	if err == nil {
		return got
	}
	switch e := err.(type) {
	case interface{ Timeout() bool }:
		if e.Timeout() {
			w.quiet(time.Hour)
			return "silence"
		}
		require.ErrorIs(t, err, syscall.ECONNRESET)
		return "reset"
	}
	require.Equal(t, io.EOF, err)
	return "EOF"
}

func TestAnEndedConnectionEndsAfterItsLastReply(t *testing.T) {
	for _, fault := range []string{"cut after", "kill after"} {
		bubble(t, func(t *testing.T) {
			c := Start(t, 1, RTT(10*ms))
			c.Inject("on SET, all: " + fault)
			w := connect(t, c, "client", 1)
			begin := time.Now()
			w.do("SET k v", "+OK")
			_, err := w.receive()
			assert.Equal(t, io.EOF, err)
			assert.Equal(t, 10*ms, time.Since(begin))
		})
	}
}

func TestAKillLosesWhatOtherConnectionsSendAndKeepsWhatTheyWereAnswered(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := Start(t, 1, RTT(10*ms))
		w := connect(t, c, "client", 1)
		w.send("SET answered v") // its reply is on its way when the node dies
		time.Sleep(7 * ms)
		require.NoError(t, c.Node(1).Do(Kill))
		w.send("SET lost v")
		w.expect("+OK")
		_, err := w.receive()
		assert.Equal(t, io.EOF, err)
		require.NoError(t, c.Node(1).Do(Restart))
		assert.Equal(t, "v", c.Node(1).Get("answered"))
		assert.Equal(t, "", c.Node(1).Get("lost"))
	})
}

func TestErrorRepliesKeepAPipelineInStep(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := Start(t, 1)
		i := c.Inject("on INCR #500-600, all: error \"BUSY no\"\non INCR 10%, all: error \"OOM no\"")
		rdb := c.Clients(plain)[0]
		cmds, _ := rdb.Pipelined(t.Context(), func(p redis.Pipeliner) error {
			for k := range 1000 {
				p.Incr(t.Context(), "n")
				p.Echo(t.Context(), k)
			}
			return nil
		})
		counted := int64(0)
		for k := range 1000 {
			n, err := cmds[2*k].(*redis.IntCmd).Result()
			busy := k+1 >= 500 && k+1 <= 600
			switch {
			case err == nil:
				counted++
				require.Equal(t, counted, n)
				require.False(t, busy)
			case !busy:
				require.EqualError(t, err, "OOM no")
			}
			echo, err := cmds[2*k+1].(*redis.StringCmd).Result()
			require.NoError(t, err)
			require.Equal(t, fmt.Sprint(k), echo)
		}
		assert.Equal(t, fmt.Sprint(counted), c.Node(1).Get("n"))
		assert.Equal(t, 2000-(1000-int(counted)), c.Node(1).Executed("incr")+c.Node(1).Executed("ECHO"))
		assert.NoError(t, i.Check())
	})
}

func TestAFrozenNodeGoesOnInTheOrderOfArrival(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := Start(t, 1)
		i := c.Inject("on RPUSH #2, all: freeze for 1s")
		var conns []*wire
		for k := range 10 {
			conns = append(conns, connect(t, c, "client", 1))
			conns[k].do("PING", "+PONG")
		}
		begin := time.Now()
		conns[0].do("RPUSH list 0", ":1")
		for k, w := range conns[1:] {
			w.send(fmt.Sprintf("RPUSH list %d", k+1))
			time.Sleep(ms)
		}
		assert.Equal(t, "", c.Node(1).Get("list2"), "the administrator is not locked out")
		conns[3].quiet(900 * ms)
		for k, w := range conns[1:] {
			w.expect(fmt.Sprintf(":%d", k+2))
		}
		assert.Equal(t, time.Second, time.Since(begin))
		conns[0].do("LRANGE list 0 -1", "*10\r\n$1\r\n"+strings.Join(strings.Split("0123456789", ""), "\r\n$1\r\n"))
		assert.Equal(t, 1, i.Fired())
	})
}

// The commands that wait while one that freezes the node is looked at are later.
func TestACommandThatFreezesItsNodeKeepsItsPlace(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := Start(t, 1)
		c.Inject("on RPUSH #1, all: freeze for 1s")
		l := c.Node(1).alive()
		require.True(t, l.enter()) // all are there before the first is looked at
		var conns []*wire
		for k := range 5 {
			conns = append(conns, connect(t, c, "client", 1))
			conns[k].send(fmt.Sprintf("RPUSH list %d", k))
			synctest.Wait()
		}
		l.leave()
		for k, w := range conns {
			w.expect(fmt.Sprintf(":%d", k+1))
		}
		conns[0].do("LRANGE list 0 -1", "*5\r\n$1\r\n"+strings.Join(strings.Split("01234", ""), "\r\n$1\r\n"))
	})
}

func TestFreezeAndThawLastUntilEachOther(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := Start(t, 1)
		w := connect(t, c, "client", 1)
		w.do("SET short v PX 500", "+OK")
		w.do("SET long v PX 60000", "+OK")
		require.NoError(t, c.Node(1).Do(Freeze))
		require.NoError(t, c.Node(1).Do(Freeze))
		assert.True(t, c.Node(1).Up())
		w.send("SET later v PX 2000")
		w.quiet(time.Second)
		require.NoError(t, c.Node(1).Do(Thaw))
		w.expect("+OK")
		w.do("PTTL later", ":2000") // from when it is executed
		w.do("PTTL long", ":59000")
		w.do("EXISTS short", ":0")
		i := c.Inject("at 0s for 1s, all: freeze")
		w.send("PING")
		w.quiet(999 * ms)
		w.expect("+PONG")
		assert.Equal(t, 1, i.Fired())
	})
}

func TestALateReplyHoldsUpItsConnectionOnly(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := Start(t, 1)
		c.Inject("on GET #1, all: delay 100ms\non SET, all: delay 200ms replies")
		slow, fast := connect(t, c, "client", 1), connect(t, c, "client", 1)
		slow.send("GET k")
		slow.send("PING")
		fast.do("SET k v", "+OK")
		slow.quiet(0)
		slow.expect("$1\r\nv")
		slow.expect("+PONG")
	})
}

// A command that a delay holds up is still on its way. When its connection is reset
// it has nowhere to arrive, as with TCP: a client that sends it again elsewhere must
// not have it executed twice. One that closes the connection takes nothing back.
func TestACommandOnItsWayIsLostWithAResetAndNotWithAClose(t *testing.T) {
	for _, tc := range []struct {
		name     string
		end      func(*Cluster, *wire)
		executed bool
	}{
		{"reset", func(c *Cluster, _ *wire) { c.Inject("at 0s, all: cut") }, false},
		{"closed", func(_ *Cluster, w *wire) { w.Close() }, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				c := Start(t, 1)
				late := c.Inject("on SET #1, node 1: delay 1s")
				w := connect(t, c, "client", 1)
				w.send("SET k v")
				time.Sleep(500 * ms)
				tc.end(c, w)
				time.Sleep(time.Second)
				assert.NoError(t, late.Check())
				assert.Equal(t, tc.executed, c.Node(1).Get("k") == "v")
				connect(t, c, "client", 1).do("SET k w", "+OK") // and the node goes on
			})
		})
	}
}
