package redlock

import (
	"errors"
	"fmt"
	"time"

	"github.com/sony/gobreaker/v2"
)

const (
	// tripAfter exchanges in a row without an answer, spread over tripSpan or two
	// node timeouts, shut a node's gate. Both, since either alone lies: a single
	// exchange can be slow for seconds; and a server that restarts breaks all its
	// connections in one moment and refuses the next ones in as short a time, upon
	// which go-redis does not dial for a second.
	tripAfter = 3
	tripSpan  = 2 * time.Second

	// A node whose gate is shut is tried again after half a node timeout, within these
	// bounds: what a try costs is one vote that fails a little later, what a
	// pause costs is a healthy node that does not vote. So pauses do not grow.
	minShut, maxShut = 200 * time.Millisecond, 500 * time.Millisecond

	// unaskedPause is the least pause after an attempt that failed without asking
	// enough nodes, since that takes no time at all.
	unaskedPause = 10 * time.Millisecond
)

// A gate keeps votes from a node that has not answered for a while, so that
// callers are told at once what they would else be told after a node timeout.
//
//	              tripAfter silences in a row
//	  ┌────────┐  over tripSpan               ┌──────┐
//	─►│  open  ├─────────────────────────────►│ shut │◄──────────┐
//	  └────────┘                              └──┬───┘           │ silence
//	       ▲                          after shut │           ┌───┴────┐
//	       │ any answer                          └──────────►│  ajar  │ one vote goes through
//	       └─────────────────────────────────────────────────┴────────┘
//
// Silences are counted by exchange (and connection), not by vote. Releases,
// extensions, pings and connections pass it by, and the first of them that is
// answered opens it, at whatever stage.
//
// A gate is guarded by its node's mutex. The zero value is open.
type gate struct {
	timeout time.Duration                              // of the node
	breaker *gobreaker.TwoStepCircuitBreaker[struct{}] // nil: the last exchange was answered
	since   time.Time                                  // end of the first exchange without an answer since then
	shut    time.Time                                  // when it was shut last
	shuts   uint64                                     // how often it was
}

// heard counts an exchange. The breaker only lives between two answers: it
// cannot be told to close, and need not be, since a new one is closed.
func (g *gate) heard(yes bool) {
	if yes {
		g.breaker = nil
		return
	}
	if g.breaker == nil {
		g.breaker, g.since = g.newBreaker(), time.Now()
	}
	// Shut, or ajar with a vote under way that will tell by itself: not counted.
	if settle, err := g.breaker.Allow(); err == nil {
		settle(errSilence)
	}
}

func (g *gate) newBreaker() *gobreaker.TwoStepCircuitBreaker[struct{}] {
	return gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		MaxRequests: 1,
		Timeout:     g.pause(),
		ReadyToTrip: func(c gobreaker.Counts) bool {
			return c.ConsecutiveFailures >= tripAfter && time.Since(g.since) >= max(tripSpan, 2*g.timeout)
		},
		IsExcluded: func(err error) bool { return errors.Is(err, errNoVerdict) },
		OnStateChange: func(_ string, _, to gobreaker.State) {
			if to == gobreaker.StateOpen {
				g.shut = time.Now()
				g.shuts++
			}
		},
	})
}

// pause is how long the gate stays shut.
func (g *gate) pause() time.Duration { return min(max(g.timeout/2, minShut), maxShut) }

// admit lets a vote through or says why not. A probe is a vote on trial: it must
// be given back when the vote has ended, however it did. What it found was
// counted with its exchange; a vote that was dropped before has found nothing,
// and the next one is the probe. But while the node's only connection is being
// made, that is what will tell, so that a node that swallows connections does
// not cost one caller after the other a node timeout.
func (g *gate) admit(refused error, connecting bool) (probe func(error), err error) {
	if g.breaker == nil {
		return nil, nil
	}
	switch g.breaker.State() {
	case gobreaker.StateClosed:
		return nil, nil
	case gobreaker.StateHalfOpen:
		if connecting {
			break
		}
		if probe, err := g.breaker.Allow(); err == nil {
			return probe, nil
		}
	default:
		return nil, errNotAsked{silent: g.silent(), refused: refused, next: g.pause() - time.Since(g.shut)}
	}
	return nil, errNotAsked{silent: g.silent(), refused: refused}
}

// silent is how long ago the first exchange without an answer ended, if there was
// none with one since.
func (g *gate) silent() time.Duration {
	if g.breaker == nil {
		return 0
	}
	return time.Since(g.since)
}

// state is "closed", "open" or "half-open", in the words of circuit breakers:
// closed lets votes through.
func (g *gate) state() string {
	if g.breaker == nil {
		return gobreaker.StateClosed.String()
	}
	return g.breaker.State().String()
}

var (
	errSilence   = errors.New("no answer")
	errNoVerdict = errors.New("neither answered nor silent")
)

// errNotAsked is a vote that the gate kept back.
type errNotAsked struct {
	silent  time.Duration // since the first exchange without an answer
	refused error         // why there is no connection, if that is so
	next    time.Duration // until a vote is let through; 0: one is, or a connection is being made
}

func (e errNotAsked) Error() string {
	s := fmt.Sprintf("not asked: no answer for %v", e.silent.Round(time.Millisecond))
	if e.refused != nil {
		s += fmt.Sprintf(" (%v)", e.refused)
	}
	if e.next <= 0 {
		return s + ", being tried at the moment"
	}
	return s + fmt.Sprintf(", next try in %v", e.next.Round(time.Millisecond))
}

// tookAtLeast is how long an attempt lasted, for the pause after it. One that
// ended at once because too few nodes were asked must not be repeated at once.
func (e *QuorumError) tookAtLeast() time.Duration {
	unasked := 0
	for _, v := range e.Round.Votes {
		switch v.Err.(type) {
		case errNotAsked, errYoung, errUnguarded:
			unasked++
		}
	}
	if len(e.Round.Votes)-unasked < e.Round.Quorum {
		return max(e.Round.Took, unaskedPause)
	}
	return e.Round.Took
}
