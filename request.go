package redlock

import (
	"fmt"
	"time"
)

// A claim is what one token has on one node. All below node is guarded by the
// node's mutex.
type claim struct {
	lease *Lease
	node  *node
	index int

	acquire *request // until it returned
	release *request // a release or detach that was asked for and waits until nothing of the token is flying
	notice  *notice  // what its release tells others; nil: nothing
	flying  int16    // acquires, extends and repairs that were written and have not returned; they fit, see maxQueue
	there   bool     // the key may be there: a SET was written and not denied
	silent  bool     // a SET was written and never answered; it may still land
	mended  bool     // a repair has stored the token
	ending  bool     // a release or detach was asked for
	unheard bool     // a release was written and never answered
	twice   bool     // the server had the token by another name and has voted there

	longest time.Duration // ttl that was written

	lengths *lengths // of native extends; nil: there was none
}

type kind uint8

const (
	acquire kind = iota
	extend
	release
	repair          // an acquire of a token that holds a quorum already
	attach          // an acquire that may replace exactly round.old
	raise           // brings the name's fencing counter to the round's token
	inspect         // of no lease: reads what is there
	force           // of no lease: deletes whatever is there
	kinds           // how many are written
	detach  = kinds // is never written: its answer is that nothing else of its token is either
)

// Scripts are numbered like the kinds of request that they serve, but for two.
const (
	ballot  = kinds + iota + 1 // of acquire, attach and repair, with a fencing counter or a restart guard
	heal                       // of extend, with a fencing counter
	scripts                    // how many numbers there are
)

func (k kind) String() string {
	return [...]string{"lock", "extend", "unlock", "repair", "attach", "raise", "inspect", "forcerelease", "detach"}[k]
}

// acquires tells the kinds of request with which a lease begins.
func (k kind) acquires() bool { return k == acquire || k == attach }

// sets tells whether a request may put its token where nothing is.
func (k kind) sets() bool { return k == acquire || k == repair }

// script is the number of the script that does the work.
func (q *request) script() kind {
	switch {
	case q.ballots():
		return ballot
	case q.kind == repair:
		return acquire
	case q.kind == extend && q.fenced():
		return heal
	}
	return q.kind
}

// fenced tells whether the request sees to a fencing counter.
func (q *request) fenced() bool {
	return q.kind != release && !q.kind.ofNoLease() && q.claim.lease.locker.cfg.fencing
}

// ballots tells whether the request asks for a vote that needs more than the name's
// own key, so that no native command can do it.
func (q *request) ballots() bool {
	return (q.kind.sets() || q.kind == attach) && q.fenced() || q.guarded()
}

// ofNoLease tells the kinds that ask about a name instead of for a token. They
// need no order among other requests.
func (k kind) ofNoLease() bool { return k == inspect || k == force }

// A request is one command for one node, from the asking to the answer.
type request struct {
	kind  kind
	claim *claim
	round *round        // where the answer counts; nil for a release that nobody waits for; of a repair: the extension
	ttl   time.Duration // of acquire and extend
	by    time.Time     // not written from here on, unless it is a release

	number  uint64  // of a raise: what the counter is to reach
	telling bool    // an acquire by script, which on refusal tells how long the key lives
	notice  *notice // of a release: what it tells others; nil: nothing
	told    int     // how many it told

	asked      time.Time // when it came into the queue
	state      state
	prev, next *request
	blockers   int        // of an acquire: releases that must return first
	blocked    []*request // of a release: acquires that wait for it; of an acquire or extend: extends of its token
	writes     int
	native     bool        // this writing is a native command
	text       bool        // this writing carries the script's text
	form       form        // of this writing: how it does a script's work
	detour     *detour     // what led to another form, and from there; nil: it is the script's
	resends    int         // how often it was written again after a broken connection
	revived    bool        // it was refused by a leftover of our own and tried again
	probe      func(error) // of an acquire that the gate let through on trial
	found      any         // what an inspect was answered, once its vote is delivered
	short      error       // the node did it, but too few replicas are known to have it
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
		a.hint()
		switch q := a.q; {
		case q.kind == repair:
			q.claim.lease.repaired(q, a.vote)
		case q.kind == raise:
			q.round.raised(q.claim.index, a.vote)
		case q.round != nil:
			q.round.answer(q.claim.index, a.vote)
		}
	}
}

// hint lets those who wait in this process know at once that a node is free of a
// token: what the node publishes comes later, and may not come at all.
func (a answer) hint() {
	if a.q.kind == release && a.q.notice != nil && a.vote.Outcome == Granted {
		lease := a.q.claim.lease
		lease.locker.root.lines.released(a.q.claim.index, lease.name, tenureOf(lease.token), a.q.told)
	}
}

// errNoAnswer is a vote that did not come in time. It is not the end of any
// context.
type errNoAnswer struct {
	after time.Duration
	cut   bool   // shorter than the node timeout, because of the ttl
	why   string // what is known of the reason
}

func (e errNoAnswer) Error() string {
	s := fmt.Sprintf("no answer within %v", e.after)
	if e.cut {
		s += ", all that the ttl leaves"
	}
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
