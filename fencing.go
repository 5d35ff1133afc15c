package redlock

import (
	"hash/maphash"
	"strings"
	"sync/atomic"
	"time"
)

// agreement is how a round's nodes come to one fencing token. Each node counts by
// itself: the acquire raises the name's counter there and reports it. The token is
// the highest number that any node with our lock has reported, and it is ours as
// soon as a quorum of them reports exactly that. Those that are behind are asked to
// raise their counters to it, a second round trip that is needed only when the
// counters differ.
//
// That makes tokens differ and rise without a clock and even while two clients hold
// the lock. Take two quorums that agreed on tokens A and B: they share a node, whose
// holds by the two did not overlap, since it had one value at a time under the name.
// Say A's came first. Its counter was A during that hold; a counter never falls, and
// the acquire of B raised it, so the node reported more than A, and B is at least
// what it reported. If A was agreed on before B was asked for, A's hold was the first.
//
// Each part is needed. If "at least the token" counted for agreement, a node that
// is already further could confirm an old number. If a node raised its counter for
// somebody whose lock it no longer has, there would be no hold during which it had
// the number. The second round cannot be saved: a quorum {a, b} may count 2 and 1
// and the next, {b, c}, 2 and 1 again.
//
// It rests on the shared node's counter alone. Of a node that lost it, see
// WithFencing.
//
// agreement is pure: a state machine that is fed with replies and says whom to ask.
type agreement struct {
	quorum  int
	reached []uint64 // by node: the highest that its counter was seen at while it had our lock; 0: it does not take part
	asked   []uint64 // by node: what it was last asked to raise its counter to
	token   uint64   // the highest of all that were ever reached; it never falls
	agreed  bool     // a quorum has reached exactly that, and it is final
}

func newAgreement(nodes int) *agreement {
	numbers := make([]uint64, 2*nodes)
	return &agreement{quorum: quorumOf(nodes), reached: numbers[:nodes], asked: numbers[nodes:]}
}

// report takes in what the counter of node i was while it had our lock, from an
// acquire or a raise. It returns the nodes to be asked to raise theirs to the token:
// each once per token, and none before there are enough for a quorum. After the
// agreement a node that comes late is asked to catch up, and can change nothing.
func (a *agreement) report(i int, n uint64) (behind []int) {
	a.reached[i] = max(a.reached[i], n)
	if a.agreed {
		if n < a.token {
			behind = a.ask(i, behind)
		}
		return behind
	}
	a.token = max(a.token, n)
	taking, exact := 0, 0
	for _, r := range a.reached {
		if r > 0 {
			taking++
			if r == a.token {
				exact++
			}
		}
	}
	a.agreed = exact >= a.quorum
	if a.agreed || taking < a.quorum {
		return nil
	}
	for i, r := range a.reached {
		if r > 0 && r < a.token {
			behind = a.ask(i, behind)
		}
	}
	return behind
}

func (a *agreement) ask(i int, behind []int) []int {
	if a.asked[i] == a.token {
		return behind
	}
	a.asked[i] = a.token
	return append(behind, i)
}

// drop takes a node out that has not got our lock any more, or cannot be asked. What
// it has reported before still counts for how high the token is.
func (a *agreement) drop(i int) { a.reached[i] = 0 }

// lagging tells whether node i is taking part and has not reached the token.
func (a *agreement) lagging(i int) bool { return a.reached[i] > 0 && a.reached[i] < a.token }

// maxFence is the largest fencing token: Lua counts in floating point, which is
// exact up to here. In microseconds since 1970 it is the year 2255.
const maxFence = 1<<53 - 1

// propose is what a round for name that begins at start would like its token to be:
// the time in microseconds, and above what this process has seen of the name. So the
// counters of nodes of which one has been away agree again at once, and tokens rise even
// if all counters were lost, as far as the clocks are right. Each node trusts its own
// clock more: it brings the proposal within ten minutes of that, and is never below its
// counter.
func (r *root) propose(name string, start instant) uint64 {
	return max(uint64(max(start.wall/1000, 0)), r.seen.of(name).Load()+1)
}

// hindsight is the highest counter that nodes have reported, for each name as far as
// hashes tell them apart. Were there one for all names, a single counter that is ahead
// of time would take those of all others with it; and once these were lost, whoever had
// nothing to do with it would get lower ones.
type hindsight struct {
	seed  maphash.Seed
	highs [1 << 10]atomic.Uint64
}

func (h *hindsight) of(name string) *atomic.Uint64 {
	return &h.highs[maphash.String(h.seed, name)%uint64(len(h.highs))]
}

// saw takes note of a number that a node has reported to a proposal. Where it is less
// the node found the proposal too far ahead, so what that rested on says nothing about
// time any more: proposals that are never taken as they are would cost every lock of
// the name a second round trip.
func (h *hindsight) saw(name string, n, proposal uint64) {
	high := h.of(name)
	for {
		known := high.Load()
		if n <= known && n >= proposal || high.CompareAndSwap(known, n) {
			return
		}
	}
}

// fenced counts a lease that was obtained with a fencing token.
func (r *root) fenced(twice bool) {
	if twice {
		r.twice.Add(1)
	} else {
		r.once.Add(1)
	}
}

// WithFencing gives every lease a fencing token, see Lease.Fence: a number that is
// higher than those of all holders before it, so that the resource can refuse a
// holder whose lease has passed without its knowing. It costs no further command as
// a rule, and one more round trip where the counters of the nodes differ; the round is
// then given a second node timeout. The acquire is a script, so scripts must be allowed
// on the nodes.
//
// Either all users of a name fence it or none does: a lock without takes no number,
// and the holder after it may get the number that it would have had.
//
// Each node keeps a counter beside the lock, under the key redlock:fence:{name}:name
// (or, of a name with a hash tag, {tag} in front). It expires seven days after the
// last lock. Tokens are different and rise, whatever the clocks do, as long as one
// node that two holders share has kept its counter from the first to the second. If
// it is lost, by a restart without persistence, FLUSHALL, eviction, a replica that
// was promoted, or expiry, the order rests on clocks: tokens are proposed as
// microseconds since 1970, and a node accepts what is within ten minutes of its own.
// Leases that were asked for at the same time may then have equal ones.
//
// With cluster clients a name must have a hash tag or no closing brace: otherwise
// lock and counter cannot be in one slot, and the name is refused.
func WithFencing() Option {
	return Option{name: "fencing", set: func(c *config) error {
		c.fencing = true
		return nil
	}}
}

// Fence is the lease's fencing token: a number from 1 to 2^53 − 1 that is higher
// than that of any lease of the name obtained before this one was asked for, and
// different from all others. It stays through extensions, and a nested lease has the
// outermost one's; Attach takes a new one. It is 0 without WithFencing, and of a nil
// lease.
//
// Send it with every write to what the lock protects, and have that refuse a number
// lower than the highest it has seen: package fence has guards that do.
func (l *Lease) Fence() uint64 {
	if l == nil {
		return 0
	}
	return l.outermost().fence
}

// reckon takes in node i's fencing counter with its vote, and returns which nodes are
// to raise theirs, and to what. Called with mu held.
func (r *round) reckon(i int, v Vote) (behind []int, token uint64) {
	if r.fence == nil || v.Outcome != Granted {
		return nil, 0
	}
	r.lease.locker.root.seen.saw(r.lease.name, v.fence, r.proposal)
	if behind = r.fence.report(i, v.fence); len(behind) > 0 && !r.twice && !r.fence.agreed {
		// Raising is a second exchange with each, so it has a node timeout too.
		r.twice = true
		cfg := &r.lease.locker.cfg
		r.bound = max(r.bound, min(time.Since(r.start.mono)+cfg.nodeTimeout, cfg.span(r.ttl)-cfg.lead()))
	}
	r.tally.unnumbered = !r.fence.agreed
	return behind, r.fence.token
}

// raise asks node i to bring its counter to the round's token.
func (l *Lease) raise(i int, r *round, token uint64) {
	c := &l.claims[i]
	by := r.start.mono.Add(max(r.limit(), time.Since(r.start.mono)+l.locker.cfg.nodeTimeout))
	c.node.push(&request{kind: raise, claim: c, round: r, number: token, by: by})
}

// raised takes in the answer to a raise. A node whose counter is not known to have
// reached the token has not voted for it; one that has not got the lock any more has
// taken back all that it promised.
func (r *round) raised(i int, v Vote) {
	switch v.Outcome {
	case Refused:
		r.lease.deny(i, r.start)
		v.Err = errForsaken
	case Failed:
		v.Err, v.silent = errCounter{v.Err}, true
	}
	r.mu.Lock()
	behind, token := r.reckon(i, v)
	if v.Outcome != Granted {
		r.fence.drop(i)
		r.discount(i, v)
	}
	r.signal()
	r.mu.Unlock()
	for _, i := range behind {
		r.lease.raise(i, r, token)
	}
}

// discount makes a vote that was granted a failed one. Called with mu held.
func (r *round) discount(i int, why Vote) {
	v := &r.votes[i]
	if r.over || r.fence.agreed || v.Outcome != Granted {
		return
	}
	v.Outcome, v.Err, v.silent, v.permanent = Failed, why.Err, why.silent, why.permanent
	r.tally.granted--
	r.tally.failed++
}

// expireCounters discounts the votes of nodes that have not raised their counters in
// time. Called with mu held.
func (r *round) expireCounters() {
	if r.fence == nil || r.fence.agreed {
		return
	}
	for i := range r.votes {
		if r.fence.lagging(i) {
			r.discount(i, Vote{Err: errCounter{errNoAnswer{after: r.bound}}, silent: true})
		}
	}
}

// limit is how long after its start the round's time is over.
func (r *round) limit() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.bound
}

// slotted refuses a name whose counter would be in another slot than its lock.
func (l *Locker) slotted(name string) error {
	if l.cfg.fencing && l.root.cluster && hashTag(name) == "" && strings.Contains(name, "}") {
		return invalid("the lock's name is %s: with a closing brace and no hash tag its fencing counter would be in another slot of the cluster", quote(name))
	}
	return nil
}

// errUnfenced is the answer to a fenced lock within one that has no number to give.
func errUnfenced(name string) error {
	return invalid("lease %s was taken without WithFencing, so none nested in it can have a fencing token", quote(name))
}

// errCounter is the vote of a node that has the lock and may not have raised its
// counter.
type errCounter struct{ cause error }

func (e errCounter) Error() string { return "its fencing counter was not raised: " + e.cause.Error() }
func (e errCounter) Unwrap() error { return e.cause }

var errForsaken = opaque{"it had not got the lock any more when its fencing counter was to be raised"}
