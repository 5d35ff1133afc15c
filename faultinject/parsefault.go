package faultinject

import (
	"fmt"
	"sort"
	"strconv"
	"strings"
	"time"
)

// verbs are the names of faults, longer ones before those that they begin with.
var verbs = func() []verb {
	all := make([]verb, 0, len(names))
	for v := range names {
		all = append(all, v)
	}
	sort.Slice(all, func(i, j int) bool {
		a, b := names[all[i]], names[all[j]]
		return len(a) > len(b) || len(a) == len(b) && a < b
	})
	return all
}()

// fault takes a fault with all that belongs to it.
func (s *scanner) fault() (f Fault, err error) {
	for _, v := range verbs {
		if s.accept(names[v]) {
			f.verb = v
			break
		}
	}
	switch f.verb {
	case 0:
		return f, fmt.Errorf("expected a fault at %q: %s", s.rest, catalogue())
	case delay:
		w := s.word("")
		d, jitter, some := strings.Cut(w, "+")
		if f.time, err = time.ParseDuration(d); err == nil && some {
			f.jitter, err = time.ParseDuration(jitter)
		}
		if err != nil {
			return f, fmt.Errorf("%q is no delay, as 20ms or 20ms+5ms", w)
		}
	case delayMessages, restartAsOf, forget:
		if f.time, err = s.duration(""); err != nil {
			return f, err
		}
	case clockStep:
		if f.time, err = s.duration(""); err != nil {
			return f, err
		}
	case clockRate:
		w := s.word("")
		if f.rate, err = strconv.ParseFloat(w, 64); err != nil {
			return f, fmt.Errorf("%q is no rate, as 1.01", w)
		}
	case evict, reply:
		if f.text, err = s.quoted(); err != nil {
			return f, err
		}
	}
	switch {
	case s.accept("requests"):
		f.way = requests
	case s.accept("replies"):
		f.way = replies
	case s.accept("before"):
		f.stage = before
	case s.accept("during"):
		f.stage = during
	case s.accept("after"):
		f.stage = after
	}
	if s.accept("for") {
		if f.span, err = s.duration(""); err != nil {
			return f, err
		}
		if f.span <= 0 {
			return f, fmt.Errorf("for %v is not positive", f.span)
		}
	}
	return f, nil
}

// catalogue is the words that a fault can begin with.
func catalogue() string {
	all := make([]string, 0, len(names))
	for _, v := range names {
		all = append(all, v)
	}
	sort.Strings(all)
	return strings.Join(all, ", ")
}
