package faultinject

import (
	"context"
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

func TestBlockingCommandsLetOthersExecute(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := Start(t, 1)
		blocked, w := connect(t, c, "client", 1), connect(t, c, "client", 1)
		blocked.send("BLPOP list 0")
		w.do("PING", "+PONG")
		blocked.quiet(time.Second)
		w.do("RPUSH list a", ":1")
		blocked.expect("*2\r\n$4\r\nlist\r\n$1\r\na")
		begin := time.Now()
		blocked.do("BLPOP list 2", "*-1")
		assert.Equal(t, 2*time.Second, time.Since(begin))
	})
}

func TestAFrozenNodeServesNoBlockingCommandEither(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := Start(t, 1)
		blocked, w := connect(t, c, "client", 1), connect(t, c, "client", 1)
		blocked.send("BLPOP list 1")
		synctest.Wait()
		require.NoError(t, c.Node(1).Do(Freeze))
		w.send("BLPOP list 0.5")
		w.quiet(3 * time.Second)
		blocked.quiet(time.Second) // its time is over, but nobody says so
		begin := time.Now()
		require.NoError(t, c.Node(1).Do(Thaw))
		blocked.expect("*-1")
		w.expect("*-1")
		assert.Equal(t, 500*ms, time.Since(begin))
	})
}

func TestABlockedClientThatLeavesTakesNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := Start(t, 1, RTT(10*ms))
		blocked, w := connect(t, c, "client", 1), connect(t, c, "client", 1)
		blocked.send("BLPOP list 0")
		time.Sleep(time.Second)
		blocked.Close()
		time.Sleep(time.Second)
		w.do("RPUSH list a", ":1")
		w.do("LRANGE list 0 -1", "*1\r\n$1\r\na")
	})
}

func TestTransactionsAndScriptsKeepTheirMeaning(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := Start(t, 1, RTT(10*ms))
		rdb := c.Clients(plain)[0]
		script := redis.NewScript(`redis.call("SET", KEYS[1], ARGV[1]) return redis.call("GET", KEYS[1])`)
		got, err := script.Run(t.Context(), rdb, []string{"s"}, "v").Text()
		require.NoError(t, err)
		assert.Equal(t, "v", got)
		assert.Equal(t, 0, c.Node(1).Executed("SET"), "what a script calls does not count")
		cmds, err := rdb.TxPipelined(t.Context(), func(p redis.Pipeliner) error {
			p.Set(t.Context(), "a", 1, 0)
			p.Incr(t.Context(), "a")
			return nil
		})
		require.NoError(t, err)
		assert.EqualValues(t, 2, cmds[1].(*redis.IntCmd).Val())
		i := c.Inject("on EXEC, all: kill before for 1s\non EVALSHA #2, all: lose reply")
		w := connect(t, c, "client", 1)
		w.do("MULTI", "+OK")
		w.do("SET a 5", "+QUEUED")
		w.send("EXEC")
		assert.Equal(t, "EOF", outcome(t, w))
		time.Sleep(time.Second)
		assert.Equal(t, "2", c.Node(1).Get("a"), "a transaction is executed as a whole or not at all")
		assert.ErrorContains(t, script.EvalSha(t.Context(), rdb, []string{"s"}, "w").Err(), "NOSCRIPT", "a restart loses scripts")
		require.NoError(t, script.Load(t.Context(), rdb).Err())
		err = within(t, time.Second, func(ctx context.Context) error {
			return script.EvalSha(ctx, rdb, []string{"s"}, "w").Err()
		})
		assert.Error(t, err)
		assert.Equal(t, "w", c.Node(1).Get("s"))
		assert.NoError(t, i.Check())
	})
}

func TestLargeValuesAndRepliesPass(t *testing.T) {
	for _, fault := range []string{"kill during", "kill after", "flushall", "freeze for 1s"} {
		bubble(t, func(t *testing.T) {
			c := Start(t, 1, RTT(10*ms))
			rdb := c.Clients(plain)[0]
			big := strings.Repeat("0123456789", 300_000)
			require.NoError(t, rdb.Set(t.Context(), "big", big, 0).Err())
			got, err := rdb.Get(t.Context(), "big").Result()
			require.NoError(t, err)
			require.True(t, big == got)
			c.Inject("on GET #1, all: " + fault)
			got, err = rdb.Get(t.Context(), "big").Result()
			switch fault {
			case "kill during":
				assert.ErrorIs(t, err, io.EOF)
			case "flushall":
				assert.Equal(t, redis.Nil, err)
			default:
				assert.NoError(t, err)
				assert.True(t, big == got)
			}
			if c.Node(1).Up() {
				require.NoError(t, c.Node(1).Do(Kill))
			}
			require.NoError(t, c.Node(1).Do(Restart))
			assert.Equal(t, fault != "flushall", big == c.Node(1).Get("big"))
		})
	}
}

// Redis keeps what a client does not take in its own memory.
func TestAClientThatReadsNothingHoldsUpNobody(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := Start(t, 1)
		deaf, w := connect(t, c, "deaf", 1), connect(t, c, "client", 1)
		big := strings.Repeat("x", 1<<20)
		w.do("SET big "+big, "+OK")
		i := c.Inject("at 0s, all from deaf: partition replies")
		for range 20 {
			deaf.send("GET big")
		}
		assert.Zero(t, took(func() { w.do("PING", "+PONG") }))
		i.Stop()
		for range 20 {
			m, err := deaf.receive()
			require.NoError(t, err)
			require.Len(t, m, len("$1048576\r\n")+len(big))
		}
	})
}

func TestCommandsThatAServerCannotAnswerHoldUpNobody(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := Start(t, 1)
		w, other := connect(t, c, "client", 1), connect(t, c, "client", 1)
		for _, text := range []string{"\r\n", "*0\r\n", "*-1\r\n", "PING\r\n"} {
			_, err := w.Write([]byte(text))
			require.NoError(t, err)
		}
		w.expect("+PONG")
		w.do("NONSENSE", "-ERR unknown command `NONSENSE`, with args beginning with: ")
		_, err := w.Write([]byte("*1\r\n:1\r\n"))
		require.NoError(t, err)
		w.expect("-ERR Protocol error: not a flat array of bulk strings")
		_, err = w.receive()
		assert.Equal(t, io.EOF, err)
		other.do("PING", "+PONG")
		_, err = other.Write([]byte("$x\r\n"))
		assert.ErrorIs(t, err, errNotRESP)
	})
}

// A subscription on RESP3 does not keep its connection from being used, and replies
// that look like messages are none.
func TestRepliesThatLookLikeMessagesAreReplies(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := Start(t, 1)
		w := connect(t, c, "client", 1)
		w.send("HELLO 3")
		_, err := w.receive()
		require.NoError(t, err)
		w.do("SUBSCRIBE a b", ">3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1")
		w.expect(">3\r\n$9\r\nsubscribe\r\n$1\r\nb\r\n:2")
		w.send("UNSUBSCRIBE")
		for range 2 {
			_, err := w.receive()
			require.NoError(t, err)
		}
		i := c.Inject("at 0s, all: lose messages\non LRANGE, all: kill after")
		w.do("RPUSH list message", ":1")
		w.do("LRANGE list 0 -1", "*1\r\n$7\r\nmessage")
		synctest.Wait()
		assert.False(t, c.Node(1).Up())
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
