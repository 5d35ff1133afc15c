package faultinject

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Plan is a list of events, and the seed of their random choices. Its text is
//
//	seed 7
//	at 0s, nodes 2,3: delay 20ms+5ms
//	at 1s for 500ms, nodes 1-2 from a,b: partition   # a comment
//	on SET #3, node 1: kill during
//
// in which the order of lines says nothing, blank lines and comments are free,
// and the first line may be missing.
type Plan struct {
	Seed   uint64
	Events []Event
}

// String is the plan as text. ParsePlan makes the same plan of it.
func (p Plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d\n", p.Seed)
	for _, e := range p.Events {
		fmt.Fprintln(&b, e)
	}
	return b.String()
}

// PlanError says which line of a plan makes no sense, and why.
type PlanError struct {
	Line int // from 1
	Text string
	Err  error
}

func (e *PlanError) Error() string {
	return fmt.Sprintf("faultinject: plan, line %d, %q: %v", e.Line, e.Text, e.Err)
}

// Unwrap is the reason.
func (e *PlanError) Unwrap() error { return e.Err }

// ParsePlan reads a plan. Its error is a *PlanError.
func ParsePlan(text string) (Plan, error) {
	var p Plan
	seeded := false
	for i, line := range strings.Split(text, "\n") {
		body := strings.TrimSpace(withoutComment(line))
		if body == "" {
			continue
		}
		var err error
		if number, ok := strings.CutPrefix(body, "seed "); ok {
			if seeded || len(p.Events) > 0 {
				err = fmt.Errorf("the seed is the first line, once")
			} else if p.Seed, err = strconv.ParseUint(strings.TrimSpace(number), 10, 64); err != nil {
				err = fmt.Errorf("%q is no seed: a number from 0 to 2^64-1", number)
			}
			seeded = true
		} else {
			var e Event
			if e, err = ParseEvent(body); err == nil {
				p.Events = append(p.Events, e)
			}
		}
		if err != nil {
			return Plan{}, &PlanError{Line: i + 1, Text: strings.TrimSpace(line), Err: err}
		}
	}
	return p, nil
}

// withoutComment cuts a line at the first # that is not within quotes, nor counts
// commands as "on SET #3" does: with a number, in front of the colon.
func withoutComment(line string) string {
	quoted, colon := false, false
	for i := 0; i < len(line); i++ {
		switch c := line[i]; {
		case c == '\\' && quoted:
			i++
		case c == '"':
			quoted = !quoted
		case c == ':' && !quoted:
			colon = true
		case c == '#' && !quoted && (colon || !counts(line[:i], line[i+1:])):
			return line[:i]
		}
	}
	return line
}

// counts says whether a # between two texts counts commands.
func counts(before, after string) bool {
	return strings.TrimSpace(before) != "" && after != "" && after[0] >= '0' && after[0] <= '9'
}

// ParseEvent reads one line of a plan.
func ParseEvent(line string) (Event, error) {
	s := &scanner{rest: strings.TrimSpace(line)}
	e, err := s.event()
	if err != nil {
		return Event{}, err
	}
	return e, e.Check()
}

// scanner reads a line word by word.
type scanner struct{ rest string }

func (s *scanner) skip() { s.rest = strings.TrimLeft(s.rest, " \t") }

// accept takes a word if it is next.
func (s *scanner) accept(word string) bool {
	s.skip()
	rest, ok := strings.CutPrefix(s.rest, word)
	if !ok || rest != "" && isWord(word[len(word)-1]) && isWord(rest[0]) {
		return false
	}
	s.rest = rest
	return true
}

func isWord(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '.'
}

// word takes what is next up to a space, or one of the marks.
func (s *scanner) word(marks string) string {
	s.skip()
	end := strings.IndexAny(s.rest, " \t"+marks)
	if end < 0 {
		end = len(s.rest)
	}
	w := s.rest[:end]
	s.rest = s.rest[end:]
	return w
}

func (s *scanner) quoted() (string, error) {
	s.skip()
	q, err := strconv.QuotedPrefix(s.rest)
	if err != nil || q[0] != '"' {
		return "", fmt.Errorf(`expected a text in double quotes at %q`, s.rest)
	}
	s.rest = s.rest[len(q):]
	return strconv.Unquote(q)
}

func (s *scanner) duration(marks string) (time.Duration, error) {
	w := s.word(marks)
	d, err := time.ParseDuration(w)
	if err != nil {
		return 0, fmt.Errorf("%q is no duration, as 1.5s or 20ms", w)
	}
	return d, nil
}

func (s *scanner) event() (e Event, err error) {
	if e.When, err = s.when(); err != nil {
		return e, err
	}
	if !s.accept(",") {
		return e, fmt.Errorf(`expected a place, as ", all" or ", node 1", at %q`, s.rest)
	}
	if e.Where, err = s.where(); err != nil {
		return e, err
	}
	if !s.accept(":") {
		return e, fmt.Errorf("expected a colon and a fault at %q", s.rest)
	}
	for {
		f, err := s.fault()
		if err != nil {
			return e, err
		}
		e.Faults = append(e.Faults, f)
		if !s.accept("and") {
			break
		}
	}
	if s.skip(); s.rest != "" {
		return e, fmt.Errorf("expected the end of the line at %q", s.rest)
	}
	return e, nil
}

func (s *scanner) when() (w When, err error) {
	some := false
	if s.accept("at") {
		some = true
		if w.At, err = s.duration(","); err != nil {
			return w, err
		}
	}
	if s.accept("for") {
		some = true
		if w.For, err = s.duration(","); err != nil {
			return w, err
		}
		if w.For <= 0 {
			return w, fmt.Errorf("for %v is not positive", w.For)
		}
	}
	if s.accept("on") {
		some = true
		if w.On, err = s.trigger(); err != nil {
			return w, err
		}
	}
	if !some {
		return w, fmt.Errorf(`expected a time or a command, as "at 1s" or "on SET", at %q`, s.rest)
	}
	return w, nil
}

func (s *scanner) trigger() (t Trigger, err error) {
	kind := s.word(",#:")
	if kind == "" {
		return t, fmt.Errorf("expected a command at %q", s.rest)
	}
	t = On(kind)
	if s.accept("key") {
		key, err := s.quoted()
		if err != nil {
			return t, err
		}
		t = t.Key(key)
	}
	if s.accept("#") {
		w := s.word(",:")
		low, high, isRange := strings.Cut(w, "-")
		a, err1 := strconv.Atoi(low)
		b, err2 := a, error(nil)
		if isRange {
			if b = 0; high != "" {
				b, err2 = strconv.Atoi(high)
			}
		}
		if err1 != nil || err2 != nil || a < 1 || isRange && high != "" && b < a {
			return t, fmt.Errorf("#%s counts nothing: #3, #3-5 or #3-", w)
		}
		t = t.Between(a, b)
	}
	s.skip()
	if s.part() {
		w := s.word(",:")
		number, ok := strings.CutSuffix(w, "%")
		p, err := strconv.ParseFloat(number, 64)
		if !ok || err != nil || !(p > 0 && p <= 100) {
			return t, fmt.Errorf("%q is no part: above 0%%, up to 100%%", w)
		}
		t = t.Percent(p)
	}
	return t, nil
}

// part says whether the part of a trigger is next, well-formed or not, rather than
// its end or a place whose comma was forgotten.
func (s *scanner) part() bool {
	for _, place := range []string{"all", "node", "nodes", "client", "clients"} {
		if ahead := *s; ahead.accept(place) {
			return false
		}
	}
	return s.rest != "" && s.rest[0] != ',' && s.rest[0] != ':'
}

func (s *scanner) where() (w Where, err error) {
	switch {
	case s.accept("all"):
	case s.accept("nodes"), s.accept("node"):
		list := s.list()
		if w.mask, err = parseNodes(list); err != nil {
			return w, err
		}
		w.nodes = list
	case s.accept("clients"), s.accept("client"):
		w = Where{clients: s.list(), paused: true}
		return w, w.check()
	default:
		return w, fmt.Errorf("expected all, node 1, nodes 1,3-5 or client a at %q", s.rest)
	}
	if s.accept("from") {
		w.clients = s.list()
		if w.clients == "" {
			return w, fmt.Errorf("expected names of clients at %q", s.rest)
		}
	}
	return w, w.check()
}

// list takes items with commas between them.
func (s *scanner) list() string {
	list := s.word(",:")
	for strings.HasPrefix(s.rest, ",") {
		s.rest = s.rest[1:]
		list += "," + s.word(",:")
	}
	return list
}
