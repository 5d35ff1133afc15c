package redlock

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	maxBatch     = 128     // requests written in one go
	maxBatchSize = 1 << 20 // bytes of names in them; one request always goes
	maxQueue     = 1 << 14 // acquires and extends that may wait; releases always may
	maxLeft      = 3       // dials left to themselves at a time

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
//   - an extend is written only after the acquire of its token has returned (a
//     repair too, since it follows an extend);
//   - a release is written only after every acquire, extend and repair of its
//     token that was written has returned;
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
	left        int                   // dials that nobody waits for any more
	trip        time.Duration         // shortest exchange lately; 0: unknown
	asked       map[string][]*request // releases that have not returned, by lock name
	outstanding int                   // = Σ len(asked[name])
	debts       debts
	gate        gate
	acking      acking // what waits for replicas, apart from the queue
	server      knowledge
	quarantine  quarantine
	refused     error // the last failure to connect
	refusedAt   time.Time
	objection   error // the error reply to the last acquire; nil: it had another
	latency     ring
	slow        int  // exchanges in a row that say that the line has become long
	unconfirmed int  // releases that were given up while closing
	mute        bool // the last exchange brought no answer
	closing     bool // no acquire or extend is taken any more
	closed      bool // nothing is
	drained     chan struct{}
	stats       nodeStats
}

// knowledge is what was found out about a server by trying; it is forgotten
// with the last connection, since a server may come back as another version.
type knowledge struct {
	scripts [scripts]bool // it has run these, so it knows their hashes
	old     bool          // it refuses SET NX GET: acquire by script
	noSHA   bool          // it refuses EVALSHA: always send the text
	plain   bool          // it refuses to acquire by script: do it natively also for those who wait
	forms   [scripts]form // how it does what other scripts do
}

// nodeStats counts what a lane saw, for judging a node's health.
type nodeStats struct {
	Batches, Requests         uint64 // written
	Granted, Refused, Failed  uint64 // votes
	Timeouts, Broken          uint64 // exchanges without an answer
	Connects, ConnectFailures uint64
	GivenUp                   uint64 // requests dropped before they were written
	NotAsked                  uint64 // votes that the gate or the restart guard kept back; they have failed too
	Resent                    uint64 // requests written again after a broken connection
	Owed, Forgiven            uint64 // releases that had to be repeated; those left to the ttl in the end
}

// push queues anything but a release.
func (n *node) push(q *request) {
	var out answers
	n.mu.Lock()
	switch {
	case n.closing:
		n.finish(q, Vote{Outcome: Failed, Err: ErrClosed}, &out)
	case n.queueOf(q).len >= maxQueue:
		n.finish(q, Vote{Outcome: Failed, Err: errFull}, &out)
	case q.kind.acquires() && !n.admit(q, &out):
	default:
		if q.kind.acquires() {
			q.claim.acquire = q
			n.block(q)
		}
		switch {
		case q.kind == extend && q.claim.acquire != nil:
			q.claim.acquire.blocked = append(q.claim.acquire.blocked, q)
		case q.blockers == 0:
			n.enqueue(q)
			n.rouse()
		}
	}
	n.mu.Unlock()
	out.deliver()
}

// admit passes an acquire through the gate, or answers it.
func (n *node) admit(q *request, out *answers) bool {
	probe, err := n.gate.admit(n.refused, n.connecting > 0 && !n.linked())
	if err != nil {
		n.stats.NotAsked++
		n.finish(q, Vote{Outcome: Failed, Err: err}, out)
		return false
	}
	q.probe = probe
	return true
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
		c.ending, c.notice = true, q.notice
		n.giveUp(c, &out)
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

// detach sees to it that nothing of a claim's token is written any more, not
// even a release. q is answered when what was written has returned.
func (n *node) detach(q *request) {
	var out answers
	n.mu.Lock()
	c := q.claim
	c.ending = true
	n.giveUp(c, &out)
	for _, from := range [...]*queue{&n.queue, &n.acking.queue} {
		for e := from.head; e != nil; {
			next := e.next
			if e.claim == c {
				n.drop(e, &out)
			}
			e = next
		}
	}
	c.release = q
	n.landed(c, &out)
	n.mu.Unlock()
	out.deliver()
}

// withdraw takes back a request of no lease that has not been written.
func (n *node) withdraw(q *request) {
	var out answers
	n.mu.Lock()
	if q.state == queued {
		n.drop(q, &out)
	}
	n.mu.Unlock()
	out.deliver()
}

// giveUp drops the acquire of a claim if it is not under way. The extends that
// waited for it come into the queue, to be dropped from there.
func (n *node) giveUp(c *claim, out *answers) {
	if a := c.acquire; a != nil && (a.state == queued || a.state == parked) {
		n.drop(a, out)
	}
}

func (n *node) drop(q *request, out *answers) {
	n.queueOf(q).drop(q)
	n.stats.GivenUp++
	n.finish(q, Vote{Outcome: Failed, Err: errGivenUp}, out)
}

// landed lets the release or detach go that waited until nothing of the token is
// flying.
func (n *node) landed(c *claim, out *answers) {
	q := c.release
	if c.flying > 0 || q == nil {
		return
	}
	c.release = nil
	if q.kind == release {
		n.queue.push(q)
		return
	}
	q.state = done
	*out = append(*out, answer{q, Vote{Outcome: Granted}})
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
			n.enqueue(a)
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
	if q.probe != nil {
		q.probe(errNoVerdict)
		q.probe = nil
	}
	if v.Outcome == Granted && q.short != nil { // the node does, its replicas do not
		v = Vote{Outcome: Failed, Err: q.short, permanent: incurable(q.short), silent: true}
	}
	c := q.claim
	if q.kind.acquires() {
		c.acquire = nil
	}
	if q.kind != release {
		for _, e := range q.blocked {
			n.enqueue(e)
		}
		q.blocked = nil
	}
	if q.kind != release && !q.kind.ofNoLease() {
		if q.writes > 0 {
			c.flying--
		}
		n.landed(c, out)
	}
	switch {
	case q.kind.ofNoLease() || q.kind == repair || q.kind == raise: // no vote
	case v.Outcome == Granted:
		n.stats.Granted++
	case v.Outcome == Refused:
		n.stats.Refused++
	case v.Outcome == Failed:
		n.stats.Failed++
	}
	if q.round != nil || q.notice != nil {
		*out = append(*out, answer{q, v})
	}
}

// take fills batch with what may be written now. Here, at the last moment before
// the writing, a request is dropped if nobody wants it any more.
func (n *node) take(from *queue, batch []*request, now time.Time, out *answers) []*request {
	for size := 0; from.len > 0 && len(batch) < maxBatch && size < maxBatchSize; {
		if len(batch) > 0 && !sameAcks(batch[0], from.head) {
			break
		}
		q := from.pop()
		c := q.claim
		if q.kind != release {
			if c.ending || c.lease.over.Load() || !now.Before(q.by) {
				n.stats.GivenUp++
				n.finish(q, Vote{Outcome: Failed, Err: errNotSent}, out)
				continue
			}
			if why, permanent := n.abstention(q, now); why != nil {
				n.stats.NotAsked++
				n.finish(q, Vote{Outcome: Failed, Err: why, permanent: permanent, silent: c.there}, out)
				continue
			}
			if q.kind == extend && !n.maySend(q, out) {
				continue
			}
			if q.writes == 0 && !q.kind.ofNoLease() {
				c.flying++
			}
			if q.kind.sets() || q.kind == attach {
				c.there = true
			}
			c.longest = max(c.longest, q.ttl)
		}
		n.shape(q, now)
		q.state = written
		q.writes++
		size += len(c.lease.name)
		batch = append(batch, q)
	}
	if len(batch) > 0 {
		n.stats.Batches++
	}
	n.stats.Requests += uint64(len(batch))
	return batch
}

// failAll answers all that waits and was asked for before begin: there is no
// connection for it. What came later has not been tried and waits on.
func (n *node) failAll(from *queue, begin time.Time, err error, out *answers) {
	for q := from.head; q != nil; q = from.head {
		if q.asked.After(begin) {
			return
		}
		from.pop()
		if q.kind == release {
			n.settleRelease(q, broken, err, out)
			continue
		}
		n.finish(q, Vote{Outcome: Failed, Err: err, permanent: incurable(err)}, out)
	}
}

// measure learns the length of the line from one exchange. The shortest counts,
// since a busy server looks like a long line; but one that stays far beyond what
// any server is busy for has become longer.
func (n *node) measure(took time.Duration) {
	n.latency.add(took)
	const many, far = 8, 10 * longTrip
	if took < far {
		n.slow = 0
	} else {
		n.slow++
	}
	if n.trip == 0 || took < n.trip || n.slow >= many {
		n.trip = took
	}
}

// heard notes whether the node answered an exchange, a ping or a connection. One that was mute may have our
// leftovers: they are due now, but not in a loop with a node that takes
// connections and breaks them over the releases themselves: all are called in
// twice a node timeout at the most, and once it is decided when, that stands. A
// moment that moved on with every answer would be minutes away after some.
func (n *node) heard(yes bool) {
	n.gate.heard(yes)
	if yes && n.mute && len(n.debts.of) > 0 {
		now := time.Now()
		if next := n.debts.called.Add(n.dialer.timeout / 2); !now.Before(next) {
			n.debts.called = now
		} else if !now.Before(n.debts.called) {
			n.debts.called = next
		}
		n.callIn(n.debts.called)
	}
	n.mute = !yes
}

// snapshot returns the counters.
func (n *node) snapshot() nodeStats {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.stats
}
