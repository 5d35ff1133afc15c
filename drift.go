package redlock

import "time"

// driftFloor is the part of the drift margin that does not depend on the ttl:
// one millisecond because Redis expires keys on whole milliseconds, and one
// because clocks that disagree by a rate still round.
const driftFloor = 2 * time.Millisecond

// defaultDrift is the smallest margin that a lease may keep for clocks that run
// at different rates:
//
//	drift(ttl) = ttl/100 + 2 ms
//
// One percent is the figure of the Redlock reference implementation in Ruby.
// It has to cover the difference in *rate* between the holder's clock and a
// node's clock over one ttl; it does not cover a clock that steps.
func defaultDrift(ttl time.Duration) time.Duration {
	return ttl/100 + driftFloor
}

// drift is the margin for one ttl when the user asked for at least `least`
// (0: no wish). The user can widen the margin, never narrow it.
func drift(ttl, least time.Duration) time.Duration {
	return max(defaultDrift(ttl), least)
}
