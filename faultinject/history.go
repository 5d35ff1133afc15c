package faultinject

import (
	"fmt"
	"hash/maphash"
	"math"
	"strings"
	"sync"
	"time"
)

// History records what clients of a lock believed and what nodes stored, so that
// checkers can say afterwards whether the two agreed with what a lock promises,
// and pictures can show it. Make one with NewHistory.
//
// All methods are safe for concurrent use. A nil *History records nothing, has
// nothing to complain about and gives nil Attempts that do the same; so recording
// is switched off by not making one.
//
// A history ends with its last record: what a node still stores then is known to
// be there until then, not longer. A last call of Health says how long was watched.
type History struct {
	start time.Time
	seed  maphash.Seed

	// Everything that one goroutine records in order lands in one shard in that
	// order: attempts by client, stored values by node. That gives the order of
	// records of the same moment, of which virtual time is full, without a counter
	// that all goroutines would have to share.
	shards [historyShards]historyShard

	watched watched

	mu      sync.Mutex // guards what is rare
	strikes []historyStrike
	health  []historyHealth
}

const historyShards = 32

type historyShard struct {
	mu       sync.Mutex
	attempts []*Attempt
	stored   []historyStored
	_        [64]byte // neighbours must not share a cache line
}

// Times are durations since the start: half the size of a time.Time, and they
// compare as integers.
type (
	historyStored struct {
		node        int
		name, value string
		at, until   time.Duration
	}
	historyStrike struct {
		where, what  string
		at, from, to time.Duration
	}
	historyHealth struct {
		at             time.Duration
		healthy, nodes int
	}
)

// historyForever is the end of what has none.
const historyForever = time.Duration(math.MaxInt64)

// NewHistory begins a history. Its time 0 is now.
func NewHistory() *History {
	return &History{start: time.Now(), seed: maphash.MakeSeed()}
}

// Start is the history's time 0, to which all times in messages and pictures are
// relative. That of a nil History is the zero time.
func (h *History) Start() time.Time {
	if h == nil {
		return time.Time{}
	}
	return h.start
}

// since is a moment as the history counts. No moment means never.
func (h *History) since(t time.Time) time.Duration {
	if t.IsZero() {
		return historyForever
	}
	return t.Sub(h.start)
}

// Try records that client asks for the lock called name. Call it right before
// asking. One Attempt is one call, whatever comes of it, and one lease at most.
func (h *History) Try(client, name string) *Attempt {
	if h == nil {
		return nil
	}
	h.watched.add(name)
	a := &Attempt{history: h, client: client, name: name}
	a.events = a.few[:0]
	s := &h.shards[maphash.String(h.seed, client)%historyShards]
	s.mu.Lock()
	a.tried = time.Since(h.start)
	s.attempts = append(s.attempts, a)
	s.mu.Unlock()
	return a
}

// Stored records that node (counted from 1) now stores value under name until its
// ttl ends; a zero until means that it has none. An empty value means that nothing
// is stored any more. What ends with its ttl need not be recorded again.
func (h *History) Stored(node int, name, value string, until time.Time) {
	if h == nil {
		return
	}
	r := historyStored{node: node, name: name, value: value, until: h.since(until)}
	s := &h.shards[uint(node)%historyShards]
	s.mu.Lock()
	r.at = time.Since(h.start)
	s.stored = append(s.stored, r)
	s.mu.Unlock()
}

// Strike records a fault: what happened where. Where is "node 2", "client a",
// several of these with commas between them, or anything else, such as "network",
// which is taken for all of them. A zero to makes it a moment.
func (h *History) Strike(where string, from, to time.Time, what string) {
	if h == nil {
		return
	}
	s := historyStrike{where: where, what: what, from: max(0, from.Sub(h.start))}
	s.to = s.from
	if !to.IsZero() {
		s.to = max(s.from, to.Sub(h.start))
	}
	h.mu.Lock()
	s.at = time.Since(h.start)
	h.strikes = append(h.strikes, s)
	h.mu.Unlock()
}

// Health records that from now on so many of the nodes are free of faults for
// every client. Before the first such record all of them are.
func (h *History) Health(healthy, nodes int) {
	if h == nil {
		return
	}
	h.mu.Lock()
	h.health = append(h.health, historyHealth{time.Since(h.start), healthy, nodes})
	h.mu.Unlock()
}

// Attempt is one call that asks for a lock, and the life of the lease that comes
// of it. All methods record and nothing else: when they are called twice or in an
// order that makes no sense, the checkers say so. They do nothing on nil.
type Attempt struct {
	history      *History
	client, name string
	tried        time.Duration

	mu     sync.Mutex
	events []historyEvent
	few    [4]historyEvent // won, fence, release, released: most attempts need no more memory
}

type historyEvent struct {
	kind  historyKind
	at    time.Duration
	until time.Duration // of historyWon and historyExtended
	fence uint64
	token string
	err   error
}

type historyKind uint8

const (
	historyWon historyKind = iota
	historyFailed
	historyFence
	historyExtend
	historyExtended
	historyAct
	historyLost
	historyRelease
	historyReleased
)

func (a *Attempt) record(e historyEvent) {
	if a == nil {
		return
	}
	a.mu.Lock()
	e.at = time.Since(a.history.start) // in here, so that the list is in order of time
	a.events = append(a.events, e)
	a.mu.Unlock()
}

// Won records that the call returned with a lease under token, which the client
// believes to hold from now until then. Call it right after the return.
func (a *Attempt) Won(token string, until time.Time) {
	if a != nil {
		a.record(historyEvent{kind: historyWon, token: token, until: a.history.since(until)})
	}
}

// Failed records that the call returned without a lease, and why.
func (a *Attempt) Failed(err error) { a.record(historyEvent{kind: historyFailed, err: err}) }

// Fence records the lease's fencing token.
func (a *Attempt) Fence(n uint64) { a.record(historyEvent{kind: historyFence, fence: n}) }

// Extend records that an extension is asked for. Call it right before.
func (a *Attempt) Extend() { a.record(historyEvent{kind: historyExtend}) }

// Extended records that an extension succeeded: the client believes until then,
// or longer if it did before. Call it right after.
func (a *Attempt) Extended(until time.Time) {
	if a != nil {
		a.record(historyEvent{kind: historyExtended, until: a.history.since(until)})
	}
}

// Act records that the holder touches what the lock protects, now.
func (a *Attempt) Act() { a.record(historyEvent{kind: historyAct}) }

// Lost records that the client was told that its lease is lost, and why. From now
// on it does not believe.
func (a *Attempt) Lost(err error) { a.record(historyEvent{kind: historyLost, err: err}) }

// Release records that the client is about to give the lease back. From now on it
// does not believe. Call it right before.
func (a *Attempt) Release() { a.record(historyEvent{kind: historyRelease}) }

// Released records that giving it back returned, with what error if any.
func (a *Attempt) Released(err error) { a.record(historyEvent{kind: historyReleased, err: err}) }

// Summary counts what a History holds.
type Summary struct {
	Attempts, Acquisitions, Failures, Extensions, Releases, Losses, Acts, Strikes int
}

// String is the counts on one line; those that are zero are left out, except for
// the attempts and acquisitions.
func (s Summary) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, %d acquired", historyAttempts(s.Attempts), s.Acquisitions)
	for _, c := range []struct {
		n    int
		what string
	}{
		{s.Failures, "failed"}, {s.Extensions, "extended"}, {s.Releases, "released"},
		{s.Losses, "lost"}, {s.Acts, "acts"}, {s.Strikes, "faults"},
	} {
		if c.n == 1 {
			c.what = strings.TrimSuffix(c.what, "s")
		}
		if c.n > 0 {
			fmt.Fprintf(&b, ", %d %s", c.n, c.what)
		}
	}
	return b.String()
}

func historyAttempts(n int) string {
	if n == 1 {
		return "1 attempt"
	}
	return fmt.Sprintf("%d attempts", n)
}

// Summary counts what was recorded so far.
func (h *History) Summary() (s Summary) {
	d := h.digest()
	s.Attempts, s.Strikes = len(d.tenures), len(d.strikes)
	for _, t := range d.tenures {
		s.Acquisitions += historyCount(t.won)
		s.Failures += historyCount(t.failed)
		s.Extensions += t.extensions
		s.Releases += historyCount(t.release != historyNever)
		s.Losses += historyCount(t.lost != historyNever)
		s.Acts += len(t.acts)
	}
	return s
}
