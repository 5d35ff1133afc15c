package faultinject

import (
	"context"
	"net"
	"sync/atomic"
	"time"
)

// path is what lies between one client and one node.
type path struct {
	client *Client
	node   *Node

	base    [3]time.Duration // by way, without any fault; guarded by the cluster's mutex
	weather atomic.Pointer[weather]
	draws   map[*armed]*[3]atomic.Uint64 // by way, how often a jitter was drawn; for forecast
	socket  socket
}

// draw counts for jitter, whatever the weather was in between.
func (p *path) draw(a *armed) *[3]atomic.Uint64 {
	if p.draws[a] == nil {
		if p.draws == nil {
			p.draws = make(map[*armed]*[3]atomic.Uint64)
		}
		p.draws[a] = new([3]atomic.Uint64)
	}
	return p.draws[a]
}

// weather is what all active faults together do to a path. It is never changed
// but replaced, so that messages on their way need no lock.
type weather struct {
	path     *path
	base     [3]time.Duration // by way, without any fault
	gates    [3]gate
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
	index uint64            // of the fault in the event
	draws *[3]atomic.Uint64 // by way, of a fault of messages
	extra time.Duration     // of a fault of commands, what its jitter came to
}

// add lets an active event work on the path.
func (w *weather) add(a *armed) {
	if a.event.When.On.kind != "" {
		w.triggers = append(w.triggers, effect{of: a})
		return
	}
	for i, f := range a.event.Faults {
		e := effect{fault: f, of: a, index: uint64(i), draws: w.path.draw(a)}
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
// Its jitter is a function of the seed, the event, the client, the node, the
// direction, and how many messages there were before it.
func (w *weather) delay(d way) time.Duration {
	sum := w.base[d]
	for _, e := range w.delays[d] {
		e.of.hit()
		sum += e.fault.time
		if e.fault.jitter > 0 {
			n := e.draws[d].Add(1)
			part := e.of.random(textKey(w.path.client.name), uint64(w.path.node.number), uint64(d), e.index, n)
			sum += time.Duration(part * float64(e.fault.jitter))
		}
	}
	return sum
}

// least is how long the end of a connection takes. It does not count.
func (w *weather) least(d way) time.Duration {
	sum := w.base[d]
	for _, e := range w.delays[d] {
		sum += e.fault.time
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
	for _, e := range w.triggers {
		if !e.of.spent(w.path.node.number) {
			return false
		}
	}
	return w.gates == [3]gate{} && len(w.delays[requests])+len(w.delays[replies])+
		len(w.refusing)+len(w.messages)+len(w.forgets) == 0
}

// dial is a client's connection to the node.
func (p *path) dial(ctx context.Context) (net.Conn, error) {
	failed := func(err error) error { return &net.OpError{Op: "dial", Net: "tcp", Addr: p.node.addr, Err: err} }
	w := p.weather.Load()
	for w.gates[requests] != open || w.gates[replies] != open {
		if w.gates[requests] != open {
			w.struck(requests)
		} else {
			w.struck(replies)
		}
		select {
		case <-w.over: // the system tries again
		case <-ctx.Done():
			return nil, failed(ctx.Err())
		case <-p.node.cluster.done:
			return nil, failed(net.ErrClosed)
		}
		w = p.weather.Load()
	}
	if d := w.delay(requests) + w.delay(replies); d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return nil, failed(ctx.Err())
		case <-p.node.cluster.done:
			return nil, failed(net.ErrClosed)
		}
	}
	if len(w.refusing) > 0 {
		w.refusing[0].of.hit()
		return nil, p.node.refused()
	}
	k, err := p.node.connect(p)
	if err != nil {
		return nil, err
	}
	return &k.near, nil
}
