package faultinject

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
	"time"
)

// A historyDigest is a history folded into what checkers and pictures ask about.
// It is a copy: recording may go on meanwhile.
type historyDigest struct {
	end     time.Duration // of the last record
	tenures []*historyTenure
	names   []string // that were tried, in order
	byName  map[string][]*historyTenure
	stored  []historySegment // in order of node, name, time
	strikes []historyStrike  // in order of from
	health  []historyHealth
}

// historyNever is the moment of what did not happen.
const historyNever = time.Duration(-1)

// A historyTenure is an attempt's life.
type historyTenure struct {
	client, name string
	token        string // the first one
	tokens       []string
	fences       []uint64

	tried, answered      time.Duration // answered: the history's end if it never was
	won, failed, pending bool
	wonAt                time.Duration // all moments from here on: historyNever if not
	lost                 time.Duration
	release, released    time.Duration
	lostErr, failErr     error

	// spans are when it was believed to be held, in order and disjoint:
	//
	//	spans[i].to = min(release or lost, the largest until known then)
	//
	// One may be a point. There is a second one only if a lease that was over came
	// back to life, which complaints tells of.
	spans      []historySpan
	until      time.Duration // the largest
	extensions int
	acts       []time.Duration
	complaints []string // records that contradict each other
}

type historySpan struct {
	from, to time.Duration
	why      historyKind // it ended: historyRelease, historyLost, or historyWon if its time was over
	of       *historyTenure
}

// A historySegment is a stretch of time in which a node stored a value.
type historySegment struct {
	node        int
	name, value string
	from, to    time.Duration
}

func historyCount(b bool) int {
	if b {
		return 1
	}
	return 0
}

// digest folds a copy of what was recorded so far.
func (h *History) digest() *historyDigest {
	d := &historyDigest{byName: make(map[string][]*historyTenure)}
	if h == nil {
		return d
	}
	var attempts []*Attempt
	var stored []historyStored
	for i := range h.shards {
		s := &h.shards[i]
		s.mu.Lock()
		attempts = append(attempts, s.attempts...)
		stored = append(stored, s.stored...)
		s.mu.Unlock()
	}
	h.mu.Lock()
	d.strikes, d.health = slices.Clone(h.strikes), slices.Clone(h.health)
	h.mu.Unlock()

	for _, s := range stored {
		d.end = max(d.end, s.at)
	}
	for _, s := range d.strikes {
		d.end = max(d.end, s.at)
	}
	for _, s := range d.health {
		d.end = max(d.end, s.at)
	}
	for _, a := range attempts {
		a.mu.Lock()
		events := slices.Clone(a.events)
		a.mu.Unlock()
		d.end = max(d.end, a.tried)
		if n := len(events); n > 0 {
			d.end = max(d.end, events[n-1].at)
		}
		d.tenures = append(d.tenures, foldTenure(a, events))
	}
	slices.SortStableFunc(d.tenures, func(a, b *historyTenure) int {
		return cmp.Or(cmp.Compare(a.tried, b.tried), cmp.Compare(a.client, b.client))
	})
	for _, t := range d.tenures {
		if t.pending {
			t.answered = d.end
		}
		d.byName[t.name] = append(d.byName[t.name], t)
	}
	for name := range d.byName {
		d.names = append(d.names, name)
	}
	slices.Sort(d.names)
	slices.SortStableFunc(d.strikes, func(a, b historyStrike) int {
		return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(a.where, b.where), cmp.Compare(a.what, b.what))
	})
	d.stored = foldSegments(stored, d.end)
	return d
}

// foldSegments turns what was stored when into from when to when. Storing the
// same value again, as an extension does, makes no new segment.
func foldSegments(stored []historyStored, end time.Duration) (segments []historySegment) {
	slices.SortStableFunc(stored, func(a, b historyStored) int {
		return cmp.Or(cmp.Compare(a.node, b.node), cmp.Compare(a.name, b.name))
	})
	for i, s := range stored {
		to := min(s.until, end)
		if i+1 < len(stored) && stored[i+1].node == s.node && stored[i+1].name == s.name {
			to = min(to, stored[i+1].at)
		}
		if s.value == "" || to <= s.at {
			continue
		}
		next := historySegment{s.node, s.name, s.value, s.at, to}
		if n := len(segments); n > 0 {
			last := &segments[n-1]
			if last.node == s.node && last.name == s.name && last.value == s.value && last.to == s.at {
				last.to = to
				continue
			}
		}
		segments = append(segments, next)
	}
	return segments
}

// foldTenure reads an attempt's events in order.
func foldTenure(a *Attempt, events []historyEvent) *historyTenure {
	t := &historyTenure{
		client: a.client, name: a.name, tried: a.tried, answered: a.tried, pending: true,
		wonAt: historyNever, lost: historyNever, release: historyNever, released: historyNever,
	}
	f := &tenureFold{historyTenure: t}
	for _, e := range events {
		f.fold(e)
	}
	return t
}

// A tenureFold is a tenure while it is being read.
type tenureFold struct {
	*historyTenure
	gone  bool // released or lost, and not come back
	asked bool // for an extension, before that
	late  bool // for an extension, after that
}

func (f *tenureFold) fold(e historyEvent) {
	switch e.kind {
	case historyFence:
		f.fences = append(f.fences, e.fence)
		return
	case historyAct:
		f.acts = append(f.acts, e.at)
		return
	case historyExtend:
		f.asked = f.asked || !f.gone
		f.late = f.late || f.gone
		return
	}
	if f.pending {
		f.pending, f.answered = false, e.at
	}
	switch e.kind {
	case historyWon:
		f.foldWon(e)
	case historyFailed:
		if f.won {
			f.complain(e, "failed after it was won at %s", historyTime(f.wonAt))
		}
		f.failed, f.failErr = true, e.err
	case historyExtended:
		f.foldExtended(e)
	case historyLost:
		f.lost, f.lostErr = e.at, e.err
		f.finish(e)
	case historyRelease:
		f.release = e.at
		f.finish(e)
	case historyReleased:
		f.released = e.at
		e.kind = historyRelease
		f.finish(e)
	}
}

func (f *tenureFold) foldWon(e historyEvent) {
	switch {
	case f.won:
		f.complain(e, "won a second time, after %s", historyTime(f.wonAt))
	case f.failed:
		f.complain(e, "won after it had failed")
	case f.gone:
		f.complain(e, "won after its end")
	default:
		f.token = e.token
	}
	if !f.won {
		f.won, f.wonAt = true, e.at
	}
	f.tokens = append(f.tokens, e.token)
	f.believe(e)
}

func (f *tenureFold) foldExtended(e historyEvent) {
	f.extensions++
	switch {
	case len(f.spans) == 0 && !f.gone:
		f.complain(e, "extended, but it was never won")
	case f.gone && f.asked && !f.late:
		// It was asked for in time, and its answer crossed the end on the way: the
		// holder who gave up meanwhile does not believe again because of it.
		return
	case f.gone && len(f.spans) > 0:
		last := f.spans[len(f.spans)-1]
		f.complain(e, "came back to life by an extension: it was over at %s", historyTime(last.to))
	case f.gone:
		f.complain(e, "came back to life by an extension: it was given up before it was won")
	case e.at > f.until:
		f.complain(e, "came back to life by an extension: its time was over at %s", historyTime(f.until))
	}
	f.believe(e)
}

// believe begins a span, or lengthens the one that lasts.
func (f *tenureFold) believe(e historyEvent) {
	n := len(f.spans)
	if n > 0 && !f.gone && e.at <= f.until {
		f.until = max(f.until, e.until)
		f.spans[n-1].to = f.until
		return
	}
	f.gone, f.asked, f.late = false, false, false
	f.until = max(f.until, e.until)
	f.spans = append(f.spans, historySpan{e.at, max(e.at, e.until), historyWon, f.historyTenure})
}

// finish ends the span that lasts. One that is over stays as long as it was.
func (f *tenureFold) finish(e historyEvent) {
	if n := len(f.spans); n > 0 && !f.gone {
		if s := &f.spans[n-1]; e.at <= s.to {
			s.to, s.why = e.at, e.kind
		}
	}
	f.gone = true
}

func (f *tenureFold) complain(e historyEvent, format string, args ...any) {
	f.complaints = append(f.complaints, historyTime(e.at)+" "+fmt.Sprintf(format, args...))
}

// over is when nothing of the tenure should be left on a node.
func (t *historyTenure) over() time.Duration {
	switch {
	case t.released != historyNever:
		return t.released
	case t.release != historyNever:
		return t.release
	case t.lost != historyNever:
		return max(t.lost, t.until) // whoever was told has until then to stop
	}
	return t.until
}

// overlaps are the spans of a name that begin while another is believed in, each
// with the one of these that ends last, in order of time. There is one per span,
// not one per pair, of which there can be n²; and yet every moment with two
// believers is in one of them: of all spans around that moment take the one that
// begins last; the one beside it ends no earlier than any of the others.
func (d *historyDigest) overlaps(name string) (pairs [][2]historySpan) {
	var spans []historySpan
	for _, t := range d.byName[name] {
		for _, s := range t.spans {
			if s.to > s.from { // a point touches, it does not overlap
				spans = append(spans, s)
			}
		}
	}
	slices.SortStableFunc(spans, func(a, b historySpan) int { return cmp.Compare(a.from, b.from) })
	var last historySpan // that ends last
	for _, s := range spans {
		// A tenure's own spans are disjoint, so last is not of the same one.
		if s.from < last.to {
			pairs = append(pairs, [2]historySpan{last, s})
		}
		if s.to > last.to {
			last = s
		}
	}
	return pairs
}

// late is the tenure's lateness at a moment: 0 if it believed, else how long
// after (or, negative, before) the nearest belief before (or else after) that is.
func (t *historyTenure) late(at time.Duration) time.Duration {
	i := sort.Search(len(t.spans), func(i int) bool { return t.spans[i].from > at })
	switch {
	case i > 0 && at <= t.spans[i-1].to:
		return 0
	case i > 0:
		return at - t.spans[i-1].to
	case len(t.spans) > 0:
		return at - t.spans[0].from
	}
	return historyForever
}

// owners are the tenures by what nodes store for them.
func (d *historyDigest) owners(name string) map[string]*historyTenure {
	owners := make(map[string]*historyTenure)
	for _, t := range d.byName[name] {
		for _, token := range t.tokens {
			owners[token] = t
		}
	}
	return owners
}

// historyTime is how moments are written.
func historyTime(at time.Duration) string {
	if at == historyForever {
		return "never"
	}
	return fmt.Sprintf("%.6fs", at.Seconds())
}
