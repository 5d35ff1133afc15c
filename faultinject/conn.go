package faultinject

import (
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// link is a connection between a client and a node. The client has its near end,
// the server its far end; between them messages are delayed, lost and counted.
type link struct {
	path *path
	life *life // the server's, at the time of the dial
	req  *stream
	rep  *stream
	near nearEnd
	far  farEnd

	mu         sync.Mutex
	pending    []request // executed or about to be, in order, and not answered
	subscribed bool
	pushes     bool          // RESP3 was seen: no array is a published message
	idle       chan struct{} // something was answered
}

// request is a command that has arrived, and what is to happen to its reply.
type request struct {
	command
	fates    []effect
	late     time.Duration // the reply
	turn     bool          // it has the node for itself until it is answered
	confirms int           // confirmations that it waits for, as a subscription
}

func newLink(p *path, life *life) *link {
	used := &usage{last: time.Now()}
	l := &link{path: p, life: life, idle: make(chan struct{}, 1)}
	l.req, l.rep = newStream(p, requests, used), newStream(p, replies, used)
	l.near.link, l.far.link = l, l
	l.far.written = make(chan struct{}, 1)
	return l
}

// reset breaks the connection for both sides.
func (l *link) reset() {
	l.req.cutOff()
	l.rep.cutOff()
	poke(l.idle)
}

// poke lets both sides look at the weather again.
func (l *link) poke() {
	for _, s := range []*stream{l.req, l.rep} {
		poke(s.wake)
		poke(s.room)
	}
}

// silence lets neither side hear of the other again.
func (l *link) silence() {
	l.req.silence()
	l.rep.silence()
}

// finish ends the server's side, as the system does for a process that has died:
// what it had written still arrives, and the end after it. Only that tells the
// client.
func (l *link) finish() {
	l.req.die()
	l.rep.end()
	poke(l.idle)
}

// nearEnd is the connection that the client sees.
type nearEnd struct {
	link    *link
	closed  atomic.Bool
	read    deadline
	write   deadline
	reading sync.Mutex
	rest    []byte // of a message that was longer than the reader's buffer
	writing sync.Mutex
	partial []byte // a message whose end is not written yet
}

// deadline can be set while somebody waits for it.
type deadline struct{ at atomic.Pointer[time.Time] }

func (d *deadline) get() time.Time {
	if t := d.at.Load(); t != nil {
		return *t
	}
	return time.Time{}
}

func (e *nearEnd) Read(p []byte) (int, error) {
	e.reading.Lock()
	defer e.reading.Unlock()
	switch {
	case e.closed.Load():
		return 0, net.ErrClosed
	case len(p) == 0:
		return 0, nil
	case passed(e.read.get()):
		return 0, os.ErrDeadlineExceeded
	}
	if len(e.rest) == 0 {
		m, err := e.link.rep.get(e.read.get)
		if e.closed.Load() {
			return 0, net.ErrClosed
		}
		if err != nil {
			return 0, err
		}
		e.rest = m
	}
	n := copy(p, e.rest)
	e.rest = e.rest[n:]
	for n < len(p) && len(e.rest) == 0 { // what else is there
		m, _, err := e.link.rep.take()
		if m == nil || err != nil {
			break
		}
		k := copy(p[n:], m)
		n += k
		e.rest = m[k:]
	}
	return n, nil
}

func (e *nearEnd) Write(b []byte) (int, error) {
	e.writing.Lock()
	defer e.writing.Unlock()
	if e.closed.Load() {
		return 0, net.ErrClosed
	}
	rest, err := eachMessage(append(e.partial, b...), func(m []byte) error {
		return e.link.req.put(m, 0, e.write.get)
	})
	e.partial = rest
	if err != nil {
		return 0, err
	}
	return len(b), nil
}

// eachMessage calls do with the complete messages of b, and returns what follows
// them. All share the memory of b, which must not be anybody else's.
func eachMessage(b []byte, do func([]byte) error) (rest []byte, err error) {
	for len(b) > 0 {
		n, err := messageLen(b)
		if err != nil {
			return nil, err
		}
		if n == 0 {
			return b, nil
		}
		if err := do(b[:n:n]); err != nil {
			return nil, err
		}
		b = b[n:]
	}
	return nil, nil
}

// Close lets what was written arrive, as the system does.
func (e *nearEnd) Close() error {
	if e.closed.Swap(true) {
		return net.ErrClosed
	}
	e.link.req.end()
	poke(e.link.rep.wake)
	e.link.rep.cutOff()
	return nil
}

func (e *nearEnd) SetDeadline(t time.Time) error {
	e.SetReadDeadline(t)
	return e.SetWriteDeadline(t)
}

func (e *nearEnd) SetReadDeadline(t time.Time) error {
	e.read.at.Store(&t)
	poke(e.link.rep.wake)
	return nil
}

func (e *nearEnd) SetWriteDeadline(t time.Time) error {
	e.write.at.Store(&t)
	poke(e.link.req.room)
	return nil
}

// SyscallConn is there for pools, which look by it whether a connection that nobody
// used for a while has ended: go-redis dials again then, and the command that was
// to use it does not fail. There is no file descriptor.
func (e *nearEnd) SyscallConn() (syscall.RawConn, error) { return rawEnd{e}, nil }

type rawEnd struct{ *nearEnd }

// Read is an error if the connection has ended, and does nothing else.
func (e rawEnd) Read(func(uintptr) bool) error {
	if e.closed.Load() {
		return net.ErrClosed
	}
	_, err := e.link.rep.state()
	return err
}

func (e rawEnd) Write(func(uintptr) bool) error { return errors.ErrUnsupported }
func (e rawEnd) Control(func(uintptr)) error    { return errors.ErrUnsupported }

func (e *nearEnd) LocalAddr() net.Addr  { return clientAddr }
func (e *nearEnd) RemoteAddr() net.Addr { return e.link.path.node.addr }

var clientAddr = &net.TCPAddr{IP: net.IPv4(10, 0, 1, 1), Port: 40000}
