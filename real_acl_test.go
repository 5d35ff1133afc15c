package redlock_test

import (
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/seed58520471/redlock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// leastRights is all that a user of locks needs, as redis.conf or ACL SETUSER
// take it. EVALSHA only saves traffic: without it the scripts are sent whole.
// PING is not needed, since its refusal proves a connection as well.
const leastRights = "on >pw ~locks:* resetchannels -@all +set +get +del +pttl +pexpire +eval"

// grant gives the user "locker" these rights and no others.
func (ns nodes) grant(t *testing.T, rights string) {
	t.Helper()
	args := []any{"acl", "setuser", "locker", "reset"}
	for _, right := range strings.Fields(rights) {
		args = append(args, right)
	}
	ns.do(t, args...)
}

// asLocker makes a Locker that logs in as that user.
func (ns nodes) asLocker(t *testing.T, opts ...redlock.Option) *redlock.Locker {
	t.Helper()
	return newLocker(t, ns.clients(t, as("locker", "pw")), opts...)
}

// requireDenied checks that so many votes say that a right is missing. What a
// script may not call is worded in another way, and Redis does not say which
// command it was.
func requireDenied(t *testing.T, err error, least int) {
	t.Helper()
	require.ErrorIs(t, err, redlock.ErrNoQuorum)
	require.NotErrorIs(t, err, redlock.ErrHeld)
	require.NotErrorIs(t, err, redlock.ErrLost)
	denied := 0
	for _, v := range votes(t, err) {
		if v.Outcome == redlock.Failed {
			require.Regexp(t, "NOPERM|The user executing the script can't run this command|ACL failure in script", v.Err)
			denied++
		}
	}
	require.GreaterOrEqual(t, denied, least)
}

func TestTheLeastRightsSuffice(t *testing.T) {
	ns := startNodes(t, 3)
	for _, more := range []string{"", "+ping", "+evalsha", "+evalsha +ping", "+@all -@admin -@dangerous"} {
		t.Run("with "+more, func(t *testing.T) {
			ns.grant(t, leastRights+" "+more)
			l := ns.asLocker(t)
			for range 3 { // with EVALSHA the first sends the scripts, the others name them
				lease := lock(t, l, "locks:a")
				ns.eventuallyHold(t, lease, soon)
				require.NoError(t, lease.Extend(t.Context(), 2*ttl))
				_, err := l.TryLock(t.Context(), "locks:a")
				require.ErrorIs(t, err, redlock.ErrHeld)
				unlock(t, lease)
				ns.eventuallyEmpty(t, soon)
			}
			_, err := l.Lock(t.Context(), "elsewhere")
			requireDenied(t, err, 2)
		})
	}
}

// Without these rights a waiter polls; with them it is told.
func TestRightsToPublishAndSubscribeLetWaitersSleep(t *testing.T) {
	ns := startNodes(t, 3)
	for _, more := range []string{"", "+publish +subscribe +unsubscribe &redlock:released:locks:*"} {
		t.Run("with "+more, func(t *testing.T) {
			ns.grant(t, leastRights+" "+more)
			a, b := ns.asLocker(t), ns.asLocker(t)
			lease := lock(t, a, "locks:a")
			got := make(chan *redlock.Lease)
			go func() {
				next, err := b.Lock(t.Context(), "locks:a")
				assert.NoError(t, err)
				got <- next
			}()
			time.Sleep(300 * time.Millisecond)
			for _, n := range ns {
				channels := n.Client().PubSubChannels(t.Context(), "*").Val()
				if more != "" {
					assert.Equal(t, []string{"redlock:released:locks:a"}, channels)
				} else {
					assert.Empty(t, channels)
				}
			}
			unlock(t, lease)
			unlock(t, <-got)
			ns.eventuallyEmpty(t, soon)
		})
	}
}

func TestEachOfTheLeastRightsIsNeeded(t *testing.T) {
	ns := startNodes(t, 3)
	if set, del := ns.natives(t); set || del {
		t.Skip("the redis-server in PATH can compare without scripts, and needs fewer")
	}
	for _, tc := range []struct{ right, instead, fails string }{
		{"+set", "", "lock"},
		{"~locks:*", "", "lock"},
		{"~locks:*", "%W~locks:*", "lock"}, // SET … GET reads
		{"~locks:*", "%R~locks:*", "lock"},
		{"+get", "", "extend unlock"},
		{"+eval", "", "extend unlock"},
		{"+pttl", "", "extend"},
		{"+pexpire", "", "extend"},
		{"+del", "", "unlock"},
	} {
		t.Run(strings.TrimSuffix(tc.right+" to "+tc.instead, " to "), func(t *testing.T) {
			ns.do(t, "flushall")
			require.Contains(t, strings.Fields(leastRights), tc.right)
			ns.grant(t, strings.Replace(leastRights+" ", tc.right+" ", tc.instead+" ", 1))
			l := ns.asLocker(t)
			lease, err := l.Lock(t.Context(), "locks:a")
			if tc.fails == "lock" {
				requireDenied(t, err, 2)
				ns.eventuallyEmpty(t, soon)
				return
			}
			require.NoError(t, err)
			ns.eventuallyHold(t, lease, soon)
			if err := lease.Extend(t.Context(), 2*ttl); strings.Contains(tc.fails, "extend") {
				requireDenied(t, err, 2)
			} else {
				require.NoError(t, err)
			}
			if err := lease.Unlock(t.Context()); strings.Contains(tc.fails, "unlock") {
				requireDenied(t, err, 2)
			} else {
				require.NoError(t, err)
			}
		})
	}
}

func TestAMissingRightEndsTheWaitOnlyOnAMajority(t *testing.T) {
	ns := startNodes(t, 5)
	ns.grant(t, "on >pw ~* +@all")
	l := ns.asLocker(t)
	ns[:2].grant(t, "on >pw ~* +@all -set")
	lease := lock(t, l, "orders")
	ns[2:].eventuallyHold(t, lease, soon)
	require.NoError(t, lease.Extend(t.Context(), 2*ttl))
	unlock(t, lease)

	ns[:3].grant(t, "on >pw ~* +@all -set")
	requireHopeless(t, l, "NOPERM", ns[:3])
	ns.eventuallyEmpty(t, soon)
}

// Without scripts, and commands that compare, a lock cannot be released safely: a DEL
// that is not guarded by the token could delete the next holder's key.
func TestWithoutScriptsLocksEndWithTheirTTL(t *testing.T) {
	const short = time.Second
	ns := startNodes(t, 3)
	if set, del := ns.natives(t); set || del {
		t.Skip("the redis-server in PATH can compare without scripts")
	}
	ns.grant(t, "on >pw ~* +@all -@scripting")
	l := ns.asLocker(t, redlock.WithTTL(short), redlock.WithNodeTimeout(short/2))
	begin := time.Now()
	lease := lock(t, l, "orders")
	ns.eventuallyHold(t, lease, soon)

	err := lease.Extend(t.Context(), short)
	requireDenied(t, err, 2)
	require.NoError(t, lease.Err())
	err = lease.Unlock(t.Context())
	requireDenied(t, err, 2)
	require.True(t, redis.IsPermissionError(err), err)

	ns.eventuallyEmpty(t, short+soon)
	require.GreaterOrEqual(t, time.Since(begin), short)
	for _, n := range ns {
		require.Zero(t, n.Calls("del"))
		require.Zero(t, n.Calls("unlink"))
	}
	lock(t, l, "orders") // the next one gets it
}
