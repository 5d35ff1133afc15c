package redlock

import (
	"container/heap"
	"slices"
	"sync"
	"time"
)

// clocksApart is the longest that nobody compares the clocks while leases are
// held; a lease with a short ttl makes it shorter, see Lease.interval.
const clocksApart = 250 * time.Millisecond

// An agenda is what a Locker and its siblings have to do for leases at certain
// times: renew them, notice that their time is over, release those whose holder
// has not returned. It is one timer for all of them, with no goroutine in
// between, so a lease that is held costs its memory only.
//
// Go's timers stop while the machine is suspended and know nothing of a wall
// clock that was set. So the timer also runs out at short intervals while there
// are leases, and when the clocks disagree about the time that has passed every
// lease is looked at.
type agenda struct {
	clock clock

	mu      sync.Mutex // taken with a lease's mutex held, never the other way round
	leases  byDue      // all whose keys nobody has released
	timer   *time.Timer
	armed   time.Time     // when the timer runs out; zero: it does not
	running bool          // what is due is being done; arming comes after
	every   time.Duration // the shortest interval of the leases
	counted time.Time     // when that was found last
	seen    instant       // the last comparison of the clocks
	unseen  time.Duration // by which they have said since that more time passed than the timer knows
	ended   bool
}

// add enters a new lease, to be looked at as with set.
func (a *agenda) add(l *Lease, due time.Time, early time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.leases) == 0 {
		a.seen, a.unseen = a.clock.look(), 0
		a.every = clocksApart
	}
	a.every = min(a.every, l.interval())
	l.due, l.early = due, early
	heap.Push(&a.leases, l)
	a.arm()
}

// set changes when a lease has to be looked at: at due, or up to early before
// that when others are, so that what goes to the nodes goes together. A lease
// that has been removed stays out.
func (a *agenda) set(l *Lease, due time.Time, early time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if l.place == 0 {
		return
	}
	l.due, l.early = due, early
	heap.Fix(&a.leases, l.place-1)
	a.arm()
}

// remove takes a lease out; one that is out stays out. False says that it was:
// that Close has taken it, to release it.
func (a *agenda) remove(l *Lease) (mine bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if mine = l.place > 0; mine {
		heap.Remove(&a.leases, l.place-1)
	}
	return mine
}

// take removes the leases of one Locker, or of all.
func (a *agenda) take(of *Locker) (taken []*Lease) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, l := range a.leases {
		if of == nil || l.locker == of {
			taken = append(taken, l)
		}
	}
	for _, l := range taken {
		heap.Remove(&a.leases, l.place-1)
	}
	return taken
}

// end stops the timer for good.
func (a *agenda) end() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ended = true
	if a.timer != nil {
		a.timer.Stop()
	}
}

// arm sets the timer to the next thing to do. One that runs out before that is
// left alone: leases come and go far more often than any of them is due. Called
// with mu held.
func (a *agenda) arm() {
	if a.running || a.ended || len(a.leases) == 0 {
		return
	}
	now := time.Now()
	next := now.Add(a.every)
	if due := a.leases[0].due; due.Before(next) {
		next = due
	}
	if !a.armed.IsZero() && !next.Before(a.armed) {
		return
	}
	a.armed = next
	a.timer = callAt(next, a.timer, a.run)
}

// callAt makes f run at t in a goroutine of its own and gives the timer for it:
// the one given, if any, set again. What is due runs without a timer. That is
// less work, and in Go 1.26 two goroutines that start timers without time to go
// in one bubble of testing/synctest crash the race detector.
func callAt(t time.Time, timer *time.Timer, f func()) *time.Timer {
	wait := time.Until(t)
	switch {
	case wait <= 0:
		if timer != nil {
			timer.Stop()
		}
		go f()
	case timer == nil:
		timer = time.AfterFunc(wait, f)
	default:
		timer.Reset(wait)
	}
	return timer
}

// run does what is due.
func (a *agenda) run() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.running || a.ended { // the timer was set again as it ran out
		return
	}
	a.running, a.armed = true, time.Time{}
	now := a.clock.look()
	due := a.due(now)
	a.mu.Unlock()
	for _, l := range due {
		l.attend()
	}
	a.mu.Lock()
	a.running = false
	a.arm()
}

// due lists the leases to look at now: all of them if the clocks say that time
// has passed of which timers know nothing. Called with mu held.
func (a *agenda) due(now instant) (due []*Lease) {
	if a.every < clocksApart && now.mono.Sub(a.counted) > time.Second {
		a.counted, a.every = now.mono, clocksApart
		for _, l := range a.leases {
			a.every = min(a.every, l.interval())
		}
	}
	a.unseen += elapsed(a.seen, now) - now.mono.Sub(a.seen.mono)
	a.seen = now
	if a.unseen > time.Millisecond {
		a.unseen = 0
		return slices.Clone(a.leases)
	}
	// Those that are due, and those that may as well be looked at already. They
	// stay in the heap, in a part whose roots are no later than now + clocksApart.
	ahead := []int{0}
	for len(ahead) > 0 {
		i := ahead[len(ahead)-1]
		ahead = ahead[:len(ahead)-1]
		if i >= len(a.leases) || a.leases[i].due.After(now.mono.Add(clocksApart)) {
			continue
		}
		if l := a.leases[i]; !l.due.Add(-l.early).After(now.mono) {
			due = append(due, l)
		}
		ahead = append(ahead, 2*i+1, 2*i+2)
	}
	return due
}

// interval is how often the clocks are compared for this lease.
func (l *Lease) interval() time.Duration {
	return max(min(l.ttl/20, clocksApart), time.Millisecond)
}

// byDue is a heap of leases; each knows its place in it.
type byDue []*Lease

func (h byDue) Len() int           { return len(h) }
func (h byDue) Less(i, j int) bool { return h[i].due.Before(h[j].due) }
func (h byDue) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i+1, j+1
}

func (h *byDue) Push(x any) {
	l := x.(*Lease)
	*h = append(*h, l)
	l.place = len(*h)
}

func (h *byDue) Pop() any {
	last := len(*h) - 1
	l := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	l.place = 0
	return l
}
