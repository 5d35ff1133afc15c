package redlock

import (
	"slices"
	"time"
)

// An instant is one reading of every clock that can tell how much time passed.
type instant struct {
	mono   time.Time     // what time.Now says; carries Go's monotonic reading
	wall   int64         // the wall clock in nanoseconds since 1970
	asleep time.Duration // how long this machine has been suspended since it booted, where the system tells
}

// elapsed is the longest that any clock says has passed between two readings.
//
// The monotonic clock stops while a machine is suspended, and the wall clock
// can be set back. Each of them alone can make a lease look younger than it is,
// so the slowest excuse never counts: elapsed = max(monotonic + time asleep,
// wall, 0). A wall clock that jumps forward therefore costs validity (the safe
// side), one that jumps back changes nothing.
func elapsed(from, to instant) time.Duration {
	mono := to.mono.Sub(from.mono) + max(0, to.asleep-from.asleep)
	wall := time.Duration(to.wall - from.wall)
	return max(mono, wall, 0)
}

// A vouch is a node's last promise to keep a token: it acknowledged a request
// that was sent at t0 and set the key's life to ttl, so until
//
//	t0 + span,  span = ttl − drift(ttl)
//
// nobody else can hold the name on that node. A nil vouch promises nothing.
type vouch struct {
	t0   instant
	span time.Duration
}

// left is how much of the promise remains; one that was not given ended before
// any that was.
func (v *vouch) left(now instant) time.Duration {
	if v == nil {
		return -maxTTL
	}
	return v.span - elapsed(v.t0, now)
}

// validity is how long a lease may still act: as long as quorum nodes vouch for
// it, which is the quorum-th largest of what the nodes' promises have left.
// It is never positive while fewer than quorum nodes have promised anything.
//
//	start          quorum reached                                   until      start + ttl
//	  │◄── elapsed ──►│◄────────────────── validity ──────────────────►│◄─ drift ─►│
//	  │ a ✓   b ✓   c ✓  work here, and only here                       stop        a may expire
//
// All promises are compared anew at every look. Keeping only the quorum-th one
// would be unsafe: its remaining time may have been read while the wall clock
// was ahead, and grows again, past the promises it was compared with, when the
// wall clock is set back.
func validity(vouches []*vouch, quorum int, now instant) time.Duration {
	var buf [16]time.Duration
	left := buf[:0]
	for _, v := range vouches {
		left = append(left, v.left(now))
	}
	slices.Sort(left)
	return left[len(left)-quorum]
}
