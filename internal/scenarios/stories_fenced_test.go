package scenarios

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// countingLocks are the botched ones without a mistake of theirs, whose fencing token
// is the largest number to which the nodes that have granted it have counted.
type countingLocks struct{ *botchedLocks }

func countAndTakeTheLargest(w *World, client string) (Locks, error) {
	l, err := botched{}.maker(w, client)
	return countingLocks{l.(*botchedLocks)}, err
}

type countingLease struct {
	*botchedLease
	largest uint64
}

func (h countingLease) Fence() uint64 { return h.largest }

func (l countingLocks) TryLock(ctx context.Context, name string, ttl time.Duration) (Lease, error) {
	lease, err := l.botchedLocks.TryLock(ctx, name, ttl)
	if err != nil {
		return nil, err
	}
	h := countingLease{botchedLease: lease.(*botchedLease)}
	for i, granted := range h.granted {
		if !granted {
			continue
		}
		h.largest = max(h.largest, count(ctx, l.clients[i], counterOf(name)))
	}
	return h, nil
}

func count(ctx context.Context, c redis.UniversalClient, counter string) uint64 {
	n, _ := c.Incr(ctx, counter).Result()
	c.Expire(ctx, counter, counterLives)
	return uint64(max(n, 0))
}

// Counters on several nodes drift apart, and the largest of a majority is no order.
func TestCountingAndTakingTheLargestFallsForChangingMajorities(t *testing.T) {
	s, found := Find("fences-over-changing-majorities")
	require.True(t, found)
	r := inBubble(t, s, countAndTakeTheLargest)
	assert.ErrorContains(t, r.Violation, "have the same fencing token")
	t.Log(r.Violation)
}

// Nobody without fencing tokens stands a story about them.
func TestLocksWithoutFencingTokensFallForTheStoriesOfThem(t *testing.T) {
	for story, says := range map[string]string{
		"fences-after-an-expiry":        "have the same fencing token 0",
		"fences-refuse-a-paused-holder": "cannot write",
		"fences-leave-counters-only":    "have left 0 keys",
	} {
		s, found := Find(story)
		require.True(t, found)
		r := inBubble(t, s, botched{}.maker)
		assert.ErrorContains(t, r.Violation, says, story)
	}
}

// What fenced locks may leave are the counters of their names.
func TestCountersThatAreNoneAreFound(t *testing.T) {
	for name, tc := range map[string]struct {
		key, value, says string
		ttl              time.Duration
	}{
		"for ever":     {counterOf(orders), "7", "lives for", 0},
		"for a day":    {counterOf(orders), "7", "lives for", 24 * time.Hour},
		"misspelt":     {"redlock:fence:orders", "7", "not the counter", counterLives},
		"no number":    {counterOf(orders), "x", "not the counter", counterLives},
		"of two names": {"redlock:fence:{order}:orders", "7", "not the counter", counterLives},
	} {
		s := Scenario{Name: "leaves", Nodes: 3, Fenced: true, Play: func(w *World) error {
			return w.Cluster.Node(2).Set(tc.key, tc.value, tc.ttl)
		}}
		r := inBubble(t, s, nil)
		assert.ErrorContains(t, r.Violation, tc.says, name)
	}
	plain := Scenario{Name: "leaves", Nodes: 3, Play: func(w *World) error {
		return w.Cluster.Node(2).Set(counterOf(orders), "7", counterLives)
	}}
	assert.ErrorContains(t, inBubble(t, plain, nil).Violation, counterOf(orders), "of a lock without fencing tokens")
}
