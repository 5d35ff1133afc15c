package redlock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/google/uuid"
)

// The states that an error can tell. Use errors.Is; an error may match more than
// one of them and of the context package's errors, see Locker.Lock.
var (
	// ErrHeld says that other owners refused: at least N−Q+1 of the N nodes
	// answered that somebody else has the name. The rows of the QuorumError
	// tell who.
	ErrHeld = errors.New("held by another owner")

	// ErrNoQuorum says that too few nodes answered usefully (down, slow, error
	// replies, a vote split between owners, in any mix) for a yes or a no.
	ErrNoQuorum = errors.New("no quorum")

	// ErrExpired says that a quorum did grant, but so late that no validity was
	// left. Everything was released again.
	ErrExpired = errors.New("granted too late to be valid")

	// ErrLost says that this lease may no longer act: its time ran out, or its
	// keys are gone from, or taken over on, a majority. It is latched: a lease
	// that was once seen lost stays lost. A nil *Lease counts as lost. Of Attach
	// it says the same of the lease that was to be taken over.
	ErrLost = errors.New("lease lost")

	// ErrReleased says that the lease was used after Unlock or Detach.
	ErrReleased = errors.New("lease released")

	// ErrClosed says that the Locker was closed.
	ErrClosed = errors.New("locker closed")

	// ErrInvalid says that an argument or option is out of bounds. No command
	// was sent to any node. The text names the value and the bound.
	ErrInvalid = errors.New("invalid argument")
)

// Outcome is what one node said in one round.
type Outcome uint8

const (
	// Pending: the node has not answered yet.
	Pending Outcome = iota
	// Granted: the node holds the token (lock, extend), deleted it (unlock), is
	// free of the name (forcerelease) or answered (inspect).
	Granted
	// Refused: the name is not this lease's there.
	Refused
	// Failed: no useful answer; the Vote's Err says why.
	Failed
)

func (o Outcome) String() string {
	return [...]string{"pending", "granted", "refused", "failed"}[o]
}

// MarshalText is String, for logs and JSON.
func (o Outcome) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// Vote is one node's row in a Round.
type Vote struct {
	Node    string        // the node's address, never its password
	Outcome Outcome       // what it said
	Latency time.Duration // from the start of the round to this answer; 0 while Pending
	Holder  string        `json:"-"` // of a refused lock: the value found under the name, a secret of its owner
	Err     error         // why Failed, or more about Refused; never a context error

	permanent bool          // a failure that trying again cannot cure
	silent    bool          // a failure that may be none to others: the node may have the token all the same
	fence     uint64        // of a granted lock, attach or raise: what the name's fencing counter was raised to; 0: it was not
	left      time.Duration // of a refused lock: how long that value will live; 0: not told
	never     bool          // of a refused unlock: this node never had the token, as we knew without asking
}

func (v Vote) String() string {
	var s strings.Builder
	fmt.Fprintf(&s, "%s %s", v.Node, v.Outcome)
	if v.Latency > 0 {
		fmt.Fprintf(&s, " in %v", v.Latency.Round(10*time.Microsecond))
	}
	if v.Holder != "" {
		fmt.Fprintf(&s, " (held by %q)", ownerOf(v.Holder))
	}
	if v.Err != nil {
		fmt.Fprintf(&s, " (%v)", v.Err)
	}
	return s.String()
}

// Round is the record of one round of votes: one request to every node.
type Round struct {
	Op      string        // as in Op.Kind, or "renew" (by the watchdog), "close" or "inspect"
	Name    string        // of the lock
	Attempt int           // of lock and trylock: the first is 1; 0 if it was another call's, else too
	Quorum  int           // votes needed
	Took    time.Duration // from the start of the round to its verdict
	Votes   []Vote        // one row per node, in the order in which they were given
}

// Count is the number of nodes with that outcome.
func (r Round) Count(o Outcome) (n int) {
	for _, v := range r.Votes {
		if v.Outcome == o {
			n++
		}
	}
	return n
}

// Owner names who has the lock, according to most of those that refused it: by
// the owner label, else by the beginning of the token or value found under the
// name. It is empty if none of them showed a value.
func (r Round) Owner() (owner string) {
	seen := make(map[string]int)
	for _, v := range r.Votes {
		if v.Holder == "" {
			continue
		}
		seen[v.Holder]++
		if owner == "" || seen[v.Holder] > seen[owner] {
			owner = v.Holder
		}
	}
	return ownerOf(owner)
}

// String prints the round on one line.
func (r Round) String() string {
	var s strings.Builder
	fmt.Fprintf(&s, "%d of %d granted, %d needed: ", r.Count(Granted), len(r.Votes), r.Quorum)
	for i, v := range r.Votes {
		if i > 0 {
			s.WriteString(", ")
		}
		s.WriteString(v.String())
	}
	return s.String()
}

// LogValue is String: it shows no token.
func (r Round) LogValue() slog.Value { return slog.StringValue(r.String()) }

// QuorumError is the verdict of a round that was not won, with the votes behind
// it. It matches its class (ErrHeld, ErrNoQuorum, ErrExpired or ErrLost) and the
// causes of the nodes that failed.
type QuorumError struct {
	Round Round
	class error
	lease error // of a lost lease: why
}

// Error prints class and votes on one line.
func (e *QuorumError) Error() string {
	s := fmt.Sprintf("redlock: %s %s: %v", e.Round.Op, quote(e.Round.Name), e.class)
	if e.Round.Attempt > 1 {
		s += fmt.Sprintf(" after %d attempts", e.Round.Attempt)
	}
	return fmt.Sprintf("%s (%v)", s, e.Round)
}

// Unwrap gives the class first, then the *LostError of a lost lease, then the
// cause of every failed node.
func (e *QuorumError) Unwrap() []error {
	errs := []error{e.class}
	if e.lease != nil {
		errs = append(errs, e.lease)
	}
	for _, v := range e.Round.Votes {
		if v.Outcome == Failed && v.Err != nil {
			errs = append(errs, v.Err)
		}
	}
	return errs
}

// incurable tells whether the nodes that can never vote make a quorum
// impossible all by themselves.
func (e *QuorumError) incurable() bool {
	hopeless := 0
	for _, v := range e.Round.Votes {
		if v.permanent {
			hopeless++
		}
	}
	return len(e.Round.Votes)-hopeless < e.Round.Quorum
}

// waitError ends a wait: why it ended, and the last verdict if there was one.
type waitError struct {
	op, name string
	attempts int
	why      error
	last     *QuorumError
}

func (e *waitError) Error() string {
	s := fmt.Sprintf("redlock: %s %s: %v", e.op, quote(e.name), e.why)
	switch e.attempts {
	case 0:
		s += " before the first attempt"
	case 1:
		s += " after 1 attempt"
	default:
		s += fmt.Sprintf(" after %d attempts", e.attempts)
	}
	if e.last != nil {
		s += fmt.Sprintf("; the last: %v (%v)", e.last.class, e.last.Round)
	}
	return s
}

func (e *waitError) Unwrap() []error {
	if e.last == nil {
		return []error{e.why}
	}
	return []error{e.why, e.last}
}

// contextErr is how a context ended: its error, joined with its cause where
// that says more.
func contextErr(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if errors.Is(cause, err) {
		return cause
	}
	return fmt.Errorf("%w (%w)", err, cause)
}

// opaque keeps the text of an error and hides what it wraps. A node's timeout
// must never look like the end of the caller's context, and net's timeouts do
// match context.DeadlineExceeded.
type opaque struct{ text string }

func (e opaque) Error() string { return e.text }

func withoutContext(err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return opaque{err.Error()}
	}
	return err
}

// invalid builds an ErrInvalid.
func invalid(format string, args ...any) error {
	return fmt.Errorf("redlock: %w: "+format, append([]any{ErrInvalid}, args...)...)
}

// quote quotes a lock name for a message and shortens one that would drown it.
func quote(s string) string {
	const most = 80
	if len(s) > most {
		return fmt.Sprintf("%q… (%d bytes)", s[:most], len(s))
	}
	return fmt.Sprintf("%q", s)
}

// ownerOf is how a message names the owner behind a token: by its label, else by
// its beginning. Other libraries' values are cut the same way: whoever knows the
// whole of one can release the lock.
func ownerOf(token string) string {
	const uuidLen, most = 36, 8
	if len(token) > uuidLen+1 && token[uuidLen] == ':' && uuid.Validate(token[:uuidLen]) == nil {
		return token[uuidLen+1:]
	}
	if len(token) > most {
		return token[:most] + "…"
	}
	return token
}
