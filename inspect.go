package redlock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// releasedChannel and a name are where the release of that name is published.
const releasedChannel = "redlock:released:"

// fenceCounter is the key of a name's fencing counter. The tag makes a cluster
// keep it beside the lock.
func fenceCounter(name string) string {
	tag := hashTag(name)
	if tag == "" {
		tag = name
	}
	return fencePrefix + "{" + tag + "}:" + name
}

// hashTag is the part of a key that decides its slot in a cluster; "": all of it does.
func hashTag(key string) string {
	_, rest, _ := strings.Cut(key, "{")
	if tag, _, ok := strings.Cut(rest, "}"); ok {
		return tag
	}
	return ""
}

// Verdict is what the nodes together say about a name.
type Verdict string

const (
	// Held: a quorum of nodes has one and the same value under the name. Nobody
	// else can obtain it before enough of them expire.
	Held Verdict = "held"
	// Free: a quorum of nodes has nothing under the name. It can be obtained,
	// even if something is left on the others.
	Free Verdict = "free"
	// Split: neither, although a quorum answered: several owners have a part of
	// the nodes each, an attempt is just under way, keys of another type are in
	// the way, or the nodes that would decide it are silent. The rows tell.
	Split Verdict = "split"
	// Unknown: less than a quorum of nodes answered usefully.
	Unknown Verdict = "unknown"
)

// Sighting is what Inspect found on one node.
type Sighting struct {
	Node      string        `json:"node"`                 // the node's address, never its password
	Stored    bool          `json:"stored"`               // something is stored under the name
	WrongType bool          `json:"wrong_type,omitempty"` // what is stored is no string, so it is no lock
	Value     string        `json:"-"`                    // what is stored: a token, a secret of its owner
	Owner     string        `json:"owner,omitempty"`      // the token's owner label, or the beginning of the value
	Left      time.Duration `json:"left_ns,omitempty"`    // until it expires, when the node answered; whole milliseconds
	NoExpiry  bool          `json:"no_expiry,omitempty"`  // it never expires, so no lock of this library wrote it
	Fence     uint64        `json:"fence,omitempty"`      // the name's fencing counter there; 0: none, or not ours to read
	Latency   time.Duration `json:"latency_ns"`           // from the start of the call to this answer
	Err       error         `json:"-"`                    // why the node gave no useful answer; "error" in JSON, as text
}

// Inspection is what all nodes have stored under a name. The nodes were asked at
// the same time, but what they say was true at moments that differ by their
// latencies.
type Inspection struct {
	Name     string        `json:"name"`
	Verdict  Verdict       `json:"verdict"`
	Owner    string        `json:"owner,omitempty"`     // of the value that most nodes have, as in Sighting; "" when Free
	Holders  int           `json:"holders"`             // nodes that have that value
	Left     time.Duration `json:"left_ns,omitempty"`   // when Held: until a quorum has it no longer, unless it is extended
	NoExpiry bool          `json:"no_expiry,omitempty"` // when Held: a quorum will have it for ever
	Fence    uint64        `json:"fence,omitempty"`     // the highest counter that was seen; 0: none
	Quorum   int           `json:"quorum"`              // nodes that make a verdict
	Took     time.Duration `json:"took_ns"`             // the whole call
	Nodes    []Sighting    `json:"nodes"`               // one row per node, in the order in which they were given
}

// Inspect reads what is stored under a name on every node, and changes nothing.
// It is a report and no race: it returns when all nodes have answered, or after
// one node timeout. It needs no lease and takes none, so what it says may be over
// when it is read; it is for people, tests and alarms, not for deciding whether
// one may act.
//
// The Inspection is complete as far as nodes answered, also beside an error. It
// is nil where nothing was sent: the name is invalid, ctx had ended or the Locker
// was closed before.
//
//   - nil: a quorum of nodes answered, see Verdict.
//   - ErrNoQuorum (a *QuorumError): fewer did; its rows say why. A vote "granted"
//     there is an answer.
//   - an error of ctx, or ErrClosed: that came first.
//   - ErrInvalid: the name or ctx cannot be used, see Lock.
func (l *Locker) Inspect(ctx context.Context, name string) (*Inspection, error) {
	if ctx == nil {
		return nil, errNilContext
	}
	if err := checkName(name); err != nil {
		return nil, err
	}
	r, requests, err := l.survey(ctx, inspect, name)
	if r == nil {
		return nil, err
	}
	record := r.record(0)
	in := &Inspection{Name: name, Quorum: record.Quorum, Took: record.Took, Nodes: make([]Sighting, len(record.Votes))}
	for i, v := range record.Votes {
		if v.Outcome == Granted { // else nobody may look at it yet
			in.Nodes[i] = sight(v, requests[i].found)
			continue
		}
		in.Nodes[i] = sight(v, nil)
	}
	in.judge()
	if err == nil && in.Verdict == Unknown {
		err = &QuorumError{Round: record, class: ErrNoQuorum}
	}
	return in, err
}

// ForceRelease deletes whatever string is stored under a name, on all nodes and
// whoever put it there, and wakes who waits for it. It is for operators, when a
// holder is known to be gone and its ttl is long.
//
// If the holder is not gone, two may hold the name: it is told at its next renewal,
// by Extend or the watchdog, or when its time is over if there is none. That holds for
// a lease of this very Locker too. A node that is cut off while it is asked may
// do it when it is back, to whatever it has then.
//
// It waits for all nodes, but no longer than ctx lasts or one node timeout:
//
//   - nil: a quorum of nodes is free of the name now.
//   - ErrNoQuorum (a *QuorumError): fewer are. Its rows say why: no answer, or a
//     key of another type, which is left as it is. What could be deleted is.
//   - an error of ctx, or ErrClosed: that came first. Some nodes may have done it.
//   - ErrInvalid: the name or ctx cannot be used, see Lock. Nothing was sent.
func (l *Locker) ForceRelease(ctx context.Context, name string) error {
	if ctx == nil {
		return errNilContext
	}
	if err := checkName(name); err != nil {
		return err
	}
	op := Op{force.String(), name}
	ctx = l.cfg.start(ctx, op)
	err := l.forceRelease(ctx, name)
	l.cfg.done(ctx, op, nil, err)
	return err
}

func (l *Locker) forceRelease(ctx context.Context, name string) error {
	r, _, err := l.survey(ctx, force, name)
	if r == nil {
		return err
	}
	l.cfg.round(ctx, r, 0)
	record := r.record(0)
	switch {
	case record.Count(Granted) >= record.Quorum:
		return nil
	case err != nil:
		return err
	}
	return &QuorumError{Round: record, class: ErrNoQuorum}
}

// survey sends one request of no lease to every node and waits for all answers.
// An error says what ended that early; without a round nothing was sent.
func (l *Locker) survey(ctx context.Context, k kind, name string) (*round, []request, error) {
	leave, err := l.enter()
	if err == nil && ctx.Err() != nil {
		leave()
		err = contextErr(ctx)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("redlock: %v %s: %w", k, quote(name), err)
	}
	defer leave()
	nobody := &Lease{locker: l, name: name, claims: make([]claim, len(l.root.nodes))}
	for i, n := range l.root.nodes {
		nobody.claims[i] = claim{lease: nobody, node: n, index: i}
	}
	start := l.cfg.clock.start()
	r := newRound(k, k.String(), nobody, start, 0, l.cfg.nodeTimeout)
	requests := make([]request, len(nobody.claims))
	for i := range requests {
		requests[i] = request{kind: k, claim: &nobody.claims[i], round: r, by: start.mono.Add(r.bound)}
		nobody.claims[i].node.push(&requests[i])
	}
	_, decided := r.wait(ctx.Done(), l.closed, l.root.closing, nil)
	nobody.over.Store(true)
	for i := range requests {
		nobody.claims[i].node.withdraw(&requests[i])
	}
	switch {
	case decided:
		return r, requests, nil
	case ctx.Err() != nil:
		err = contextErr(ctx)
	default:
		err = ErrClosed
	}
	return r, requests, fmt.Errorf("redlock: %v %s: %w", k, quote(name), err)
}

// sight turns one node's answer into a row. found is lua/inspect.lua's reply
// where the vote says that there was one.
func sight(v Vote, found any) Sighting {
	s := Sighting{Node: v.Node, Latency: v.Latency, Err: v.Err}
	switch {
	case v.Outcome == Pending:
		s.Err = errUnread
	case v.Outcome == Refused && errors.Is(v.Err, errWrongType):
		s.Stored, s.WrongType, s.Err = true, true, nil
	}
	list, ok := found.([]any)
	if !ok || len(list) != 3 {
		return s
	}
	if s.Value, s.Stored = list[0].(string); s.Stored {
		s.Owner = ownerOf(s.Value)
		switch left, _ := list[1].(int64); {
		case left == -1:
			s.NoExpiry = true
		default:
			s.Left = time.Duration(max(left, 0)) * time.Millisecond
		}
	}
	// A string all the way: Lua's numbers lose digits when they are printed.
	if text, ok := list[2].(string); ok {
		s.Fence, _ = strconv.ParseUint(text, 10, 64)
	}
	return s
}

var errUnread = opaque{"it had not answered when the call ended"}

// judge fills in what the rows together say.
func (in *Inspection) judge() {
	free, answered, most := 0, 0, 0
	value, holders := "", make(map[string][]Sighting)
	for _, s := range in.Nodes {
		if s.Err != nil {
			continue
		}
		answered++
		in.Fence = max(in.Fence, s.Fence)
		switch {
		case !s.Stored:
			free++
		case !s.WrongType:
			holders[s.Value] = append(holders[s.Value], s)
			if k := len(holders[s.Value]); k > most {
				value, most = s.Value, k
			}
		}
	}
	switch {
	case most >= in.Quorum:
		in.Verdict = Held
		in.Left, in.NoExpiry = lasting(holders[value], in.Quorum)
	case free >= in.Quorum:
		in.Verdict = Free
		return
	case answered >= in.Quorum:
		in.Verdict = Split
	default:
		in.Verdict = Unknown
	}
	in.Owner, in.Holders = ownerOf(value), most
}

// lasting is how long quorum of the rows keep what they have: the quorum-th
// longest of their times.
func lasting(rows []Sighting, quorum int) (left time.Duration, forever bool) {
	times := make([]time.Duration, len(rows))
	for i, s := range rows {
		times[i] = s.Left
		if s.NoExpiry {
			times[i] = time.Duration(1<<63 - 1)
		}
	}
	slices.Sort(times)
	if left = times[len(times)-quorum]; left == time.Duration(1<<63-1) {
		return 0, true
	}
	return left, false
}

// summary is the verdict on one line.
func (in Inspection) summary() string {
	s := quote(in.Name) + " is " + string(in.Verdict)
	switch in.Verdict {
	case Held:
		s += fmt.Sprintf(" by %q, %s, on %d of %d nodes", in.Owner, remaining(in.Left, in.NoExpiry), in.Holders, len(in.Nodes))
	case Free:
		s += fmt.Sprintf(" on %d of %d nodes", in.count(func(n Sighting) bool { return !n.Stored }), len(in.Nodes))
	default:
		s += fmt.Sprintf(": %d of %d nodes answered, %d needed to agree", in.count(func(Sighting) bool { return true }), len(in.Nodes), in.Quorum)
	}
	if in.Fence > 0 {
		s += fmt.Sprintf(", fence %d", in.Fence)
	}
	return s
}

// count is the number of nodes that answered and fit.
func (in Inspection) count(fits func(Sighting) bool) (k int) {
	for _, n := range in.Nodes {
		if n.Err == nil && fits(n) {
			k++
		}
	}
	return k
}

func remaining(left time.Duration, forever bool) string {
	if forever {
		return "without expiry"
	}
	return fmt.Sprintf("for another %v", left)
}

// String prints the verdict on a line and the nodes in a table below it, without
// the values.
func (in Inspection) String() string {
	var s strings.Builder
	fmt.Fprintln(&s, in.summary())
	w := tabwriter.NewWriter(&s, 0, 0, 2, ' ', 0)
	for _, n := range in.Nodes {
		fmt.Fprintf(w, "%s\t%s\t%s\n", n.Node, n.what(), n.Latency.Round(10*time.Microsecond))
	}
	w.Flush()
	return strings.TrimSuffix(s.String(), "\n")
}

// GoString is String, so that no way of printing an Inspection shows a token.
func (in Inspection) GoString() string { return in.String() }

// LogValue is the verdict on one line, without the values.
func (in Inspection) LogValue() slog.Value { return slog.StringValue(in.summary()) }

// what says what was found, without the value.
func (s Sighting) what() string {
	text := "nothing"
	switch {
	case s.Err != nil:
		return s.Err.Error()
	case s.WrongType:
		return errWrongType.Error()
	case s.Stored:
		text = fmt.Sprintf("%q, %s", s.Owner, remaining(s.Left, s.NoExpiry))
	}
	if s.Fence > 0 {
		text += fmt.Sprintf(", fence %d", s.Fence)
	}
	return text
}

// String prints the row on one line, without the value.
func (s Sighting) String() string {
	return fmt.Sprintf("%s: %s (%v)", s.Node, s.what(), s.Latency.Round(10*time.Microsecond))
}

// GoString is String, so that no way of printing a Sighting shows a token.
func (s Sighting) GoString() string { return s.String() }

// bareSighting is a Sighting without its methods, sightingJSON what JSON makes
// of one: an error would be lost.
type (
	bareSighting Sighting
	sightingJSON struct {
		bareSighting
		Error string `json:"error,omitempty"`
	}
)

// MarshalJSON leaves out the value, a secret, and writes the error as text.
func (s Sighting) MarshalJSON() ([]byte, error) {
	out := sightingJSON{bareSighting: bareSighting(s)}
	if s.Err != nil {
		out.Error = s.Err.Error()
	}
	return json.Marshal(out)
}

// UnmarshalJSON reads what MarshalJSON wrote; of an error it has the text.
func (s *Sighting) UnmarshalJSON(data []byte) error {
	var in sightingJSON
	if err := json.Unmarshal(data, &in); err != nil {
		return err
	}
	*s = Sighting(in.bareSighting)
	if in.Error != "" {
		s.Err = opaque{in.Error}
	}
	return nil
}
