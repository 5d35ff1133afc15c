package redlock

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// WithRestartGuard keeps a node that has restarted from voting before d has passed:
// a server without persistence, or with one that can lose the last second, forgets
// the locks it has granted, and would grant them again within their ttl. After d
// they would have ended by themselves. Default: nodes are trusted to remember.
//
// d is at least the ttl, and at most a year. No ttl above it is accepted, nor an
// extension by more. It is one value for the deployment: a single client that locks
// the same names without the guard, or with a shorter one, voids it for all. While
// more than a minority of the nodes has restarted nothing can be locked, for d and two
// seconds; counted, by a Locker that was idle, from when it finds out, which takes 15 s
// at the most. Extend and Unlock go on, for they only touch what is there (a lease that
// a majority has forgotten is nobody else's until its end, but its next extension says
// ErrLost); a repair, which would count as a new vote, waits like a lock. The row of
// such a node says for how long it abstains. New servers count as restarted.
//
// The guard has two halves. Each node is asked how long its server has been up,
// within the script that locks; that is by the node's wall clock, and a clock that
// is set forward after the server's start makes it look older than it is. So every
// connection begins with INFO server, and where its run id has changed since the
// last connection the node gets no vote from this Locker for d, by this machine's
// clock. Behind a proxy that keeps connections up while the server behind it
// restarts only the first half guards; so it is for a Locker that was made after
// the restart.
//
// The guard is against restarts, clean ones too. It cannot see that FLUSHALL, an
// eviction or DEL has removed a lock. A promoted replica was up all the time, so
// only the second half sees it, in clients that follow the failover and had been
// connected before.
//
// Locks are then taken by a script, in the same single round trip, which has to be
// allowed to call TIME, LASTSAVE and INFO. If it is not, or INFO is denied to a
// connection, the node does not vote, and says so for as long: the guard is never
// silently off. Every client has to be a *redis.Client with a pool of at least 2
// connections; New refuses others.
func WithRestartGuard(d time.Duration) Option {
	return Option{name: "restart guard", nodeLevel: true, set: func(c *config) error {
		c.guard = d
		switch {
		case d <= 0:
			return fmt.Errorf("restart guard is %v; want at least the ttl", d)
		case d > maxTTL:
			return fmt.Errorf("restart guard is %v; want at most %v", d, maxTTL)
		}
		return nil
	}}
}

// leastAge is the age, in seconds by its own clock, that a server must show to vote;
// 0: any.
//
// What it forgot was granted before it started, for the guard at most, so it would
// have ended when the server has really been up for that long: both are counted by
// the same clock, if that does not step. The two seconds are for its grain. TIME,
// LASTSAVE, and the start and the present that uptime is computed from are whole
// seconds, cut off, so a difference of two shows up to a second more than has
// passed; and they are read from clocks of which one may be a tick behind when the
// second begins, which can add another one.
func (c *config) leastAge() int64 {
	if c.guard == 0 {
		return 0
	}
	return int64((c.guard+time.Second-1)/time.Second) + 2
}

// checkGuard compares a ttl with the guard.
func (c *config) checkGuard(ttl time.Duration) []error {
	if c.guard == 0 || ttl <= c.guard {
		return nil
	}
	return []error{fmt.Errorf("ttl is %v and the restart guard %v; want no more than that, for a restarted node then votes again", ttl, c.guard)}
}

// checkGuarded refuses clients whose connections cannot be told apart: what a
// ClusterClient or a wrapper sends may go over one on which nobody has asked for the
// server's run id.
func (c *config) checkGuarded(clients []redis.UniversalClient) (faults []error) {
	if c.guard == 0 {
		return nil
	}
	return checkPools(clients, "the restart guard needs", 2)
}

// guard sets the nodes up for the restart guard. Nothing has been sent yet.
func (r *root) guard(d time.Duration) {
	for _, n := range r.nodes {
		n.quarantine.guard, n.dialer.guarded = d, d > 0
	}
}

// guarded tells whether the request is a vote that a restarted node must not give:
// one that may put a token where the node has, or remembers, none.
func (q *request) guarded() bool {
	return (q.kind.sets() || q.kind == attach) && q.claim.lease.locker.cfg.guard > 0
}

// identity is what the first reply on a connection told of the server. It is empty
// without a restart guard.
type identity struct {
	run    string // its run id: another one after each start
	denied error  // why it did not tell
}

// identify reads INFO server. An error reply that may pass (a script that takes too
// long, too many clients) makes the connection useless: whoever answers the next one
// may tell.
func identify(reply *redis.Cmd) (identity, error) {
	text, err := reply.Text()
	switch {
	case err != nil && !incurable(err):
		return identity{}, errUnguarded{err}
	case err != nil:
		return identity{denied: errUnguarded{err}}, nil
	}
	for line := range strings.Lines(text) {
		if run, ok := strings.CutPrefix(line, "run_id:"); ok && strings.TrimSpace(run) != "" {
			return identity{run: strings.TrimSpace(run)}, nil
		}
	}
	return identity{denied: errUnguarded{errors.New("it names no run id")}}, nil
}

// A quarantine is the half of the restart guard that asks no clock but our own. It is
// guarded by its node's mutex, and the zero value is off.
//
// Whatever is written on a connection is answered by the server that had told its run
// id as the connection began, or by none: a restart ends all of them. So no vote of a
// restarted server is asked for before its new run id is known here, and that sets
// until. It is later than the server's start by then, so what that forgot has ended
// at until, by the clocks whose rates the drift margin covers.
type quarantine struct {
	guard  time.Duration
	run    string    // of the server that the last connection came to
	until  time.Time // no votes are asked for before
	denied error     // why that is not known, and no votes are asked for at all
	asked  time.Time // when that was found
	young  time.Time // until when the server, by its own account, abstains
}

// recognise takes in who answered on a new connection, before it is used. Called
// with n.mu held.
func (n *node) recognise(who identity) {
	q := &n.quarantine
	if q.guard == 0 {
		return
	}
	now := time.Now()
	if q.denied, q.asked = who.denied, now; q.denied != nil {
		n.objection = q.denied
		return
	}
	if q.run != "" && who.run != q.run {
		q.until = now.Add(q.guard)
	}
	q.run = who.run
}

// abstention is why a request must not be written to this node now. Called with n.mu
// held.
func (n *node) abstention(q *request, now time.Time) (why error, permanent bool) {
	switch k := &n.quarantine; {
	case k.guard == 0 || !q.guarded():
		return nil, false
	case k.denied != nil:
		return k.denied, true
	case now.Before(k.until):
		return errYoung{k.until.Sub(now)}, false
	}
	return nil, false
}

// abstains is for how much longer the node will not vote, as far as is known. Called
// with n.mu held.
func (n *node) abstains() time.Duration {
	k := &n.quarantine
	if k.guard == 0 {
		return 0
	}
	return max(time.Until(k.until), time.Until(k.young), 0)
}

// heardAge notes what a vote said of the server's age. Called with n.mu held.
func (n *node) heardAge(q *request, r reply, err error) {
	young, is := err.(errYoung)
	switch k := &n.quarantine; {
	case k.guard == 0 || !q.guarded():
	case r == abstains && is:
		k.young = time.Now().Add(young.left)
	case r == yes || r == already || r == foreign:
		k.young = time.Time{}
	}
}

// unproven tells that a connection should be made anew, to ask again what was denied:
// rights can be given at any time.
func (n *node) unproven() bool {
	if !n.dialer.guarded {
		return false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.quarantine.denied != nil && time.Since(n.quarantine.asked) >= keepAlive
}

// abstention is for how long so many nodes will abstain that no quorum is possible;
// 0: that alone does not prevent one.
func (e *QuorumError) abstention() time.Duration {
	var left []time.Duration
	for _, v := range e.Round.Votes {
		if young, ok := v.Err.(errYoung); ok {
			left = append(left, young.left)
		}
	}
	blocking := len(e.Round.Votes) - e.Round.Quorum + 1
	if len(left) < blocking {
		return 0
	}
	slices.Sort(left)
	return left[len(left)-blocking]
}

// errYoung is the vote of a node that may have forgotten others: it came up so
// short a while ago.
type errYoung struct{ left time.Duration }

func (e errYoung) Error() string {
	return fmt.Sprintf("it restarted lately and abstains for another %v", max(e.left, 0).Round(time.Millisecond))
}

// errUnguarded is the vote of a node of which nobody knows whether it has restarted.
type errUnguarded struct{ cause error }

func (e errUnguarded) Error() string {
	return "the restart guard needs INFO server: " + e.cause.Error()
}
func (e errUnguarded) Unwrap() error { return e.cause }
