package redlock

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// on makes a Locker over some nodes.
func (w *world) on(nodes ...int) *Locker {
	w.t.Helper()
	all := w.Clients()
	var clients []redis.UniversalClient
	for _, n := range nodes {
		clients = append(clients, all[n-1])
	}
	l, err := New(clients)
	require.NoError(w.t, err)
	w.t.Cleanup(func() { l.Close() })
	return l
}

// members are the entries of a node, without its id.
func (w *world) members(node int) (fields []string) {
	all, err := w.Clients()[node-1].HGetAll(w.t.Context(), membersKey).Result()
	require.NoError(w.t, err)
	for field := range all {
		if field != "id" {
			fields = append(fields, field)
		}
	}
	return fields
}

// fiveNodes have been up for a while.
func fiveNodes(t *testing.T) *world {
	w := newWellWorld(t, nil, ms(1), ms(1), ms(1), ms(1), ms(1))
	time.Sleep(time.Minute)
	return w
}

func TestClientsThatNameDifferentNodesFindEachOther(t *testing.T) {
	for _, c := range []struct {
		about string
		a, b  []int
		want  string
	}{
		{"the same nodes", []int{1, 2, 3}, []int{1, 2, 3}, ""},
		{"the same nodes in another order", []int{1, 2, 3}, []int{3, 1, 2}, ""},
		{"one other node", []int{1, 2, 3}, []int{1, 2, 4}, "error other-nodes"},
		{"two other nodes", []int{1, 2, 3}, []int{5, 3, 4}, "error other-nodes"},
		{"fewer nodes", []int{1, 2, 3, 4, 5}, []int{1, 2, 3}, "error other-nodes"},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := fiveNodes(t)
			a, b := w.on(c.a...), w.on(c.b...)
			assert.Empty(t, w.say(w.check(a)), c.about)
			time.Sleep(time.Hour)
			for _, l := range []*Locker{b, a, b} {
				report := w.check(l)
				assert.Equal(t, c.want, w.say(report), c.about)
				if len(report.Findings) == 0 {
					continue
				}
				mine, theirs := c.a, c.b
				if l == b {
					mine, theirs = c.b, c.a
				}
				assert.Contains(t, report.Findings[0].Evidence, "this client: "+w.named(mine), c.about)
				assert.Contains(t, report.Findings[0].Evidence, w.named(theirs), c.about)
			}
		})
	}
}

// named is what a membership says of some nodes.
func (w *world) named(nodes []int) string {
	var m membership
	for i := range w.Nodes() {
		for _, n := range nodes {
			if n == i+1 {
				m.Nodes = append(m.Nodes, w.Node(n).Addr())
			}
		}
	}
	return m.String()
}

func TestChecksAtTheSameTimeDoNotMisunderstandEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWellWorld(t, nil, ms(1), ms(7), ms(3))
		w.Inject("at 0s for 5s, all: delay 1ms+20ms")
		var all sync.WaitGroup
		for i := range 20 {
			l := w.cold()
			all.Go(func() {
				time.Sleep(ms(3 * i))
				assert.Empty(t, w.say(w.check(l)))
			})
		}
		all.Wait()
		for node := 1; node <= 3; node++ {
			assert.Len(t, w.members(node), 1)
		}
	})
}

func TestOneNameForTwoServersIsFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := fiveNodes(t)
		a, clients := w.on(1, 2, 3), w.Clients()
		b, err := New([]redis.UniversalClient{clients[0], clients[1], w.alias(w.Node(3).Addr(), w.Node(4).Addr())})
		require.NoError(t, err)
		defer b.Close()
		assert.Empty(t, w.check(a).Findings)
		assert.Equal(t, "error other-nodes", w.say(w.check(b)))
		assert.Equal(t, "error other-nodes", w.say(w.check(a)))

		c, err := New([]redis.UniversalClient{clients[2], w.alias("10.9.9.9:1", w.Node(2).Addr()), clients[0]})
		require.NoError(t, err)
		defer c.Close()
		assert.Empty(t, w.check(a).Findings, "it has taken b's entry away, by being like it")
		assert.Empty(t, w.check(c).Findings, "two names for one server are none of its business")
	})
}

// alias is a client that reaches a node under another address.
func (w *world) alias(addr, node string) redis.UniversalClient {
	c := redis.NewClient(&redis.Options{
		Addr: addr, MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		Dialer: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return w.Client("alias").DialContext(ctx, network, node)
		},
	})
	w.t.Cleanup(func() { c.Close() })
	return c
}

func TestOneServerUnderTwoNamesIsFound(t *testing.T) {
	for _, infoDenied := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := fiveNodes(t)
			clients := w.Clients()
			l, err := New([]redis.UniversalClient{clients[0], w.alias("10.9.9.9:1", w.Node(1).Addr()), clients[1]})
			require.NoError(t, err)
			defer l.Close()
			if infoDenied {
				w.Inject(`on INFO, nodes 1,2: error "NOPERM no"`)
			}
			report := w.check(l)
			assert.Equal(t, "same-server", report.Findings[0].What)
			assert.Equal(t, SeverityError, report.Worst())
			assert.Equal(t, "10.9.9.9:1", report.Findings[0].Node)
			assert.Contains(t, report.Findings[0].Evidence, w.Node(1).Addr())
			again, err := New([]redis.UniversalClient{clients[0], w.alias("10.9.9.9:1", w.Node(3).Addr()), clients[1]})
			require.NoError(t, err)
			defer again.Close()
			for _, f := range w.check(again).Findings {
				assert.NotEqual(t, "same-server", f.What)
			}
		})
	}
}

func TestWhatNodesForgetOrMissIsNotTakenForAnotherClient(t *testing.T) {
	for _, c := range []struct {
		about, during, between, want string
	}{
		{"a node was down", "at 0s, node 3: kill", "at 0s, node 3: restart", ""},
		{"a node is down", "", "at 0s, node 3: kill", "warning no-answer 3"},
		{"a node came up empty", "", "at 0s, node 3: restart empty", ""},
		{"a node came up with its data", "", "at 0s, node 3: restart", ""},
		{"a node forgot without coming up", "", "at 0s, node 3: flushall", "error other-nodes"},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := fiveNodes(t)
			a, b := w.on(1, 2, 3), w.on(1, 2, 3)
			w.Inject(c.during)
			time.Sleep(time.Minute)
			w.check(a)
			time.Sleep(time.Minute)
			w.Inject(c.between)
			time.Sleep(time.Minute)
			assert.Equal(t, c.want, w.say(w.check(b)), c.about)
			if c.want != "warning no-answer 3" {
				assert.Empty(t, w.say(w.check(b)), "%s: the new entry has taken the place of the old one", c.about)
				assert.Empty(t, w.say(w.check(a)), c.about)
			}
			assert.Len(t, w.members(1), 1, c.about)
		})
	}
}

func TestAClientIsForgottenADayAfterItsLastCheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := fiveNodes(t)
		a, b := w.on(1, 2, 3), w.on(1, 2, 4)
		w.check(b)
		time.Sleep(12 * time.Hour)
		assert.Equal(t, "error other-nodes", w.say(w.check(a)))
		time.Sleep(12*time.Hour - time.Minute)
		assert.Equal(t, "error other-nodes", w.say(w.check(a)))
		time.Sleep(2 * time.Minute)
		w.check(a) // it has just been read once more
		assert.Empty(t, w.say(w.check(a)))
		assert.Len(t, w.members(1), 1)
		time.Sleep(24*time.Hour + time.Minute)
		for i := range w.Nodes() {
			assert.Empty(t, w.stored(i+1))
		}
	})
}

func TestTheMembersOfANodeAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := fiveNodes(t)
		client := w.Clients()[0]
		now := time.Now().Unix()
		for i := range 200 {
			require.NoError(t, client.HSet(t.Context(), membersKey, fmt.Sprintf(`{"n":%d}`, i), now-int64(i)).Err())
		}
		require.NoError(t, client.HSet(t.Context(), membersKey, "junk", "junk").Err())
		l := w.on(1, 2, 3)
		for range 200 {
			w.check(l)
		}
		assert.LessOrEqual(t, len(w.members(1)), 64)
		assert.Contains(t, strings.Join(w.members(1), " "), `"ids"`, "the one that was entered last stays")
	})
}

func TestANodeWithAnotherTypeUnderTheMembersKeyIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := fiveNodes(t)
		require.NoError(t, w.Node(2).Set(membersKey, "x", 0))
		report := w.check(w.on(1, 2, 3))
		assert.Equal(t, "info members-unknown 2", w.say(report))
		assert.Contains(t, report.Findings[0].Evidence, "WRONGTYPE")
		assert.Equal(t, "x", w.key(2, membersKey).Value)
	})
}

func TestTheMembersKeyIsNoLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := fiveNodes(t)
		l := w.on(1, 2, 3)
		_, err := l.TryLock(t.Context(), membersKey)
		assert.ErrorIs(t, err, ErrInvalid)
		assert.ErrorIs(t, l.ForceRelease(t.Context(), membersKey), ErrInvalid)
		lease, err := l.TryLock(t.Context(), membersKey+":mine")
		require.NoError(t, err)
		require.NoError(t, lease.Unlock(t.Context()))
	})
}
