package fence

import (
	"errors"
	"fmt"
)

// ErrStale says that a later holder has been at the resource: what was to be done
// was not done, and never will be under this token. The lock was lost; take it anew.
var ErrStale = errors.New("stale fencing token")

// ErrInvalid says that an argument is out of bounds, such as the token 0, which is
// what a lease has that was not fenced. Nothing was done. The text names the value
// and the bound.
var ErrInvalid = errors.New("invalid argument")

// MaxToken is the highest token. Up to here all numbers survive Lua and JSON, which
// calculate with floating point.
const MaxToken uint64 = 1<<53 - 1

// StaleError is a refusal. It matches ErrStale.
type StaleError struct {
	Resource string // as the guard was called with it
	Token    uint64 // that was refused
	Highest  uint64 // that the resource has seen; 0: it did not say
}

func (e *StaleError) Error() string {
	if e.Highest == 0 {
		return fmt.Sprintf("fence: %s: %v: it is %d, and a higher one was here", quote(e.Resource), ErrStale, e.Token)
	}
	return fmt.Sprintf("fence: %s: %v: it is %d, and %d was here", quote(e.Resource), ErrStale, e.Token, e.Highest)
}

// Unwrap is ErrStale.
func (e *StaleError) Unwrap() error { return ErrStale }

// quote quotes a resource for a message and shortens one that would drown it.
func quote(s string) string {
	const most = 80
	if len(s) > most {
		return fmt.Sprintf("%q… (%d bytes)", s[:most], len(s))
	}
	return fmt.Sprintf("%q", s)
}

// invalid builds an ErrInvalid about a resource.
func invalid(resource, format string, args ...any) error {
	return fmt.Errorf("fence: %s: %w: %w", quote(resource), ErrInvalid, fmt.Errorf(format, args...))
}

// check is what all guards look at before they do anything. A token that is too high
// would be worse than a refusal: it would keep out all holders there will ever be.
func check(resource string, token uint64) error {
	switch {
	case resource == "":
		return invalid(resource, "the resource has no name")
	case token == 0:
		return invalid(resource, "the token is 0, which is what a lease has that was not fenced; want at least 1")
	case token > MaxToken:
		return invalid(resource, "the token is %d; want at most %d", token, MaxToken)
	}
	return nil
}
