package fence

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
)

// Header carries the token of a request, in decimal digits. In the answer to a
// stale one it carries the highest token that the resource has seen.
const Header = "Redlock-Fence"

// SetHeader puts a token on a request that is to be sent:
//
//	err := fence.SetHeader(request.Header, lease.Fence())
//
// ErrInvalid: it is 0 or above MaxToken, and no header was set.
func SetHeader(h http.Header, token uint64) error {
	if err := check(Header, token); err != nil {
		return err
	}
	h.Set(Header, strconv.FormatUint(token, 10))
	return nil
}

var errNoHeader = fmt.Errorf("fence: %w: the request has no %s header", ErrInvalid, Header)

// Token reads the token of a request, for servers that hand it to a guard of their
// own. It wants one header of decimal digits and nothing else, 1 to MaxToken, without
// leading zeros; everything else is ErrInvalid.
func Token(h http.Header) (uint64, error) {
	values := h.Values(Header)
	switch len(values) {
	case 0:
		return 0, errNoHeader
	case 1:
		return parse(values[0])
	}
	return 0, fmt.Errorf("fence: %w: the request has %d %s headers; want 1", ErrInvalid, len(values), Header)
}

// parse reads what SetHeader wrote.
func parse(text string) (uint64, error) {
	token, err := strconv.ParseUint(text, 10, 64)
	if err != nil || strconv.FormatUint(token, 10) != text {
		return 0, fmt.Errorf("fence: %w: %s is %s; want decimal digits, 1 to %d", ErrInvalid, Header, quote(text), MaxToken)
	}
	return token, check(Header, token)
}

// Handler guards next: a request is let through if no request with a higher token has
// been here for the same resource, and while next runs no other request for that
// resource is. resource tells what a request is about, by its path for one; use the
// name of the lock, or whatever the lock protects.
//
// Others are answered without next, with the reason as text:
//
//	428 Precondition Required   there is no Redlock-Fence header
//	400 Bad Request             it is no token, or the resource is ""
//	412 Precondition Failed     it is stale; Redlock-Fence in the answer is the highest token seen
//	503 Service Unavailable     the request's context ended before the resource's turn came
//
// 412 and not 409: the token is a condition that the client set (act only if nobody
// later was here), it is evaluated before anything else, and repeating the request
// cannot help, while a 409 of next's own may invite to try again.
//
// # What is one step, and what is not
//
// The token is checked and next is run in one turn, see Memory.Do. That holds for
// everything that next does until it returns, and for requests that pass through
// this Memory. It does not hold for
//
//   - what next starts and leaves running. http.TimeoutHandler does that, so it
//     belongs around Handler and not inside;
//   - several processes that serve the same resource: each remembers for itself. Let
//     next hand Token to a guard at the data, or send each resource to one process;
//   - the time before a restart, see Memory.Floor.
//
// A client that sends its body slowly keeps others from the resource meanwhile; set
// http.Server.ReadTimeout. All methods need a token, also those that only read: to
// show it before one reads is what makes read, compute and write safe.
func Handler(m *Memory, resource func(*http.Request) string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, err := Token(r.Header)
		if err == nil {
			ran := false
			err = m.Do(r.Context(), resource(r), token, func() error {
				ran = true
				next.ServeHTTP(w, r)
				return nil
			})
			if ran {
				return
			}
		}
		refuse(w, err)
	})
}

// refuse answers a request that was not let through.
func refuse(w http.ResponseWriter, err error) {
	status := http.StatusServiceUnavailable
	var stale *StaleError
	switch {
	case errors.As(err, &stale):
		status = http.StatusPreconditionFailed
		w.Header().Set(Header, strconv.FormatUint(stale.Highest, 10))
	case errors.Is(err, errNoHeader):
		status = http.StatusPreconditionRequired
	case errors.Is(err, ErrInvalid):
		status = http.StatusBadRequest
	}
	http.Error(w, err.Error(), status)
}

// Refusal is the *StaleError that a Handler's answer stands for, and nil for any other
// answer. It does not touch the body.
func Refusal(response *http.Response) error {
	if response.StatusCode != http.StatusPreconditionFailed {
		return nil
	}
	highest, err := Token(response.Header)
	if err != nil {
		return nil // somebody else's 412
	}
	stale := &StaleError{Highest: highest}
	if request := response.Request; request != nil {
		stale.Resource = request.URL.Path
		stale.Token, _ = Token(request.Header)
	}
	return stale
}
