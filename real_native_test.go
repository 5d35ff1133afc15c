package redlock_test

import (
	"testing"
	"time"

	"github.com/seed58520471/redlock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// natives tells which native commands the servers have that compare and write in one
// step: Redis 8.4 has both, Valkey 8.1 the first and 9 both.
func (ns nodes) natives(t *testing.T) (set, del bool) {
	t.Helper()
	client := ns[0].Client()
	_, err := client.Do(t.Context(), "set", "natives", "x", "px", 1, "ifeq", "y", "get").Result()
	set = err == nil || err.Error() == "redis: nil"
	for _, command := range []string{"delex", "delifeq"} {
		info, err := client.Do(t.Context(), "command", "info", command).Slice()
		require.NoError(t, err)
		del = del || len(info) == 1 && info[0] != nil
	}
	return set, del
}

func TestServersThatDenyScriptsAreAskedNatively(t *testing.T) {
	ns := startNodes(t, 3)
	if set, del := ns.natives(t); !set || !del {
		t.Skip("the redis-server in PATH cannot compare without scripts; Redis 8.4 and Valkey 9 can")
	}
	ns.grant(t, "on >pw ~* &* +@all -@scripting")
	l, other := ns.asLocker(t), ns.asLocker(t)
	for range 3 {
		lease := lock(t, l, "orders")
		ns.eventuallyHold(t, lease, soon)
		require.NoError(t, lease.Extend(t.Context(), time.Hour))
		require.NoError(t, lease.Extend(t.Context(), ttl))
		for _, n := range ns {
			require.Eventually(t, func() bool { // the third may be later than the vote
				return n.Client().PTTL(t.Context(), "orders").Val() > lease.Validity()
			}, soon, time.Millisecond, "not shortened")
		}
		require.Greater(t, lease.Validity(), 50*time.Minute)

		got := make(chan time.Time)
		go func() {
			next, err := other.Lock(t.Context(), "orders")
			assert.NoError(t, err)
			got <- time.Now()
			assert.NoError(t, next.Unlock(t.Context()))
		}()
		time.Sleep(1300 * time.Millisecond)
		begin := time.Now()
		unlock(t, lease)
		require.Less(t, (<-got).Sub(begin), 500*time.Millisecond, "it was told")
		ns.eventuallyEmpty(t, soon)
	}

	lease := lock(t, l, "orders")
	ns.eventuallyHold(t, lease, soon)
	require.NoError(t, lease.Detach(t.Context()))
	heir, err := other.Attach(t.Context(), "orders", lease.Token())
	require.NoError(t, err)
	ns.eventuallyHold(t, heir, soon)
	_, err = l.Attach(t.Context(), "orders", lease.Token())
	require.ErrorIs(t, err, redlock.ErrLost)
	ns[:2].do(t, "del", "orders")
	ns[:2].do(t, "lpush", "orders", heir.Token())
	require.ErrorIs(t, heir.Extend(t.Context(), ttl), redlock.ErrLost)
	require.ErrorIs(t, heir.Unlock(t.Context()), redlock.ErrLost)
	for _, n := range ns {
		require.Zero(t, n.Calls("eval"))
		require.Zero(t, n.Calls("evalsha"))
	}

	fenced := ns.asLocker(t, redlock.WithFencing(), redlock.WithMaxAttempts(1))
	_, err = fenced.Lock(t.Context(), "fenced")
	requireDenied(t, err, 2)
}
