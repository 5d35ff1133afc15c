package faultinject

import (
	"errors"
	"fmt"
	"strings"
)

// Injection is a set of events that were let loose on a cluster.
type Injection struct {
	cluster *Cluster
	seed    uint64
	armed   []*armed
}

// Inject lets events loose that are written as lines of a plan. Their times count
// from now; those without begin before it returns. A line that makes no sense
// fails the test that started the cluster, or panics if there is none.
//
//	struck := cluster.Inject("on SET #1, node 3: kill during")
func (c *Cluster) Inject(lines string) *Injection {
	p, err := ParsePlan(lines)
	var i *Injection
	if err == nil {
		if p.Seed == 0 {
			p.Seed = c.seed
		}
		i, err = c.Play(p)
	}
	switch {
	case err == nil:
		return i
	case c.tb != nil:
		c.tb.Helper()
		c.tb.Fatalf("%v", err)
	}
	panic(err)
}

// Play lets a plan loose. Its times count from now; events at 0 begin before it
// returns, in the order of the plan. The error says which event does not fit the
// cluster; nothing has begun then.
func (c *Cluster) Play(p Plan) (*Injection, error) {
	i := &Injection{cluster: c, seed: p.Seed}
	for k, e := range p.Events {
		if err := c.fits(e); err != nil {
			return nil, fmt.Errorf("faultinject: event %d, %q: %w", k+1, e, err)
		}
		i.armed = append(i.armed, &armed{event: e, cluster: c, seed: p.Seed ^ textKey(e.String())})
	}
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil, fmt.Errorf("faultinject: the cluster is closed")
	}
	c.played = append(c.played, i)
	c.mu.Unlock()
	for _, a := range i.armed {
		if a.event.When.At > 0 {
			c.after(a.event.When.At, a.begin)
		}
	}
	for _, a := range i.armed {
		if a.event.When.At == 0 {
			a.begin()
		}
	}
	return i, nil
}

// fits says whether the cluster can do what the event says.
func (c *Cluster) fits(e Event) error {
	if err := e.Check(); err != nil {
		return err
	}
	if high := e.Where.mask >> len(c.nodes); high != 0 {
		return fmt.Errorf("the cluster has %d nodes", len(c.nodes))
	}
	if e.Where.paused {
		for name := range strings.SplitSeq(e.Where.clients, ",") {
			c.mu.Lock()
			k := c.find(name)
			c.mu.Unlock()
			if k == nil || !k.hasProcess() {
				return fmt.Errorf("client %s has no process: see Client.SetProcess", name)
			}
		}
	}
	for _, f := range e.Faults {
		if err := c.nodes[0].can(f); err != nil {
			return err
		}
	}
	return nil
}

// Stop ends what strikes and disarms what has not struck yet.
func (i *Injection) Stop() {
	for _, a := range i.armed {
		a.end()
	}
}

// Fired is how often the events have struck: commands, messages, dials,
// connections, nodes and processes, each time.
func (i *Injection) Fired() int {
	sum := 0
	for _, a := range i.armed {
		sum += int(a.fired.Load())
	}
	return sum
}

// Check is an error that names the events that have never struck, and what went
// wrong in striking. A test that relies on a fault asks at its end; without, it
// could pass because nothing happened.
func (i *Injection) Check() error {
	var errs []error
	for k, a := range i.armed {
		if a.fired.Load() == 0 {
			errs = append(errs, fmt.Errorf("faultinject: event %d has never struck: %v", k+1, a.event))
		}
	}
	i.cluster.mu.Lock()
	errs = append(errs, i.cluster.faults...)
	i.cluster.mu.Unlock()
	return errors.Join(errs...)
}

// String is what was injected, a line an event, with how often each has struck.
func (i *Injection) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d\n", i.seed)
	for _, a := range i.armed {
		n, times := a.fired.Load(), "times"
		if n == 1 {
			times = "time"
		}
		fmt.Fprintf(&b, "%v   # struck %d %s\n", a.event, n, times)
	}
	return b.String()
}
