package redlock

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestHolderThatIsCutOffHearsBeforeAnybodyElseCanHold cuts a holder off from so
// many nodes that no quorum is left, at a random moment and in a random way, while
// another client that sees all nodes tries to take the lock at the first moment at
// which it can be had. The holder must have been told by then: the channel that
// it watches is closed, without its asking.
func TestHolderThatIsCutOffHearsBeforeAnybodyElseCanHold(t *testing.T) {
	profiles := map[string]func(*rand.Rand) time.Duration{
		"one region": func(r *rand.Rand) time.Duration { return 200*time.Microsecond + time.Duration(r.Int64N(int64(ms(2)))) },
		"continents": func(r *rand.Rand) time.Duration { return ms(1) + time.Duration(r.Int64N(int64(ms(80)))) },
	}
	for name, rtt := range profiles {
		for _, n := range []int{3, 5, 7} {
			t.Run(fmt.Sprintf("%d nodes, %s", n, name), func(t *testing.T) {
				t.Parallel()
				const partitions = 350
				synctest.Test(t, func(t *testing.T) {
					r := rand.New(rand.NewPCG(uint64(n), uint64(len(name))))
					rtts := make([]time.Duration, n)
					for i := range rtts {
						rtts[i] = rtt(r)
					}
					w := newWorld(t, rtts...)
					opts := []Option{WithTTL(2 * time.Second), WithNodeTimeout(200 * time.Millisecond)}
					holder, err := New(w.Client("holder").Redis(), append(opts, WithAutoExtend())...)
					require.NoError(t, err)
					defer holder.Close()
					other, err := New(w.Client("other").Redis(), opts...)
					require.NoError(t, err)
					defer other.Close()
					holder.warm()
					other.warm()
					handovers := 0
					for i := range partitions {
						if w.cutOffOnce(r, holder, other) {
							handovers++
						}
						if t.Failed() {
							t.Fatalf("in partition %d", i)
						}
					}
					assert.Greater(t, handovers, partitions/2, "the other client had it right after the holder")
				})
			})
		}
	}
}

// cutOffOnce tells whether the other client had the lock before it was free for
// half a second.
func (w *world) cutOffOnce(r *rand.Rand, holder, other *Locker) bool {
	t := w.t
	lease, err := holder.Lock(background, "a")
	require.NoError(t, err)
	done := lease.Done()
	time.Sleep(time.Duration(r.Int64N(int64(2 * time.Second))))
	how := []string{"hang", "partition", "hang requests", "hang replies", "partition requests", "partition replies", "cut and refuse"}[r.IntN(7)]
	nodes := r.Perm(len(w.Nodes()))[:quorumOf(len(w.Nodes()))+r.IntN(quorumOf(len(w.Nodes()))-1)]
	slices.Sort(nodes)
	places := ""
	for i, n := range nodes {
		if i > 0 {
			places += ","
		}
		places += fmt.Sprint(n + 1)
	}
	cut := w.Inject(fmt.Sprintf("at 0s, nodes %s from holder: %s", places, how))
	begin := time.Now()
	had := false
	for time.Since(begin) < 3*time.Second {
		// What is not told when the time is over is told too late.
		if until := lease.Until(); time.Now().Before(until.Add(-ms(30))) {
			time.Sleep(min(time.Until(until.Add(-ms(30))), ms(500)))
			continue
		}
		next, err := other.TryLock(background, "a")
		if err != nil {
			time.Sleep(time.Duration(r.Int64N(int64(ms(8)))))
			continue
		}
		select {
		case <-done:
		default:
			assert.Fail(t, "two holders", "%s after %v, nodes %s: %v", how, time.Since(begin), places, lease)
		}
		had = time.Since(lease.Until()) < ms(500)
		next.Unlock(background)
		break
	}
	cut.Stop()
	assert.ErrorIs(t, lease.Unlock(background), ErrLost)
	time.Sleep(500 * time.Millisecond)
	return had
}
