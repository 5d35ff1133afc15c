package redlock

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestLockAndUnlockCostTheQuorumthFastestRoundTrip(t *testing.T) {
	for _, hung := range [][]int{{}, {3}, {4}, {3, 4}} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, ms(1), ms(20), ms(40), ms(80), ms(150))
			l := w.locker()
			for _, i := range hung {
				w.nodes[i].hang.Store(true)
			}
			begin := time.Now()
			lease, err := l.Lock(t.Context(), "orders")
			require.NoError(t, err)
			assert.Equal(t, ms(40), time.Since(begin), "lock with %v hung", hung)
			assert.Equal(t, 10*time.Second-ms(40)-ms(102), lease.Validity())

			begin = time.Now()
			require.NoError(t, lease.Unlock(t.Context()))
			assert.Equal(t, ms(40), time.Since(begin), "unlock with %v hung", hung)
		})
	}
}
