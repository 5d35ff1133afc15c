package fence

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
)

// Memory guards resources that one process owns, such as a file, a device, a cache
// or a connection to something that cannot compare numbers. The zero value is
// ready; it must not be copied, and its fields not be changed, after first use. It is
// safe for concurrent use.
//
// # What it remembers
//
// It keeps the highest token of each resource, some 200 bytes and the name. It
// forgets nothing by itself, so it grows with the number of different resources that
// were ever used, unless Limit is set.
//
// It ends with the process. A holder from before a restart would be let in after it
// if no later one has been there since; Floor prevents that.
type Memory struct {
	// Limit is how many resources are remembered; 0 is all of them. Above it the
	// lower half of the tokens is forgotten, and the highest token forgotten counts
	// as seen by every resource that is not remembered. So a limit never lets a stale
	// holder in. It can refuse a rightful one, that took its lock long before others
	// took theirs and has not been here among the last: that one has to take the
	// lock anew. This compares tokens of different locks, as is right for locks of
	// this module, whose tokens follow the clock (in microseconds since 1970).
	Limit int

	// Floor counts as seen by every resource from the start. After a restart take the
	// highest token that was ever let in, if that was stored; or, with locks of this
	// module and clocks that agree, uint64(time.Now().UnixMicro()): then everybody who
	// took a lock before that has to take it anew.
	Floor uint64

	mu        sync.Mutex
	seats     map[string]*seat
	forgotten uint64 // the highest token of a seat that was taken away
}

// seat is a resource. All of it but the turn belongs to the Memory's mutex.
type seat struct {
	turn    chan struct{} // filled by who is at the resource
	users   int           // who has the turn or waits for it
	first   uint64        // what counted as seen when the seat was made
	highest uint64        // token seen
}

// Do waits for the resource's turn, checks the token, and runs write while it has
// the turn: nobody else is let in to this resource until write has returned, so it
// may read and write. What write leaves running behind itself is not guarded. Other
// resources are not kept waiting.
//
//   - write's own error, or nil: it ran. The token counts as seen whatever it
//     returned.
//   - ErrStale (a *StaleError): a higher token was here. write did not run.
//   - an error of ctx: it ended before the turn came. write did not run. Once it
//     runs, ctx is write's own affair.
//   - ErrInvalid: the token is 0 or above MaxToken, or the resource "". write did
//     not run.
//
// write must not call Do for the same resource: it would wait for itself.
func (m *Memory) Do(ctx context.Context, resource string, token uint64, write func() error) error {
	if err := check(resource, token); err != nil {
		return err
	}
	s := m.sit(resource)
	defer m.rise(resource, s)
	if err := s.wait(ctx); err != nil {
		return fmt.Errorf("fence: %s: waiting for the turn: %w", quote(resource), err)
	}
	defer func() { <-s.turn }()
	if highest := m.see(s, token); highest > token {
		return &StaleError{resource, token, highest}
	}
	return write()
}

// Highest is the highest token that counts as seen by the resource.
func (m *Memory) Highest(resource string) uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.seats[resource]; s != nil {
		return s.highest
	}
	return m.floor()
}

// floor is what counts as seen by a resource that is not remembered.
func (m *Memory) floor() uint64 { return max(m.Floor, m.forgotten) }

// see remembers a token that is not stale, and returns the highest seen.
func (m *Memory) see(s *seat, token uint64) (highest uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s.highest = max(s.highest, token)
	return s.highest
}

// wait waits for the turn. If that and ctx's end come together, ctx's end counts.
func (s *seat) wait(ctx context.Context) error {
	select {
	case s.turn <- struct{}{}:
		err := ctx.Err()
		if err != nil {
			<-s.turn
		}
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// sit gives the resource's seat, which stays for as long as somebody sits there.
func (m *Memory) sit(resource string) *seat {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.seats[resource]
	if s == nil {
		if m.seats == nil {
			m.seats = make(map[string]*seat)
		}
		floor := m.floor()
		s = &seat{turn: make(chan struct{}, 1), first: floor, highest: floor}
		m.seats[resource] = s
	}
	s.users++
	return s
}

// rise gives the seat back. One that has learned nothing goes at once, so that
// refusals alone, whatever names they come with, need no memory.
func (m *Memory) rise(resource string, s *seat) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s.users--
	if s.users == 0 && s.highest == s.first {
		delete(m.seats, resource)
	}
	if m.Limit > 0 && len(m.seats) > m.Limit {
		m.forget()
	}
}

// forget takes away those of the lower half of the seats on which nobody sits. It
// is half of them so that sorting is rare.
func (m *Memory) forget() {
	names := make([]string, 0, len(m.seats))
	for name := range m.seats {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Compare(m.seats[a].highest, m.seats[b].highest) })
	for _, name := range names[:len(names)-m.Limit/2] {
		if s := m.seats[name]; s.users == 0 {
			m.forgotten = max(m.forgotten, s.highest)
			delete(m.seats, name)
		}
	}
}
