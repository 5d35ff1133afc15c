package redlock

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed58520471/redlock/faultinject"
)

func TestOwnLeftoverIsNoRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker(WithTTL(30*time.Second), WithNodeTimeout(ms(100)))
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		// The releases to nodes 1 and 2 reach nobody, nor do those that follow at
		// once; then the nodes answer again, before the release is repeated.
		hung := w.Inject("at 0s, nodes 1,2: hang")
		require.ErrorIs(t, lease.Unlock(t.Context()), ErrNoQuorum)
		hung.Stop()
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
			l := w.locker(WithNodeTimeout(ms(500)), WithWait(time.Second))
			struck := w.Inject(`on SET key "a" #1, node 1: kill during`)
			_, err := l.TryLock(t.Context(), "a")
			require.Error(t, err)
			require.NotEmpty(t, w.keys("a")[0])
			time.Sleep(ms(down))
			require.NoError(t, struck.Check())
			require.NoError(t, w.Node(1).Do(faultinject.Restart))
			lease, err := l.Lock(t.Context(), "a") // of a node that was down for so long the first try may not ask
			require.NoError(t, err, "after %d ms", down)
			require.NoError(t, lease.Unlock(t.Context()))
		})
	}
}

func TestReleaseIsRepeatedUntilALateSetIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker(WithTTL(8*time.Second), WithNodeTimeout(ms(100)))
		w.plant("a", time.Minute, 2, 3)
		// The network keeps the SET for five seconds, when the answer has long
		// been given up and the first releases have found nothing.
		late := w.Inject(`on SET key "a" #1, node 1: delay 5s`)
		_, err := l.TryLock(t.Context(), "a")
		require.ErrorIs(t, err, ErrHeld)
		time.Sleep(5*time.Second - ms(50))
		require.Empty(t, w.keys("a")[0])
		time.Sleep(ms(100))
		if w.keys("a")[0] != "" { // not swept up within the first milliseconds
			time.Sleep(ms(450))
		}
		assert.Empty(t, w.keys("a")[0], "released within four node timeouts of its arrival")

		require.NoError(t, late.Check())
		require.Equal(t, 1, w.executed(1, "SET a"))
		before := w.executed(1, "EVALSHA")
		time.Sleep(time.Minute)
		assert.LessOrEqual(t, w.executed(1, "EVALSHA")-before, 20, "and then it ends")
		assert.Zero(t, l.owed(0))
	})
}

func TestDebtsEndATTLAfterTheNodeAnsweredAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker(WithTTL(2*time.Second), WithNodeTimeout(ms(100)))
		hung := w.Inject("at 0s, node 1: hang")
		for i := range 50 {
			lease, err := l.TryLock(t.Context(), fmt.Sprint(i))
			require.NoError(t, err)
			require.NoError(t, lease.Unlock(t.Context()))
		}
		time.Sleep(10 * time.Minute)
		assert.Positive(t, l.owed(0), "remembered as long as the node is gone")
		hung.Stop()
		time.Sleep(10 * time.Second)
		assert.Zero(t, l.owed(0))
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
		refusing := w.Inject(`
			on EVALSHA, node 1: error "MISCONF Redis is configured to save RDB snapshots"
			on EVAL, node 1: error "MISCONF Redis is configured to save RDB snapshots"`)
		require.NoError(t, lease.Unlock(t.Context()))
		time.Sleep(3 * time.Second)
		refusing.Stop()
		time.Sleep(time.Minute)
		t.Log("ttl left on node 1:", w.ttl(1, "a"), "stats:", l.lane(0))
		w.requireNoKeys()
	})
}
