package faultinject

import (
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// window is how many bytes one direction of a connection holds before the writer
// has to wait, as it must for a kernel's buffers.
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
	ended  bool      // the writer closed: what is queued still arrives
	reset  bool      // nothing more arrives
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

// put queues a message that is to arrive after what the network takes, and d
// more. It waits for room until the deadline, the zero time being none.
func (s *stream) put(message []byte, d time.Duration, deadline func() time.Time) error {
	w := s.path.weather.Load()
	d += w.delay(s.way)
	if !s.used.carries(w) {
		s.silence()
	}
	for {
		s.mu.Lock()
		switch {
		case s.reset:
			s.mu.Unlock()
			return errReset("write")
		case s.ended:
			s.mu.Unlock()
			return net.ErrClosed
		case s.silent:
			s.mu.Unlock()
			return nil
		case w.gates[s.way] == astray:
			w.struck(s.way)
			s.lose()
			s.mu.Unlock()
			return nil
		case s.bytes < window:
			w.struck(s.way)
			var due time.Time
			if d > 0 {
				due = time.Now().Add(d)
			}
			if due.Before(s.last) {
				due = s.last
			}
			s.last = due
			s.bytes += len(message)
			s.queue = append(s.queue, parcel{message, due})
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
	switch {
	case s.reset:
		return nil, 0, errReset("read")
	case s.silent && s.ended && s.way == requests:
		return nil, 0, io.EOF // nobody can tell; it lets the server's side of the connection go
	case s.silent:
		return nil, 0, nil
	case len(s.queue) == 0 && !s.ended:
		return nil, 0, nil
	}
	switch w := s.path.weather.Load(); w.gates[s.way] {
	case shut:
		return nil, 0, nil
	case astray:
		w.struck(s.way)
		s.lose()
		return nil, 0, nil
	}
	if len(s.queue) == 0 {
		return nil, 0, io.EOF
	}
	p := s.queue[0]
	if !p.due.IsZero() {
		if wait := time.Until(p.due); wait > 0 {
			return nil, wait, nil
		}
	}
	s.queue[0] = parcel{}
	s.queue = s.queue[1:]
	if s.bytes -= len(p.message); s.bytes < window {
		poke(s.room)
	}
	return p.message, 0, nil
}

// lose makes the stream silent for ever. The mutex is held.
func (s *stream) lose() { s.silent, s.queue, s.bytes = true, nil, 0 }

// silence does the same from outside.
func (s *stream) silence() {
	s.mu.Lock()
	s.lose()
	s.mu.Unlock()
	poke(s.room)
}

// end lets the reader have what is queued and then the end of the stream.
func (s *stream) end() {
	s.mu.Lock()
	s.ended = true
	s.mu.Unlock()
	poke(s.wake)
	poke(s.room)
}

// cutOff drops what is queued.
func (s *stream) cutOff() {
	s.mu.Lock()
	s.reset, s.queue, s.bytes = true, nil, 0
	s.mu.Unlock()
	poke(s.wake)
	poke(s.room)
}

// broken says whether nothing will arrive any more.
func (s *stream) broken() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reset
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
		if d <= 0 || left < d {
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
