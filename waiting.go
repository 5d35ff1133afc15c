package redlock

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

// A contest is one call of Lock, from its beginning to its end.
type contest struct {
	*Locker
	op       Op
	attempts int           // most of them; 0: no limit
	limit    time.Duration // of the wait; negative: none
	begin    time.Time

	place  waiter
	n      int          // attempts made
	last   *QuorumError // verdict of the last
	splits int          // attempts in a row that nobody was seen to win
	polls  int          // attempts in a row while too few nodes would tell of a release

	// of the last attempt
	start  time.Time
	ready  bool // a quorum of nodes would have told of every release since
	lapses int  // the line's, then
	hinted bool // it followed a hint or an expiry
}

var errUsedUp = errors.New("the time to wait is used up")

// once is an attempt without a wait. It does not queue.
func (c *contest) once(ctx context.Context) (*Lease, error) {
	if ctx.Err() != nil {
		return nil, c.ended(contextErr(ctx))
	}
	lease, verdict, err := c.attempt(ctx, c.op, 1, c.newLease(c.op.Name), false)
	switch {
	case lease != nil:
		return lease, nil
	case err != nil:
		c.n = 1
		return nil, c.ended(err)
	}
	return nil, verdict
}

// run waits for its turn, and then for the lock.
func (c *contest) run(ctx context.Context) (lease *Lease, err error) {
	lines := &c.root.lines
	lines.join(c.op.Name, &c.place)
	defer func() { lines.leave(&c.place, lease) }()
	if c.place.turn != nil {
		if err := c.sleep(ctx, time.Time{}, c.place.turn); err != nil {
			return c.outOfTurn(ctx, err)
		}
	}
	for u := rand.Float64(); ; {
		until, news := lines.turn(c.place.line, u)
		if !time.Now().Before(until) {
			break
		}
		if err := c.sleep(ctx, until, news); err != nil {
			return c.outOfTurn(ctx, err)
		}
	}
	for {
		if ctx.Err() != nil {
			return nil, c.ended(contextErr(ctx))
		}
		lease, err := c.try(ctx)
		switch {
		case lease != nil:
			return lease, nil
		case err != nil:
			return nil, c.ended(err)
		case c.n == c.attempts, c.limit >= 0 && time.Since(c.begin) >= c.limit, c.last.incurable():
			return nil, c.last
		}
		if err := c.pause(ctx); err != nil {
			return nil, c.ended(err)
		}
	}
}

// outOfTurn ends a wait in which nothing was tried. That its time is used up says
// nothing about the lock: the verdict is that of others in the same line, or of an
// attempt made now.
func (c *contest) outOfTurn(ctx context.Context, why error) (*Lease, error) {
	c.last = c.root.lines.verdict(c)
	if why == errUsedUp && c.last == nil {
		return c.once(ctx)
	}
	return nil, c.ended(why)
}

// ended is the error of a wait that ended for another reason than a verdict.
func (c *contest) ended(why error) error {
	if why == errUsedUp {
		return c.last
	}
	return &waitError{c.op.Kind, c.op.Name, c.n, why, c.last}
}

// try makes one attempt. Those who have waited already use the script.
func (c *contest) try(ctx context.Context) (*Lease, error) {
	c.n++
	lease := c.newLease(c.op.Name)
	var listening bool
	listening, c.ready, c.lapses = c.root.lines.begin(c.place.line, lease.token)
	c.start = time.Now()
	won, verdict, err := c.attempt(ctx, c.op, c.n, lease, listening)
	if verdict != nil {
		c.last = verdict
	}
	return won, err
}

// pause waits until another attempt is worth it. Its error says what ended the
// wait.
func (c *contest) pause(ctx context.Context) error {
	lines := &c.root.lines
	took := c.last.tookAtLeast()
	news := lines.failed(c)
	if news == nil {
		// The lock may be free: whoever sleeps on it, sleeps for nothing.
		c.splits++
		c.hinted = false
		pause := c.cfg.backoff.pause
		if c.last.split() {
			pause = c.cfg.backoff.spread
		}
		young := c.last.abstention()
		if young > 0 { // nobody can have it, so there is nobody to make room for
			c.splits = 1
		}
		until := time.Now().Add(min(young, safetyTry) + pause(c.splits, took, rand.Float64()))
		return c.sleep(ctx, until, nil)
	}
	c.splits = 0
	end := time.Now()
	poll := end.Add(c.cfg.backoff.pause(max(1, c.polls), took, rand.Float64()))
	u := [...]float64{rand.Float64(), rand.Float64()}
	for {
		at := lines.outlook(c, end, poll, u)
		if !time.Now().Before(at) {
			return nil
		}
		if err := c.sleep(ctx, at, news); err != nil {
			return err
		}
	}
}

// sleep waits until a time (zero: for ever), news, or the end of the wait, which
// its error tells.
func (c *contest) sleep(ctx context.Context, until time.Time, news <-chan struct{}) error {
	if c.limit >= 0 {
		if end := c.begin.Add(c.limit); until.IsZero() || end.Before(until) {
			until = end
		}
	}
	var alarm <-chan time.Time
	if !until.IsZero() {
		timer := time.NewTimer(max(1, time.Until(until))) // see callAt
		defer timer.Stop()
		alarm = timer.C
	}
	select {
	case <-alarm:
	case <-news:
	case <-ctx.Done():
		return contextErr(ctx)
	case <-c.closed:
		return ErrClosed
	case <-c.root.closing:
		return ErrClosed
	}
	if c.limit >= 0 && time.Since(c.begin) >= c.limit {
		return errUsedUp
	}
	return nil
}

// failed files a failed attempt with the line. If somebody holds the lock, it has
// the line listen and returns where news are told. Who may only have half of the
// votes is a holder if the last attempt met the same token: one that fails takes
// another the next time.
func (ls *lines) failed(c *contest) (news <-chan struct{}) {
	holder, h := c.last.blocker()
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.count(&c.place)
	l := c.place.line
	w := ls.watched(l)
	w.last, w.lastAt = c.last, time.Now()
	if h == maybe && holder == w.holder {
		h = one
	}
	if h != one {
		w.holder = holder
		return nil
	}
	w.trip = min(c.last.Round.Took, c.cfg.nodeTimeout)
	switch {
	case holder != w.holder:
		w.misses, w.calm = 0, 0
		if c.hinted {
			w.races++
		}
	case c.hinted:
		w.misses++
	}
	w.holder = holder
	if tenureOf(holder) != w.own {
		w.served = w.lastAt // by another process, or by somebody here who did not queue
	}
	ls.listen(l)
	if c.ready {
		c.polls = 0
	} else {
		c.polls++
	}
	return w.news
}

// outlook is when the contender tries again, as things stand.
func (ls *lines) outlook(c *contest, end, poll time.Time, u [2]float64) time.Time {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	now := time.Now()
	w := c.place.line.watch
	p := prospect{
		quorum: ls.quorum(), votes: c.last.Round.Votes, start: c.start, end: end,
		freed: make([]time.Time, len(w.freed)), trip: w.trip, misses: w.misses, races: w.races,
		alone: !now.Before(w.others), hold: w.turn(now, u[1]), u: u[0],
	}
	for i, f := range w.freed {
		if f.tenure == "" || !w.hasActed(f.tenure) || f.tenure == tenureOf(p.votes[i].Holder) {
			p.freed[i] = f.at
		}
	}
	told := w.confirmed >= ls.quorum()
	sleeps := told && c.ready && c.lapses == w.lapses
	switch {
	case sleeps:
		p.rest = c.start.Add(safetyTry + time.Duration(u[1]*float64(safetyTry/10)))
		if w.calm == 0 { // so that those who began together do not go on together
			p.rest = c.start.Add(time.Duration((1 + u[1]) / 2 * float64(safetyTry)))
		}
	case told:
		p.rest = end // what was released before the last confirmation may have been missed
	case c.lapses == 0 && w.lapses == 0 && w.denied <= len(ls.feeds)-ls.quorum():
		p.rest = later(poll, w.asked.Add(c.cfg.nodeTimeout))
	default:
		p.rest = poll
	}
	var why wakeupReason
	p.why = &why
	at := p.next()
	if c.hinted = why != byRest; !c.hinted && sleeps && !now.Before(at) {
		w.calm++
	}
	return at
}

// turn is until when others are left the lock, unless there is news.
func (ls *lines) turn(l *line, u float64) (until time.Time, news <-chan struct{}) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if l.watch == nil {
		return time.Time{}, nil
	}
	return l.watch.turn(time.Now(), u), l.watch.news
}

// verdict is the last one that a contender of the same line got since the call
// began, as the call's own; nil if there is none.
func (ls *lines) verdict(c *contest) *QuorumError {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	w := c.place.line.watch
	if w == nil || w.last == nil || w.lastAt.Before(c.begin) {
		return nil
	}
	e := *w.last
	e.Round.Op, e.Round.Attempt = c.op.Kind, 0
	return &e
}
