package redlock

import (
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

const (
	// defaultTTL: a crashed holder blocks others for seconds, not minutes, and a
	// lease lasts twenty node timeouts, which leaves room to extend it.
	defaultTTL = 10 * time.Second

	// maxTTL keeps every sum of times far from overflow. A lock that should
	// outlive it is a record, not a lease.
	maxTTL = 365 * 24 * time.Hour

	// minValidity is the least that ttl − drift must leave.
	minValidity = time.Millisecond

	// minNodeTimeout is the least default: below it one lost packet, which TCP
	// repeats after some 200 ms anyway, and one pause of a busy machine look
	// alike.
	minNodeTimeout = 50 * time.Millisecond

	maxOwner = 128 // bytes of an owner label

	// fencePrefix begins the names of fencing counters; a lock of that name
	// would be another lock's counter.
	fencePrefix = "redlock:fence:"
)

// config is a Locker's settings after validation.
type config struct {
	ttl         time.Duration
	nodeTimeout time.Duration
	leastDrift  time.Duration
	lossLead    time.Duration // 0: by default, see lead
	backoff     Backoff
	maxAttempts int           // 0: no limit
	wait        time.Duration // negative: no limit
	owner       string
	autoExtend  bool
	maxHold     time.Duration // 0: no limit
	reentrant   bool
	fencing     bool
	guard       time.Duration // 0: nodes are trusted to remember, see WithRestartGuard
	hooks       []Hooks
	acks        *ackRule // nil: replicas are not asked
	clock       clock
}

func defaults() config {
	return config{ttl: defaultTTL, backoff: defaultBackoff, wait: -1, clock: systemClock{}}
}

// An Option sets up a Locker. Options are checked together by New, Open and
// With, which report all faults at once; every such error matches ErrInvalid.
type Option struct {
	name      string
	nodeLevel bool // belongs to the lanes, which siblings share
	set       func(*config) error
}

// WithTTL sets how long a lease lasts on the nodes unless it is extended;
// default 10 s. It is cut to whole milliseconds, and the cut value is used
// everywhere. At least 1 ms must remain after the drift margin; at most a year.
func WithTTL(ttl time.Duration) Option {
	return Option{name: "ttl", set: func(c *config) error {
		c.ttl = ttl.Truncate(time.Millisecond)
		if ttl < time.Millisecond {
			return fmt.Errorf("ttl is %v; want at least %v", ttl, time.Millisecond)
		}
		return nil
	}}
}

// WithNodeTimeout sets how long one node may take to answer, and with it how
// long TryLock, Extend and Unlock can take at the most; default ttl/20 and at
// least 50 ms. It is a property of the nodes and the network to them, so it is
// set with New or Open and shared by all siblings. A vote is never waited for
// longer than what leaves validity, however long the node timeout is.
func WithNodeTimeout(d time.Duration) Option {
	return Option{name: "node timeout", nodeLevel: true, set: func(c *config) error {
		c.nodeTimeout = d
		if d < time.Millisecond || d > maxTTL {
			return fmt.Errorf("node timeout is %v; want %v to %v", d, time.Millisecond, maxTTL)
		}
		return nil
	}}
}

// WithDrift widens the margin that a lease keeps for clocks running at different
// rates; default and least value ttl/100 + 2 ms. It enters the validity as
//
//	validity = ttl − elapsed − drift
func WithDrift(d time.Duration) Option {
	return Option{name: "drift", set: func(c *config) error {
		c.leastDrift = d
		if d <= 0 {
			return fmt.Errorf("drift is %v; want at least ttl/100 + %v", d, driftFloor)
		}
		return nil
	}}
}

// WithLossLead sets how long before its end a lease counts as lost, so that the
// holder has time to stop; default half the drift margin, at least 1 ms. It must
// leave at least 1 ms of validity.
func WithLossLead(d time.Duration) Option {
	return Option{name: "loss lead", set: func(c *config) error {
		c.lossLead = d
		if d <= 0 {
			return fmt.Errorf("loss lead is %v; want more than 0", d)
		}
		return nil
	}}
}

// WithBackoff sets the pauses between the attempts of Lock while nobody is known to
// have the lock, see Backoff. Fields left at zero take their defaults.
func WithBackoff(b Backoff) Option {
	return Option{name: "back-off", set: func(c *config) error {
		c.backoff = b.fill()
		return c.backoff.check()
	}}
}

// WithMaxAttempts limits how often Lock tries; default without limit. TryLock
// always tries once. While somebody has the lock Lock tries when it is told of a
// release, and else about once a second, so this does not bound the time: WithWait
// does. With 1 it does not queue behind others of this process.
func WithMaxAttempts(n int) Option {
	return Option{name: "max attempts", set: func(c *config) error {
		c.maxAttempts = n
		if n < 1 {
			return fmt.Errorf("max attempts is %d; want at least 1", n)
		}
		return nil
	}}
}

// WithWait limits how long Lock goes on trying; default without limit, only ctx
// ends the waiting. With 0 Lock tries once, like TryLock. An attempt that has
// begun is finished, so Lock can take one node timeout longer. The verdict of a call
// that queued all the time is that of the others in the queue, or of an attempt that
// it makes in the end.
func WithWait(d time.Duration) Option {
	return Option{name: "wait", set: func(c *config) error {
		c.wait = d
		if d < 0 {
			return fmt.Errorf("wait is %v; want 0 or more", d)
		}
		return nil
	}}
}

// WithOwner adds a label to every token, such as a host name and process id, so
// that those who are refused, and operators, can tell who holds a lock. The
// label is stored on the nodes in clear text. At most 128 bytes of printable
// UTF-8.
func WithOwner(label string) Option {
	return Option{name: "owner label", set: func(c *config) error {
		c.owner = label
		if label == "" || len(label) > maxOwner {
			return fmt.Errorf("owner label has %d bytes; want 1 to %d", len(label), maxOwner)
		}
		if !utf8.ValidString(label) || strings.ContainsFunc(label, func(r rune) bool { return !unicode.IsPrint(r) }) {
			return fmt.Errorf("owner label is %q; want printable UTF-8", label)
		}
		return nil
	}}
}

// WithReentrancy lets a name be locked again under its own lease: Lock, TryLock
// and Do on a ctx that comes from the Context of a lease of this Locker or a
// sibling on the same name, as inside Do, give a nested lease at once. Without
// this option such a call fails at once with ErrHeld, since it would wait for
// itself.
//
// A nested lease costs no command and takes part in the outermost one: it has
// the same token and the same end. Until, Validity and Extend are the outermost
// one's. It ends when it is unlocked itself, which sends nothing, or with the
// outermost lease, by whichever Locker it was taken, and then says why that
// ended. The outermost Unlock releases the lock even if a nested lease was not
// unlocked; that one then says ErrReleased. A nested Do renews nothing; whether the
// lease is renewed is the outermost one's affair.
//
// It is the ctx that makes a call nested, never the process or the goroutine: a
// lease that was unlocked, also one whose Unlock failed, is never entered again.
func WithReentrancy() Option {
	return Option{name: "reentrancy", set: func(c *config) error {
		c.reentrant = true
		return nil
	}}
}

// WithHooks adds observers; several are called in the order in which they were
// added, those of With after those of the Locker it extends.
func WithHooks(h Hooks) Option {
	return Option{name: "hooks", set: func(c *config) error {
		c.hooks = append(c.hooks[:len(c.hooks):len(c.hooks)], h)
		return nil
	}}
}

// WithReplicaAck lets a node vote on a lock or an extension only when at least n of
// its replicas have acknowledged the write within timeout (Redis's WAIT); default:
// replicas are not asked. The vote of a node where fewer did is Failed, because of
// "1 of 2 replicas acknowledged within 20ms"; what that node had promised before
// an extension still stands. Its key goes with the others: when the round is lost,
// at once, else with Unlock or the lease's end.
//
// It lowers the risk that a failover loses a vote. It does not remove it: the
// replica that is promoted may be one that has not acknowledged, so a failover
// within a ttl can still give a name to two holders.
//
// n is at least 1. timeout is cut to whole milliseconds, at least 1 ms, and less
// than the node timeout, which has to cover a round trip besides. A lock takes as
// long as the replicas need. A server that refuses WAIT does not vote.
//
// WAIT answers for the connection on which it is sent and blocks that, so up to
// four connections of each client's pool are used for it, half of a small pool.
// Every client has to be a *redis.Client with a pool of at least 3 connections;
// New and With refuse others.
func WithReplicaAck(n int, timeout time.Duration) Option {
	return Option{name: "replica acknowledgements", set: func(c *config) error {
		c.acks = &ackRule{n, timeout.Truncate(time.Millisecond)}
		switch {
		case n < 1:
			return fmt.Errorf("replica acknowledgements wanted are %d; want at least 1", n)
		case timeout < time.Millisecond:
			return fmt.Errorf("the time for replica acknowledgements is %v; want at least %v", timeout, time.Millisecond)
		}
		return nil
	}}
}

// apply sets the options and checks how they go together.
func (c config) apply(opts []Option, sibling bool) (_ config, faults []error) {
	for _, o := range opts {
		if o.set == nil {
			continue
		}
		if sibling && o.nodeLevel {
			faults = append(faults, fmt.Errorf("%s belongs to the nodes, which siblings share; set it with New or Open", o.name))
			continue
		}
		if err := o.set(&c); err != nil {
			faults = append(faults, err)
		}
	}
	if len(faults) == 0 {
		faults = c.faults(c.ttl)
	}
	if c.nodeTimeout == 0 {
		c.nodeTimeout = max(c.ttl/20, minNodeTimeout)
	}
	if len(faults) == 0 {
		faults = c.acks.check(c.nodeTimeout)
	}
	return c, faults
}

// faults checks a ttl, of the Locker or of one extension, against the rest.
func (c config) faults(ttl time.Duration) (faults []error) {
	if ttl > maxTTL {
		return []error{fmt.Errorf("ttl is %v; want at most %v", ttl, maxTTL)}
	}
	if least := defaultDrift(ttl); c.leastDrift > 0 && c.leastDrift < least {
		faults = append(faults, fmt.Errorf("drift is %v; want at least %v, which is ttl/100 + %v for a ttl of %v",
			c.leastDrift, least, driftFloor, ttl))
	}
	faults = append(faults, c.checkGuard(ttl)...)
	margin := drift(ttl, c.leastDrift)
	if ttl-margin < minValidity {
		faults = append(faults, fmt.Errorf("ttl is %v and its drift margin %v; want at least %v to remain",
			ttl, margin, minValidity))
	} else if ttl-margin-c.lossLead < minValidity {
		faults = append(faults, fmt.Errorf("loss lead is %v, ttl is %v and its drift margin %v; want at least %v to remain",
			c.lossLead, ttl, margin, minValidity))
	} else if lead := c.lead(); c.maxHold > 0 && c.maxHold-lead < minValidity {
		faults = append(faults, fmt.Errorf("max hold is %v and the loss lead %v; want at least %v to remain",
			c.maxHold, lead, minValidity))
	}
	return faults
}

// checkTTL is faults for one extension.
func (c config) checkTTL(ttl time.Duration) error {
	if ttl < time.Millisecond {
		return invalid("ttl is %v; want at least %v", ttl, time.Millisecond)
	}
	c.leastDrift = 0 // it was checked for the ttl that it was set with
	if faults := c.faults(ttl.Truncate(time.Millisecond)); len(faults) > 0 {
		return joinInvalid(faults)
	}
	return nil
}

// span is what a node's promise over ttl is worth: ttl − drift.
func (c *config) span(ttl time.Duration) time.Duration {
	return ttl - drift(ttl, c.leastDrift)
}

// lead is how long before its end a lease is given up: by default half the drift
// margin, at least 1 ms, and never more than half of what the ttl leaves.
func (c *config) lead() time.Duration {
	if c.lossLead > 0 {
		return c.lossLead
	}
	return min(max(time.Millisecond, drift(c.ttl, c.leastDrift)/2), c.span(c.ttl)/2)
}

// voteBound is how long the votes of an acquire are waited for: the node
// timeout, but never past the point where a quorum would come too late.
func (c *config) voteBound() time.Duration {
	return min(c.nodeTimeout, c.span(c.ttl)-c.lead())
}

func joinInvalid(faults []error) error {
	return fmt.Errorf("redlock: %w: %w", ErrInvalid, joined(faults))
}

// joined is errors.Join on one line.
type joined []error

func (j joined) Error() string {
	texts := make([]string, len(j))
	for i, err := range j {
		texts[i] = err.Error()
	}
	return strings.Join(texts, "; ")
}

func (j joined) Unwrap() []error { return j }

// checkName refuses names that could not be locks of this Locker.
func (l *Locker) checkName(name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	return l.slotted(name)
}

// checkName refuses names that could not be locks.
func checkName(name string) error {
	switch {
	case name == "":
		return invalid("the lock's name is empty")
	case strings.HasPrefix(name, fencePrefix):
		return invalid("the lock's name is %s; names that begin with %q are kept for fencing counters", quote(name), fencePrefix)
	case name == membersKey:
		return invalid("the lock's name is %s, which is kept for what Check enters", quote(name))
	case len(name) > maxName:
		return invalid("the lock's name has %d bytes; want at most %d", len(name), maxName)
	}
	return nil
}

// maxName is the longest name of a lock: what Redis allows for a key by default
// is 512 MB, and nobody means that.
const maxName = 1 << 20
