package redlock

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	maxBatch     = 128     // requests written in one go
	maxBatchSize = 1 << 20 // bytes of names in them; one request always goes
	maxQueue     = 1 << 14 // acquires and extends that may wait; releases always may

	// longTrip divides lines: on a shorter one a second batch in flight only
	// makes the batches smaller, on a longer one it saves a wait.
	longTrip = time.Millisecond

	// keepAlive is how long a connection may be silent before it is proven
	// again. Firewalls and load balancers forget idle connections after
	// minutes, some after one, and drop what comes later without a word.
	keepAlive = 15 * time.Second
)

// node is one lane: it owns everything that is sent to one server. Requests
// wait in its queue; a worker with a connection takes what waits and writes it
// in one go. A server that hangs stalls its own lane and nothing else: requests
// whose caller has given up are never written.
//
// Order, per node and lock name:
//   - a release is written only after every acquire and extend of its token that
//     was written has returned;
//   - an acquire is written only after every release of that name that was asked
//     for before it has returned;
//   - once a release was asked for, nothing else of its token is written, not
//     even again.
//
// Without the first an acquire that overtakes nothing on the network could still
// arrive after its own release and leave a key that nobody holds; without the
// second a client could be refused by its own leftovers.
type node struct {
	name    string
	dialer  dialer
	patient time.Duration // how long connecting may take
	ctx     context.Context
	cancel  context.CancelFunc
	group   *errgroup.Group // of the workers of all nodes

	mu          sync.Mutex // guards all below, every claim of this node, and the state of its requests
	queue       queue
	idle        []*worker
	workers     map[*worker]struct{}
	active      int                   // workers in an exchange or a ping
	connecting  int                   // workers opening a connection
	trip        time.Duration         // shortest exchange lately; 0: unknown
	asked       map[string][]*request // releases that have not returned, by lock name
	outstanding int                   // = Σ len(asked[name])
	debts       debts
	server      knowledge
	refused     error // the last failure to connect
	mute        bool  // the last exchange brought no answer
	closing     bool  // no acquire or extend is taken any more
	closed      bool  // nothing is
	drained     chan struct{}
	stats       nodeStats
}

// knowledge is what was found out about a server by trying; it is forgotten
// with the last connection, since a server may come back as another version.
type knowledge struct {
	scripts [release + 1]bool // it has run these, so it knows their hashes
	old     bool              // it refuses SET NX GET: acquire by script
	noSHA   bool              // it refuses EVALSHA: always send the text
}

// nodeStats counts what a lane saw, for judging a node's health.
type nodeStats struct {
	Batches, Requests         uint64 // written
	Granted, Refused, Failed  uint64 // votes
	Timeouts, Broken          uint64 // exchanges without an answer
	Connects, ConnectFailures uint64
	GivenUp                   uint64 // requests dropped before they were written
	Resent                    uint64 // requests written again after a broken connection
	Owed, Forgiven            uint64 // releases that had to be repeated; those left to the ttl in the end
}

// A claim is what one token has on one node. All below node is guarded by the
// node's mutex.
type claim struct {
	lease *Lease
	node  *node
	index int

	acquire *request // until it returned
	release *request // asked for, waits until nothing of the token is flying
	flying  int      // acquires and extends that were written and have not returned
	there   bool     // the key may be there: a SET was written and not denied
	silent  bool     // a SET was written and never answered; it may still land
	ending  bool     // a release was asked for
	unheard bool     // a release was written and never answered
}

type kind uint8

const (
	acquire kind = iota
	extend
	release
)

func (k kind) String() string { return [...]string{"lock", "extend", "unlock"}[k] }

// A request is one command for one node, from the asking to the answer.
type request struct {
	kind  kind
	claim *claim
	round *round        // where the answer counts; nil for a release that nobody waits for
	ttl   time.Duration // of acquire and extend
	by    time.Time     // acquire and extend are not written from here on

	asked      time.Time // when it came into the queue
	state      state
	prev, next *request
	blockers   int        // of an acquire: releases that must return first
	blocked    []*request // of a release: acquires that wait for it
	writes     int
	native     bool // this writing is the native command
	text       bool // this writing carries the script's text
	resent     bool // it was written again after a broken connection
	revived    bool // it was refused by a leftover of our own and tried again
}

type state uint8

const (
	parked  state = iota // waits for another request to return
	queued               // waits for a worker
	written              // in an exchange
	done                 // answered or dropped
)

// answers are votes found while the node's mutex was held. They are delivered
// after it is free, so that no lock is held while another is taken.
type answers []answer

type answer struct {
	q    *request
	vote Vote
}

func (as answers) deliver() {
	for _, a := range as {
		if a.q.round != nil {
			a.q.round.answer(a.q.claim.index, a.vote)
		}
	}
}

// push queues an acquire or an extend.
func (n *node) push(q *request) {
	var out answers
	n.mu.Lock()
	switch {
	case n.closing:
		n.finish(q, Vote{Outcome: Failed, Err: ErrClosed}, &out)
	case n.queue.len >= maxQueue:
		n.finish(q, Vote{Outcome: Failed, Err: errFull}, &out)
	default:
		if q.kind == acquire {
			q.claim.acquire = q
			n.block(q)
		}
		if q.blockers == 0 {
			n.queue.push(q)
			n.rouse()
		}
	}
	n.mu.Unlock()
	out.deliver()
}

// block makes an acquire wait for the releases of its name that are under way.
func (n *node) block(q *request) {
	for _, r := range n.asked[q.claim.lease.name] {
		r.blocked = append(r.blocked, q)
		q.blockers++
	}
}

// end asks for the release of a claim. q is answered once: Granted when the key
// was deleted, Refused when it was not ours (any more) or never there.
func (n *node) end(q *request) {
	var out answers
	n.mu.Lock()
	c := q.claim
	switch {
	case n.closed:
		n.finish(q, Vote{Outcome: Failed, Err: ErrClosed}, &out)
	case c.ending:
		n.finish(q, Vote{Outcome: Refused, Err: errNotThere}, &out)
	default:
		c.ending = true
		if a := c.acquire; a != nil && (a.state == queued || a.state == parked) {
			n.queue.drop(a)
			n.stats.GivenUp++
			n.finish(a, Vote{Outcome: Failed, Err: errGivenUp}, &out)
		}
		if !c.there && c.flying == 0 {
			n.finish(q, Vote{Outcome: Refused, Err: errNeverThere, never: true}, &out)
			break
		}
		n.ask(q)
		n.rouse()
	}
	n.mu.Unlock()
	out.deliver()
}

// ask registers a release and queues it, at once or when all that flies of its
// token has returned.
func (n *node) ask(q *request) {
	name := q.claim.lease.name
	n.asked[name] = append(n.asked[name], q)
	n.outstanding++
	if q.claim.flying > 0 {
		q.claim.release = q
		return
	}
	n.queue.push(q)
}

// returned files a release that has returned and lets the acquires go that
// waited for it.
func (n *node) returned(q *request) {
	name := q.claim.lease.name
	list := n.asked[name]
	for i, r := range list {
		if r == q {
			list = append(list[:i], list[i+1:]...)
			n.outstanding--
			break
		}
	}
	if len(list) == 0 {
		delete(n.asked, name)
	} else {
		n.asked[name] = list
	}
	for _, a := range q.blocked {
		if a.blockers--; a.blockers == 0 && a.state == parked {
			n.queue.push(a)
		}
	}
	q.blocked = nil
}

// finish gives a request its answer and does what follows from it for the claim.
// The caller delivers out once the mutex is free.
func (n *node) finish(q *request, v Vote, out *answers) {
	if q.state == done {
		return
	}
	q.state = done
	c := q.claim
	switch {
	case q.kind == acquire:
		c.acquire = nil
		fallthrough
	case q.kind == extend:
		if q.writes > 0 {
			c.flying--
		}
		if c.flying == 0 && c.release != nil {
			r := c.release
			c.release = nil
			n.queue.push(r)
		}
	}
	switch v.Outcome {
	case Granted:
		n.stats.Granted++
	case Refused:
		n.stats.Refused++
	case Failed:
		n.stats.Failed++
	}
	if q.round != nil {
		*out = append(*out, answer{q, v})
	}
}

// take fills batch with what may be written now. Here, at the last moment before
// the writing, a request is dropped if nobody wants it any more.
func (n *node) take(batch []*request, now time.Time, out *answers) []*request {
	for size := 0; n.queue.len > 0 && len(batch) < maxBatch && size < maxBatchSize; {
		q := n.queue.pop()
		c := q.claim
		if q.kind != release {
			if c.ending || !now.Before(q.by) {
				n.stats.GivenUp++
				n.finish(q, Vote{Outcome: Failed, Err: errNotSent}, out)
				continue
			}
			if q.writes == 0 {
				c.flying++
			}
			if q.kind == acquire {
				c.there = true
			}
		}
		q.state = written
		q.writes++
		size += len(c.lease.name)
		batch = append(batch, q)
	}
	n.stats.Batches++
	n.stats.Requests += uint64(len(batch))
	return batch
}

// failAll answers all that waits and was asked for before begin: there is no
// connection for it. What came later has not been tried and waits on.
func (n *node) failAll(begin time.Time, err error, out *answers) {
	for q := n.queue.head; q != nil; q = n.queue.head {
		if q.asked.After(begin) {
			return
		}
		n.queue.pop()
		if q.kind == release {
			n.settleRelease(q, broken, err, out)
			continue
		}
		n.finish(q, Vote{Outcome: Failed, Err: err, permanent: incurable(err)}, out)
	}
}

// settle takes in the replies of one batch. It returns false when the connection
// is no good any more.
func (n *node) settle(batch []*request, cmds []command, took time.Duration, out *answers) (good bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	good = true
	heard := false
	for i, q := range batch {
		r, other, err := read(q.kind, q.claim.lease.token, cmds[i])
		switch {
		case r == broken || r == timeout:
			good = false
		case err != nil && stale(err):
			good = false
			fallthrough
		default:
			heard = true
		}
		n.learn(q, r, err)
		if n.again(q, r, err) {
			continue
		}
		n.conclude(q, r, other, err, out)
		batch[i] = nil
	}
	// What is to be written again goes back to the head of the queue, in order.
	for i := len(batch) - 1; i >= 0; i-- {
		if batch[i] != nil {
			n.queue.unpop(batch[i])
		}
	}
	if heard && good && (n.trip == 0 || took < n.trip) {
		n.trip = took
	}
	n.heard(heard)
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
		n.server.scripts[q.kind] = false
	case refusal:
		switch {
		case q.native && tooOld(err):
			n.server.old = true
		case !q.native && !q.text && shaDenied(err):
			n.server.noSHA = true
		}
	default:
		if !q.native {
			n.server.scripts[q.kind] = true
		}
	}
}

// again tells whether a request is to be written once more, at once: in another
// form that the server may accept, or on another connection. Everything a lane
// writes can be repeated (an acquire and an extend by their token, a release
// because we remember that it was unanswered); what must never happen is that
// somebody repeats it without our knowing. Whether anybody still wants it is
// looked at when it is taken from the queue.
func (n *node) again(q *request, r reply, err error) bool {
	switch r {
	case noScript:
		if q.native || q.text {
			return false
		}
	case refusal:
		if !(q.native && tooOld(err) || !q.native && !q.text && shaDenied(err)) {
			return false
		}
	case broken:
		if q.resent {
			return false
		}
		q.resent = true
		n.stats.Resent++
	default:
		return false
	}
	c := q.claim
	switch q.kind {
	case acquire:
		c.there, c.silent = r == broken, r == broken
	case release:
		c.unheard = c.unheard || r == broken
	}
	return true
}

// conclude turns a reply into a vote and into what is now known of the claim.
func (n *node) conclude(q *request, r reply, other string, err error, out *answers) {
	c := q.claim
	switch q.kind {
	case release:
		n.settleRelease(q, r, err, out)
		return
	case acquire:
		// An error reply to the second writing leaves the first unanswered.
		c.silent = r == broken || r == timeout || r == refusal && q.resent
		c.there = r == yes || r == already || c.silent
		if r == foreign && n.revive(q, other) {
			return
		}
		if r == already && !q.resent {
			// The token is fresh and this was its first writing here, so it came
			// in by another door.
			n.finish(q, Vote{Outcome: Failed, Err: errTwice, permanent: true}, out)
			return
		}
	}
	switch r {
	case yes, already:
		n.finish(q, Vote{Outcome: Granted}, out)
	case foreign:
		v := Vote{Outcome: Refused, Holder: other, Err: err}
		if q.kind == acquire && n.debts.of[other] != nil {
			v = Vote{Outcome: Failed, Err: errLeftover}
		}
		n.finish(q, v, out)
	case absent:
		n.finish(q, Vote{Outcome: Refused, Err: errNotThere}, out)
	default:
		n.finish(q, Vote{Outcome: Failed, Err: err, permanent: incurable(err)}, out)
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

// heard notes whether the node answered. One that was mute may have our
// leftovers: they are due now.
func (n *node) heard(yes bool) {
	if yes && n.mute && len(n.debts.of) > 0 {
		n.callIn(time.Now())
	}
	n.mute = !yes
}

// checkDrained tells Close when nothing is left to send.
func (n *node) checkDrained() {
	if n.closing && n.drained != nil && n.outstanding == 0 && len(n.debts.of) == 0 {
		close(n.drained)
		n.drained = nil
	}
}

// drain stops taking requests, calls in what is owed, and returns a channel that
// is closed when nothing is left to send.
func (n *node) drain() <-chan struct{} {
	var out answers
	n.mu.Lock()
	n.closing = true
	for q := n.queue.head; q != nil; {
		next := q.next
		if q.kind != release {
			n.queue.drop(q)
			n.finish(q, Vote{Outcome: Failed, Err: ErrClosed}, &out)
		}
		q = next
	}
	n.drained = make(chan struct{})
	drained := n.drained
	n.callIn(time.Now())
	n.checkDrained()
	n.mu.Unlock()
	out.deliver()
	return drained
}

// close ends the lane; what could not be sent by now is left to the ttl.
func (n *node) close() {
	var out answers
	n.mu.Lock()
	n.closing, n.closed = true, true
	n.failAll(time.Now(), ErrClosed, &out)
	n.debts.stop()
	for _, w := range n.idle {
		w.wake <- struct{}{}
	}
	n.idle = nil
	n.mu.Unlock()
	n.cancel()
	out.deliver()
}

// snapshot returns the counters.
func (n *node) snapshot() nodeStats {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.stats
}

// errNoAnswer is a vote that did not come in time. It is not the end of any
// context.
type errNoAnswer struct {
	after time.Duration
	why   string // what is known of the reason
}

func (e errNoAnswer) Error() string {
	s := fmt.Sprintf("no answer within %v", e.after)
	if e.why != "" {
		s += ", " + e.why
	}
	return s
}

var (
	errNotSent    = opaque{"not sent: the node did not take it in time"}
	errGivenUp    = opaque{"not sent: given up"}
	errFull       = opaque{fmt.Sprintf("not sent: %d requests are waiting for the node", maxQueue)}
	errNotThere   = opaque{"not there"}
	errNeverThere = opaque{"was never there"}
	errForeign    = opaque{"another token is there"}
	errWrongType  = opaque{"the key holds another type of value"}
	errTwice      = opaque{"this server is in the list under another name too and must not vote twice"}
	errLeftover   = opaque{"an earlier attempt of this client is not cleared yet"}
)
