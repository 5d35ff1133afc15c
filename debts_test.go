package redlock

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestOwnLeftoverIsNoRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker(WithTTL(30*time.Second), WithNodeTimeout(ms(100)))
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		// The releases to nodes 1 and 2 reach nobody, nor do those that follow at
		// once; then the nodes answer again, before the release is repeated.
		w.nodes[0].hang.Store(true)
		w.nodes[1].hang.Store(true)
		require.ErrorIs(t, lease.Unlock(t.Context()), ErrNoQuorum)
		w.nodes[0].hang.Store(false)
		w.nodes[1].hang.Store(false)
		require.Equal(t, lease.Token(), w.keys("a")[0], "the leftover")

		next, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err, "refused by nobody but ourselves")
		time.Sleep(time.Second)
		assert.Equal(t, []string{next.Token(), next.Token(), next.Token()}, w.keys("a"))
		require.NoError(t, next.Unlock(t.Context()))
	})
}

func TestOwnLeftoverIsNoRefusalWhileItsReleaseIsUnderWayEither(t *testing.T) {
	// The node stores a vote and goes down before it answers. It is back at some
	// moment around that at which the owed release falls due; then both this and
	// the next acquire wait for the connection and go out together, the acquire
	// first.
	for down := 0; down <= 1500; down += 10 {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, ms(40))
			l := w.locker(WithNodeTimeout(ms(500)))
			n := w.nodes[0]
			var once sync.Once
			n.on(func(cmd string, args []string) string {
				if cmd == "SET" && args[0] == "a" {
					once.Do(func() {
						n.cut.Store(true)
						n.refuse.Store(true)
						time.AfterFunc(ms(1), n.cutAll) // the lane's other connections
					})
				}
				return ""
			})
			_, err := l.TryLock(t.Context(), "a")
			require.Error(t, err)
			require.NotEmpty(t, w.keys("a")[0])
			time.Sleep(ms(down))
			n.refuse.Store(false)
			lease, err := l.TryLock(t.Context(), "a")
			require.NoError(t, err, "after %d ms", down)
			require.NoError(t, lease.Unlock(t.Context()))
		})
	}
}

func TestReleaseIsRepeatedUntilALateSetIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker(WithTTL(8*time.Second), WithNodeTimeout(ms(100)))
		w.plant("a", time.Minute, 1, 2)
		// The network keeps the SET for five seconds, when the answer has long
		// been given up and the first releases have found nothing.
		var token string
		w.nodes[0].on(func(cmd string, args []string) string {
			if cmd == "SET" && args[0] == "a" && token == "" {
				token = args[1]
				time.AfterFunc(5*time.Second, func() {
					w.nodes[0].Set("a", token)
					w.nodes[0].SetTTL("a", 8*time.Second)
				})
				w.nodes[0].mute.Store(true)
				time.AfterFunc(ms(150), func() { w.nodes[0].mute.Store(false) })
				return "ERR swallowed"
			}
			return ""
		})
		_, err := l.TryLock(t.Context(), "a")
		require.ErrorIs(t, err, ErrHeld)
		time.Sleep(5*time.Second - ms(50))
		require.Empty(t, w.keys("a")[0])
		time.Sleep(ms(100))
		if w.keys("a")[0] != "" { // not swept up within the first milliseconds
			time.Sleep(ms(450))
		}
		assert.Empty(t, w.keys("a")[0], "released within four node timeouts of its arrival")

		before := w.nodes[0].executed("EVALSHA")
		time.Sleep(time.Minute)
		assert.LessOrEqual(t, w.nodes[0].executed("EVALSHA")-before, 20, "and then it ends")
		assert.Empty(t, l.root.nodes[0].debts.of)
	})
}

func TestDebtsEndATTLAfterTheNodeAnsweredAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker(WithTTL(2*time.Second), WithNodeTimeout(ms(100)))
		w.nodes[0].hang.Store(true)
		for i := range 50 {
			lease, err := l.TryLock(t.Context(), fmt.Sprint(i))
			require.NoError(t, err)
			require.NoError(t, lease.Unlock(t.Context()))
		}
		n := l.root.nodes[0]
		time.Sleep(10 * time.Minute)
		n.mu.Lock()
		owed := len(n.debts.of)
		n.mu.Unlock()
		assert.Positive(t, owed, "remembered as long as the node is gone")
		w.nodes[0].hang.Store(false)
		time.Sleep(10 * time.Second)
		n.mu.Lock()
		assert.Empty(t, n.debts.of)
		n.mu.Unlock()
		w.requireNoKeys()
	})
}

func TestReleaseOfAnExtendedLeaseIsOwedAsLongAsItsKeyCanLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker(WithTTL(time.Second))
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		time.Sleep(ms(5))
		require.NoError(t, lease.Extend(t.Context(), time.Hour))
		time.Sleep(ms(5))
		w.nodes[0].on(func(cmd string, _ []string) string {
			if cmd == "EVALSHA" || cmd == "EVAL" {
				return "MISCONF Redis is configured to save RDB snapshots"
			}
			return ""
		})
		require.NoError(t, lease.Unlock(t.Context()))
		time.Sleep(3 * time.Second)
		w.nodes[0].clearHooks()
		time.Sleep(time.Minute)
		t.Log("ttl left on node 1:", w.nodes[0].TTL("a"), "stats:", l.lane(0))
		w.requireNoKeys()
	})
}
