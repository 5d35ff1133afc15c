package faultinject

import (
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// window is how many bytes of requests a connection holds before the client has
// to wait, as it must for a kernel's buffers. Replies are never waited for: Redis
// keeps them in its memory and goes on with other clients.
const window = 4 << 20

// stream is one direction of a connection: messages on their way, in order. One
// goroutine reads it.
type stream struct {
	way  way
	path *path
	used *usage

	mu     sync.Mutex
	queue  []parcel
	bytes  int
	last   time.Time // when the newest parcel is due: nothing overtakes
	ended  bool      // the writer closed: what is queued still arrives, and the end at last
	reset  bool      // nothing more arrives
	dead   bool      // the reader is gone without a word: what comes vanishes
	silent bool      // whatever is queued or comes vanishes

	wake chan struct{} // something changed for the reader
	room chan struct{} // something changed for a writer that waits
}

// parcel is a message and when it may arrive.
type parcel struct {
	message []byte
	due     time.Time
}

// gate is how a direction is at a moment.
type gate uint8

const (
	open   gate = iota
	shut        // what comes waits
	astray      // what comes vanishes, and the connection with it
)

func newStream(p *path, w way, used *usage) *stream {
	return &stream{way: w, path: p, used: used, wake: make(chan struct{}, 1), room: make(chan struct{}, 1)}
}

// usage is when a connection last carried something, in either direction.
type usage struct {
	mu   sync.Mutex
	last time.Time
	lost bool // the network has forgotten it
}

// carries says whether what is sent now arrives.
func (u *usage) carries(w *weather) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	now := time.Now()
	u.lost = u.lost || !w.passes(now.Sub(u.last))
	u.last = now
	return !u.lost
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// errReset is what both sides of a connection see that was reset.
func errReset(op string) error { return &net.OpError{Op: op, Net: "tcp", Err: syscall.ECONNRESET} }

func noDeadline() time.Time { return time.Time{} }

// passed says whether a deadline is over; the zero time is none.
func passed(deadline time.Time) bool { return !deadline.IsZero() && !time.Now().Before(deadline) }

// put queues a message that is to arrive after what the network takes, and d
// more. It waits for room until the deadline, the zero time being none.
func (s *stream) put(message []byte, d time.Duration, deadline func() time.Time) error {
	w := s.path.weather.Load()
	d += w.delay(s.way)
	if !s.used.carries(w) {
		s.silence()
	}
	for {
		if passed(deadline()) {
			return os.ErrDeadlineExceeded
		}
		s.mu.Lock()
		switch {
		case s.reset:
			s.mu.Unlock()
			return errReset("write")
		case s.ended:
			s.mu.Unlock()
			return net.ErrClosed
		case s.silent, s.dead:
			s.mu.Unlock()
			return nil
		case w.gates[s.way] == astray:
			w.struck(s.way)
			s.lose()
			s.mu.Unlock()
			return nil
		case s.bytes < window || s.way == replies:
			w.struck(s.way)
			s.last = s.dueAfter(d)
			s.bytes += len(message)
			s.queue = append(s.queue, parcel{message, s.last})
			s.mu.Unlock()
			poke(s.wake)
			return nil
		}
		s.mu.Unlock()
		if err := await(s.room, 0, deadline()); err != nil {
			return err
		}
		w = s.path.weather.Load()
	}
}

// dueAfter is when something may arrive that takes d, and overtakes nothing. The
// mutex is held.
func (s *stream) dueAfter(d time.Duration) (due time.Time) {
	if d > 0 {
		due = time.Now().Add(d)
	}
	if due.Before(s.last) {
		return s.last
	}
	return due
}

// get returns the next message that has arrived. It waits for it until the
// deadline.
func (s *stream) get(deadline func() time.Time) ([]byte, error) {
	for {
		message, wait, err := s.take()
		if message != nil || err != nil {
			return message, err
		}
		if err := await(s.wake, wait, deadline()); err != nil {
			return nil, err
		}
	}
}

// take returns a message if one is there, else how long the next one needs, 0
// being unknown.
func (s *stream) take() (message []byte, wait time.Duration, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ready, wait, err := s.look()
	if !ready {
		return nil, wait, err
	}
	message = s.queue[0].message
	s.queue[0] = parcel{}
	s.queue = s.queue[1:]
	if s.bytes -= len(message); s.bytes < window {
		poke(s.room)
	}
	return message, 0, nil
}

// look says whether a message is ready, or else how long the next one, or the end,
// needs, 0 being unknown. It is an error if nothing will come any more. The mutex
// is held.
func (s *stream) look() (ready bool, wait time.Duration, err error) {
	w := s.path.weather.Load()
	if w.gates[s.way] == astray && !s.reset && !s.silent && (len(s.queue) > 0 || s.ended) {
		w.struck(s.way)
		s.lose()
	}
	switch {
	case s.reset || s.dead:
		return false, 0, errReset("read")
	case s.silent && s.ended && s.way == requests:
		return false, 0, io.EOF // nobody can tell; it lets the server's side of the connection go
	case s.silent || w.gates[s.way] == shut:
		return false, 0, nil
	case len(s.queue) > 0:
		wait = untilDue(s.queue[0].due)
		return wait == 0, wait, nil
	case !s.ended:
		return false, 0, nil
	}
	if wait = untilDue(s.last); wait == 0 {
		err = io.EOF
	}
	return false, wait, err
}

func untilDue(due time.Time) time.Duration {
	if due.IsZero() {
		return 0
	}
	return max(0, time.Until(due))
}

// state says how the reader would fare: an error if nothing will come any more,
// and how long that needs if it is known.
func (s *stream) state() (wait time.Duration, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, wait, err = s.look(); len(s.queue) > 0 {
		wait = 0 // for a message
	}
	return wait, err
}

// lose makes the stream silent for ever. The mutex is held.
func (s *stream) lose() { s.silent, s.queue, s.bytes = true, nil, 0 }

// silence does the same from outside.
func (s *stream) silence() { s.change(s.lose) }

// end lets the reader have what is queued and then the end of the stream, which
// takes as long as a message.
func (s *stream) end() {
	s.change(func() {
		if !s.ended {
			s.ended = true
			s.last = s.dueAfter(s.path.weather.Load().least(s.way))
		}
	})
}

// cutOff drops what is queued.
func (s *stream) cutOff() { s.change(func() { s.reset, s.queue, s.bytes = true, nil, 0 }) }

// isReset says whether cutOff was called.
func (s *stream) isReset() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reset
}

// die lets what is queued and what comes vanish, since nobody is there to read it.
// The writer is not told: it learns that from the other direction.
func (s *stream) die() { s.change(func() { s.dead, s.queue, s.bytes = true, nil, 0 }) }

func (s *stream) change(how func()) {
	s.mu.Lock()
	how()
	s.mu.Unlock()
	poke(s.wake)
	poke(s.room)
}

// await waits for a poke, for d if it is above 0, and for the deadline, which
// alone is an error.
func await(c <-chan struct{}, d time.Duration, deadline time.Time) error {
	expires := false
	if !deadline.IsZero() {
		left := time.Until(deadline)
		if left <= 0 {
			return os.ErrDeadlineExceeded
		}
		if d <= 0 || left <= d {
			d, expires = left, true
		}
	}
	if d <= 0 {
		<-c
		return nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-c:
	case <-timer.C:
		if expires {
			return os.ErrDeadlineExceeded
		}
	}
	return nil
}
