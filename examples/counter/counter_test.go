package main

import (
	"context"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed58520471/redlock"
	"github.com/seed58520471/redlock/faultinject"
	"github.com/seed58520471/redlock/fence"
)

func TestMain(m *testing.M) {
	redis.SetLogger(&logging.VoidLogger{})
	os.Exit(m.Run())
}

const seeds = 4

// through plays a storm in virtual time.
func through(t *testing.T, s storm) *tally {
	t.Helper()
	var result *tally
	synctest.Test(t, func(t *testing.T) {
		t.Cleanup(func() { time.Sleep(time.Minute) })
		nodes, data := faultinject.Start(t, 5, faultinject.RTT(time.Millisecond)), faultinject.Start(t, 1, faultinject.RTT(time.Millisecond))
		var err error
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		result, err = s.run(ctx, nodes, data)
		require.NoError(t, err)
	})
	return result
}

func virtual(seed uint64, store func(redis.UniversalClient) store) storm {
	return storm{seed: seed, ttl: 10 * time.Second, clients: 4, each: 15, store: store}
}

func TestTheCounterIsExactInEveryStorm(t *testing.T) {
	var refused, unanswered, pauses, faults int
	for seed := range uint64(seeds) {
		r := through(t, virtual(seed, behindGuard))
		t.Logf("seed %d: %v", seed, r)
		require.NoError(t, r.check(), "seed %d", seed)
		assert.Equal(t, int64(4*15), r.acknowledged.Load())
		refused += int(r.refused.Load())
		unanswered += int(r.unanswered.Load())
		pauses += int(r.pauses.Load())
		faults += r.faults
	}
	// They were storms.
	assert.Positive(t, refused)
	assert.Positive(t, unanswered)
	assert.Greater(t, pauses, seeds)
	assert.Greater(t, faults, seeds)
}

// bare has no guard: the lock alone.
type bare struct{ redis.UniversalClient }

func (b bare) get(ctx context.Context, key string, _ uint64) (string, error) {
	return b.Get(ctx, key).Result()
}

func (b bare) set(ctx context.Context, key string, _ uint64, value string) error {
	return b.Set(ctx, key, value, 0).Err()
}

func withoutGuard(client redis.UniversalClient) store { return bare{client} }

// late shows the token when it writes, and not when it reads.
type late struct{ guarded }

func (l late) get(ctx context.Context, key string, _ uint64) (string, error) {
	return l.Client.Get(ctx, key).Result()
}

// One is paused between its read and its write, until the next one has read and not
// yet written.
func TestOnlyAGuardThatIsShownTheTokenBeforeTheReadKeepsBothIncrements(t *testing.T) {
	const ttl = 10 * time.Second
	for _, c := range []struct {
		what  string
		store func(redis.UniversalClient) store
		want  record
	}{
		{"guarded", behindGuard, record{"a": 1, "b": 1}},
		{"no guard", withoutGuard, record{"b": 1}},
		{"the token is shown too late", func(c redis.UniversalClient) store { return late{guarded{fence.Redis{Client: c}}} }, record{"b": 1}},
	} {
		synctest.Test(t, func(t *testing.T) {
			t.Cleanup(func() { time.Sleep(time.Minute) })
			nodes, data := faultinject.Start(t, 3), faultinject.Start(t, 1)
			begin := time.Now()
			until := func(after time.Duration) { time.Sleep(time.Until(begin.Add(after))) }
			var result tally
			increment := func(me string, pauses ...time.Duration) { // of a try, until these times
				locker, err := redlock.New(nodes.Client(me).Redis(), redlock.WithTTL(ttl), redlock.WithFencing())
				require.NoError(t, err)
				defer locker.Close()
				c := &counter{locker: locker, store: c.store(data.Client(me).Redis()[0]), name: name, me: me, tally: &result}
				c.paused = func() {
					if len(pauses) > 0 {
						until(pauses[0])
						pauses = pauses[1:]
					}
				}
				_, err = c.increment(t.Context())
				assert.NoError(t, err)
			}
			var both sync.WaitGroup
			both.Go(func() { increment("a", 0, 15*time.Second) }) // its lease ends at 10 s
			synctest.Wait()
			time.Sleep(time.Second)
			both.Go(func() { increment("b", 0, 18*time.Second) }) // it has the lock from then on
			both.Wait()
			r, err := parse(data.Node(1).Get(name))
			require.NoError(t, err)
			assert.Equal(t, c.want, r, c.what)
		})
	}
}

func TestTheStormsShowACounterThatIsNotGuarded(t *testing.T) {
	for seed := range uint64(4 * seeds) {
		if err := through(t, virtual(seed, withoutGuard)).check(); err != nil {
			t.Logf("seed %d: %v", seed, err)
			return
		}
	}
	t.Error("none of them did harm")
}

func TestAnIncrementWithoutAnAnswerIsCountedOnce(t *testing.T) {
	for _, fault := range []string{"cut during", "lose reply", "cut before", "lose request"} {
		synctest.Test(t, func(t *testing.T) {
			t.Cleanup(func() { time.Sleep(time.Minute) })
			nodes, data := faultinject.Start(t, 3), faultinject.Start(t, 1)
			s := storm{ttl: 10 * time.Second, clients: 1, each: 2, store: behindGuard}
			// The first client's first script is its read, the second its write.
			struck := data.Inject("on EVALSHA #2, node 1: " + fault)
			var result tally
			require.NoError(t, s.count(t.Context(), 0, nodes, data, &result))
			require.NoError(t, struck.Check())
			require.Positive(t, result.unanswered.Load())
			r, err := parse(data.Node(1).Get(name))
			require.NoError(t, err)
			assert.Equal(t, record{"a": 2}, r, fault)
		})
	}
}

func TestTheProgramTellsWhatItCosts(t *testing.T) {
	var out strings.Builder
	require.NoError(t, bill(t.Context(), &out, 20*time.Millisecond))
	t.Log(out.String())
	assert.Equal(t, 5, strings.Count(out.String(), "\n"))
	assert.GreaterOrEqual(t, strings.Count(out.String(), "1.0 x"), 2)
}
