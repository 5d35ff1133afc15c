package redlock

import "time"

const (
	maxDebts = 4096 // releases remembered per node; past it the oldest is left to its ttl
	maxPause = 4    // node timeouts between two repetitions
)

// debts are the releases that a node still owes a confirmation, by token. The
// kernel can deliver a SET seconds after a partition heals, long after the
// release that was meant to undo it; so the release is repeated, with doubling
// pauses, until it deletes something or nothing can come any more.
type debts struct {
	of     map[string]*debt
	timer  *time.Timer
	next   time.Time // when the timer runs out; zero: it does not run
	called time.Time // when all were called in last, or will be
}

type debt struct {
	claim   *claim
	request *request // the repetition under way
	due     time.Time
	pause   time.Duration
	born    time.Time
	until   time.Time // a ttl after the node first answered again; zero: it has not
}

// owe decides after a release what is left to do. A release is settled when
//   - it deleted the key, and no other SET of the token can still arrive; or
//   - the key was not ours, and every SET of the token was answered, so none can
//     still arrive; or
//   - the server will never do it, so the ttl has to; or
//   - the ttl has passed since the node answered again.
//
// Called with n.mu held.
func (n *node) owe(c *claim, r reply, incurable bool) {
	token := c.lease.token
	d := n.debts.of[token]
	answered := r != broken && r != timeout
	// With a repair there were several SETs: what was deleted need not be the one
	// that was never answered.
	settled := r == yes && !(c.silent && c.mended) || incurable || (r == absent || r == foreign) && !c.silent
	if n.closing { // one more try is all there is time for
		settled = settled || answered || d != nil
	}
	if settled || n.closed {
		if d != nil {
			delete(n.debts.of, token)
		}
		if n.closing && !answered {
			n.unconfirmed++
		}
		if r != yes && (!answered || incurable || n.closed) {
			n.stats.Forgiven++
		}
		return
	}
	now := time.Now()
	if d == nil {
		d = n.newDebt(c, now)
	}
	d.request = nil
	if answered && d.until.IsZero() {
		d.until = now.Add(c.longest)
	}
	if !d.until.IsZero() && !now.Before(d.until) {
		delete(n.debts.of, token)
		return
	}
	d.pause = min(max(2*d.pause, n.dialer.timeout/2), maxPause*n.dialer.timeout)
	d.due = now.Add(d.pause)
	if n.closing {
		d.due = now
	}
	n.arm(d.due)
}

func (n *node) newDebt(c *claim, now time.Time) *debt {
	if len(n.debts.of) >= maxDebts {
		var oldest *debt
		for _, d := range n.debts.of {
			if oldest == nil || d.born.Before(oldest.born) {
				oldest = d
			}
		}
		delete(n.debts.of, oldest.claim.lease.token)
		n.stats.Forgiven++
	}
	d := &debt{claim: c, born: now}
	n.debts.of[c.lease.token] = d
	n.stats.Owed++
	return d
}

// repay sends the release again, unless that is under way.
func (n *node) repay(d *debt) *request {
	if d.request == nil {
		d.request = &request{kind: release, claim: d.claim, notice: d.claim.notice}
		n.ask(d.request)
	}
	return d.request
}

// sweep repeats what is due, one batch at most; the rest follows shortly when
// the node answers and after its timeout when it does not.
func (n *node) sweep() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return
	}
	now := time.Now()
	n.debts.next = time.Time{}
	var next time.Time
	sent := 0
	for _, d := range n.debts.of {
		due := d.due
		switch {
		case d.request != nil:
			continue
		case due.After(now):
		case sent < maxBatch:
			n.repay(d)
			sent++
			continue
		default:
			due = now.Add(max(2*n.trip, longTrip))
			if n.mute {
				due = now.Add(n.dialer.timeout)
			}
		}
		if next.IsZero() || due.Before(next) {
			next = due
		}
	}
	if !next.IsZero() {
		n.arm(next)
	}
	n.rouse()
}

// arm makes sweep run at t, or earlier if it was to.
func (n *node) arm(t time.Time) {
	if n.closed || !n.debts.next.IsZero() && !t.Before(n.debts.next) {
		return
	}
	n.debts.next = t
	n.debts.timer = callAt(t, n.debts.timer, n.sweep)
}

// callIn makes all debts due at t.
func (n *node) callIn(t time.Time) {
	for _, d := range n.debts.of {
		if t.Before(d.due) {
			d.due = t
		}
	}
	if len(n.debts.of) > 0 {
		n.arm(t)
	}
}

func (d *debts) stop() {
	if d.timer != nil {
		d.timer.Stop()
	}
}
