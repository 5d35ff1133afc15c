package redlock

import (
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// A form is how a request is written whose work a script does as a rule. Where a
// server denies scripts it may have native commands that compare in the same step;
// whether it has is found out by trying. There is no form in two steps: what was
// compared first could be another's by the time of the second.
type form uint8

const (
	byScript  form = iota
	byDelex        // DELEX name IFEQ token: Redis 8.4, Valkey 9.2
	byDelifeq      // DELIFEQ name token: Valkey 9.0
	bySet          // SET name token PX ttl IFEQ old GET: Redis 8.4, Valkey 8.1
	byNoOther      // the script, since nothing else will do either
)

// forms are the forms of what each script does, in the order in which they are
// tried. With a fencing counter or a restart guard nothing but the script will do,
// and those have numbers of their own, so no native form is ever taken for them.
var forms = [scripts][]form{
	release: {byScript, byDelex, byDelifeq},
	extend:  {byScript, bySet},
	attach:  {byScript, bySet},
}

// A detour is what a request has met with that its server did not take in every form.
type detour struct {
	tried   uint8   // the forms that were denied, as bits
	denial  error   // what was said of the script
	publish command // of a release: what tells others of it
}

func (q *request) deviate() *detour {
	if q.detour == nil {
		q.detour = new(detour)
	}
	return q.detour
}

// lengths are the lives that a token was given on a node, since there were native
// extends among them: see maySend. Guarded by the node's mutex, as the claim is.
type lengths struct {
	end       time.Time     // until when what was written may promise the key to live
	extending *request      // a native extend that is under way
	life      time.Duration // that it gives
	doubt     time.Duration // the shortest life given by one that was never answered; 0: there is none
}

// form is how a request is to be written, as far as is known.
func (s *knowledge) form(q *request) form {
	if f := s.forms[q.script()]; f != byNoOther {
		return f
	}
	return byScript
}

// denied tells that the server lets nobody do this in the form in which it was
// written. What is denied because of the key is denied in any form.
func (q *request) denied(err error) bool {
	if forms[q.script()] == nil || shaDenied(err) && !q.native && !q.text {
		return false
	}
	for _, prefix := range [...]string{
		"NOPERM", "unknown command", "syntax error", "Could not find scripting engine",
		"The user executing the script can't", "ACL failure in script",
	} {
		if redis.HasErrorPrefix(err, prefix) {
			return !nameDenied(err)
		}
	}
	return false
}

// shun learns that a form was denied. The next is tried, each once for a request;
// if none is left, only the script is from then on, as on servers that have no
// other form at all.
func (s *knowledge) shun(q *request, err error) {
	d := q.deviate()
	d.tried |= 1 << q.form
	if q.form == byScript {
		d.denial = err
	}
	known := &s.forms[q.script()]
	if *known != q.form {
		return // another request was quicker, or there is no other form
	}
	*known = byNoOther
	for _, f := range forms[q.script()] {
		if d.tried&(1<<f) == 0 {
			*known = f
			return
		}
	}
}

// otherwise tells whether a request that was denied is now to be written in a form
// in which it was not.
func (s *knowledge) otherwise(q *request) bool { return q.detour.tried&(1<<s.form(q)) == 0 }

// blame is the error of a request that was refused: where no form will do, it is that
// of the script, without which nobody would have missed the others.
func (q *request) blame(err error) error {
	if d := q.detour; err != nil && d != nil && d.denial != nil && q.denied(err) {
		return d.denial
	}
	return err
}

// unscripted writes a request out in a native form. GET makes SET tell what was
// there, so an attach that is sent again, since its answer was lost, finds its own
// token and knows that it was done.
func (q *request) unscripted() command {
	name, token := q.claim.lease.name, q.claim.lease.token
	switch q.form {
	case byDelex:
		return command{redis.NewCmd(background, "delex", name, "ifeq", token)}
	case byDelifeq:
		return command{redis.NewCmd(background, "delifeq", name, token)}
	}
	old, life := token, q.ttl
	if q.kind == attach {
		old = q.round.old
	} else {
		life = q.claim.lengths.life
	}
	return command{redis.NewCmd(background, "set", name, token, "px", millis(life), "ifeq", old, "get")}
}

// readSet tells what a SET IFEQ GET came to.
func (q *request) readSet(val any) (r reply, found findings, err error) {
	held, ok := val.(string)
	switch {
	case !ok:
		return refusal, found, fmt.Errorf("unexpected reply %v", val)
	case q.kind == attach && held == q.round.old, q.kind == extend && held == q.claim.lease.token:
		return yes, found, nil
	case held == q.claim.lease.token:
		return already, found, nil
	}
	if q.kind == attach {
		found.other = held
	}
	return foreign, found, nil
}

// shape decides in which form a request is written, and how long a life it gives to
// the key. (A SET IFEQ sets that, whatever was left.) Called with n.mu held.
func (n *node) shape(q *request, now time.Time) {
	c := q.claim
	q.form = n.server.form(q)
	if q.kind == extend && q.form == bySet {
		if c.lengths == nil {
			c.lengths = &lengths{end: now.Add(c.longest)} // which is no earlier than any so far
		}
		l := c.lengths
		l.extending = q
		rest := l.end.Sub(now) + time.Millisecond - 1 // rounded up
		l.life = max(q.ttl, c.lease.ttl, rest.Truncate(time.Millisecond))
	}
	if l := c.lengths; l != nil && l.end.Before(now.Add(q.ttl)) {
		l.end = now.Add(q.ttl)
	}
}

// maySend tells whether an extend may be written now.
//
// An extend must never shorten a life that we have promised. The script compares;
// SET IFEQ cannot. In its place these rules hold for a token on a node, of which
// each promise is that the key lives for ttl from the moment t0 at which that was
// asked for:
//
//  1. A SET gives a life of at least what earlier requests still promise (shape).
//     So whenever it is executed, now or much later, what was promised before it was
//     written stays.
//  2. While a SET is under way no other extend is written: over two connections the
//     later one could be executed first, be answered, and then be cut short. It
//     waits its turn.
//  3. A SET that was never answered can be executed at any time, by a kernel that
//     delivers it seconds later or a server that was stopped; nobody can say when
//     it no longer can. Executed at s it sets the end to s + life. For an extend
//     written after it that was executed before s, t0 < s, so its promise stands if
//     its ttl is no longer than that life. If it is longer, the node does not get
//     to promise it, as long as the lease lasts.
//
// Rule 1 is not enough: it looks back, and 3 is about what comes after. The rules
// hold for extends by the script too, since a right to run scripts can come back
// while a SET is in doubt. Acquires, attaches and repairs need none: none of
// them touches a key that has the token.
//
// A life is also never below the lease's own ttl. Renewals, none of which is longer,
// are thus never kept back by the third rule, only an Extend for longer than any that
// was lost.
func (n *node) maySend(q *request, out *answers) bool {
	l := q.claim.lengths
	switch {
	case l == nil:
	case l.extending != nil:
		q.state = parked
		l.extending.blocked = append(l.extending.blocked, q)
		return false
	case l.doubt > 0 && q.ttl > l.doubt:
		n.finish(q, Vote{Outcome: Failed, Err: errInDoubt{l.doubt}}, out)
		return false
	}
	return true
}

// heardOf takes in that an extend in its native form is not under way any more.
func (c *claim) heardOf(q *request, r reply) {
	l := c.lengths
	if l == nil || l.extending != q {
		return
	}
	l.extending = nil
	if (r == broken || r == timeout) && (l.doubt == 0 || l.life < l.doubt) {
		l.doubt = l.life
	}
}

// errInDoubt is the vote of a node where an earlier extend may still be executed.
type errInDoubt struct{ life time.Duration }

func (e errInDoubt) Error() string {
	return fmt.Sprintf("not sent: an extension to %v was never answered here and, without scripts, could still cut a longer one short", e.life)
}

// tellOf gives a release in a native form a command of its own that tells others,
// right behind it. It is sent whether or not something was deleted, so not when a
// release is repeated: most of those delete nothing; nor after a broken connection,
// since there are proxies that answer what they do not allow with that. Called with
// n.mu held.
func (n *node) tellOf(q *request) {
	if q.kind != release || q.form == byScript {
		return
	}
	d := q.deviate()
	d.publish = command{}
	if q.notice != nil && q.resends == 0 && n.debts.of[q.claim.lease.token] == nil {
		d.publish = command{redis.NewCmd(background, "publish", q.notice.channel, q.notice.payload)}
	}
}

// publication is that command, if there is one.
func (q *request) publication() (p command) {
	if q.kind == release && q.form != byScript {
		p = q.detour.publish
	}
	return p
}

// publications appends the publications of a batch. They are nobody's request: what becomes of
// them changes no vote.
func publications(batch []*request, cmds []command) []command {
	for _, q := range batch {
		if p := q.publication(); p.Cmd != nil {
			cmds = append(cmds, p)
		}
	}
	return cmds
}

// unheard tells that no answer came to one of them, so that the connection is no
// good any more.
func unheard(cmds []command) bool {
	for _, c := range cmds {
		if err := c.Err(); err != nil {
			if r, _ := readError(err); r == broken || r == timeout {
				return true
			}
		}
	}
	return false
}
