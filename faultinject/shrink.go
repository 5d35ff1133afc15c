package faultinject

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Shrink looks for a smaller plan that fails too: fewer events, shorter ones, on
// fewer nodes. It asks fails at most runs times, and returns the smallest plan of
// which it said yes; of a plan that fails only sometimes it may say yes and no.
func Shrink(p Plan, runs int, fails func(Plan) bool) Plan {
	s := shrinking{plan: p, runs: runs, fails: fails}
	for again := true; again && s.runs > 0; {
		again = s.dropEvents()
		for i := range s.plan.Events {
			for s.simplify(i) {
				again = true
			}
		}
	}
	return s.plan
}

type shrinking struct {
	plan  Plan
	runs  int
	fails func(Plan) bool
}

// try takes the events for the plan's, if it still fails with them.
func (s *shrinking) try(events []Event) bool {
	if s.runs <= 0 {
		return false
	}
	s.runs--
	p := Plan{Seed: s.plan.Seed, Events: events}
	if !s.fails(p) {
		return false
	}
	s.plan = p
	return true
}

// dropEvents drops halves, then quarters, and in the end single events.
func (s *shrinking) dropEvents() (smaller bool) {
	for size := (len(s.plan.Events) + 1) / 2; size > 0; size /= 2 {
		for at := 0; at < len(s.plan.Events); {
			rest := slices.Delete(slices.Clone(s.plan.Events), at, min(at+size, len(s.plan.Events)))
			if s.try(rest) {
				smaller = true
				continue
			}
			at += size
		}
	}
	return smaller
}

// simplify makes one event smaller in one way.
func (s *shrinking) simplify(i int) bool {
	e := s.plan.Events[i]
	var ideas []Event
	idea := func(change func(*Event)) {
		f := e
		f.Faults = slices.Clone(e.Faults)
		change(&f)
		if f.Check() == nil && f.String() != e.String() {
			ideas = append(ideas, f)
		}
	}
	for k := range e.Faults {
		if len(e.Faults) > 1 {
			idea(func(f *Event) { f.Faults = slices.Delete(f.Faults, k, k+1) })
		}
		idea(func(f *Event) { f.Faults[k].jitter = 0 })
	}
	idea(func(f *Event) { f.When.For = half(f.When.For) })
	idea(func(f *Event) { f.When.At = half(f.When.At) })
	idea(func(f *Event) { f.Where.clients = firstHalf(f.Where.clients) })
	for _, part := range parts(e.Where.nodes) {
		idea(func(f *Event) { f.Where.nodes = part; f.Where.mask, _ = parseNodes(part) })
	}
	for _, f := range ideas {
		events := slices.Clone(s.plan.Events)
		events[i] = f
		if s.try(events) {
			return true
		}
	}
	return false
}

// half is half a duration in whole milliseconds, and never nothing.
func half(d time.Duration) time.Duration {
	if d < 2*time.Millisecond {
		return d
	}
	return (d / 2).Truncate(time.Millisecond)
}

func firstHalf(list string) string {
	all := strings.Split(list, ",")
	return strings.Join(all[:(len(all)+1)/2], ",")
}

// parts are both halves of a list of single nodes.
func parts(list string) []string {
	all := strings.Split(list, ",")
	if len(all) < 2 {
		return nil
	}
	middle := len(all) / 2
	return []string{strings.Join(all[:middle], ","), strings.Join(all[middle:], ",")}
}

// Failure is a plan under which something was wrong.
type Failure struct {
	Plan     Plan   // as drawn
	Smallest Plan   // that fails too
	Picture  string // of the smallest plan's run
	Err      error  // what was wrong in it
}

// Error has all that is needed to see what happened, and to see it again.
func (f *Failure) Error() string {
	what := fmt.Sprintf("the smallest plan that fails, of %d events drawn:", len(f.Plan.Events))
	if len(f.Smallest.Events) == 0 {
		what = "it fails without any fault, too:"
	}
	return fmt.Sprintf("seed %d: %v\n\n%s\n%v\n%s", f.Plan.Seed, f.Err, what, f.Smallest, f.Picture)
}

// Unwrap is what was wrong.
func (f *Failure) Unwrap() error { return f.Err }

// shrinkRuns bounds what Explore spends on making a failure small.
const shrinkRuns = 60

// Explore draws a plan from each of some seeds, with [Climate.Draw] for example,
// and runs it. The first that fails is shrunk, and comes back as a *Failure. run
// makes a world of its own, plays the plan in it, and returns what a checker said
// and a picture, that of a History for example. It is called from one goroutine.
func Explore(
	first uint64, seeds int, draw func(seed uint64) (Plan, error), run func(Plan) (picture string, err error),
) error {
	for seed := first; seed < first+uint64(seeds); seed++ {
		p, err := draw(seed)
		if err != nil {
			return err
		}
		picture, err := run(p)
		if err == nil {
			continue
		}
		f := &Failure{Plan: p, Smallest: p, Picture: picture, Err: err}
		Shrink(p, shrinkRuns, func(smaller Plan) bool {
			picture, err := run(smaller)
			if err != nil {
				f.Smallest, f.Picture, f.Err = smaller, picture, err
			}
			return err != nil
		})
		return f
	}
	return nil
}
