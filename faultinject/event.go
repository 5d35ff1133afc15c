package faultinject

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Event says when, where and what goes wrong. Its text is a line of a [Plan]:
//
//	at 1s for 300ms, nodes 1,3 from a: hang
//	on SET #1, node 2: kill during
//	on EVALSHA key "orders/42" 10%, all: delay 20ms+5ms and lose reply
type Event struct {
	When   When
	Where  Where
	Faults []Fault // all at once
}

// When is a time, a command, or both: from a time on, for a time, on commands.
// The zero When is now.
type When struct {
	At  time.Duration // after the start
	For time.Duration // 0 is until the end
	On  Trigger
}

// Trigger chooses commands as they arrive at a node. Each node counts for itself
// what matches, from the moment the event begins, so the choice is a function of
// the plan's seed, the node and that count.
type Trigger struct {
	kind        string // "" is no trigger
	key         string
	keyed       bool
	counted     bool
	first, last int // last 0 is no end
	part        bool
	percent     float64
}

// On chooses every command of a kind, "SET" say, or "any".
func On(kind string) Trigger {
	switch {
	case strings.EqualFold(kind, anyKind):
		return Trigger{kind: anyKind}
	case kind == "":
		return Trigger{kind: noKind} // Check refuses it; "" would be no trigger
	}
	return Trigger{kind: strings.ToUpper(kind)}
}

const (
	anyKind = "any"
	noKind  = `""`
)

// Key restricts the choice to commands that have the key among their arguments.
func (t Trigger) Key(key string) Trigger { t.key, t.keyed = key, true; return t }

// Nth restricts the choice to the n-th such command, counted from 1.
func (t Trigger) Nth(n int) Trigger { t.counted, t.first, t.last = true, n, max(n, 1); return t }

// Between restricts the choice to the first-th to the last-th, counted from 1; last 0
// is without end.
func (t Trigger) Between(first, last int) Trigger {
	t.counted, t.first, t.last = true, first, last
	return t
}

// Percent restricts the choice to a random part of what is left.
func (t Trigger) Percent(p float64) Trigger { t.part, t.percent = true, p; return t }

// Where is a set of nodes, and the clients whose connections to them are meant.
// The zero Where is all nodes and all clients.
type Where struct {
	nodes   string // as written: "1,3-5", "" is all
	mask    uint64
	clients string // as written: "a,b", "" is all
	paused  bool   // the clients themselves are meant
}

// maxNodes bounds a cluster, and with it what a plan may name.
const maxNodes = 64

// Nodes chooses nodes, counted from 1; none is all.
func Nodes(numbers ...int) Where {
	var w Where
	text := make([]string, len(numbers))
	for i, n := range numbers {
		text[i] = strconv.Itoa(n)
		if n >= 1 && n <= maxNodes { // Check refuses the others
			w.mask |= 1 << (n - 1)
		}
	}
	w.nodes = strings.Join(text, ",")
	return w
}

// From restricts it to the connections of some clients; none is all.
func (w Where) From(clients ...string) Where {
	if w.clients = strings.Join(clients, ","); w.clients == "" && len(clients) > 0 {
		w.clients = "," // a name that Check refuses, instead of all
	}
	return w
}

// Processes chooses clients themselves, for Pause.
func Processes(clients ...string) Where {
	return Where{clients: strings.Join(clients, ","), paused: true}
}

func (w Where) hasNode(n int) bool { return w.nodes == "" || w.mask&(1<<(n-1)) != 0 }

func (w Where) hasClient(name string) bool {
	return w.clients == "" || slices.Contains(strings.Split(w.clients, ","), name)
}

// String is the event as a line of a plan.
func (e Event) String() string {
	faults := make([]string, len(e.Faults))
	for i, f := range e.Faults {
		faults[i] = f.String()
	}
	return fmt.Sprintf("%v, %v: %s", e.When, e.Where, strings.Join(faults, " and "))
}

// String is the beginning of an event's line.
func (w When) String() string {
	var parts []string
	if w.At > 0 || w.On.kind == "" {
		parts = append(parts, "at "+w.At.String())
	}
	if w.For > 0 {
		parts = append(parts, "for "+w.For.String())
	}
	if w.On.kind != "" {
		parts = append(parts, w.On.String())
	}
	return strings.Join(parts, " ")
}

// String is the trigger as an event has it.
func (t Trigger) String() string {
	s := "on " + t.kind
	if t.keyed {
		s += " key " + strconv.Quote(t.key)
	}
	switch {
	case !t.counted:
	case t.first == t.last:
		s += fmt.Sprintf(" #%d", t.first)
	case t.last == 0:
		s += fmt.Sprintf(" #%d-", t.first)
	default:
		s += fmt.Sprintf(" #%d-%d", t.first, t.last)
	}
	if t.part {
		s += " " + strconv.FormatFloat(t.percent, 'g', -1, 64) + "%"
	}
	return s
}

// String is the place as an event has it.
func (w Where) String() string {
	if w.paused {
		return plural("client", w.clients)
	}
	s := "all"
	if w.nodes != "" {
		s = plural("node", w.nodes)
	}
	if w.clients != "" {
		s += " from " + w.clients
	}
	return s
}

func plural(word, list string) string {
	if strings.ContainsAny(list, ",-") && (word == "node" || strings.Contains(list, ",")) {
		word += "s"
	}
	return word + " " + list
}

// Check says what is wrong with the event, in the words of a plan.
func (e Event) Check() error {
	if err := e.When.check(); err != nil {
		return err
	}
	if err := e.Where.check(); err != nil {
		return err
	}
	if len(e.Faults) == 0 {
		return fmt.Errorf("no fault")
	}
	var executed Fault
	refused := false
	for _, f := range e.Faults {
		if err := f.check(); err != nil {
			return err
		}
		if err := e.fits(f); err != nil {
			return err
		}
		if f.verb == loseReply || f.stage == during || f.stage == after {
			executed = f
		}
		refused = refused || f.verb == reply
	}
	if refused && executed.verb != 0 {
		return fmt.Errorf("%#q strikes what was executed, and an error says that nothing was", executed)
	}
	return nil
}

// fits says whether the fault makes sense when and where the event is.
func (e Event) fits(f Fault) error {
	triggered := e.When.On.kind != ""
	switch {
	case triggered && !f.strikesCommands():
		return fmt.Errorf("%#q cannot be bound to a command", f)
	case triggered && f.needsStage() && f.stage == atOnce:
		return fmt.Errorf("%#q on a command is before, during or after it", f)
	case triggered && f.verb == hang && f.way != bothWays:
		return fmt.Errorf("%#q cannot be bound to a command: lose request or lose reply", f)
	case !triggered && (f.needsCommand() || f.stage != atOnce):
		return fmt.Errorf("%#q needs a command: on SET, for one", f)
	case !triggered && f.span > 0:
		return fmt.Errorf("%#q at a time has its duration in front: at %v for %v", f, e.When.At, f.span)
	case !triggered && e.When.For > 0 && !f.lasts():
		return fmt.Errorf("%#q happens, and has no duration", f)
	case (f.verb == pause) != e.Where.paused:
		return fmt.Errorf("%#q is not for %v", f, e.Where)
	case !triggered && e.Where.clients != "" && !e.Where.paused && f.ofNode():
		return fmt.Errorf("%#q happens to a node, whoever the clients are", f)
	}
	return nil
}

// needsCommand says whether the fault has no meaning without a trigger.
func (f Fault) needsCommand() bool {
	return f.verb == loseRequest || f.verb == loseReply || f.verb == reply
}

func (f Fault) needsStage() bool { return f.verb == kill || f.verb == cut }

// ofNode says whether the fault is one of the node and not of its connections.
func (f Fault) ofNode() bool {
	switch f.verb {
	case freeze, thaw, kill, revive, restart, restartEmpty, restartAsOf, flushAll, evict, clockStep, clockRate:
		return true
	}
	return false
}

func (w When) check() error {
	t := w.On
	switch {
	case w.At < 0:
		return fmt.Errorf("at %v is before the start", w.At)
	case w.For < 0:
		return fmt.Errorf("for %v is negative", w.For)
	case t.kind == "":
		return nil
	case t.kind != anyKind && strings.IndexFunc(t.kind, notInKind) >= 0:
		return fmt.Errorf("%v is no command: letters, digits, '.', '_' and '-'", t.kind)
	case t.counted && (t.first < 1 || t.last != 0 && t.last < t.first):
		return fmt.Errorf("#%d-%d counts nothing: commands are counted from 1", t.first, t.last)
	case t.part && !(t.percent > 0 && t.percent <= 100):
		return fmt.Errorf("%v%% is no part: above 0%%, up to 100%%", t.percent)
	}
	return nil
}

func notInKind(r rune) bool {
	return !(r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '_' || r == '-')
}

func (w Where) check() error {
	if w.nodes != "" {
		if _, err := parseNodes(w.nodes); err != nil {
			return err
		}
	}
	if w.clients == "" && w.paused {
		return fmt.Errorf("no client is named")
	}
	if w.clients == "" {
		return nil
	}
	for name := range strings.SplitSeq(w.clients, ",") {
		if err := checkName(name); err != nil {
			return err
		}
	}
	return nil
}

func checkName(name string) error {
	if name == "" || strings.IndexFunc(name, notInName) >= 0 {
		return fmt.Errorf("%q is no client's name: letters, digits, '.', '_' and '-'", name)
	}
	return nil
}

func notInName(r rune) bool {
	return notInKind(r) && !(r >= 'a' && r <= 'z')
}

// parseNodes reads "1,3-5".
func parseNodes(list string) (mask uint64, err error) {
	for part := range strings.SplitSeq(list, ",") {
		low, high, isRange := strings.Cut(part, "-")
		a, err := strconv.Atoi(low)
		b := a
		if err == nil && isRange {
			b, err = strconv.Atoi(high)
		}
		plain := low == strconv.Itoa(a) && (!isRange || high == strconv.Itoa(b)) // no sign, no leading 0
		if err != nil || a < 1 || b < a || b > maxNodes || !plain {
			return 0, fmt.Errorf("%q is no node: numbers from 1 to %d, as in 1,3-5", part, maxNodes)
		}
		for n := a; n <= b; n++ {
			mask |= 1 << (n - 1)
		}
	}
	return mask, nil
}
