package redlock

import (
	"fmt"
	"time"
)

// Backoff says how long Lock pauses between two attempts when nobody is known to
// have the lock: too few nodes answered, votes were split between several that want
// it, or the nodes cannot tell of releases. (Otherwise it waits to be told.) The
// pause after the n-th such attempt in a row is drawn evenly from
//
//	[base, 2·base),  base = max(took, min(Min·Factor^(n−1), Max) / 2)
//
// where took is how long attempt n lasted. The random half keeps contenders
// that collided from colliding again; the floor of one acquire keeps a
// contender from coming back before the others could have finished. After the n-th
// split vote in a row it is drawn from
//
//	[base, base + base·2^(n−1)),  base = max(took, Min/2)
//
// where n counts to 4 at the most: those who collide are there and quick, so what
// they need is room between them, not time. A Backoff is a plain value: it has no state and can be shared.
type Backoff struct {
	Min    time.Duration // the first pause, before its random half; default 1 ms
	Max    time.Duration // where the pauses stop growing, unless attempts are slow; default 250 ms
	Factor float64       // growth from pause to pause, at least 1; default 2
}

// defaultBackoff begins with pauses that are as long as the attempts themselves, and
// its cap bounds how long a lock that was freed can lie idle when nodes tell nothing.
var defaultBackoff = Backoff{Min: time.Millisecond, Max: 250 * time.Millisecond, Factor: 2}

// fill replaces fields left at zero by the defaults.
func (b Backoff) fill() Backoff {
	if b.Min == 0 {
		b.Min = defaultBackoff.Min
	}
	if b.Max == 0 {
		b.Max = max(defaultBackoff.Max, b.Min)
	}
	if b.Factor == 0 {
		b.Factor = defaultBackoff.Factor
	}
	return b
}

func (b Backoff) check() error {
	switch {
	case b.Min < 0:
		return fmt.Errorf("back-off: Min is %v; want more than 0, or 0 for the default", b.Min)
	case b.Max < b.Min:
		return fmt.Errorf("back-off: Max is %v; want at least Min, %v", b.Max, b.Min)
	case !(b.Factor >= 1):
		return fmt.Errorf("back-off: Factor is %v; want at least 1", b.Factor)
	}
	return nil
}

// pause is the wait after attempt number n (the first is 1) that lasted took.
// u is a random number in [0, 1).
func (b Backoff) pause(n int, took time.Duration, u float64) time.Duration {
	grown := float64(b.Min)
	for i := 1; i < n && grown < float64(b.Max); i++ {
		grown *= b.Factor
	}
	base := max(took, time.Duration(min(grown, float64(b.Max)))/2)
	return base + time.Duration(u*float64(base))
}

// mostSplits is after how many split votes in a row there is room enough for a dozen
// contenders to miss each other. Growing on, the pauses would keep who had bad luck
// from a lock that others pass on in milliseconds.
const mostSplits = 4

// spread is the pause after the n-th split vote in a row, in an attempt that lasted
// took. u is a random number in [0, 1).
func (b Backoff) spread(n int, took time.Duration, u float64) time.Duration {
	base := max(took, b.Min/2)
	room := min(base<<(min(n, mostSplits)-1), max(base, b.Max))
	return base + time.Duration(u*float64(room))
}
