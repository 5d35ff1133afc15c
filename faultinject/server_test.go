package faultinject

import (
	"context"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

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
		synctest.Wait()
		require.NoError(t, w.SetDeadline(time.Now().Add(time.Second)))
		w.do("PING", "+PONG")
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
