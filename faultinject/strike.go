package faultinject

import (
	"io"
	"net"
	"time"
)

// next is the next command that the server shall execute.
func (l *link) next() ([]byte, error) {
	for {
		// An embedded server reads ahead. It must not: a command arrives, for all
		// that is counted here, when the one before it is done.
		if l.life.serial && !l.waitIdle() {
			return nil, net.ErrClosed
		}
		m, err := l.req.get(noDeadline)
		if err != nil {
			return nil, err
		}
		switch c, ok := parseCommand(m); {
		case !ok:
			l.rep.put(errorReply("ERR Protocol error: not a flat array of bulk strings"), 0, noDeadline)
			l.finish()
			return nil, io.EOF
		case c.kind == "": // an empty line, which servers skip
		case l.arrive(c):
			if l.life.serial {
				m = array(m)
			}
			return m, nil
		}
	}
}

// waitIdle waits until every request on the connection is answered. It is false
// when nobody waits for the answers any more: a command that blocks must not outlive
// its client.
func (l *link) waitIdle() bool {
	for {
		l.mu.Lock()
		busy := len(l.pending) > 0
		l.mu.Unlock()
		if !busy {
			return true
		}
		if wait, err := l.req.state(); err != nil || !l.rest(wait) {
			return false
		}
	}
}

// rest waits until something has changed, or for d if it is above 0. It is false
// when the server has ended.
func (l *link) rest(d time.Duration) bool {
	var over <-chan time.Time
	if d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		over = timer.C
	}
	select {
	case <-l.idle:
	case <-l.req.wake:
	case <-over:
	case <-l.life.gone:
		return false
	}
	return true
}

// arrive lets faults strike a command that has reached the node. It is true when
// the server shall execute it, and has the node for itself then until it is
// answered. A command that may wait for others has it until it is handed over.
func (l *link) arrive(c command) (execute bool) {
	n := l.path.node
	r := request{command: c, turn: l.life.serial, confirms: c.confirms()}
	if r.turn && !l.life.enter() {
		return false
	}
	var text string
	for _, e := range n.chosen(l.path, r.command) {
		switch f := e.fault; {
		case f.verb == delay && f.way == replies:
			r.late += f.time + e.extra
		case f.verb == delay:
			if !l.stepAside(r, f.time+e.extra) {
				return false
			}
		case f.verb == freeze:
			if !l.freeze(r, f.span) {
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
			n.later(f.span, revival)
			return false
		case f.verb == loseReply, f.stage == during, f.stage == after:
			r.fates = append(r.fates, e)
		default:
			_, err := n.suffer(f, l.life)
			n.cluster.fail(err)
			if l.life.ended() {
				return false
			}
		}
	}
	if text != "" {
		if l.waitIdle() { // replies keep their order
			l.rep.put(errorReply(text), r.late, noDeadline)
		}
		return l.drop(r)
	}
	n.executes(l.life, r.command)
	l.expect(r)
	return true
}

// expect remembers a command that the server gets.
func (l *link) expect(r request) {
	waits := r.turn && r.blocks()
	if waits {
		r.turn = false
	}
	l.mu.Lock()
	l.pending = append(l.pending, r)
	l.subscribed = l.subscribed || r.confirms > 0
	l.mu.Unlock()
	if waits {
		l.life.leave()
	}
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
// It is false if the connection was reset meanwhile: what is still on its way then
// finds no connection at the other end. One that its client has closed in peace, or
// given up, delivers all.
func (l *link) stepAside(r request, d time.Duration) (ok bool) {
	l.leave(r)
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-l.life.gone:
		return false
	}
	if l.req.isReset() {
		return false
	}
	return !r.turn || l.life.enter()
}

// freeze stops the node before it executes the command.
func (l *link) freeze(r request, span time.Duration) (ok bool) {
	n := l.path.node
	n.later(span, Thaw)
	if r.turn {
		return l.life.freeze(func() { n.cluster.changed(n) })
	}
	_, err := n.suffer(Freeze, l.life)
	n.cluster.fail(err)
	return true // and then it waits in the kernel
}

// answer passes on what the server has written: a reply to the oldest request that
// has none, or a message that nobody has asked for.
func (l *link) answer(m []byte) {
	l.mu.Lock()
	l.pushes = l.pushes || m[0] == '>'
	if m[0] == '>' || l.subscribed && !l.pushes {
		published, confirmation := pushed(m)
		if published || m[0] == '>' && !confirmation || confirmation && !l.confirmed() {
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

	if r.kind != "" && l.life.serial && !r.turn { // it has blocked, and is part of the queue again
		if !l.life.enter() {
			return
		}
		r.turn = true
	}
	if r.kind != "" {
		l.path.node.executed(l.life, r.command)
	}
	if l.fateDuring(r) {
		l.rep.put(m, r.late, noDeadline)
		l.fateAfter(r)
	}
	l.leave(r)
	poke(l.idle)
}

// confirmed counts the confirmation of a subscription. It is true if it is the last
// one that the oldest request waits for. The mutex is held.
func (l *link) confirmed() bool {
	if len(l.pending) == 0 || l.pending[0].confirms == 0 {
		return false
	}
	l.pending[0].confirms--
	return l.pending[0].confirms == 0
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
			l.path.node.later(f.span, revival)
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
			l.path.node.later(f.span, revival)
			return
		}
	}
}

// publish passes on a message to a subscriber, or another one that no request has
// asked for, which no fault of messages strikes.
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
