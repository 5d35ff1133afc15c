// Package scenarios is a catalogue of the ways in which locks on Redis have
// failed, each as a story that can be played: on embedded nodes in virtual time by
// tests, in real time and on real servers by the command line. The stories know
// nothing of redlock: they are told to any lock, so that tests can show what they
// do to a naive one.
package scenarios

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/seed58520471/redlock/faultinject"
)

// Scenario is a story: what clients do with locks, and what happens to them
// meanwhile.
type Scenario struct {
	Name  string // in words joined by '-'
	Story string // what happens, in a sentence or two
	Nodes int
	RTT   time.Duration
	Plan  string  // what happens to nodes and network; {0.5} is half of the ttl
	Guard float64 // for how many ttls a restarted node must not vote; 0: locks are not told so
	Cued  bool    // the plan starts when the play says so, with World.start
	Play  func(*World) error

	Fenced bool // locks have fencing tokens

	// Residue says what no lock with a time limit prevents, and a fencing token
	// does; LateActs finds it in this story. Empty: nothing is left.
	Residue string

	// TwoHolders says which condition of the promise the story breaks, so that two
	// clients hold the lock at once; Exclusive finds them. Empty: there must not be
	// two.
	TwoHolders string

	// Servers are the options of redis-server for stories that embedded nodes
	// cannot tell; nil for the others, which real servers can tell too unless
	// Embedded says otherwise.
	Servers  []string
	Embedded bool
}

// Admits is what a run of the story may show and is no violation; empty: nothing.
func (s Scenario) Admits() string {
	var all []string
	for _, a := range []string{s.Residue, s.TwoHolders} {
		if a != "" {
			all = append(all, a)
		}
	}
	return strings.Join(all, "; ")
}

var catalogue []Scenario

// register adds scenarios to the catalogue.
func register(all ...Scenario) { catalogue = append(catalogue, all...) }

// Catalogue is all scenarios, by name.
func Catalogue() []Scenario {
	all := append([]Scenario(nil), catalogue...)
	sort.Slice(all, func(i, j int) bool { return all[i].Name < all[j].Name })
	return all
}

// Find is the scenario of that name.
func Find(name string) (Scenario, bool) {
	for _, s := range catalogue {
		if s.Name == name {
			return s, true
		}
	}
	return Scenario{}, false
}

// Options are how a scenario is played.
type Options struct {
	TTL     time.Duration // of the locks; all other times follow from it. 0 is Real
	Servers bool          // on redis-server processes
	Seed    uint64
	Locks   Maker // the lock that is put to the test; nil is redlock
}

// Result is what came of it.
type Result struct {
	Scenario     string
	Acquisitions int
	Faults       int           // how often something struck
	Took         time.Duration // in the scenario's time
	Violation    error         // something that no lock may do
	Residue      error         // late acts and two holders, in stories that admit them
	History      *faultinject.History
	Report       string // what was injected, and the picture
}

// Run plays the scenario. The error says that it could not be played.
func (s Scenario) Run(ctx context.Context, o Options) (r Result, err error) {
	if o.TTL == 0 {
		o.TTL = Real
	}
	if o.Locks == nil {
		o.Locks = Redlock
	}
	options := []faultinject.Option{faultinject.RTT(s.RTT), faultinject.Seed(o.Seed)}
	if o.Servers || s.Servers != nil {
		if s.Embedded {
			return r, fmt.Errorf("scenario %s is for embedded nodes only", s.Name)
		}
		options = append(options, faultinject.Servers(s.Servers...))
	}
	c, err := faultinject.New(s.Nodes, options...)
	if err != nil {
		return r, err
	}
	defer c.Close()
	begin := time.Now()
	w := &World{
		Cluster: c, TTL: o.TTL, Guard: time.Duration(s.Guard * float64(o.TTL)), Servers: o.Servers || s.Servers != nil,
		ctx: ctx, make: o.Locks, seed: o.Seed, shared: s.TwoHolders != "", fenced: s.Fenced,
	}
	violation, err := w.play(s)
	sum := c.History().Summary()
	r = Result{
		Scenario: s.Name, Acquisitions: sum.Acquisitions, Faults: w.fired(), Took: time.Since(begin),
		Violation: violation, Residue: w.residue, History: c.History(), Report: c.Report(),
	}
	if late := faultinject.LateActs(c.History()); s.Residue != "" {
		r.Residue = errors.Join(r.Residue, late)
	} else {
		r.Violation = errors.Join(r.Violation, late)
	}
	return r, err
}

// play lets the story happen and checks what must hold after any.
func (w *World) play(s Scenario) (violation, err error) {
	defer w.close()
	if s.Plan != "" {
		p, err := faultinject.ParsePlan(w.inTTLs(s.Plan))
		if err != nil {
			return nil, err
		}
		p.Seed = w.seed
		w.plan = p
	}
	w.began = time.Now()
	if !s.Cued {
		if err := w.start(); err != nil {
			return nil, err
		}
	}
	violation = s.Play(w)
	if s.Cued && len(w.injected) == 0 {
		return violation, errors.New("the play came to its end before its plan started")
	}
	for _, in := range w.injected {
		in.Stop()
		if err := in.Check(); err != nil {
			return violation, err
		}
	}
	return errors.Join(violation, w.check()), nil
}

var share = regexp.MustCompile(`\{[0-9.]+\}`)

// inTTLs turns shares of the ttl into durations.
func (w *World) inTTLs(text string) string {
	return share.ReplaceAllStringFunc(text, func(s string) string {
		f, _ := strconv.ParseFloat(s[1:len(s)-1], 64)
		return time.Duration(f * float64(w.TTL)).Round(time.Millisecond).String()
	})
}
