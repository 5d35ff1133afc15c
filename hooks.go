package redlock

import (
	"context"
	"errors"
	"log/slog"
	"time"
)

// Op names an operation in Hooks.
type Op struct {
	// Kind is "lock", "trylock", "attach", "extend", "unlock", "detach" or
	// "forcerelease"; of a nested lease, for which nothing is sent, "reenter" stands
	// for the first two and "leave" for "unlock".
	Kind string
	Name string // of the lock
}

// Hooks are functions that watch a Locker at work, for traces, metrics and logs.
// Any may be nil. They are called on the goroutine that does the work, so a slow
// one slows that operation and nothing else; what happens by itself (AtRisk,
// Lost, and the Rounds of the watchdog's renewals) is told in order on a
// goroutine of its own. While some thousand of these wait because a hook is slow,
// Rounds are left out; AtRisk and Lost never are. They must be safe for
// concurrent use and must not call the Locker.
type Hooks struct {
	// Start is called when an operation begins, before anything is sent. The
	// context that it returns takes the place of the caller's for this operation,
	// the other hooks included, so it should descend from that one; nil stands for
	// the one that it was given.
	Start func(ctx context.Context, op Op) context.Context

	// Round is called when a round of votes is decided, with the votes so far.
	// Lock can have many rounds, the other operations have one at the most.
	Round func(ctx context.Context, round Round)

	// Done is called once when the operation ends. lease is nil for a lock that
	// was not obtained, and for a forced release.
	Done func(ctx context.Context, op Op, lease *Lease, err error)

	// AtRisk is called when a renewal by the watchdog reached no quorum, the
	// first time in a row: err is the *QuorumError. The lease still has its
	// Validity, and renewing is tried again until it is lost. ctx is as in Lost.
	AtRisk func(ctx context.Context, lease *Lease, err error)

	// Lost is called once for every lease, nested ones apart, that ended by itself:
	// err is a *LostError, which matches ErrLost and tells why. ctx carries the
	// values of the call that obtained the lease. The keys are released when the holder calls Unlock or when the
	// lease's time is over, whichever is first.
	Lost func(ctx context.Context, lease *Lease, err error)
}

// start calls all Start hooks.
func (c *config) start(ctx context.Context, op Op) context.Context {
	for _, h := range c.hooks {
		if h.Start != nil {
			if next := h.Start(ctx, op); next != nil {
				ctx = next
			}
		}
	}
	return ctx
}

func (c *config) round(ctx context.Context, r *round, attempt int) {
	for _, h := range c.hooks {
		if h.Round != nil {
			h.Round(ctx, r.record(attempt))
		}
	}
}

func (c *config) done(ctx context.Context, op Op, lease *Lease, err error) {
	for _, h := range c.hooks {
		if h.Done != nil {
			h.Done(ctx, op, lease, err)
		}
	}
}

func (c *config) atRisk(ctx context.Context, lease *Lease, err error) {
	for _, h := range c.hooks {
		if h.AtRisk != nil {
			h.AtRisk(ctx, lease, err)
		}
	}
}

func (c *config) lost(ctx context.Context, lease *Lease, err error) {
	for _, h := range c.hooks {
		if h.Lost != nil {
			h.Lost(ctx, lease, err)
		}
	}
}

// LogHooks writes what a Locker does to a structured log: every operation at
// Debug, what was refused at Info, and what points to trouble (no quorum, a
// lease lost, a release that was forced) at Warn. Tokens are not logged, since whoever knows one can
// release the lock.
// A nil log is slog.Default().
func LogHooks(log *slog.Logger) Hooks {
	if log == nil {
		log = slog.Default()
	}
	type begin struct{}
	return Hooks{
		Start: func(ctx context.Context, _ Op) context.Context {
			return context.WithValue(ctx, begin{}, time.Now())
		},
		Round: func(ctx context.Context, r Round) {
			if !log.Enabled(ctx, slog.LevelDebug) {
				return
			}
			log.DebugContext(ctx, "redlock round", "op", r.Op, "lock", r.Name, "attempt", r.Attempt,
				"granted", r.Count(Granted), "quorum", r.Quorum, "took", r.Took, "votes", r.String())
		},
		Done: func(ctx context.Context, op Op, lease *Lease, err error) {
			attrs := []any{"op", op.Kind, "lock", op.Name}
			if t, ok := ctx.Value(begin{}).(time.Time); ok {
				attrs = append(attrs, "took", time.Since(t))
			}
			level := slog.LevelDebug
			switch {
			case err != nil:
				attrs = append(attrs, "error", err)
				level = slog.LevelInfo
				if errors.Is(err, ErrNoQuorum) || errors.Is(err, ErrExpired) || errors.Is(err, ErrLost) {
					level = slog.LevelWarn
				}
			case op.Kind == "forcerelease":
				level = slog.LevelWarn // an operator has intervened
			case lease.Err() == nil:
				attrs = append(attrs, "validity", lease.Validity())
			}
			log.Log(ctx, level, "redlock "+op.Kind, attrs...)
		},
		AtRisk: func(ctx context.Context, lease *Lease, err error) {
			log.WarnContext(ctx, "redlock lease at risk", "lock", lease.Name(), "validity", lease.Validity(), "error", err)
		},
		Lost: func(ctx context.Context, lease *Lease, err error) {
			log.WarnContext(ctx, "redlock lease lost", "lock", lease.Name(), "error", err)
		},
	}
}
