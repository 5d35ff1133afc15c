package redlock

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// requireKept checks that a lease says no more than what its nodes keep.
func (w *world) requireKept(lease *Lease, when string) {
	w.t.Helper()
	kept := 0
	for i := range w.Nodes() {
		if k := w.key(i+1, lease.Name()); k.Value == lease.Token() && k.TTL >= lease.Validity() {
			kept++
		}
	}
	require.GreaterOrEqual(w.t, kept, quorumOf(len(w.Nodes())), "%s: valid for another %v, and the first node keeps it for %v",
		when, lease.Validity(), w.ttl(1, lease.Name()))
}

func TestANativeExtensionByLessThanWhatIsLeftTakesNothingAway(t *testing.T) {
	for name, d := range compliant {
		for _, first := range []string{"by script", "natively"} {
			synctest.Test(t, func(t *testing.T) {
				w := newSpoken(t, d, ms(1), ms(1), ms(1))
				l := w.locker()
				if first == "natively" {
					w.denyScripts("all")
				}
				lease, err := l.Lock(t.Context(), "a")
				require.NoError(t, err)
				require.NoError(t, lease.Extend(t.Context(), time.Minute))
				if first == "by script" {
					w.denyScripts("all")
				}
				for range 7 {
					time.Sleep(2 * time.Second)
					require.NoError(t, lease.Extend(t.Context(), 5*time.Second), name)
					synctest.Wait()
					w.requireKept(lease, name+", "+first)
				}
				assert.Greater(t, lease.Validity(), 45*time.Second)
				time.Sleep(lease.Validity())
				for i := range w.Nodes() {
					assert.Less(t, w.ttl(i+1, "a"), 10*time.Second, "no longer than asked for, or than the lock's own ttl")
				}
			})
		}
	}
}

// The kernel can deliver what was given up for lost, and a server that was stopped
// goes on with what it has read.
func TestANativeExtensionThatArrivesLateCutsNoPromiseShort(t *testing.T) {
	for name, d := range compliant {
		for _, then := range []string{"natively", "by script"} {
			synctest.Test(t, func(t *testing.T) {
				w := newSpoken(t, d, ms(1))
				denied := w.denyScripts("all")
				l := w.locker()
				lease, err := l.Lock(t.Context(), "a")
				require.NoError(t, err)
				late := w.Inject(`on SET key "a" #1, node 1: delay 3s`)
				err = lease.Extend(t.Context(), 10*time.Second)
				require.ErrorIs(t, err, ErrNoQuorum)
				require.Equal(t, 1, late.Fired())
				if then == "by script" {
					w.dialect.Store(&neither)
					denied.Stop()
				}
				err = lease.Extend(t.Context(), time.Minute)
				if err == nil {
					time.Sleep(5 * time.Second)
					w.requireKept(lease, "when the first has arrived")
				}
				require.ErrorIs(t, err, ErrNoQuorum, name)
				require.ErrorContains(t, err, "an extension to 10s was never answered here")
				w.requireKept(lease, "before it has arrived")
				require.NoError(t, lease.Extend(t.Context(), 10*time.Second), "that much it will keep, %s, %s", name, then)
				for range 10 {
					time.Sleep(ms(500))
					w.requireKept(lease, name+", "+then)
				}
				require.Positive(t, lease.Validity())
				require.NoError(t, lease.Unlock(t.Context()))
			})
		}
	}
}

func TestANodeInDoubtDoesNotKeepTheOthersFromALongerExtension(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSpoken(t, redis84, ms(1), ms(1), ms(1))
		w.denyScripts("all")
		l := w.locker()
		lease, err := l.Lock(t.Context(), "a")
		require.NoError(t, err)
		time.Sleep(ms(10))
		w.Inject(`on SET key "a" #1, node 1: delay 3s`)
		require.NoError(t, lease.Extend(t.Context(), 10*time.Second))
		time.Sleep(time.Second)
		require.NoError(t, lease.Extend(t.Context(), time.Minute))
		time.Sleep(5 * time.Second)
		assert.Less(t, w.ttl(1, "a"), 10*time.Second, "it did arrive late")
		w.requireKept(lease, "without node 1")
		assert.Greater(t, lease.Validity(), 50*time.Second)
	})
}

func TestAShortExtensionThatWasLostKeepsNoRenewalBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSpoken(t, valkey9, ms(1))
		w.denyScripts("all")
		l := w.locker()
		lease, err := l.Lock(t.Context(), "a")
		require.NoError(t, err)
		require.NoError(t, lease.Extend(t.Context(), 10*time.Second))
		time.Sleep(6 * time.Second)
		w.Inject(`on SET key "a" #1, all: delay 2500ms`)
		require.Error(t, lease.Extend(t.Context(), time.Second))
		require.NoError(t, lease.Extend(t.Context(), 10*time.Second))
		time.Sleep(3 * time.Second)
		w.requireKept(lease, "when the first has arrived")
		assert.Greater(t, lease.Validity(), 6*time.Second)
	})
}

func TestOfTwoNativeExtensionsAtATimeTheLongerIsExecutedLast(t *testing.T) {
	for name, d := range compliant {
		synctest.Test(t, func(t *testing.T) {
			w := newSpoken(t, d, ms(20)) // long enough for several connections
			w.denyScripts("all")
			l := w.locker(WithNodeTimeout(time.Second))
			lease, err := l.Lock(t.Context(), "a")
			require.NoError(t, err)
			w.Inject(`on SET key "a" #1, node 1: delay 200ms`)
			first := make(chan error)
			go func() { first <- lease.Extend(t.Context(), 10*time.Second) }()
			time.Sleep(ms(5))
			begin := time.Now()
			require.NoError(t, lease.Extend(t.Context(), time.Minute))
			require.NoError(t, <-first)
			time.Sleep(ms(300))
			w.requireKept(lease, name)
			assert.Equal(t, ms(535), time.Since(begin), "it has waited its turn: 215 ms and 20 more")
			require.NoError(t, lease.Unlock(t.Context()))
		})
	}
}

func TestTheWatchdogKeepsALeaseForAnHourWithoutScripts(t *testing.T) {
	for name, d := range compliant {
		synctest.Test(t, func(t *testing.T) {
			w := newSpoken(t, d, ms(1), ms(1), ms(1))
			w.denyScripts("all")
			l := w.locker(WithAutoExtend())
			lease, err := l.Lock(t.Context(), "a")
			require.NoError(t, err)
			w.Inject(`on SET key "a" 30%, all: delay 2s`)
			w.Inject(`at 20m for 4s, nodes 1,2: hang`)
			for range 720 {
				time.Sleep(5 * time.Second)
				require.NoError(t, lease.Err(), name)
				w.requireKept(lease, name)
			}
			require.NoError(t, lease.Unlock(t.Context()), name)
			time.Sleep(time.Minute)
			w.requireNoKeys()
		})
	}
}

func TestNativeExtensionsWaitForReplicasToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSpoken(t, valkey9, ms(1), ms(1), ms(1))
		w.denyScripts("all")
		l := w.locker(WithReplicaAck(2, ms(20)))
		lease, err := l.Lock(t.Context(), "a")
		require.NoError(t, err)
		time.Sleep(ms(10))
		begin := w.waits.Load()
		require.NoError(t, lease.Extend(t.Context(), time.Minute))
		time.Sleep(ms(10))
		assert.EqualValues(t, 3, w.waits.Load()-begin)
		w.requireKept(lease, "by all")
		require.NoError(t, lease.Unlock(t.Context()))
		time.Sleep(ms(10))
		assert.EqualValues(t, 3, w.waits.Load()-begin, "a release waits for nobody")
		w.requireNoKeys()
	})
}

func TestAttachWorksWithoutScriptsAndKnowsItsOwnTokenAgain(t *testing.T) {
	for name, d := range compliant {
		synctest.Test(t, func(t *testing.T) {
			w := newSpoken(t, d, ms(1), ms(1), ms(1))
			w.denyScripts("all")
			l, other := w.locker(), w.locker()
			lease, err := l.Lock(t.Context(), "a")
			require.NoError(t, err)
			require.NoError(t, lease.Detach(t.Context()))
			cut := w.Inject(`on SET key "a" #1, all: cut during`)
			heir, err := other.Attach(t.Context(), "a", lease.Token())
			require.NoError(t, err, "done, the answers lost, and asked again: %s", name)
			require.GreaterOrEqual(t, cut.Fired(), 2)
			_, err = l.Attach(t.Context(), "a", lease.Token())
			require.ErrorIs(t, err, ErrLost, "it works once, %s", name)
			require.NoError(t, heir.Extend(t.Context(), time.Minute))
			time.Sleep(ms(10))
			w.requireKept(heir, name)
			require.NoError(t, heir.Unlock(t.Context()))
			time.Sleep(ms(10))
			w.requireNoKeys()
			_, err = l.Attach(t.Context(), "a", lease.Token())
			require.ErrorIs(t, err, ErrLost, "nothing is made of nothing, %s", name)
			w.requireNoKeys()
			assert.Contains(t, strings.Join(w.log(1), "\n"), "ifeq "+lease.Token())
		})
	}
}
