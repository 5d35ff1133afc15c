package redlock

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestNodeThatIsInTheWayOfManyExtensionsIsTriedAsOftenAsForOne(t *testing.T) {
	tried := func(extensions int) (sets int) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, ms(2), ms(2), ms(2))
			l := w.locker(WithTTL(time.Hour), WithNodeTimeout(ms(400)))
			w.plant("a", 2*time.Hour, 3)
			lease, err := l.TryLock(t.Context(), "a")
			require.NoError(t, err)
			for range extensions {
				require.NoError(t, lease.Extend(t.Context(), time.Hour))
				time.Sleep(ms(10))
			}
			before := w.executed(3, "SET a")
			time.Sleep(10 * time.Second)
			sets = w.executed(3, "SET a") - before
			require.NoError(t, lease.Unlock(t.Context()))
			w.Inject(`at 0s, node 3: evict "a"`)
			time.Sleep(ms(10))
		})
		return sets
	}
	one := tried(1)
	require.Greater(t, one, 50)
	assert.InDelta(t, one, tried(50), 30)
}

func TestAnswerToOneRepairDoesNotHideThatAnotherHasStoredTheToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(20), ms(20), ms(20))
		l := w.locker()
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		time.Sleep(ms(50))
		w.Inject(`at 0s, node 1: evict "a"`)
		w.Inject(`on SET #2, node 1: error "OOM command not allowed"`)
		for range 2 { // both find the key gone, and are followed by a repair each
			go lease.Extend(t.Context(), time.Minute)
			time.Sleep(ms(10))
		}
		time.Sleep(ms(200))
		require.Equal(t, lease.Token(), w.keys("a")[0])
		require.NoError(t, lease.Unlock(t.Context()))
		time.Sleep(ms(50))
		w.requireNoKeys()
	})
}

func TestRepairThatArrivesAfterTheReleaseOfALaterOneIsReleasedToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(2), ms(2), ms(2))
		l := w.locker(WithNodeTimeout(ms(200)))
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		time.Sleep(ms(50))
		w.Inject(`at 0s, node 1: evict "a"`)
		// Kept in the network, as the kernel does with what a partition has cut off.
		w.Inject("on SET #1, node 1: delay 3s requests")
		require.NoError(t, lease.Extend(t.Context(), time.Minute))
		time.Sleep(time.Second)
		require.Empty(t, w.keys("a")[0])
		require.NoError(t, lease.Extend(t.Context(), time.Minute))
		time.Sleep(ms(500))
		require.Equal(t, lease.Token(), w.keys("a")[0], "a second repair")
		require.NoError(t, lease.Unlock(t.Context()))
		time.Sleep(10 * time.Second)
		w.requireNoKeys()
	})
}
