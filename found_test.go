package redlock

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed58520471/redlock/faultinject"
)

// What faultinject has found in the library, each as the smallest plan that
// showed it.

// dueIn is how far away the next repetition of a release is that a node owes; 0
// while one is under way, or none is owed.
func (n *node) dueIn(token string) time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	if d := n.debts.of[token]; d != nil && d.request == nil {
		return time.Until(d.due)
	}
	return 0
}

// A node is silent for so long that the next try of a release it owes is seconds
// away. When it is heard of again, by whatever it is asked, the release must not
// wait for that: at most for the half of a node timeout that lies between two
// times of calling all in, however often that was done before the silence.
func TestOwedReleaseFollowsTheFirstAnswerAfterASilence(t *testing.T) {
	for _, before := range []struct {
		name  string
		locks int // each of which makes node 3 mute and heard of again
	}{{"of a calm node", 0}, {"of a node that broke many connections", 200}} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, ms(1), ms(1), ms(1))
			l := w.locker(WithTTL(time.Minute))
			lock := func(name string) *Lease {
				lease, err := l.TryLock(t.Context(), name)
				require.NoError(t, err)
				time.Sleep(10 * time.Millisecond) // for the third vote
				return lease
			}
			breaks := w.Cluster.Inject("at 0s on EVALSHA, node 3: cut before\nat 0s on EVAL, node 3: cut before")
			for range before.locks {
				require.NoError(t, lock("others").Unlock(t.Context()))
			}
			breaks.Stop()
			require.Equal(t, before.locks > 0, breaks.Fired() > before.locks)

			lease := lock("a")
			silence := w.Cluster.Inject("at 0s, node 3: hang")
			require.NoError(t, lease.Unlock(t.Context()))
			far, shut := l.cfg.nodeTimeout, l.root.nodes[2].gate.pause()
			for l.root.nodes[2].dueIn(lease.Token()) < far+2*shut {
				time.Sleep(time.Millisecond)
			}
			require.Equal(t, lease.Token(), w.Node(3).Get("a"))
			silence.Stop()
			require.NoError(t, silence.Check())
			time.Sleep(shut + time.Millisecond) // it is not asked for votes before
			begin := time.Now()
			lock("b")
			for w.Node(3).Get("a") != "" && time.Since(begin) < far {
				time.Sleep(time.Millisecond)
			}
			took := time.Since(begin)
			assert.LessOrEqual(t, took, l.cfg.nodeTimeout/2+20*time.Millisecond, "%s", before.name)
		})
	}
}

func TestNodeThatBreaksConnectionsOverReleasesIsNotAskedInALoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := faultinject.Start(t, 3, faultinject.RTT(time.Millisecond))
		l, err := New(c.Clients())
		require.NoError(t, err)
		defer l.Close()
		l.warm()
		struck := c.Inject("at 0s for 10s on EVALSHA, node 3: cut before\nat 0s for 10s on EVAL, node 3: cut before")
		for _, name := range []string{"a", "b", "c"} {
			lease, err := l.TryLock(t.Context(), name)
			require.NoError(t, err)
			time.Sleep(10 * time.Millisecond)
			require.NoError(t, lease.Unlock(t.Context()))
		}
		time.Sleep(9 * time.Second)
		require.NoError(t, struck.Check())
		// Each release in two tries a node timeout at the most, and what each sends
		// again itself. One loop would be thousands.
		assert.LessOrEqual(t, struck.Fired(), 3*2*2*int(9*time.Second/l.cfg.nodeTimeout))
		time.Sleep(4 * time.Second)
		assert.NoError(t, c.NoKeys())
	})
}

// A server that is too busy to answer in time must not be met by all connections of
// a lane at once, again and again: that would keep it busy, and nothing that it owes
// us would ever reach it.
func TestBusyNodeIsNotMetByAllConnectionsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(20), ms(20), ms(20))
		l := w.locker(WithTTL(time.Minute), WithNodeTimeout(ms(100)))
		var leases sync.WaitGroup
		busy := make(chan struct{})
		for i := range 30 {
			leases.Go(func() {
				time.Sleep(time.Duration(i) * ms(3)) // a long line: one exchange each
				lease, err := l.Lock(t.Context(), fmt.Sprint("name", i))
				assert.NoError(t, err)
				<-busy
				assert.NoError(t, lease.Unlock(t.Context()))
			})
		}
		time.Sleep(time.Second)
		w.Inject("at 0s, node 3: cut")
		slow := w.Inject("at 0s for 10s on PING, node 3: delay 150ms")
		before := w.Node(3).Executed("HELLO")
		close(busy)
		leases.Wait()
		time.Sleep(9 * time.Second)
		require.NoError(t, slow.Check())
		dials := w.Node(3).Executed("HELLO") - before
		assert.LessOrEqual(t, dials, 2*int(10*time.Second/l.cfg.nodeTimeout), "one at a time, each given up after a node timeout at the soonest")
		time.Sleep(10 * time.Second)
		w.requireNoKeys()
	})
}

// A SET is executed and its reply lost; the lane sends it again and gets an error
// that only scripts should get. The first one has still been executed.
func TestAnyErrorToTheSecondWritingLeavesTheFirstInDoubt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker(WithTTL(time.Minute))
		w.Inject("on SET key \"a\" #1, node 3: cut during\non SET key \"a\" #2, node 3: error \"NOSCRIPT No matching script.\"")
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		time.Sleep(time.Second)
		require.NoError(t, lease.Unlock(t.Context()))
		time.Sleep(5 * time.Second)
		w.requireNoKeys()
	})
}
