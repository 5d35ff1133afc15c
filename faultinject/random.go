package faultinject

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

// Harm is a set of kinds of faults.
type Harm uint16

// The kinds, by what a lock must survive.
const (
	Slow     Harm = 1 << iota // delays
	Silence                   // hangs and partitions
	Breakage                  // cuts, refused dials, lost requests and replies, error replies
	Crash                     // freezes, and kills after which the data are still there
	Amnesia                   // restarts without the data or with old ones, FLUSHALL
	Drift                     // clocks that run up to 0.8 % fast or slow
	Steps                     // clocks that are set

	// Faithful is all that no node forgets in, and no clock errs in: a majority of
	// votes means what it says.
	Faithful = Slow | Silence | Breakage | Crash
)

// Climate is what random plans are drawn from.
type Climate struct {
	Nodes   int
	Clients []string      // that faults of paths may single out; none: they strike all
	Length  time.Duration // everything is over by then
	Events  int
	Harm    Harm
	Kinds   []string // of commands that faults are bound to; none is SET and EVALSHA
}

// Draw draws a plan. It is a function of the climate and the seed.
func (c Climate) Draw(seed uint64) (Plan, error) {
	switch {
	case c.Nodes < 1 || c.Nodes > maxNodes:
		return Plan{}, fmt.Errorf("faultinject: a climate for %d nodes; from 1 to %d", c.Nodes, maxNodes)
	case c.Length < time.Millisecond:
		return Plan{}, fmt.Errorf("faultinject: a climate of %v; it is 1ms at least", c.Length)
	case c.Events < 0 || c.Events > 0 && c.Harm == 0:
		return Plan{}, fmt.Errorf("faultinject: a climate with %d events and no harm", c.Events)
	}
	if len(c.Kinds) == 0 {
		c.Kinds = []string{"SET", "EVALSHA"}
	}
	d := drawing{Climate: c, r: rand.New(rand.NewPCG(seed, 0x6c6f636b))}
	p := Plan{Seed: seed}
	for range c.Events {
		p.Events = append(p.Events, d.event())
	}
	return p, nil
}

type drawing struct {
	Climate
	r *rand.Rand
}

// event draws a kind of harm first, so that kinds with many faults are no more
// frequent than the others.
func (d drawing) event() Event {
	var kinds []Harm
	for h := Slow; h <= Steps; h <<= 1 {
		if d.Harm&h != 0 {
			kinds = append(kinds, h)
		}
	}
	e := Event{When: d.span(), Where: d.nodes()}
	switch kinds[d.r.IntN(len(kinds))] {
	case Slow:
		late := Delay(d.upTo(200*time.Millisecond), d.upTo(50*time.Millisecond))
		if d.r.IntN(2) == 0 { // some commands only: later ones overtake them
			e.When.On = d.trigger()
		} else {
			e.Where, late = d.paths(e.Where), d.direction(late)
		}
		e.Faults = []Fault{late}
	case Silence:
		e.Where = d.paths(e.Where)
		e.Faults = []Fault{d.direction([]Fault{Hang, Partition, Partition}[d.r.IntN(3)])}
	case Breakage:
		return d.breakage(e)
	case Crash:
		return d.crash(e)
	case Amnesia:
		f := []Fault{RestartEmpty, RestartAsOf(d.upTo(2 * time.Second)), FlushAll}[d.r.IntN(3)]
		e.When.For, e.Faults = 0, []Fault{f}
	case Drift:
		e.Faults = []Fault{ClockRate(1 + float64(d.r.IntN(1601)-800)/100_000)}
	case Steps:
		step := d.upTo(20 * time.Second)
		if d.r.IntN(2) == 0 {
			step = -step
		}
		e.When.For, e.Faults = 0, []Fault{ClockStep(step)}
	}
	return e
}

func (d drawing) breakage(e Event) Event {
	e.Where = d.paths(e.Where)
	switch d.r.IntN(8) {
	case 0:
		e.Faults = []Fault{Refuse}
		return e
	case 1:
		e.When.For, e.Faults = 0, []Fault{Cut}
		return e
	}
	e.When.On = d.trigger()
	e.Faults = []Fault{[]Fault{
		LoseRequest, LoseReply, Cut.Before(), Cut.During(), Cut.After(),
		Error("OOM command not allowed when used memory > 'maxmemory'."),
		Error("LOADING Redis is loading the dataset in memory"), Error("NOSCRIPT No matching script."),
	}[d.r.IntN(8)]}
	return e
}

func (d drawing) crash(e Event) Event {
	switch d.r.IntN(4) {
	case 0:
		e.Faults = []Fault{Freeze}
	case 1:
		e.Faults = []Fault{Kill}
	default:
		// What begins on a command must be over in time as well.
		down := max(e.When.For/2, time.Millisecond)
		e.When.For -= down
		e.When.On = On(d.Kinds[d.r.IntN(len(d.Kinds))]).Nth(1 + d.r.IntN(3))
		f := []Fault{Kill.Before(), Kill.During(), Kill.After(), Freeze}[d.r.IntN(4)]
		e.Faults = []Fault{f.For(down)}
		if e.When.For < time.Millisecond {
			e.When.For = time.Millisecond
		}
	}
	return e
}

func (d drawing) trigger() Trigger {
	t := On(d.Kinds[d.r.IntN(len(d.Kinds))])
	switch d.r.IntN(3) {
	case 0:
		return t.Nth(1 + d.r.IntN(4))
	case 1:
		return t.Percent(float64(1 + d.r.IntN(60)))
	}
	return t
}

// span draws when something begins and how long it lasts, in whole milliseconds:
// mostly short, as most faults are.
func (d drawing) span() (w When) {
	total := int(d.Length / time.Millisecond)
	at := d.r.IntN(total)
	last := 1 + d.r.IntN(total-at)
	if d.r.IntN(3) > 0 {
		last = 1 + last/4
	}
	return When{At: time.Duration(at) * time.Millisecond, For: time.Duration(min(last, total-at)) * time.Millisecond}
}

func (d drawing) upTo(most time.Duration) time.Duration {
	return time.Duration(1+d.r.IntN(int(most/time.Millisecond))) * time.Millisecond
}

// nodes draws one node, mostly, or several.
func (d drawing) nodes() Where {
	k := 1
	if d.r.IntN(3) == 0 {
		k = 1 + d.r.IntN(d.Nodes)
	}
	if k == d.Nodes {
		return Where{}
	}
	numbers := d.r.Perm(d.Nodes)[:k]
	for i := range numbers {
		numbers[i]++
	}
	return Nodes(numbers...)
}

// paths restricts a fault of the network to some clients, half of the time.
func (d drawing) paths(w Where) Where {
	if len(d.Clients) == 0 || d.r.IntN(2) == 0 {
		return w
	}
	var some []string
	for _, i := range d.r.Perm(len(d.Clients))[:1+d.r.IntN(len(d.Clients))] {
		some = append(some, d.Clients[i])
	}
	w.clients = strings.Join(some, ",")
	return w
}

func (d drawing) direction(f Fault) Fault {
	switch d.r.IntN(4) {
	case 0:
		return f.Requests()
	case 1:
		return f.Replies()
	}
	return f
}
