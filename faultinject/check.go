package faultinject

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// The checkers say what a history has that no lock may do. All of them return nil
// or an error with one line per violation, the first ten in full, in which times
// count from the history's start. A nil History passes.
//
// They trust the records' moments, and that is why these are taken where they are:
// belief begins after the call that won it and ends before the call that gives it
// back, so what was recorded is never longer than what was true, and two beliefs
// that overlap here overlapped in fact.

// checkViolations collects what a checker has to say.
type checkViolations struct {
	errs []error
	more int
}

const checkViolationsShown = 10

func (v *checkViolations) add(format string, args ...any) {
	if len(v.errs) == checkViolationsShown {
		v.more++
		return
	}
	v.errs = append(v.errs, fmt.Errorf("faultinject: "+format, args...))
}

func (v *checkViolations) err() error {
	if v.more > 0 {
		return errors.Join(append(v.errs, fmt.Errorf("and %d more", v.more))...)
	}
	return errors.Join(v.errs...)
}

// checkToken is as much of a token as tells it from others.
func checkToken(token string) string {
	if r := []rune(token); len(r) > 8 {
		return string(r[:8])
	}
	return token
}

// who names a tenure.
func (t *historyTenure) who() string {
	if !t.won {
		return fmt.Sprintf("client %s (tried at %s)", t.client, historyTime(t.tried))
	}
	return fmt.Sprintf("client %s (token %s)", t.client, checkToken(t.token))
}

func (s historySpan) String() string {
	return fmt.Sprintf("%s from %s to %s", s.of.who(), historyTime(s.from), historyTime(s.to))
}

// Exclusive checks the one promise that a lock is for: no two clients believe to
// hold the same name at the same time. A client believes from Won until Release,
// Lost, or the largest until that it knew of, whichever comes first; an Extended
// with a smaller until does not shorten that. Beliefs that touch at a moment do not
// overlap. Two attempts of one client count as two clients: locks are not
// re-entrant.
//
// A lease that was over and came back to life is a violation too, though nobody
// else may have held it meanwhile: an Extended that is recorded after the until
// known before, or one that was asked for after Release or Lost. So are records
// that contradict each other, such as Won twice for one attempt.
func Exclusive(h *History) error {
	var v checkViolations
	d := h.digest()
	for _, name := range d.names {
		for _, pair := range d.overlaps(name) {
			from, to := pair[1].from, min(pair[0].to, pair[1].to)
			v.add("two holders of %q from %s to %s (for %v): %v, and %v",
				name, historyTime(from), historyTime(to), to-from, pair[0], pair[1])
		}
		for _, t := range d.byName[name] {
			for _, complaint := range t.complaints {
				v.add("%q: %s: at %s", name, t.who(), complaint)
			}
		}
	}
	return v.err()
}

// FencesRise checks what makes fencing tokens useful: no two attempts of a name
// have the same, and whoever asks for the lock after another has won it gets a
// larger one. Attempts that overlap may get theirs in either order.
func FencesRise(h *History) error {
	var v checkViolations
	d := h.digest()
	for _, name := range d.names {
		checkFences(&v, name, d.byName[name])
	}
	return v.err()
}

func checkFences(v *checkViolations, name string, all []*historyTenure) {
	var fenced, won []*historyTenure // in order of tried, and of wonAt
	for _, t := range all {
		if len(t.fences) == 0 {
			continue
		}
		fenced = append(fenced, t)
		if t.won {
			won = append(won, t)
		}
		for _, n := range t.fences[1:] {
			if n != t.fences[0] {
				v.add("%q: %s has two fencing tokens, %d and %d", name, t.who(), t.fences[0], n)
			}
		}
	}
	first := make(map[uint64]*historyTenure)
	for _, t := range fenced {
		n := t.fences[0]
		if other := first[n]; other != nil {
			v.add("%q: %s and %s have the same fencing token %d", name, other.who(), t.who(), n)
			continue
		}
		first[n] = t
	}
	slices.SortStableFunc(won, func(a, b *historyTenure) int { return cmp.Compare(a.wonAt, b.wonAt) })
	var top *historyTenure // the largest fence of those won so far
	for _, t := range fenced {
		for len(won) > 0 && won[0].wonAt < t.tried {
			if top == nil || won[0].fences[0] > top.fences[0] {
				top = won[0]
			}
			won = won[1:]
		}
		if top != nil && top.fences[0] > t.fences[0] {
			v.add("%q: fencing tokens do not rise: %s won at %s with %d, and %s asked at %s and got %d",
				name, top.who(), historyTime(top.wonAt), top.fences[0], t.who(), historyTime(t.tried), t.fences[0])
		}
	}
}

// Tokens checks that no two won attempts have the same token, of whatever names:
// otherwise one of them could release or extend the other's lease.
func Tokens(h *History) error {
	var v checkViolations
	first := make(map[string]*historyTenure)
	for _, t := range h.digest().tenures {
		for _, token := range t.tokens {
			other := first[token]
			if other != nil && other != t {
				v.add("client %s won %q at %s and client %s won %q at %s with the same token %q", other.client,
					other.name, historyTime(other.wonAt), t.client, t.name, historyTime(t.wonAt), checkToken(token))
				continue
			}
			first[token] = t
		}
	}
	return v.err()
}

// LateActs finds what holders did outside of their own belief: nothing that a lock
// can prevent, since a process can stop between its last look at the lease and the
// act. This is the residue that only fencing tokens stop, so an error here is a
// violation of the client's, not of the lock's, promise. An act at the very end of
// a belief is in time.
func LateActs(h *History) error {
	var v checkViolations
	for _, t := range h.digest().tenures {
		for _, at := range t.acts {
			late := t.late(at)
			switch {
			case late == historyForever:
				v.add("%q: %s acted at %s and never held it", t.name, t.who(), historyTime(at))
			case late > 0:
				v.add("%q: %s acted at %s, %v after its belief ended at %s",
					t.name, t.who(), historyTime(at), late, historyTime(at-late))
			case late < 0:
				v.add("%q: %s acted at %s, %v before its belief began at %s",
					t.name, t.who(), historyTime(at), -late, historyTime(at-late))
			}
		}
	}
	return v.err()
}

// Progress checks that a lock can be had: there is no stretch of time longer than
// bound in which all the time somebody asks for a name, a majority of the nodes is
// healthy, and nobody holds it. Someone who gets it ends the stretch, however short
// the belief.
//
// Bound must include the ttl, because the keys of a holder that crashed, which
// believes no more, block everybody else for that long; and the longest pause
// between the rounds of an attempt.
func Progress(h *History, bound time.Duration) error {
	var v checkViolations
	d := h.digest()
	for _, name := range d.names {
		for _, s := range d.stalls(name, bound) {
			v.add("nobody got %q from %s to %s (for %v, bound %v) although a majority of the nodes was healthy and %s",
				name, historyTime(s.from), historyTime(s.to), s.to-s.from, bound, d.asking(name, s.from, s.to))
		}
	}
	return v.err()
}

// A checkStep is a moment at which something begins or ends to be so.
type checkStep struct {
	at                  time.Duration
	asking, held        int
	news, healthy, gain bool
}

// stalls sweeps over the moments at which anything changes. All changes of one
// moment count before the time after it is looked at: otherwise an attempt that
// ends as the next begins would leave a hole.
func (d *historyDigest) stalls(name string, bound time.Duration) (stalls []historySpan) {
	var steps []checkStep
	for _, t := range d.byName[name] {
		steps = append(steps, checkStep{at: t.tried, asking: 1}, checkStep{at: t.answered, asking: -1})
		for _, s := range t.spans {
			steps = append(steps, checkStep{at: s.from, held: 1, gain: true}, checkStep{at: s.to, held: -1})
		}
	}
	for _, s := range d.health {
		steps = append(steps, checkStep{at: s.at, news: true, healthy: s.healthy >= s.nodes/2+1})
	}
	slices.SortStableFunc(steps, func(a, b checkStep) int { return cmp.Compare(a.at, b.at) })

	asking, held, healthy := 0, 0, true
	begin := historyNever // of the stretch under way
	for i := 0; i < len(steps); {
		at, gain := steps[i].at, false
		for ; i < len(steps) && steps[i].at == at; i++ {
			s := steps[i]
			asking, held, gain = asking+s.asking, held+s.held, gain || s.gain
			if s.news {
				healthy = s.healthy
			}
		}
		stalled := asking > 0 && held == 0 && healthy
		if begin != historyNever && (!stalled || gain) {
			if at-begin > bound {
				stalls = append(stalls, historySpan{from: begin, to: at})
			}
			begin = historyNever
		}
		if stalled && begin == historyNever {
			begin = at
		}
	}
	return stalls
}

// asking tells who asked for a name in a stretch of time.
func (d *historyDigest) asking(name string, from, to time.Duration) string {
	seen := make(map[string]bool)
	var clients []string
	for _, t := range d.byName[name] {
		if t.tried < to && t.answered > from && !seen[t.client] {
			seen[t.client] = true
			clients = append(clients, t.client)
		}
	}
	if n := len(clients) - 4; n > 0 {
		return fmt.Sprintf("clients %s and %d more asked for it", strings.Join(clients[:4], ", "), n)
	}
	if len(clients) == 1 {
		return "client " + clients[0] + " asked for it"
	}
	return "clients " + strings.Join(clients, ", ") + " asked for it"
}
