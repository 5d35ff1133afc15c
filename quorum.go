package redlock

import (
	"sync"
	"time"
)

// quorumOf is the number of votes that any two majorities of n nodes share at
// least one of: ⌊n/2⌋ + 1. It is never configurable; with n/2 two clients could
// each win half of an even number of nodes.
func quorumOf(n int) int { return n/2 + 1 }

// A verdict is what a round's votes mean so far.
type verdict uint8

const (
	undecided verdict = iota // more votes can still turn it either way
	won                      // a quorum granted; nothing can change that
	lost                     // a quorum can no longer be reached; nothing can change that
)

// A class is why a round was lost.
type class uint8

const (
	unsettled class = iota // not lost, or pending votes can still turn noQuorum into refused
	refused                // so many refused that they alone prevent a quorum
	noQuorum               // anything else
)

// tally counts a round's votes. It is pure: verdict and class are functions of
// the counts, so the order in which votes arrive cannot matter.
//
//	granted + refused + failed ≤ nodes; the rest is pending
type tally struct {
	nodes, granted, refused, failed int

	unnumbered bool // it wants a fencing token, and no quorum has agreed on one yet
}

func (t tally) pending() int { return t.nodes - t.granted - t.refused - t.failed }

// blocking is how many votes that are not grants prevent a quorum: N − Q + 1.
func (t tally) blocking() int { return t.nodes - quorumOf(t.nodes) + 1 }

func (t tally) verdict() verdict {
	switch {
	case t.granted >= quorumOf(t.nodes) && !t.unnumbered:
		return won
	case t.refused+t.failed >= t.blocking():
		return lost
	}
	return undecided
}

// class says why a round is lost. A lost round is acted on at once, but as long
// as pending votes could still make it "refused" its class is unsettled:
// otherwise the same votes would give ErrHeld or ErrNoQuorum depending on which
// came first.
func (t tally) class() class {
	switch {
	case t.verdict() != lost:
		return unsettled
	case t.refused >= t.blocking():
		return refused
	case t.refused+t.pending() >= t.blocking():
		return unsettled
	}
	return noQuorum
}

func (t *tally) add(o Outcome) {
	switch o {
	case Granted:
		t.granted++
	case Refused:
		t.refused++
	case Failed:
		t.failed++
	}
}

// A round collects the votes on one request that went to every node.
type round struct {
	kind  kind
	op    string // as in Op.Kind
	lease *Lease
	start instant
	ttl   time.Duration // of lock and extend: what a granting node vouches for
	bound time.Duration // how long a vote may take
	old   string        // of an attach: the token that may be replaced

	proposal uint64 // for the fencing token

	// news is signalled when the caller has something to do: the round was won
	// or its class settled, or one more vote came in on a lost round.
	news chan struct{}

	// then, if it is set, is called when the verdict is known and its class
	// settled, by whoever delivered the last vote that was needed.
	then func()

	mu    sync.Mutex
	tally tally
	votes []Vote
	gaps  []int         // of an extend: nodes that have not got the token, until they are repaired
	fence *agreement    // on the fencing token; nil: none is wanted
	twice bool          // counters had to be raised to it
	over  bool          // the caller has its verdict; later votes only concern the lease
	took  time.Duration // until then
}

func newRound(k kind, op string, l *Lease, start instant, ttl, bound time.Duration) *round {
	r := &round{kind: k, op: op, lease: l, start: start, ttl: ttl, bound: bound, news: make(chan struct{}, 1)}
	r.votes = make([]Vote, len(l.claims))
	r.tally.nodes = len(l.claims)
	for i := range l.claims {
		r.votes[i].Node = l.claims[i].node.name
	}
	return r
}

// answer records node i's vote. A granted vote counts for the lease whenever it
// comes, also long after the verdict.
func (r *round) answer(i int, v Vote) {
	if v.Outcome == Granted && (r.kind == acquire || r.kind == extend) {
		r.lease.vouch(i, r.kind, r.start, r.ttl)
	}
	if v.Outcome == Refused && r.kind == extend {
		r.lease.deny(i, r.start)
	}
	r.mu.Lock()
	before := r.settledNow()
	behind, token := r.reckon(i, v)
	r.count(i, v)
	settled := !before && r.settledNow()
	gaps := r.repairable(i, v)
	r.mu.Unlock()
	for _, i := range gaps {
		r.lease.repair(i, r)
	}
	for _, i := range behind {
		r.lease.raise(i, r, token)
	}
	if settled && r.then != nil {
		r.then()
	}
}

// count enters a vote. Called with mu held.
func (r *round) count(i int, v Vote) {
	if r.over || r.votes[i].Outcome != Pending {
		return
	}
	v.Node = r.votes[i].Node
	v.Latency = time.Since(r.start.mono)
	r.votes[i] = v
	r.tally.add(v.Outcome)
	r.signal()
}

// signal wakes the caller if there is something to do. Called with mu held.
func (r *round) signal() {
	if r.tally.verdict() != undecided {
		select {
		case r.news <- struct{}{}:
		default:
		}
	}
}

// repairable lists the nodes to repair: those that have not got the token, as soon
// as the extension is won. Called with mu held.
func (r *round) repairable(i int, v Vote) (gaps []int) {
	if r.kind != extend {
		return nil
	}
	if v.Outcome == Refused && v.Err != errWrongType {
		r.gaps = append(r.gaps, i)
	}
	if r.tally.verdict() == won {
		gaps, r.gaps = r.gaps, nil
	}
	return gaps
}

// close ends the round as far as the caller is concerned and returns the final
// counts. Votes that are still pending stay so in the record.
func (r *round) close() tally {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over, r.took = true, time.Since(r.start.mono)
	return r.tally
}

// expire closes the round because its time is over: what is pending has failed.
func (r *round) expire() tally {
	excuses := make([]error, len(r.votes))
	bound := r.limit()
	for i := range r.lease.claims {
		if n := r.lease.claims[i].node; !r.answered(i) {
			excuses[i] = errNoAnswer{bound, bound < n.dialer.timeout, n.trouble(r.kind != release && r.lease.acks != nil)}
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.expireCounters()
	r.over, r.took = true, time.Since(r.start.mono)
	for i := range r.votes {
		if v := &r.votes[i]; v.Outcome == Pending {
			v.Outcome, v.Latency, v.Err = Failed, time.Since(r.start.mono), excuses[i]
			r.tally.failed++
			v.silent = true
		}
	}
	return r.tally
}

// settled tells whether the caller's answer cannot change any more. Whether an
// unlock that did not reach a quorum of deletions has freed the name is only
// known when every node has answered, see freed.
func (r *round) settled() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.settledNow()
}

func (r *round) settledNow() bool {
	t := r.tally
	switch {
	case r.kind == detach || r.kind.ofNoLease(): // somebody waits for them all
		return t.pending() == 0
	case t.verdict() == won || t.class() == refused:
		return true
	case t.class() == noQuorum:
		return r.kind != release || t.pending() == 0
	}
	return false
}

// freed tells whether an unlock freed the name although fewer than a quorum of
// nodes deleted the key: on those that never had the token nothing was left to
// delete. A lease that was granted by just a quorum, one node of which has died
// since, is released all the same.
func (r *round) freed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	free := r.tally.granted
	for _, v := range r.votes {
		if v.never {
			free++
		}
	}
	return free >= quorumOf(r.tally.nodes)
}

// mayHold tells whether a quorum of nodes may have the token, whatever the caller
// was told: those that granted it, and those that have not answered.
func (r *round) mayHold() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	have := 0
	for _, v := range r.votes {
		if v.Outcome == Granted || v.Outcome == Pending || v.silent {
			have++
		}
	}
	return have >= quorumOf(r.tally.nodes)
}

// answered tells whether node i has voted.
func (r *round) answered(i int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.votes[i].Outcome != Pending
}

// wait blocks until the round is won, lost with a settled class, or out of time,
// and closes it. It gives up early when one of the channels is closed; false says
// so. onLost runs on this goroutine as soon as the round is lost, and again after
// each later vote.
func (r *round) wait(done, ended, closing <-chan struct{}, onLost func()) (tally, bool) {
	timer := time.NewTimer(r.limit() - time.Since(r.start.mono))
	defer timer.Stop()
	for {
		select {
		case <-r.news:
			if r.settled() {
				return r.close(), true
			}
			if onLost != nil {
				onLost()
			}
			continue
		case <-timer.C:
			if rest := r.limit() - time.Since(r.start.mono); rest > 0 {
				timer.Reset(rest)
				continue
			}
			return r.expire(), true
		case <-done:
		case <-ended:
		case <-closing:
		}
		return r.close(), false
	}
}

// record is the round as the user sees it.
func (r *round) record(attempt int) Round {
	r.mu.Lock()
	defer r.mu.Unlock()
	return Round{
		Op: r.op, Name: r.lease.name, Attempt: attempt, Quorum: quorumOf(r.tally.nodes),
		Took: r.took, Votes: append([]Vote(nil), r.votes...),
	}
}
