package faultinject

import (
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// armed is an event that strikes, has struck or will.
type armed struct {
	event   Event
	cluster *Cluster
	seed    uint64
	fired   atomic.Int64
	count   [maxNodes + 1]atomic.Uint64 // by node, what the trigger matched

	turn sync.Mutex // held while it begins and while it ends

	mu     sync.Mutex
	begun  time.Time
	done   bool
	told   time.Time // until when the history knows of it
	closed bool      // the history knows its end
}

// begin lets the event strike.
func (a *armed) begin() {
	a.turn.Lock()
	defer a.turn.Unlock()
	a.mu.Lock()
	if a.done {
		a.mu.Unlock()
		return
	}
	a.begun = time.Now()
	a.mu.Unlock()
	c := a.cluster
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
		a.finish()
	}
}

// end takes back what the event has begun, and keeps it from beginning.
func (a *armed) end() {
	a.turn.Lock()
	defer a.turn.Unlock()
	a.finish()
}

// finish is end, in its turn.
func (a *armed) finish() {
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
		if i := slices.Index(c.active, a); i >= 0 {
			c.active = slices.Delete(c.active, i, i+1)
		}
		if !c.closed {
			c.forecast()
		}
		c.mu.Unlock()
	}
	if !begun.IsZero() {
		a.record(time.Now(), true)
		a.release()
	}
}

// release undoes what the event did to nodes and processes, and lasts. A cluster
// that closes leaves its nodes as they are.
func (a *armed) release() {
	if a.event.When.On.kind != "" {
		return
	}
	a.cluster.mu.Lock()
	closed := a.cluster.closed
	a.cluster.mu.Unlock()
	a.each(func(f Fault) Fault {
		if closed && f.ofNode() {
			return Fault{}
		}
		return f.opposite()
	})
}

// each does something to the nodes and processes that the event names, and counts
// what is no release.
func (a *armed) each(what func(Fault) Fault) {
	for _, f := range a.event.Faults {
		switch g := what(f); {
		case f.verb == pause:
			a.pause(g == f)
		case g.verb == 0:
		case g.verb == cut:
			a.onNodes(a.cut)
		case g.ofNode():
			a.onNodes(func(n *Node) {
				struck, err := n.do(g)
				a.cluster.fail(err)
				if struck && g == f {
					a.hit()
				}
			})
		}
	}
}

func (a *armed) onNodes(do func(*Node)) {
	for _, n := range a.cluster.nodes {
		if a.event.Where.hasNode(n.number) {
			do(n)
		}
	}
}

// pause stops the event's clients, or lets them go on.
func (a *armed) pause(stop bool) {
	for name := range strings.SplitSeq(a.event.Where.clients, ",") {
		err := a.cluster.Client(name).pause(stop)
		a.cluster.fail(err)
		if stop && err == nil {
			a.hit()
		}
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

// revival is what ends a Kill: a restart with the data, unless somebody has
// restarted the node before.
var revival = Fault{verb: revive}

// opposite is what ends a fault of a node or a process; the others have none.
func (f Fault) opposite() Fault {
	switch f.verb {
	case freeze:
		return Thaw
	case kill:
		return revival
	case clockRate:
		return ClockRate(1)
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

// selects says whether the event strikes a command that has arrived at a node, the
// n-th there that its trigger matches.
func (a *armed) selects(node int, c command) (n uint64, strikes bool) {
	t := a.event.When.On
	if t.kind != c.kind && t.kind != anyKind || t.keyed && !c.mentions(t.key) {
		return 0, false
	}
	n = a.count[node].Add(1)
	if n < uint64(t.first) || t.last > 0 && n > uint64(t.last) {
		return n, false
	}
	return n, t.percent == 0 || a.random(uint64(node), n) < t.percent/100
}

// random is a number in [0, 1) that is a function of the seed, the event and keys.
// Each use has another number of keys.
func (a *armed) random(keys ...uint64) float64 {
	x := a.seed
	for _, k := range keys {
		x += 0x9e3779b97f4a7c15 + k*0xd1342543de82ef95
		x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
		x = (x ^ x>>27) * 0x94d049bb133111eb
		x ^= x >> 31
	}
	return float64(x>>11) / (1 << 53)
}

// textKey makes a key of a text.
func textKey(s string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(s))
	return h.Sum64()
}

// chosen are the faults that strike a command, with their events.
func (n *Node) chosen(p *path, c command) (faults []effect) {
	spent := false
	for _, e := range p.weather.Load().triggers {
		count, strikes := e.of.selects(n.number, c)
		if !strikes {
			continue
		}
		e.of.hit()
		for i, f := range e.of.event.Faults {
			g := effect{fault: f, of: e.of, index: uint64(i)}
			g.extra = time.Duration(e.of.random(uint64(n.number), g.index, count) * float64(f.jitter))
			faults = append(faults, g)
			n.cluster.history.Strike(fmt.Sprintf("node %d", n.number), time.Now(), time.Time{}, f.String()+": "+c.kind)
		}
		spent = spent || e.of.spent(n.number)
	}
	if spent {
		n.cluster.mu.Lock()
		n.cluster.examine()
		n.cluster.mu.Unlock()
	}
	return faults
}

// spent says whether the event will not strike a node any more.
func (a *armed) spent(node int) bool {
	last := a.event.When.On.last
	return last > 0 && a.count[node].Load() >= uint64(last)
}

// record puts an event that was not bound to commands into the history, as far as
// that was not done, or its end.
func (a *armed) record(now time.Time, end bool) {
	a.mu.Lock()
	from, again := a.begun, !a.told.IsZero()
	if again {
		from = a.told
	}
	skip := from.IsZero() || a.closed || a.event.When.On.kind != ""
	a.told, a.closed = now, a.closed || end
	a.mu.Unlock()
	if skip {
		return
	}
	for _, f := range a.event.Faults {
		to := now
		if !f.lasts() {
			if again {
				continue
			}
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
	a.onNodes(func(n *Node) { places = append(places, fmt.Sprintf("node %d", n.number)) })
	return places
}
