package redlock_test

import (
	"testing"
	"time"

	"github.com/seed58520471/redlock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestInspectReadsRealServersToTheLastDigit(t *testing.T) {
	// What Lua prints of this number is 1.7960350001235e+15.
	const fence = uint64(1796035000123457)
	ns := startNodes(t, 3)
	l := ns.locker(t, redlock.WithOwner("db-7 pid 42"))
	lease := lock(t, l, "locks:a")
	ns.eventuallyHold(t, lease, soon)
	ns.do(t, "set", "redlock:fence:{locks:a}:locks:a", fence-1)
	ns.do(t, "incr", "redlock:fence:{locks:a}:locks:a")

	for range 2 { // the script's text first, then its name
		in, err := l.Inspect(t.Context(), "locks:a")
		require.NoError(t, err)
		assert.Equal(t, redlock.Held, in.Verdict)
		assert.Equal(t, "db-7 pid 42", in.Owner)
		assert.Equal(t, 3, in.Holders)
		assert.Equal(t, fence, in.Fence)
		assert.InDelta(t, lease.Validity(), in.Left, float64(ttl/100+100*time.Millisecond))
		for i, s := range in.Nodes {
			assert.Equal(t, lease.Token(), s.Value)
			assert.Equal(t, fence, s.Fence)
			assert.Equal(t, ns[i].Addr, s.Node)
			assert.Positive(t, s.Latency)
		}
	}

	ns[:2].do(t, "rpush", "locks:list", "x")
	in, err := l.Inspect(t.Context(), "locks:list")
	require.NoError(t, err)
	assert.Equal(t, redlock.Split, in.Verdict)
	assert.True(t, in.Nodes[0].WrongType)
	require.ErrorIs(t, l.ForceRelease(t.Context(), "locks:list"), redlock.ErrNoQuorum)
	ns[:2].do(t, "lpop", "locks:list")

	ns.grant(t, leastRights) // no fence counters, no channels
	least := ns.asLocker(t)
	in, err = least.Inspect(t.Context(), "locks:a")
	require.NoError(t, err)
	assert.Equal(t, redlock.Held, in.Verdict)
	assert.Zero(t, in.Fence, "it may not be read, which must not keep from the rest")

	require.NoError(t, least.ForceRelease(t.Context(), "locks:a"))
	in, err = l.Inspect(t.Context(), "locks:a")
	require.NoError(t, err)
	assert.Equal(t, redlock.Free, in.Verdict)
	assert.Equal(t, fence, in.Fence)
	require.ErrorIs(t, lease.Extend(t.Context(), 2*ttl), redlock.ErrLost)
}

func TestForceReleaseIsHeardByWhoListens(t *testing.T) {
	ns := startNodes(t, 3)
	l := ns.locker(t)
	lease := lock(t, l, "a")
	ns.eventuallyHold(t, lease, soon)
	messages := ns[1].Client().Subscribe(t.Context(), "redlock:released:a")
	defer messages.Close()
	_, err := messages.Receive(t.Context())
	require.NoError(t, err)
	require.NoError(t, l.ForceRelease(t.Context(), "a"))
	m, err := messages.ReceiveMessage(t.Context())
	require.NoError(t, err)
	assert.NotContains(t, m.Payload, lease.Token())
	ns.eventuallyEmpty(t, soon)
}
