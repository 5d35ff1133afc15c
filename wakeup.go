package redlock

import (
	"slices"
	"time"
)

const (
	// safetyTry is how long those who wait trust in being told. Other libraries
	// publish nothing, and a message can get lost.
	safetyTry = time.Second

	// mostDamping bounds how long hints wait that follow false ones, so that who
	// floods a channel cannot keep the true ones from being heard for long. With
	// it a flood costs some twenty tries a second.
	mostDamping = 32 * time.Millisecond

	// expiryGrain is how long after a PTTL has passed the key may still be there:
	// Redis keeps time in whole milliseconds.
	expiryGrain = time.Millisecond
)

// A prospect is all that decides when a contender tries again that was refused by
// one holder: what that try said, what was heard since it began, and what others
// are owed. It is pure: no clock, no network, and the random number is given.
type prospect struct {
	quorum int
	votes  []Vote      // of the failed try
	start  time.Time   // of that try: what was released since may have been refused by it
	end    time.Time   // of that try
	freed  []time.Time // when node i was heard to be free, since start; zero: it was not
	trip   time.Duration
	misses int           // tries in a row that followed a hint and found the same holder
	races  int           // tries in a row that followed a hint and found another: lost to who was faster
	alone  bool          // no other process is known to wait
	hold   time.Time     // before it no hint is followed: others are first
	rest   time.Time     // when to try if nothing is heard at all
	u      float64       // random, [0, 1)
	why    *wakeupReason // where to tell why, may be nil
}

// A wakeupReason is what a try followed.
type wakeupReason uint8

const (
	byRest   wakeupReason = iota // time: nothing was heard
	byHint                       // somebody's release
	byExpiry                     // the end of the holder's keys
)

// next is when to try again: at the first of
//   - enough nodes are free to make a quorum with those that granted, as far as
//     is known (they were rolled back since), or fewer, and a round trip later
//     no more are: the others' messages may be lost;
//   - the keys expire on so many nodes;
//   - rest.
//
// Hints come to all who wait at the same time; were they followed at the same
// time, votes would be split. So every contender draws a part of half a round trip,
// and of less the more races it has lost: chance alone would let one of four wait
// for forty turns now and then.
func (p prospect) next() time.Time {
	at, why := p.rest, byRest
	damped := p.end.Add(p.damping())
	for _, c := range []struct {
		at  time.Time
		why wakeupReason
	}{{p.hinted(), byHint}, {p.expired(), byExpiry}} {
		if c.at.IsZero() {
			continue
		}
		c.at = later(c.at, damped)
		if c.why == byHint {
			c.at = later(c.at, p.hold)
		}
		if c.at.Before(at) {
			at, why = c.at, c.why
		}
	}
	if p.why != nil {
		*p.why = why
	}
	return at
}

// hinted is when what was heard is to be followed; zero: nothing was.
func (p prospect) hinted() time.Time {
	var heard []time.Time
	granted := 0
	for i, v := range p.votes {
		switch {
		case v.Outcome == Granted:
			granted++
		case !p.freed[i].IsZero():
			heard = append(heard, p.freed[i])
		}
	}
	if len(heard) == 0 {
		return time.Time{}
	}
	slices.SortFunc(heard, time.Time.Compare)
	at := heard[0].Add(p.trip)
	if need := max(1, p.quorum-granted); need <= len(heard) && heard[need-1].Before(at) {
		at = heard[need-1]
	}
	if p.alone {
		return at
	}
	return at.Add(p.part(p.trip / time.Duration(2*(1+p.races))))
}

// expired is when the keys of those who refused are gone from enough nodes; zero
// if too few said how long they live. It counts from before the try was sent, so
// that the next try arrives just then.
func (p prospect) expired() time.Time {
	var left []time.Duration
	granted := 0
	for _, v := range p.votes {
		switch {
		case v.Outcome == Granted:
			granted++
		case v.Outcome == Refused && v.left > 0 && v.left < maxTTL:
			left = append(left, v.left)
		}
	}
	need := p.quorum - granted
	if need < 1 || need > len(left) {
		return time.Time{}
	}
	slices.Sort(left)
	jitter := min(max(p.trip/2, time.Millisecond), 4*time.Millisecond)
	return p.start.Add(left[need-1] + expiryGrain + p.part(jitter))
}

// damping is how long after the failed try hints are not followed, because those
// before were false.
func (p prospect) damping() time.Duration {
	if p.misses == 0 {
		return 0
	}
	d := max(p.trip, time.Millisecond)
	for i := 1; i < p.misses && d < mostDamping; i++ {
		d *= 2
	}
	d = min(d, max(mostDamping, p.trip))
	return d + p.part(d/2)
}

// part is a random part of d.
func (p prospect) part(d time.Duration) time.Duration { return time.Duration(p.u * float64(d)) }

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// split tells whether a quorum of nodes has voted, and only not for one and the
// same.
func (e *QuorumError) split() bool {
	return e.Round.Count(Granted)+e.Round.Count(Refused) >= e.Round.Quorum
}

// A hold is what the refusals of a round say of who has the lock.
type hold uint8

const (
	nobodys hold = iota // nobody is seen to have it: it may be free, with votes split between those who want it
	maybe               // one value prevents a quorum, and may have one or not
	one                 // one value has a quorum
)

// blocker is what the name is held by, if one and the same value refused on so
// many nodes that it alone prevents a quorum. Only if somebody has the lock there
// is something to sleep on.
//
// With an even number of nodes half of them prevent a quorum and are none: two
// contenders with half of the votes each would both take the other for the holder.
// If the other half has not answered, that cannot be told from a holder.
func (e *QuorumError) blocker() (value string, h hold) {
	count := make(map[string]int)
	unknown := 0
	for _, v := range e.Round.Votes {
		if v.Outcome == Pending || v.Outcome == Failed {
			unknown++
		}
		if v.Outcome != Refused {
			continue
		}
		value := v.Holder
		if v.Err != nil { // no value could be shown
			value = "\x00" + v.Err.Error()
		}
		count[value]++
	}
	for value, k := range count {
		switch quorum := e.Round.Quorum; {
		case k >= quorum:
			return value, one
		case k >= len(e.Round.Votes)-quorum+1 && k+unknown >= quorum:
			return value, maybe
		}
	}
	return "", nobodys
}
