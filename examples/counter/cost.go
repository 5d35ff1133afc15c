package main

import (
	"context"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/seed58520471/redlock"
	"github.com/seed58520471/redlock/faultinject"
	"github.com/seed58520471/redlock/fence"
)

// cost measures what an increment costs in each way, one after the other on the same
// servers, for one client and for several at once, each of which goes on when its last
// increment is done.
type cost struct {
	nodes, data *faultinject.Cluster
	each        time.Duration // of one measurement
}

// way is a way of adding one; make prepares it for a client.
type way struct {
	what string
	make func(client string) (add func(context.Context) error, close func(), err error)
}

func (m cost) ways() []way {
	done := func() {}
	return []way{
		{"INCR", func(client string) (func(context.Context) error, func(), error) {
			c := m.data.Client(client).Redis()[0]
			return func(ctx context.Context) error { return c.Incr(ctx, "plain").Err() }, done, nil
		}},
		{"INCRBY behind the guard, no lock", func(client string) (func(context.Context) error, func(), error) {
			g := fence.Redis{Client: m.data.Client(client).Redis()[0]}
			return func(ctx context.Context) error { _, err := g.IncrBy(ctx, "guarded", 1, 1); return err }, done, nil
		}},
		{"the counter: lock, read, write, unlock", func(client string) (func(context.Context) error, func(), error) {
			l, err := redlock.New(m.nodes.Client(client).Redis(), redlock.WithFencing())
			if err != nil {
				return nil, nil, err
			}
			c := &counter{locker: l, store: behindGuard(m.data.Client(client).Redis()[0]), name: name, me: client,
				paused: func() {}, tally: &tally{}}
			return func(ctx context.Context) error { _, err := c.increment(ctx); return err }, func() { l.Close() }, nil
		}},
	}
}

// print measures, and prints times and their ratios to INCR.
func (m cost) print(ctx context.Context, out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "time per increment\tone client\tagainst INCR\tfour clients\tagainst INCR\t")
	var first [2]time.Duration
	for i, way := range m.ways() {
		fmt.Fprintf(w, "%s\t", way.what)
		for j, clients := range []int{1, 4} {
			took, err := m.measure(ctx, way, clients)
			if err != nil {
				return fmt.Errorf("%s: %w", way.what, err)
			}
			if i == 0 {
				first[j] = took
			}
			fmt.Fprintf(w, "%v\t%.1f x\t", took.Round(time.Microsecond), float64(took)/float64(first[j]))
		}
		fmt.Fprintln(w)
	}
	return w.Flush()
}

// measure is the time that passes per increment, whoever makes it.
func (m cost) measure(ctx context.Context, way way, clients int) (time.Duration, error) {
	adds := make([]func(context.Context) error, clients)
	for i := range adds {
		add, close, err := way.make(fmt.Sprint("client-", i))
		if err != nil {
			return 0, err
		}
		defer close()
		for range 3 { // it connects, and the servers get their scripts
			if err := add(ctx); err != nil {
				return 0, err
			}
		}
		adds[i] = add
	}
	var count atomic.Int64
	var failed atomic.Pointer[error]
	var all sync.WaitGroup
	begin := time.Now()
	for _, add := range adds {
		all.Go(func() {
			for time.Since(begin) < m.each {
				if err := add(ctx); err != nil {
					failed.Store(&err)
					return
				}
				count.Add(1)
			}
		})
	}
	all.Wait()
	if err := failed.Load(); err != nil {
		return 0, *err
	}
	return time.Since(begin) / time.Duration(count.Load()), nil
}
