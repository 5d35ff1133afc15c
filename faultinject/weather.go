package faultinject

import (
	"sync/atomic"
	"time"
)

// path is what lies between one client and one node.
type path struct {
	client *Client
	node   *Node

	base    time.Duration // one way, without any fault
	weather atomic.Pointer[weather]
	socket  socket
}

// weather is what all active faults together do to a path. It is never changed
// but replaced, so that messages on their way need no lock.
type weather struct {
	base     time.Duration // one way, without any fault
	gates    [3]gate       // by way
	delays   [3][]effect
	shutters [3][]effect // that made the gates
	refusing []effect
	messages []effect
	forgets  []effect
	triggers []effect      // one per event, its faults are in the event
	over     chan struct{} // closed when the weather changes
}

// effect is a fault at work, and the event that it belongs to.
type effect struct {
	fault Fault
	of    *armed
}

// add lets an active event work on the path.
func (w *weather) add(a *armed) {
	if a.event.When.On.kind != "" {
		w.triggers = append(w.triggers, effect{of: a})
		return
	}
	for _, f := range a.event.Faults {
		e := effect{f, a}
		switch f.verb {
		case delay:
			w.each(f.way, func(d way) { w.delays[d] = append(w.delays[d], e) })
		case hang:
			w.each(f.way, func(d way) { w.gates[d] = astray; w.shutters[d] = append(w.shutters[d], e) })
		case partition:
			w.each(f.way, func(d way) { w.gates[d] = max(w.gates[d], shut); w.shutters[d] = append(w.shutters[d], e) })
		case refuse:
			w.refusing = append(w.refusing, e)
		case forget:
			w.forgets = append(w.forgets, e)
		case loseMessages, delayMessages, hangMessages:
			w.messages = append(w.messages, e)
		}
	}
}

func (w *weather) each(of way, do func(way)) {
	for _, d := range []way{requests, replies} {
		if of.has(d) {
			do(d)
		}
	}
}

// delay is how long a message takes in a direction. Each asks once, and counts.
func (w *weather) delay(d way) time.Duration {
	sum := w.base
	for _, e := range w.delays[d] {
		n := e.of.hit()
		sum += e.fault.time
		if e.fault.jitter > 0 {
			sum += time.Duration(e.of.random(0, uint64(n)) * float64(e.fault.jitter))
		}
	}
	return sum
}

// struck counts a message that meets a gate that is not open.
func (w *weather) struck(d way) {
	for _, e := range w.shutters[d] {
		e.of.hit()
	}
}

// passes says whether a connection is remembered that carries something now, after
// a while.
func (w *weather) passes(silent time.Duration) bool {
	for _, e := range w.forgets {
		if silent > e.fault.time {
			e.of.hit()
			return false
		}
	}
	return true
}

// clear says whether nothing is wrong with the path.
func (w *weather) clear() bool {
	return w.gates == [3]gate{} && len(w.delays[requests])+len(w.delays[replies])+
		len(w.refusing)+len(w.messages)+len(w.forgets)+len(w.triggers) == 0
}
