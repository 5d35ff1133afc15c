package faultinject

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestARoundTripTakesItsTimeOnEachNode(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := Start(t, 3, RTT(10*ms, 20*ms))
		for n, rtt := range []time.Duration{10 * ms, 20 * ms, 20 * ms} {
			var w *wire
			assert.Equal(t, rtt, took(func() { w = connect(t, c, "client", n+1) }), "dial")
			assert.Equal(t, rtt, took(func() { w.do("PING", "+PONG") }))
			assert.Equal(t, rtt, took(func() { w.do("SET k v", "+OK") }))
		}
	})
}

func TestDelaysAddUpInTheirDirections(t *testing.T) {
	for plan, want := range map[string]struct{ dial, arrives, answered time.Duration }{
		"at 0s, all: delay 20ms":                                {50 * ms, 25 * ms, 50 * ms},
		"at 0s, all: delay 20ms requests":                       {30 * ms, 25 * ms, 30 * ms},
		"at 0s, all: delay 20ms replies":                        {30 * ms, 5 * ms, 30 * ms},
		"at 0s, all: delay 20ms requests and delay 1ms replies": {31 * ms, 25 * ms, 31 * ms},
		"at 0s, all: delay 20ms\nat 0s, all: delay 7ms":         {64 * ms, 32 * ms, 64 * ms},
		"at 0s, all from client: delay 20ms":                    {50 * ms, 25 * ms, 50 * ms},
		"at 0s, all from other: delay 20ms":                     {10 * ms, 5 * ms, 10 * ms},
		"at 0s, node 2: delay 20ms":                             {10 * ms, 5 * ms, 10 * ms},
		"at 1h, all: delay 20ms":                                {10 * ms, 5 * ms, 10 * ms},
		"on GET, all: delay 20ms":                               {10 * ms, 5 * ms, 10 * ms},
		"on SET, all: delay 20ms":                               {10 * ms, 25 * ms, 30 * ms},
		"on SET, all: delay 20ms requests":                      {10 * ms, 25 * ms, 30 * ms},
		"on SET, all: delay 20ms replies":                       {10 * ms, 5 * ms, 30 * ms},
	} {
		t.Run(plan, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				c := Start(t, 2, RTT(10*ms))
				c.Inject(plan)
				var w *wire
				assert.Equal(t, want.dial, took(func() { w = connect(t, c, "client", 1) }))
				begin := time.Now()
				w.send("SET k v")
				time.Sleep(want.arrives - time.Nanosecond)
				assert.Equal(t, "", c.Node(1).Get("k"))
				time.Sleep(time.Nanosecond)
				synctest.Wait()
				assert.Equal(t, "v", c.Node(1).Get("k"))
				w.expect("+OK")
				assert.Equal(t, want.answered, time.Since(begin))
			})
		})
	}
}

func TestADelayEndsWithItsWindow(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := Start(t, 1)
		w := connect(t, c, "client", 1)
		i := c.Inject("at 1s for 1s, all: delay 5ms")
		rtts := make(map[time.Duration]int)
		begin := time.Now()
		for time.Since(begin) < 3*time.Second {
			rtts[took(func() { w.do("PING", "+PONG") })]++
			time.Sleep(90 * ms)
		}
		assert.Equal(t, 10, rtts[10*ms])
		assert.Len(t, rtts, 2)
		assert.Equal(t, 20, i.Fired())
	})
}

// jitters are the round trips of some commands on two connections, which take turns
// or go one after the other.
func jitters(t *testing.T, seed uint64, alternate bool) (times [2][]time.Duration) {
	bubble(t, func(t *testing.T) {
		c := Start(t, 2, Seed(seed))
		i := c.Inject("at 0s, all: delay 10ms+4ms")
		conns := [2]*wire{connect(t, c, "client", 1), connect(t, c, "client", 2)}
		const commands = 40
		for k := range 2 * commands {
			n := k / commands
			if alternate {
				n = k % 2
			}
			times[n] = append(times[n], took(func() { conns[n].do("PING", "+PONG") }))
		}
		assert.Equal(t, 2*(2*commands+2), i.Fired())
	})
	return times
}

func TestJitterStaysWithinItsBoundsAndIsThatOfTheSeed(t *testing.T) {
	times := jitters(t, 7, false)
	for _, n := range times {
		different := make(map[time.Duration]bool)
		for _, d := range n {
			assert.GreaterOrEqual(t, d, 20*ms)
			assert.Less(t, d, 28*ms)
			different[d] = true
		}
		assert.Greater(t, len(different), 30)
	}
	assert.NotEqual(t, times[0], times[1], "nodes differ")
	assert.NotEqual(t, times, jitters(t, 8, false), "seeds differ")
	assert.Equal(t, times, jitters(t, 7, true), "and it is the same in whatever order the nodes are used")
}

func TestJitterOvertakesNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := Start(t, 1)
		c.Inject("at 0s, all: delay 1ms+50ms")
		w := connect(t, c, "client", 1)
		for k := range 200 {
			w.send(fmt.Sprintf("ECHO %03d", k))
			time.Sleep(100 * time.Microsecond)
		}
		for k := range 200 {
			w.expect(fmt.Sprintf("$3\r\n%03d", k))
		}
	})
}

func TestAHangIsForEverOnConnectionsOfWhichSomethingVanished(t *testing.T) {
	for plan, executed := range map[string]string{
		"at 0s for 1s, all: hang": "", "at 0s for 1s, all: hang requests": "", "at 0s for 1s, all: hang replies": "v",
	} {
		t.Run(plan, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				c := Start(t, 1)
				w, idle := connect(t, c, "client", 1), connect(t, c, "client", 1)
				i := c.Inject(plan)
				w.send("SET k v")
				w.quiet(10 * time.Second) // also after the hang is over
				assert.Equal(t, executed, c.Node(1).Get("k"))
				w.send("SET k w")
				w.quiet(time.Second)
				assert.Equal(t, strings.ReplaceAll(executed, "v", "w"), c.Node(1).Get("k"))
				idle.do("PING", "+PONG")
				connect(t, c, "client", 1).do("PING", "+PONG")
				assert.NoError(t, i.Check())
			})
		})
	}
}

func TestWhatIsOnItsWayWhenAHangBeginsVanishes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := Start(t, 1, RTT(20*ms))
		w := connect(t, c, "client", 1)
		w.send("SET k v")
		time.Sleep(5 * ms)
		i := c.Inject("at 0s for 1s, all: hang requests")
		w.quiet(2 * time.Second)
		assert.Equal(t, "", c.Node(1).Get("k"))
		assert.Equal(t, 1, i.Fired())
	})
}

func TestADialWaitsForTheEndOfAHangOrOfAPartition(t *testing.T) {
	for _, fault := range []string{"hang", "hang requests", "hang replies", "partition", "partition requests", "partition replies"} {
		bubble(t, func(t *testing.T) {
			c := Start(t, 1, RTT(10*ms))
			i := c.Inject("at 0s for 3s, all: " + fault)
			err := within(t, time.Second, func(ctx context.Context) error {
				_, err := c.Client("client").DialContext(ctx, "tcp", "10.0.0.1:6379")
				return err
			})
			var op *net.OpError
			assert.ErrorIs(t, err, context.DeadlineExceeded)
			assert.True(t, errors.As(err, &op) && op.Op == "dial")
			assert.Equal(t, 2*time.Second+10*ms, took(func() { connect(t, c, "client", 1).do("PING", "+PONG") })-10*ms)
			assert.Equal(t, 2, i.Fired())
		})
	}
}

func TestAPartitionDeliversEverythingWhenItHeals(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := Start(t, 1, RTT(10*ms))
		w, old := connect(t, c, "client", 1), connect(t, c, "client", 1)
		i := c.Inject("at 0s for 5s, all: partition")
		for k := range 3 {
			w.send(fmt.Sprintf("RPUSH list %d", k))
		}
		old.send("SET old v")
		old.send("SET older v")
		require.NoError(t, old.Close())
		w.quiet(5*time.Second - 1)
		keys, err := c.Node(1).Keys()
		require.NoError(t, err)
		assert.Empty(t, keys)
		begin := time.Now()
		w.expect(":1")
		assert.Equal(t, 5*ms+1, time.Since(begin))
		w.expect(":2")
		w.expect(":3")
		synctest.Wait()
		assert.Equal(t, "v", c.Node(1).Get("old"), "commands of a connection that its client has closed")
		assert.Equal(t, "v", c.Node(1).Get("older"))
		assert.NoError(t, i.Check())
	})
}

func TestAPartitionOfRepliesKeepsThemOnly(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := Start(t, 1)
		w := connect(t, c, "client", 1)
		i := c.Inject("at 0s, all: partition replies")
		w.send("SET k v")
		w.quiet(time.Second)
		assert.Equal(t, "v", c.Node(1).Get("k"))
		i.Stop()
		w.expect("+OK")
	})
}

func TestAPartitionSplitsSomeClientsFromSomeNodes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := Start(t, 3)
		c.Inject("at 0s, nodes 1-2 from a,b: partition")
		for _, client := range []string{"a", "b", "c"} {
			for n := range 3 {
				err := within(t, time.Second, func(ctx context.Context) error {
					return c.Client(client).Redis(plain)[n].Ping(ctx).Err()
				})
				assert.Equal(t, client == "c" || n == 2, err == nil, "%s to %d: %v", client, n+1, err)
			}
		}
	})
}

func TestAPartitionHidesTheDeathOfANode(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := Start(t, 1)
		w := connect(t, c, "client", 1)
		i := c.Inject("at 0s, all: partition")
		require.NoError(t, c.Node(1).Do(Kill))
		w.send("SET k v") // as into a kernel's buffer
		w.quiet(time.Second)
		i.Stop()
		_, err := w.receive()
		assert.ErrorIs(t, err, io.EOF)
	})
}

func TestRefusedDialsFailAndConnectionsGoOn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := Start(t, 2, RTT(10*ms))
		w := connect(t, c, "client", 1)
		i := c.Inject("at 0s, node 1: refuse")
		w.do("PING", "+PONG")
		var err error
		assert.Equal(t, 10*ms, took(func() { _, err = c.Client("client").DialContext(t.Context(), "tcp", "10.0.0.1:6379") }))
		assert.ErrorIs(t, err, syscall.ECONNREFUSED)
		assert.Equal(t, 1, i.Fired())
		connect(t, c, "client", 2)
		i.Stop()
		connect(t, c, "client", 1)
	})
}

func TestADialToADeadNodeIsRefusedAfterARoundTrip(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := Start(t, 1, RTT(10*ms))
		require.NoError(t, c.Node(1).Do(Kill))
		var err error
		assert.Equal(t, 10*ms, took(func() { err = c.Clients(plain)[0].Ping(t.Context()).Err() }))
		assert.ErrorIs(t, err, syscall.ECONNREFUSED)
		require.NoError(t, c.Node(1).Do(Freeze))
		require.NoError(t, c.Node(1).Do(Restart))
		require.NoError(t, c.Node(1).Do(Freeze))
		connect(t, c, "client", 1).quiet(time.Second) // a frozen node's system accepts
	})
}

func TestMessagesMayBeLostLateOrSilenced(t *testing.T) {
	for _, protocol := range []int{2, 3} {
		t.Run(fmt.Sprintf("RESP%d", protocol), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				c := Start(t, 1)
				listener := c.Client("listener").Redis(plain, func(o *redis.Options) { o.Protocol = protocol })[0]
				sub := listener.Subscribe(t.Context(), "a", "b")
				defer sub.Close()
				for range 2 { // the confirmations are no messages
					_, err := sub.Receive(t.Context())
					require.NoError(t, err)
				}
				publisher := c.Client("publisher").Redis(plain)[0]
				next := func(d time.Duration) any {
					m, err := sub.ReceiveTimeout(t.Context(), d)
					if err != nil {
						return nil
					}
					return m.(*redis.Message).Payload
				}
				publish := func(text string) {
					require.NoError(t, publisher.Publish(t.Context(), "b", text).Err())
					synctest.Wait() // an embedded server answers the publisher first
				}
				publish("plain")
				assert.Equal(t, "plain", next(time.Second))

				lost := c.Inject("at 0s, all from listener: lose messages")
				publish("lost")
				require.NoError(t, sub.Subscribe(t.Context(), "c", "d"))
				for range 2 {
					m, err := sub.ReceiveTimeout(t.Context(), time.Second)
					require.NoError(t, err)
					assert.IsType(t, &redis.Subscription{}, m, "is no message either")
				}
				lost.Stop()
				publish("not lost")
				assert.Equal(t, "not lost", next(time.Second))
				assert.Equal(t, 1, lost.Fired())

				late := c.Inject("at 0s, all: delay messages 300ms")
				publish("late")
				late.Stop()
				publish("later")
				assert.Equal(t, 300*ms, took(func() { assert.Equal(t, "late", next(time.Second)) }))
				assert.Equal(t, "later", next(time.Second))

				other := c.Inject("at 0s, all from publisher: hang messages")
				publish("for another")
				assert.Equal(t, "for another", next(time.Second))
				assert.Error(t, other.Check())

				silent := c.Inject("at 0s, all: hang messages")
				publish("unheard")
				silent.Stop()
				publish("unheard too")
				assert.Nil(t, next(time.Second))
				assert.Equal(t, 1, silent.Fired())
				require.NoError(t, listener.Ping(t.Context()).Err(), "connections without subscriptions go on")
			})
		})
	}
}
