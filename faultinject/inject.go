package faultinject

import (
	"errors"
	"fmt"
	"hash/fnv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Injection is a set of events that were let loose on a cluster.
type Injection struct {
	cluster *Cluster
	seed    uint64
	armed   []*armed
}

// armed is an event that strikes, has struck or will.
type armed struct {
	event   Event
	cluster *Cluster
	seed    uint64
	fired   atomic.Int64
	count   [maxNodes + 1]atomic.Int64 // by node, what the trigger matched

	mu    sync.Mutex
	begun time.Time
	done  bool
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

// Play lets a plan loose. Its times count from now. The error says which line
// does not fit the cluster; nothing has begun then.
func (c *Cluster) Play(p Plan) (*Injection, error) {
	i := &Injection{cluster: c, seed: p.Seed}
	for k, e := range p.Events {
		if err := c.fits(e); err != nil {
			return nil, fmt.Errorf("faultinject: event %d, %q: %w", k+1, e, err)
		}
		h := fnv.New64a()
		h.Write([]byte(e.String()))
		i.armed = append(i.armed, &armed{event: e, cluster: c, seed: p.Seed ^ h.Sum64()})
	}
	c.mu.Lock()
	c.played = append(c.played, i)
	c.mu.Unlock()
	for _, a := range i.armed {
		if a.event.When.At == 0 {
			a.begin()
			continue
		}
		c.after(a.event.When.At, a.begin)
	}
	return i, nil
}

// fits says whether the cluster can do what the event says.
func (c *Cluster) fits(e Event) error {
	if err := e.Check(); err != nil {
		return err
	}
	if high := e.Where.mask >> len(c.nodes); high != 0 {
		return fmt.Errorf("there are %d nodes", len(c.nodes))
	}
	if e.Where.paused {
		for name := range strings.SplitSeq(e.Where.clients, ",") {
			if !c.Client(name).hasProcess() {
				return fmt.Errorf("client %s has no process: see Client.SetProcess", name)
			}
		}
	}
	_, embedded := c.nodes[0].engine.(embeddedEngine)
	for _, f := range e.Faults {
		if (f.verb == clockStep || f.verb == clockRate || f.verb == restartAsOf) && !embedded {
			return fmt.Errorf("%v: %w", f, errEmbeddedOnly)
		}
	}
	return nil
}

// begin lets the event strike.
func (a *armed) begin() {
	c := a.cluster
	a.mu.Lock()
	a.begun = time.Now()
	if a.done {
		a.mu.Unlock()
		return
	}
	a.mu.Unlock()
	if a.standing() {
		c.mu.Lock()
		if !c.closed {
			c.active = append(c.active, a)
			c.forecast()
		}
		c.mu.Unlock()
	}
	if a.event.When.On.kind == "" {
		a.each(func(f Fault) Fault { return f })
	}
	if d := a.event.When.For; d > 0 {
		c.after(d, a.end)
	} else if !a.standing() && !a.lasts() {
		a.end()
	}
}

// end takes back what the event has begun.
func (a *armed) end() {
	a.mu.Lock()
	if a.done {
		a.mu.Unlock()
		return
	}
	a.done = true
	begun := a.begun
	a.mu.Unlock()
	c := a.cluster
	if a.standing() {
		c.mu.Lock()
		for i, b := range c.active {
			if b == a {
				c.active = append(c.active[:i:i], c.active[i+1:]...)
				break
			}
		}
		if !c.closed {
			c.forecast()
		}
		c.mu.Unlock()
	}
	if !begun.IsZero() {
		a.record(time.Now())
		a.release()
	}
}

// release undoes what the event did to nodes and processes, and lasts.
func (a *armed) release() {
	if a.event.When.On.kind == "" {
		a.each(Fault.opposite)
	}
}

// each does something to the nodes and processes that the event names.
func (a *armed) each(what func(Fault) Fault) {
	c := a.cluster
	for _, f := range a.event.Faults {
		g := what(f)
		if f.verb == pause {
			for name := range strings.SplitSeq(a.event.Where.clients, ",") {
				c.fail(c.Client(name).pause(g == f))
				a.count1(g == f)
			}
			continue
		}
		if g.verb == 0 || !f.ofNode() && f.verb != cut {
			continue
		}
		for _, n := range c.nodes {
			switch {
			case !a.event.Where.hasNode(n.number):
			case f.verb == cut:
				a.cut(n)
			default:
				c.fail(n.do(g))
				a.count1(g == f)
			}
		}
	}
}

func (a *armed) count1(yes bool) {
	if yes {
		a.hit()
	}
}

// cut resets the connections between the event's clients and a node.
func (a *armed) cut(n *Node) {
	if l := n.alive(); l != nil {
		l.each(func(k *link) {
			if a.event.Where.hasClient(k.path.client.name) {
				k.reset()
				a.hit()
			}
		})
	}
}

// opposite is what ends a fault of a node or a process; the others have none.
func (f Fault) opposite() Fault {
	switch f.verb {
	case freeze:
		return Thaw
	case kill:
		return Restart
	case clockRate:
		return ClockRate(1)
	case pause:
		return Fault{}
	}
	return Fault{}
}

// standing says whether the event has to be asked about messages.
func (a *armed) standing() bool {
	if a.event.When.On.kind != "" {
		return true
	}
	for _, f := range a.event.Faults {
		if f.lasts() && !f.ofNode() && f.verb != pause {
			return true
		}
	}
	return false
}

// lasts says whether something of the event has to be taken back.
func (a *armed) lasts() bool {
	for _, f := range a.event.Faults {
		if f.lasts() {
			return true
		}
	}
	return false
}

// hit counts a strike, and returns its number.
func (a *armed) hit() int64 { return a.fired.Add(1) }

// selects says whether the event strikes a command that has arrived at a node.
func (a *armed) selects(node int, c command) bool {
	t := a.event.When.On
	if t.kind != c.kind && t.kind != anyKind || t.keyed && !c.mentions(t.key) {
		return false
	}
	n := int(a.count[node].Add(1))
	if n < t.first || t.last > 0 && n > t.last {
		return false
	}
	return t.percent == 0 || a.random(node, uint64(n)) < t.percent/100
}

// random is a number in [0, 1) that is a function of the seed, the event, the node
// and n.
func (a *armed) random(node int, n uint64) float64 {
	x := a.seed + uint64(node)*0x9e3779b97f4a7c15 + n*0xd1342543de82ef95
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return float64((x^x>>31)>>11) / (1 << 53)
}

// chosen are the faults that strike a command, with their events.
func (n *Node) chosen(p *path, c command) (faults []effect) {
	for _, e := range p.weather.Load().triggers {
		if !e.of.selects(n.number, c) {
			continue
		}
		e.of.hit()
		for _, f := range e.of.event.Faults {
			faults = append(faults, effect{f, e.of})
			n.cluster.history.Strike(fmt.Sprintf("node %d", n.number), time.Now(), time.Time{}, f.String()+": "+c.kind)
		}
	}
	return faults
}

// span is how long a command is delayed.
func (e effect) span() time.Duration {
	d := e.fault.time
	if e.fault.jitter > 0 {
		d += time.Duration(e.of.random(0, uint64(e.of.fired.Load())) * float64(e.fault.jitter))
	}
	return d
}

// record puts an event that was not bound to commands into the history.
func (a *armed) record(now time.Time) {
	if a.event.When.On.kind != "" {
		return
	}
	a.mu.Lock()
	from := a.begun
	a.mu.Unlock()
	for _, f := range a.event.Faults {
		to := now
		if !f.lasts() {
			to = time.Time{}
		}
		for _, place := range a.places() {
			a.cluster.history.Strike(place, from, to, f.String())
		}
	}
}

func (a *armed) places() (places []string) {
	if a.event.Where.paused {
		for name := range strings.SplitSeq(a.event.Where.clients, ",") {
			places = append(places, "client "+name)
		}
		return places
	}
	for _, n := range a.cluster.nodes {
		if a.event.Where.hasNode(n.number) {
			places = append(places, fmt.Sprintf("node %d", n.number))
		}
	}
	return places
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
		fmt.Fprintf(&b, "%v   # struck %d times\n", a.event, a.fired.Load())
	}
	return b.String()
}
