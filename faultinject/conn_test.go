package faultinject

import (
	"errors"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAReadEndsAtItsDeadline(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := Start(t, 1, RTT(10*ms))
		w := connect(t, c, "client", 1)
		require.NoError(t, w.SetReadDeadline(time.Now().Add(time.Second)))
		begin := time.Now()
		_, err := w.receive()
		assert.ErrorIs(t, err, os.ErrDeadlineExceeded)
		var timeout net.Error
		assert.True(t, errors.As(err, &timeout) && timeout.Timeout())
		assert.Equal(t, time.Second, time.Since(begin))
		w.send("PING")
		time.Sleep(time.Second)
		_, err = w.receive()
		assert.ErrorIs(t, err, os.ErrDeadlineExceeded, "also if there is something to read")
		require.NoError(t, w.SetDeadline(time.Time{}))
		w.expect("+PONG")
	})
}

func TestADeadlineWakesWhoeverIsBlocked(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := Start(t, 1)
		w := connect(t, c, "client", 1)
		for _, at := range []time.Duration{-time.Hour, 0, 2 * time.Second} {
			require.NoError(t, w.SetDeadline(time.Time{}))
			result := make(chan error)
			go func() {
				_, err := w.receive()
				result <- err
			}()
			synctest.Wait()
			begin := time.Now()
			require.NoError(t, w.SetReadDeadline(begin.Add(at)))
			assert.ErrorIs(t, <-result, os.ErrDeadlineExceeded)
			assert.Equal(t, max(at, 0), time.Since(begin))
		}
		require.NoError(t, w.SetDeadline(time.Now().Add(-1)))
		_, err := w.Write(encode("PING"))
		assert.ErrorIs(t, err, os.ErrDeadlineExceeded)
	})
}

func TestAWriteWaitsForRoomAsAKernelDoes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := Start(t, 1)
		w := connect(t, c, "client", 1)
		require.NoError(t, c.Node(1).Do(Freeze))
		set := encode("SET k " + strings.Repeat("x", 1<<20))
		write := func() error { _, err := w.Write(set); return err }
		for range 5 { // one is already at the node
			require.NoError(t, write())
		}
		require.NoError(t, w.SetWriteDeadline(time.Now().Add(time.Second)))
		assert.Equal(t, time.Second, took(func() { assert.ErrorIs(t, write(), os.ErrDeadlineExceeded) }))
		require.NoError(t, w.SetWriteDeadline(time.Time{}))
		c.Inject("at 1s, all: thaw")
		assert.Equal(t, time.Second, took(func() { require.NoError(t, write()) }))
		for range 6 {
			w.expect("+OK")
		}
		require.NoError(t, c.Node(1).Do(Freeze))
		c.Inject("at 1s, all: cut")
		var err error
		for err == nil {
			err = write()
		}
		assert.ErrorIs(t, err, syscall.ECONNRESET)
	})
}

func TestCloseWakesWhoeverIsBlocked(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := Start(t, 1)
		for _, fault := range []Fault{Thaw, Freeze} {
			require.NoError(t, c.Node(1).Do(fault))
			w := connect(t, c, "client", 1)
			result := make(chan error)
			go func() {
				_, err := w.receive()
				result <- err
			}()
			synctest.Wait()
			require.NoError(t, w.Close())
			assert.ErrorIs(t, <-result, net.ErrClosed)
			assert.ErrorIs(t, w.Close(), net.ErrClosed)
			_, err := w.Write(encode("PING"))
			assert.ErrorIs(t, err, net.ErrClosed)
			_, err = w.Read(make([]byte, 1))
			assert.ErrorIs(t, err, net.ErrClosed)
		}
	})
}

func TestASmallBufferLosesNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := Start(t, 1)
		w := connect(t, c, "client", 1)
		for _, b := range append(encode("ECHO hello"), encode("PING")...) {
			_, err := w.Write([]byte{b})
			require.NoError(t, err)
		}
		var got []byte
		for range len("$5\r\nhello\r\n+PONG\r\n") {
			b := make([]byte, 1)
			n, err := w.Read(b)
			require.NoError(t, err)
			require.Equal(t, 1, n)
			got = append(got, b...)
		}
		assert.Equal(t, "$5\r\nhello\r\n+PONG\r\n", string(got))
		assert.Equal(t, "10.0.0.1:6379", w.RemoteAddr().String())
	})
}

// A pool of go-redis looks at a socket before it uses it again, and so it must here:
// the death of a node costs the command that was under way and no other.
func TestAnIdleConnectionThatHasEndedIsNotUsedAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := Start(t, 1, RTT(10*ms))
		rdb := c.Clients(plain)[0]
		for _, f := range []string{"at 0s, all: restart", "at 0s, all: cut"} {
			require.NoError(t, rdb.Ping(t.Context()).Err())
			c.Inject(f)
			time.Sleep(10 * ms)
			assert.NoError(t, rdb.Ping(t.Context()).Err())
		}
		require.NoError(t, c.Node(1).Do(Restart))
		assert.Error(t, rdb.Ping(t.Context()).Err(), "the end is still on its way")
	})
}

func TestManyClientsUseANodeAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := Start(t, 2, RTT(ms))
		i := c.Inject("at 5ms for 20ms, all from a: delay 1ms+1ms\non INCR 5%, node 2: cut during")
		var wg sync.WaitGroup
		for _, name := range []string{"a", "b", "c"} {
			for n, rdb := range c.Client(name).Redis(plain) {
				for range 4 {
					wg.Go(func() {
						for range 50 {
							err := rdb.Incr(t.Context(), "n").Err()
							assert.True(t, err == nil || n == 1, "%v", err)
						}
					})
				}
			}
		}
		wg.Wait()
		for n := range 2 {
			assert.Equal(t, "600", c.Node(n+1).Get("n"))
		}
		assert.NoError(t, i.Check())
	})
}

func TestAPipelineOfManyCommandsStaysInStep(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := Start(t, 1, RTT(10*ms))
		rdb := c.Clients(plain)[0]
		require.NoError(t, rdb.Ping(t.Context()).Err())
		i := c.Inject("on INCR #500, all: cut during")
		cmds, err := rdb.Pipelined(t.Context(), func(p redis.Pipeliner) error {
			for range 1000 {
				p.Incr(t.Context(), "n")
			}
			return nil
		})
		require.Error(t, err)
		for _, cmd := range cmds {
			n, err := cmd.(*redis.IntCmd).Result()
			assert.True(t, err != nil || n < 500)
		}
		assert.Equal(t, "500", c.Node(1).Get("n"), "what comes after on the connection is lost")
		assert.NoError(t, i.Check())
	})
}
