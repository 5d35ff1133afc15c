package redlock

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestDeadConnectionForWaitingIsReplacedWithinTheSameAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newReplicated(t, ms(5), ms(5), ms(5))
		l := w.locker(WithReplicaAck(1, ms(20)))
		w.Inject("at 0s, all: cut")
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		time.Sleep(ms(100))
		assert.Equal(t, 3, lease.promised())
		require.NoError(t, lease.Unlock(t.Context()))
	})
}

func TestWaitingForReplicasAfterAnHourOfSilenceCostsOneRoundTrip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newReplicated(t, ms(40), ms(40), ms(40))
		l := w.locker(WithReplicaAck(1, ms(20)))
		var wg sync.WaitGroup
		for i := range 4 { // four connections for a while
			wg.Go(func() {
				time.Sleep(ms(10 * i))
				lease, err := l.TryLock(t.Context(), fmt.Sprint(i))
				if assert.NoError(t, err) {
					lease.Unlock(t.Context())
				}
			})
		}
		wg.Wait()
		w.Cluster.Inject("at 0s, all: forget 1m") // which is not to strike
		time.Sleep(time.Hour)
		n := l.root.nodes[0]
		n.mu.Lock()
		assert.Len(t, n.acking.idle, 1, "one is kept proven")
		n.mu.Unlock()
		begin := time.Now()
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		assert.Equal(t, ms(40), time.Since(begin))
		require.NoError(t, lease.Unlock(t.Context()))
		assert.Equal(t, ms(80), time.Since(begin))
	})
}

func TestScriptsThatAServerForgotAreSentAgainBeforeTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newReplicated(t, ms(1), ms(1), ms(1))
		l := w.locker(WithReplicaAck(1, ms(20)))
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		for _, c := range w.Clients() {
			require.NoError(t, c.ScriptFlush(t.Context()).Err())
		}
		require.NoError(t, lease.Extend(t.Context(), time.Minute))
		time.Sleep(ms(5))
		assert.Equal(t, 3, lease.promised())
		require.NoError(t, lease.Unlock(t.Context()))
	})
}

func TestOrderHoldsBetweenTheLaneAndWhatWaitsForReplicas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newReplicated(t, ms(40), ms(60), ms(100))
		l := w.locker(WithReplicaAck(1, ms(30)), WithBackoff(Backoff{Min: 1, Max: 1}), WithWait(time.Minute))
		w.Inject("on WAIT 30%, all: delay 25ms\non EVALSHA, all: delay 2ms\non any 1%, all: cut during")
		go func() {
			for k := range 200 { // replicas come and go
				w.replicas[k%3].Store(int64(k % 2))
				time.Sleep(ms(17))
			}
			for i := range w.replicas {
				w.replicas[i].Store(1)
			}
		}()
		var wg sync.WaitGroup
		var inside [4]atomic.Int64
		for i := range 40 {
			wg.Go(func() {
				for range 5 {
					lease, err := l.Lock(t.Context(), fmt.Sprint("lock", i%4))
					if !assert.NoError(t, err) {
						return
					}
					assert.EqualValues(t, 1, inside[i%4].Add(1))
					lease.Extend(t.Context(), 11*time.Second)
					inside[i%4].Add(-1)
					lease.Unlock(t.Context())
				}
			})
		}
		wg.Wait()
		time.Sleep(30 * time.Second)
		w.requireNoKeys()
		for i := range 3 {
			requireNothingAfterReleases(t, w.log(i+1))
		}
	})
}

func TestReleaseWaitsForAnAcquireThatWaitsForReplicas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newReplicated(t, ms(2), ms(1), ms(1))
		l := w.locker(WithReplicaAck(1, ms(20)))
		w.plant("a", time.Minute, 2, 3)
		w.Inject(`on SET key "a", node 1: delay 300ms`) // the lane itself has nothing to do meanwhile
		before := len(w.log(1))
		begin := time.Now()
		_, err := l.TryLock(t.Context(), "a")
		assert.ErrorIs(t, err, ErrHeld)
		assert.Equal(t, ms(1), time.Since(begin))
		time.Sleep(ms(290))
		assert.Len(t, w.log(1), before, "nothing before the SET has returned")
		time.Sleep(ms(20))
		calls := w.log(1)[before:]
		require.Len(t, calls, 3)
		assert.Contains(t, calls[0], "SET a")
		assert.Contains(t, calls[1], "WAIT")
		assert.Contains(t, calls[2], "EVALSHA")
		assert.Equal(t, []string{"", "foreign", "foreign"}, w.keys("a"))
	})
}

func TestAcquireThatWaitsForReplicasWaitsForTheReleaseOfItsName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newReplicated(t, ms(1), ms(1), ms(1))
		l := w.locker(WithReplicaAck(1, ms(20)))
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		time.Sleep(ms(5))
		w.Inject(`on EVALSHA #1, node 3: delay 100ms`)
		require.NoError(t, lease.Unlock(t.Context()))
		next, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		time.Sleep(ms(90))
		assert.Equal(t, 2, next.promised())
		time.Sleep(ms(20))
		assert.Equal(t, 3, next.promised(), "sent as soon as the release had returned")
		require.NoError(t, next.Unlock(t.Context()))
	})
}

func TestSmallPoolIsSharedBetweenTheLaneAndWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newReplicated(t, ms(30), ms(30), ms(30))
		clients := w.Clients(func(o *redis.Options) { o.PoolSize = 4 })
		plain, err := New(clients)
		require.NoError(t, err)
		defer plain.Close()
		load := func(l *Locker) {
			var wg sync.WaitGroup
			for i := range 20 {
				wg.Go(func() {
					for k := range 5 {
						lease, err := l.Lock(t.Context(), fmt.Sprint(i, ".", k))
						if assert.NoError(t, err) {
							assert.NoError(t, lease.Unlock(t.Context()))
						}
					}
				})
			}
			for range 10 {
				assert.NoError(t, clients[0].Ping(t.Context()).Err())
			}
			wg.Wait()
		}
		load(plain)
		require.Equal(t, 3, plain.workers(0), "all but one are its own")
		acked, err := plain.With(WithReplicaAck(1, ms(20)))
		require.NoError(t, err)
		load(acked)
		assert.Equal(t, 2, plain.workers(0), "it has given one up")
		load(plain)
		assert.Equal(t, 2, plain.workers(0))
		n := plain.root.nodes[0]
		n.mu.Lock()
		assert.Equal(t, 1, n.acking.most)
		assert.Len(t, n.acking.idle, 1)
		n.mu.Unlock()
	})
}

func TestCloseEndsWhatWaitsForReplicas(t *testing.T) {
	for _, plan := range []string{"at 0s, all: hang", "on WAIT, all: delay 90ms", "at 0s, all: refuse\nat 0s, all: cut"} {
		synctest.Test(t, func(t *testing.T) {
			w := newReplicated(t, ms(1), ms(1), ms(1))
			l := w.locker(WithReplicaAck(1, ms(95)), WithNodeTimeout(ms(100)))
			w.Inject(plan)
			var wg sync.WaitGroup
			for i := range 10 {
				wg.Go(func() {
					time.Sleep(ms(i))
					_, err := l.Lock(t.Context(), strconv.Itoa(i))
					assert.ErrorIs(t, err, ErrClosed)
				})
			}
			time.Sleep(ms(50))
			begin := time.Now()
			l.Close()
			wg.Wait()
			assert.LessOrEqual(t, time.Since(begin), 2*time.Second)
			for _, n := range l.root.nodes {
				n.mu.Lock()
				assert.Zero(t, n.acking.active)
				assert.Empty(t, n.acking.idle)
				n.mu.Unlock()
			}
		})
	}
}

func TestFirstUnlockFindsItsConnectionReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newReplicated(t, ms(40), ms(40), ms(40))
		l := w.cold(WithReplicaAck(1, ms(20)), WithWait(time.Minute))
		lease, err := l.Lock(t.Context(), "a")
		require.NoError(t, err)
		time.Sleep(time.Second)
		begin := time.Now()
		require.NoError(t, lease.Unlock(t.Context()))
		assert.Equal(t, ms(40), time.Since(begin))
	})
}

func TestCloseGivesConnectionsForWaitingBackToTheirPool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newReplicated(t, ms(1))
		clients := w.Clients()
		l, err := New(clients, WithReplicaAck(1, ms(20)))
		require.NoError(t, err)
		l.warm()
		require.NoError(t, l.Close())
		stats := clients[0].PoolStats()
		assert.Positive(t, stats.TotalConns)
		assert.Equal(t, stats.TotalConns, stats.IdleConns)
	})
}

func TestReplicasThatTakeLongDoNotMakeTheLineLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newReplicated(t, ms(1)/2)
		l := w.locker(WithReplicaAck(1, ms(100)))
		w.Inject("on WAIT, all: delay 50ms")
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		for range 20 { // and nothing in the lane meanwhile
			require.NoError(t, lease.Extend(t.Context(), time.Minute))
		}
		n := l.root.nodes[0]
		n.mu.Lock()
		defer n.mu.Unlock()
		assert.LessOrEqual(t, n.trip, longTrip)
	})
}

func TestVoteThatHadNoConnectionForWaitingSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newReplicated(t, ms(1))
		l := w.locker() // the lane is connected
		acked, err := l.With(WithReplicaAck(1, ms(20)))
		require.NoError(t, err)
		w.Inject("at 0s, all: hang")
		_, err = acked.TryLock(t.Context(), "a")
		assert.ErrorContains(t, err, "no answer within 500ms, not connected yet")
	})
}

func TestWithoutTheOptionNothingWaitsForReplicas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newReplicated(t, ms(1), ms(1), ms(1))
		l := w.locker()
		for _, c := range w.log(1) {
			assert.False(t, strings.HasPrefix(c, "WAIT") || strings.HasSuffix(c, " write"), c)
		}
		assert.Equal(t, uint64(1), l.lane(0).Connects)
	})
}

func TestReplicaAckOptionsNameTheValueAndTheBound(t *testing.T) {
	plain := redis.NewClient(&redis.Options{Addr: "10.0.0.1:1"})
	defer plain.Close()
	small := redis.NewClient(&redis.Options{Addr: "10.0.0.2:1", PoolSize: 2})
	defer small.Close()
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"10.0.0.3:1"}})
	defer cluster.Close()
	for _, c := range []struct {
		clients []redis.UniversalClient
		opts    []Option
		says    string
	}{
		{nil, []Option{WithReplicaAck(0, ms(20))}, "replica acknowledgements wanted are 0; want at least 1"},
		{nil, []Option{WithReplicaAck(1, ms(1)/2)}, "the time for replica acknowledgements is 500µs; want at least 1ms"},
		{nil, []Option{WithReplicaAck(1, ms(500))}, "the time for replica acknowledgements is 500ms and the node timeout 500ms; want less than that"},
		{nil, []Option{WithNodeTimeout(ms(20)), WithReplicaAck(1, ms(30))}, "is 30ms and the node timeout 20ms"},
		{[]redis.UniversalClient{plain, cluster}, []Option{WithReplicaAck(1, ms(20))}, "client 2 is a *redis.ClusterClient; replica acknowledgements need a *redis.Client"},
		{[]redis.UniversalClient{small}, []Option{WithReplicaAck(1, ms(20))}, "client 1 has a pool of 2 connections; replica acknowledgements need at least 3"},
	} {
		clients := c.clients
		if clients == nil {
			clients = []redis.UniversalClient{plain}
		}
		_, err := New(clients, c.opts...)
		require.ErrorIs(t, err, ErrInvalid)
		assert.ErrorContains(t, err, c.says)
	}
	l, err := New([]redis.UniversalClient{plain, cluster})
	require.NoError(t, err)
	defer l.Close()
	_, err = l.With(WithReplicaAck(1, ms(20)))
	require.ErrorIs(t, err, ErrInvalid)
	assert.ErrorContains(t, err, "client 2 is a *redis.ClusterClient")
	_, err = l.With(WithReplicaAck(1, time.Second))
	assert.ErrorContains(t, err, "is 1s and the node timeout 500ms")
	_, err = Open([]string{"redis://10.0.0.1:1"}, WithReplicaAck(1, time.Second))
	assert.ErrorContains(t, err, "is 1s and the node timeout 500ms")
}

func TestHandingOverWaitsForReplicasToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newReplicated(t, ms(1), ms(1), ms(1))
		l := w.locker(WithReplicaAck(1, ms(20)))
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		time.Sleep(ms(5))
		token := lease.Token()
		require.NoError(t, lease.Detach(t.Context()))
		w.waited()
		w.replicas[2].Store(0)
		next, err := l.Attach(t.Context(), "a", token)
		require.NoError(t, err)
		time.Sleep(ms(5))
		assert.Len(t, w.waited(), 3)
		assert.Equal(t, 2, next.promised())
		require.NoError(t, next.Unlock(t.Context()))
		time.Sleep(ms(5))
		w.requireNoKeys()
	})
}
