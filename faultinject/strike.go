package faultinject

import (
	"time"
)

// next is the next command that the server shall execute.
func (l *link) next() ([]byte, error) {
	for {
		// An embedded server reads ahead. It must not: a command arrives, for all
		// that is counted here, when the one before it is done.
		if l.life.serial && !l.waitIdle() {
			return nil, errStruck
		}
		m, err := l.req.get(noDeadline)
		if err != nil {
			return nil, err
		}
		if l.arrive(m) {
			return m, nil
		}
	}
}

// waitIdle waits until every request on the connection is answered. It is false
// when the server has ended.
func (l *link) waitIdle() bool {
	for {
		l.mu.Lock()
		busy := len(l.pending) > 0
		l.mu.Unlock()
		if !busy {
			return true
		}
		select {
		case <-l.idle:
		case <-l.life.gone:
			return false
		}
		if l.req.broken() {
			return false
		}
	}
}

// arrive lets faults strike a command that has reached the node. It is true when
// the server shall execute it, and has the node for itself then until it is
// answered.
func (l *link) arrive(m []byte) (execute bool) {
	n := l.path.node
	r := request{command: parseCommand(m)}
	r.turn = l.life.serial && !r.blocks()
	if r.turn && !l.life.enter() {
		return false
	}
	var text string
	for _, e := range n.chosen(l.path, r.command) {
		switch f := e.fault; {
		case f.verb == delay:
			ok := l.stepAside(r, e.span())
			if !ok {
				return false
			}
		case f.verb == freeze:
			l.life.setFrozen(true)
			if !l.life.serial {
				n.cluster.fail(l.life.server.freeze(true)) // before it gets the command
			}
			n.later(f.span, Thaw)
			if ok := l.stepAside(r, 0); !ok {
				return false
			}
		case f.verb == reply:
			text = f.text
		case f.verb == loseRequest, f.verb == hang:
			l.silence()
			return l.drop(r)
		case f.stage == before && f.verb == cut:
			l.reset()
			return l.drop(r)
		case f.stage == before && f.verb == kill:
			n.kill(l.life)
			n.later(f.span, Restart)
			return false
		case f.verb == loseReply, f.stage == during, f.stage == after:
			r.fates = append(r.fates, e)
		default:
			n.suffer(f, l.life)
			if l.life.ended() {
				return false
			}
		}
	}
	if text != "" {
		if l.waitIdle() { // replies keep their order
			l.rep.put(errorReply(text), 0, noDeadline)
		}
		return l.drop(r)
	}
	n.executes(l.life, r.command)
	l.mu.Lock()
	l.pending = append(l.pending, r)
	l.subscribed = l.subscribed || r.subscribes()
	l.mu.Unlock()
	return true
}

// drop ends a command that will not be executed.
func (l *link) drop(r request) (execute bool) {
	l.leave(r)
	return false
}

func (l *link) leave(r request) {
	if r.turn {
		l.life.leave()
	}
}

// stepAside lets other connections go on for d, and then waits for the node again.
func (l *link) stepAside(r request, d time.Duration) (ok bool) {
	l.leave(r)
	if d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-l.life.gone:
			return false
		}
	}
	return !r.turn || l.life.enter()
}

// answer passes on what the server has written: a reply to the oldest request that
// has none, or a message to a subscriber.
func (l *link) answer(m []byte) {
	l.mu.Lock()
	if l.subscribed {
		published, confirmation := pushed(m)
		if published || confirmation && (len(l.pending) == 0 || !l.pending[0].subscribes()) {
			l.mu.Unlock()
			l.publish(m, published)
			return
		}
	}
	var r request
	if len(l.pending) > 0 {
		r = l.pending[0]
		l.pending = l.pending[1:]
	}
	l.mu.Unlock()

	n := l.path.node
	if r.kind != "" {
		n.executed(l.life, r.command)
	}
	if l.fateDuring(r) {
		l.rep.put(m, 0, noDeadline)
		l.fateAfter(r)
	}
	l.leave(r)
	poke(l.idle)
}

// fateDuring lets what strikes between execution and reply strike. It is true if
// the reply leaves.
func (l *link) fateDuring(r request) (leaves bool) {
	leaves = true
	for _, e := range r.fates {
		switch f := e.fault; {
		case f.verb == loseReply:
			l.silence()
			leaves = false
		case f.verb == cut && f.stage == during:
			l.reset()
			leaves = false
		case f.verb == kill && f.stage == during:
			l.path.node.kill(l.life)
			l.path.node.later(f.span, Restart)
			return false
		}
	}
	return leaves
}

func (l *link) fateAfter(r request) {
	for _, e := range r.fates {
		switch f := e.fault; {
		case f.verb == cut && f.stage == after:
			l.finish()
		case f.verb == kill && f.stage == after:
			l.path.node.kill(l.life)
			l.path.node.later(f.span, Restart)
			return
		}
	}
}

// publish passes on a message to a subscriber, or the confirmation of a
// subscription, which no fault of messages strikes.
func (l *link) publish(m []byte, published bool) {
	var d time.Duration
	if published {
		for _, e := range l.path.weather.Load().messages {
			e.of.hit()
			switch e.fault.verb {
			case loseMessages:
				return
			case delayMessages:
				d += e.fault.time
			case hangMessages:
				l.silence()
				return
			}
		}
	}
	l.rep.put(m, d, noDeadline)
}
