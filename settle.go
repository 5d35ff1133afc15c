package redlock

import "time"

// settle takes in the replies of one batch. It returns false when the connection
// is no good any more.
func (n *node) settle(batch []*request, cmds []command, took time.Duration, out *answers) (good bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	good = true
	heard := false
	acks, short := acknowledged(batch, cmds)
	if acks == broken || acks == timeout {
		good = false
	}
	for i, q := range batch {
		r, found, err := q.read(cmds[i])
		switch {
		case r == timeout: // the same words as for a vote that is not waited for any longer
			err = errNoAnswer{after: n.dialer.timeout}
			fallthrough
		case r == broken:
			good = false
		case err != nil && stale(err):
			good = false
			fallthrough
		default:
			heard = true
		}
		if q.kind == inspect {
			q.found = cmds[i].Val()
		}
		q.claim.heardOf(q, r)
		n.learn(q, r, err)
		n.heardAge(q, r, err)
		if n.again(q, r, err) {
			continue
		}
		err = q.blame(err)
		q.fallShort(r, short)
		n.conclude(q, r, found, err, out)
		batch[i] = nil
	}
	// What is to be written again goes back to the head of the queue, in order.
	for i := len(batch) - 1; i >= 0; i-- {
		if batch[i] != nil {
			n.queueOf(batch[i]).unpop(batch[i])
		}
	}
	if heard && good && len(cmds) == len(batch) { // to wait for replicas is not the line's length
		n.measure(took)
	}
	n.heard(heard)
	if len(cmds) > len(batch) {
		n.rouse() // no worker of the lane is at this, and a release may have waited for it
	}
	return good
}

// learn updates what is known about the server.
func (n *node) learn(q *request, r reply, err error) {
	switch r {
	case broken:
		n.stats.Broken++
	case timeout:
		n.stats.Timeouts++
	case noScript:
		n.server.scripts[q.script()] = false
	case refusal:
		switch {
		case q.denied(err):
			n.server.shun(q, err)
		case q.native && tooOld(err):
			n.server.old = true
		case !q.native && !q.text && shaDenied(err):
			n.server.noSHA = true
		case q.scriptDenied(err) && !n.server.old:
			n.server.plain = true
		}
	default:
		if !q.native {
			n.server.scripts[q.script()], n.server.forms[q.script()] = true, byScript
		}
	}
}

// again tells whether a request is to be written once more, at once: in another
// form that the server may accept, or on another connection. Everything a lane
// writes can be repeated (an acquire and an extend by their token, a release
// because we remember that it was unanswered); what must never happen is that
// somebody repeats it without our knowing. Whether anybody still wants it is
// looked at here, and once more when it is taken from the queue.
func (n *node) again(q *request, r reply, err error) bool {
	if q.kind != release && q.claim.ending {
		return false // nobody does, and what was asked for instead waits for this
	}
	switch r {
	case noScript:
		if q.native || q.text {
			return false
		}
	case refusal:
		if !(q.denied(err) && n.server.otherwise(q) || q.native && q.form == byScript && tooOld(err) || !q.native && !q.text && shaDenied(err) || q.scriptDenied(err) && !n.server.old) {
			return false
		}
	case broken:
		// A server that was restarted has broken all connections; each is tried,
		// then a new one.
		if q.resends >= n.connections(q) {
			return false
		}
		q.resends++
		n.stats.Resent++
	default:
		return false
	}
	c := q.claim
	switch q.kind {
	case acquire, attach:
		c.there, c.silent = q.resends > 0, q.resends > 0 // a refused form leaves an earlier writing in doubt
	case repair:
		c.silent = c.silent || r == broken
	case release:
		c.unheard = c.unheard || r == broken
	}
	return true
}

// conclude turns a reply into a vote and into what is now known of the claim.
func (n *node) conclude(q *request, r reply, found findings, err error, out *answers) {
	c := q.claim
	switch q.kind {
	case release:
		q.told = found.told
		n.settleRelease(q, r, err, out)
		return
	case repair:
		// Earlier writings stay in doubt, of the acquire or of another repair; and
		// what another has stored does not go by what this one was told.
		c.silent = c.silent || r == broken || r == timeout
		c.mended = c.mended || r == yes || r == already
		c.there = c.silent || c.mended
	case acquire, attach:
		switch r {
		case yes, already, foreign:
			n.objection = nil
		case refusal, noScript:
			n.objection = err
		}
		// An error reply to the second writing leaves the first unanswered.
		c.silent = r == broken || r == timeout || (r == refusal || r == noScript || r == abstains) && q.resends > 0
		c.there = r == yes || r == already || c.silent
		if r == foreign && q.kind == acquire && n.revive(q, found.other) {
			return
		}
		if r == already && q.resends == 0 {
			// The token is fresh and this was its first writing here, so it came
			// in by another door.
			c.twice = true
			n.finish(q, Vote{Outcome: Failed, Err: errTwice, permanent: true}, out)
			return
		}
	}
	if q.kind == force && r == absent { // free of the name, as was asked for
		r = yes
	}
	if q.kind == extend && c.twice {
		n.finish(q, Vote{Outcome: Failed, Err: errTwice}, out)
		return
	}
	switch r {
	case yes, already:
		n.finish(q, Vote{Outcome: Granted, fence: found.fence}, out)
	case foreign:
		v := Vote{Outcome: Refused, Holder: found.other, Err: err, left: found.left}
		if q.kind == acquire && n.debts.of[found.other] != nil {
			v = Vote{Outcome: Failed, Err: errLeftover}
		}
		n.finish(q, v, out)
	case absent:
		n.finish(q, Vote{Outcome: Refused, Err: errNotThere}, out)
	default:
		n.finish(q, Vote{Outcome: Failed, Err: err, permanent: incurable(err), silent: c.there}, out)
	}
}

// revive handles a refusal that shows a dead token of our own, a leftover whose
// release was never confirmed: it is no refusal. The release goes out again and
// the acquire waits for it.
func (n *node) revive(q *request, token string) bool {
	d := n.debts.of[token]
	if d == nil || q.revived || q.claim.ending {
		return false
	}
	q.revived = true
	q.state = parked
	r := n.repay(d)
	r.blocked = append(r.blocked, q)
	q.blockers = 1
	return true
}

// settleRelease concludes a release: what it means for the vote, and whether it
// has to be repeated.
func (n *node) settleRelease(q *request, r reply, err error, out *answers) {
	c := q.claim
	n.returned(q)
	v := Vote{Outcome: Failed, Err: err, permanent: incurable(err)}
	switch r {
	case yes:
		v = Vote{Outcome: Granted}
	case absent, foreign:
		v = Vote{Outcome: Refused, Err: errNotThere}
		if r == foreign {
			v.Err = errForeign
		}
		if c.unheard {
			// It was ours until an earlier release that nobody answered.
			v = Vote{Outcome: Granted}
		}
	case broken, timeout:
		c.unheard = c.unheard || q.writes > 0
	}
	n.finish(q, v, out)
	n.owe(c, r, incurable(err))
	n.checkDrained()
}
