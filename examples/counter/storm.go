package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed58520471/redlock"
	"github.com/seed58520471/redlock/faultinject"
	"github.com/seed58520471/redlock/fence"
)

// A storm is a number of clients that count while their lock's nodes and the data's
// server are killed, cut off, slow and silent, and while they themselves are paused
// for longer than their leases last. It is a function of its seed, but for the
// interleaving of goroutines.
type storm struct {
	seed    uint64
	ttl     time.Duration
	clients int
	each    int // increments of a client
	store   func(redis.UniversalClient) store
}

// tally is what a storm came to.
type tally struct {
	acknowledged, refused, unanswered, pauses atomic.Int64

	sum    int64 // that is stored in the end
	faults int
}

func (t *tally) String() string {
	return fmt.Sprintf("%d increments acknowledged, %d counted; %d pauses past a lease, %d writes refused, %d tries without an answer, %d faults",
		t.acknowledged.Load(), t.sum, t.pauses.Load(), t.refused.Load(), t.unanswered.Load(), t.faults)
}

// check is an error if the counter is not exact.
func (t *tally) check() error {
	if n := t.acknowledged.Load(); t.sum != n {
		return fmt.Errorf("%d increments were acknowledged, and %d are counted", n, t.sum)
	}
	return nil
}

const name = "visits"

func behindGuard(client redis.UniversalClient) store { return guarded{fence.Redis{Client: client}} }

// run lets the storm loose on the nodes of a lock and the server of the data.
func (s storm) run(ctx context.Context, nodes, data *faultinject.Cluster) (*tally, error) {
	var t tally
	var injected []*faultinject.Injection
	for _, c := range []*faultinject.Cluster{nodes, data} {
		climate := faultinject.Climate{Nodes: len(c.Nodes()), Length: 12 * s.ttl, Events: 14, Harm: faultinject.Faithful}
		plan, err := climate.Draw(s.seed + uint64(len(injected)))
		if err != nil {
			return nil, err
		}
		in, err := c.Play(plan)
		if err != nil {
			return nil, err
		}
		defer in.Stop()
		injected = append(injected, in)
	}
	errs := make([]error, s.clients)
	var all sync.WaitGroup
	for i := range errs {
		all.Go(func() { errs[i] = s.count(ctx, i, nodes, data, &t) })
	}
	all.Wait()
	for _, in := range injected {
		t.faults += in.Fired()
	}
	record, err := parse(data.Node(1).Get(name))
	t.sum = record.sum()
	return &t, errors.Join(append(errs, err)...)
}

// count is the life of one client.
func (s storm) count(ctx context.Context, i int, nodes, data *faultinject.Cluster, t *tally) error {
	me := string(rune('a' + i))
	locker, err := redlock.New(nodes.Client(me).Redis(), redlock.WithTTL(s.ttl), redlock.WithFencing(), redlock.WithOwner(me))
	if err != nil {
		return err
	}
	defer locker.Close()
	patience := func(o *redis.Options) {
		o.ReadTimeout, o.DialTimeout, o.ContextTimeoutEnabled = s.ttl/10, s.ttl/10, true
	}
	random := rand.New(rand.NewPCG(s.seed, uint64(i)))
	c := &counter{
		locker: locker, store: s.store(data.Client(me).Redis(patience)[0]), name: name, me: me, tally: t,
		paused: func() {
			switch p := random.IntN(100); {
			case p < 15:
				t.pauses.Add(1)
				time.Sleep(s.ttl + time.Duration(random.Int64N(int64(s.ttl))))
			case p < 50:
				time.Sleep(time.Duration(random.Int64N(int64(s.ttl / 4))))
			}
		},
	}
	for range s.each {
		if _, err := c.increment(ctx); err != nil {
			return err
		}
		t.acknowledged.Add(1)
	}
	return nil
}
