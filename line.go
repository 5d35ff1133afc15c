package redlock

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// linger is how long a line without waiters is remembered and its channels are
	// kept: the next waiter often comes at once.
	linger = 500 * time.Millisecond

	// foreignMemory is how long other processes are taken to go on waiting that
	// were heard of.
	foreignMemory = time.Second

	// patienceOfOthers is for how long others may find no turn until we leave them
	// a longer one than round trips of ours: they may be far away.
	patienceOfOthers = 500 * time.Millisecond
	longTurn         = 250 * time.Millisecond
)

// lines are the waits of one root Locker, by lock name. Per name one contender
// is on the network, the others queue behind it in the order in which they came.
// One mutex guards it all: what is done under it is short, and waits for nothing.
type lines struct {
	root      *root
	listening atomic.Int32 // lines that want to hear of releases; so a release that interests nobody costs one look

	mu    sync.Mutex
	of    map[string]*line
	kept  []*line // may have no waiters, in the order of their listing
	timer *time.Timer
	wait  int // calls of Lock that queue, or were refused and try again
	feeds []*feed
}

// A line is the queue for one name.
type line struct {
	name        string
	first, last *waiter
	watch       *watch // what is known of the lock; nil until somebody was refused
	kept        bool   // on the list of that name
}

// A waiter is one call of Lock. The first in the line is the contender.
type waiter struct {
	line       *line
	prev, next *waiter
	turn       chan struct{} // told when it becomes the first; nil: it came as that
	counted    bool          // in lines.wait
}

// A watch is what a line's contenders have learned; it outlives each of them, so
// that a successor need not learn it again.
type watch struct {
	news      chan struct{} // told when something below is new to the contender
	subs      []sub         // by node
	confirmed int           // = how many of subs are confirmed
	denied    int           // = how many of subs are denied
	lapses    int           // how often confirmed has fallen below the quorum
	asked     time.Time     // when the channels were

	tried  string // tenure of the last try
	freed  []freed
	acted  [16]string // tenures whose release was followed by a try; a ring
	oldest int        // of acted
	holder string     // what refused the last time
	misses int
	races  int
	trip   time.Duration // what the last decided try took
	calm   int           // safety tries in a row
	last   *QuorumError
	lastAt time.Time

	own      string    // tenure of our process's last holder
	released time.Time // when our process's last holder released, as far as known
	gone     string    // its tenure
	relieved time.Time // when another was first heard to have released since
	far      string    // the same, if others are to be left a long turn after it
	others   time.Time // until then other processes are taken to wait
	served   time.Time // when one of them was last seen to hold the lock, or was left a long turn
	idle     time.Time // since when nobody is in the line
}

// freed says when and whose key was heard to be gone from a node.
type freed struct {
	at     time.Time
	tenure string // "": whose is unknown
}

type sub uint8

const (
	unasked sub = iota
	asked
	askedAgain // the connection was lost, and messages may have been
	confirmed
	denied
)

// join puts a call of Lock at the end of its line.
func (ls *lines) join(name string, w *waiter) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l := ls.of[name]
	if l == nil {
		l = &line{name: name}
		ls.of[name] = l
	}
	w.line, w.prev = l, l.last
	if l.last == nil {
		l.first = w
	} else {
		l.last.next = w
		w.turn = make(chan struct{}, 1)
		ls.count(w)
	}
	l.last = w
}

// count counts a call in that has to wait.
func (ls *lines) count(w *waiter) {
	if !w.counted {
		w.counted = true
		ls.wait++
	}
}

// leave takes a call out of its line, wherever it stands, and wakes the next if it
// was the first. lease is what it got.
func (ls *lines) leave(w *waiter, lease *Lease) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l := w.line
	if w.counted {
		ls.wait--
	}
	if lease != nil && l.watch != nil {
		l.watch.own, l.watch.misses, l.watch.races, l.watch.calm = tenureOf(lease.token), 0, 0, 0
	}
	if w.next == nil {
		l.last = w.prev
	} else {
		w.next.prev = w.prev
	}
	if w.prev != nil {
		w.prev.next = w.next
		return
	}
	l.first = w.next
	switch {
	case l.first != nil:
		l.first.turn <- struct{}{}
	case l.watch == nil:
		delete(ls.of, l.name)
	default:
		ls.keep(l)
	}
}

// keep remembers a line without waiters for a while.
func (ls *lines) keep(l *line) {
	l.watch.idle = time.Now()
	if l.kept {
		return
	}
	l.kept = true
	ls.kept = append(ls.kept, l)
	switch {
	case len(ls.kept) > 1:
	case ls.timer == nil:
		ls.timer = time.AfterFunc(linger, ls.sweep)
	default:
		ls.timer.Reset(linger)
	}
}

// sweep forgets the lines that nobody has come back to.
func (ls *lines) sweep() {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	now := time.Now()
	kept := ls.kept[:0]
	wait := linger
	for _, l := range ls.kept {
		left := linger - now.Sub(l.watch.idle)
		switch {
		case l.first != nil:
			l.kept = false
		case left > 0:
			kept = append(kept, l)
			wait = min(wait, left)
		default:
			delete(ls.of, l.name)
			ls.unlisten(l)
		}
	}
	clear(ls.kept[len(kept):])
	ls.kept = kept
	if len(kept) > 0 {
		ls.timer.Reset(wait)
	}
}

// watched gives the line a watch.
func (ls *lines) watched(l *line) *watch {
	if l.watch == nil {
		n := len(ls.feeds)
		l.watch = &watch{news: make(chan struct{}, 1), subs: make([]sub, n), freed: make([]freed, n)}
	}
	return l.watch
}

// listen asks every node to tell of this name's releases.
func (ls *lines) listen(l *line) {
	w := l.watch
	if !w.asked.IsZero() {
		return
	}
	w.asked = time.Now()
	ls.listening.Add(1)
	for i, f := range ls.feeds {
		w.subs[i] = asked
		f.want(l, true)
	}
}

func (ls *lines) unlisten(l *line) {
	if l.watch.asked.IsZero() {
		return
	}
	ls.listening.Add(-1)
	for _, f := range ls.feeds {
		f.want(l, false)
	}
}

func (ls *lines) quorum() int { return quorumOf(len(ls.feeds)) }

// begin notes that a try of the line's contender begins: only what is heard from
// here on can be news to it. It tells whether the line is listening, and whether a
// quorum of nodes has confirmed that.
func (ls *lines) begin(l *line, token string) (listening, ready bool, lapses int) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	w := l.watch
	if w == nil {
		return false, false, 0
	}
	w.tried = tenureOf(token)
	for i, f := range w.freed {
		if f.tenure != "" && !w.hasActed(f.tenure) {
			w.acted[w.oldest] = f.tenure
			w.oldest = (w.oldest + 1) % len(w.acted)
		}
		w.freed[i] = freed{}
	}
	return !w.asked.IsZero(), w.confirmed >= ls.quorum(), w.lapses
}

func (w *watch) hasActed(tenure string) bool { return slices.Contains(w.acted[:], tenure) }

// free notes that node i is free of a token.
func (w *watch) free(i int, tenure string, now time.Time) {
	if tenure != "" && (tenure == w.tried || w.hasActed(tenure) && !w.freed[i].at.IsZero()) {
		return // our own roll-back, or older than what was heard
	}
	w.freed[i] = freed{now, tenure}
	w.tell()
}

func (w *watch) tell() {
	select {
	case w.news <- struct{}{}:
	default:
	}
}

// notify notes that other processes wait for this lock, or have it in turn.
func (w *watch) notify(now time.Time, holds bool) {
	if holds || now.After(w.others) {
		w.served = now
	}
	w.others = now.Add(foreignMemory)
}

// released takes in that a node has deleted a key of this process's, and how many
// it has told of that.
func (ls *lines) released(i int, name, tenure string, told int) {
	if told == 0 && ls.listening.Load() == 0 {
		return
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l := ls.of[name]
	switch {
	case l == nil && told == 0, l != nil && l.watch == nil && told == 0:
		return
	case l == nil:
		l = &line{name: name}
		ls.of[name] = l
		ls.watched(l)
	}
	w := ls.watched(l)
	if s := w.subs[i]; s == asked || s == confirmed {
		told-- // ourselves
	}
	now := time.Now()
	w.released, w.gone = now, tenure
	if told > 0 {
		w.notify(now, false)
		if w.far != tenure && now.Sub(w.served) > patienceOfOthers {
			w.far, w.served = tenure, now
		}
	}
	w.free(i, tenure, now)
	if l.first == nil {
		ls.keep(l)
	}
}

// heard takes in what a node has published.
func (ls *lines) heard(i int, name, payload string) {
	id, tenure, ok := strings.Cut(payload, ":")
	if ok && id == ls.root.id {
		return // heard before, from the release itself
	}
	if !ok || len(tenure) > len(tenureOf(payload)) {
		tenure = tenureOf(payload) // somebody else's
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if l := ls.of[name]; l != nil && l.watch != nil {
		now := time.Now()
		l.watch.notify(now, true)
		if w := l.watch; tenure != w.own && w.relieved.Before(w.released) {
			w.relieved = now
		}
		l.watch.free(i, tenure, now)
	}
}

// turn is until when this process leaves others the lock that it has just
// released: for as long as they need to hear of that, to try, and to be heard of;
// for longer if they have not got it for a while, since they may be far away. It
// ends when one of them has released. Who came back earlier would meet the lock just
// when another has released it and nobody has heard of that yet, and the two would
// pass it to each other. u is random. With nobody else waiting it is the zero time.
func (w *watch) turn(now time.Time, u float64) time.Time {
	if !now.Before(w.others) || w.released.IsZero() {
		return time.Time{}
	}
	if w.relieved.After(w.released) {
		return w.relieved.Add(time.Duration(u * float64(w.trip/2)))
	}
	if w.far == w.gone {
		return w.released.Add(longTurn)
	}
	return w.released.Add(2*w.trip + time.Duration(u*float64(w.trip)))
}
