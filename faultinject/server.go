package faultinject

import (
	"bytes"
	"io"
	"net"
	"strconv"
	"sync"
	"time"
)

// farEnd is the connection that the server sees. It gets one command at a time.
type farEnd struct {
	link    *link
	rest    []byte
	writing sync.Mutex
	partial []byte

	mu      sync.Mutex
	outbox  [][]byte // what an embedded server has written, and nobody looked at yet
	closed  bool
	written chan struct{} // the outbox or closed changed
}

// Read returns the next command that the server shall execute. Faults bound to
// commands strike here and, for those of replies, in answer.
func (e *farEnd) Read(p []byte) (int, error) {
	for len(e.rest) == 0 {
		m, err := e.link.next()
		if err != nil {
			return 0, io.EOF
		}
		e.rest = m
	}
	n := copy(p, e.rest)
	e.rest = e.rest[n:]
	return n, nil
}

// Write takes what the server says. An embedded one may hold the lock of its data
// meanwhile, so it must not wait here, nor for anybody who wants to see them.
func (e *farEnd) Write(b []byte) (int, error) {
	e.writing.Lock()
	defer e.writing.Unlock()
	rest, err := eachMessage(append(e.partial, b...), func(m []byte) error {
		if !e.link.life.serial {
			e.link.answer(m)
			return nil
		}
		e.mu.Lock()
		e.outbox = append(e.outbox, m)
		e.mu.Unlock()
		poke(e.written)
		return nil
	})
	e.partial = rest
	if err != nil {
		e.link.reset()
		return 0, err
	}
	return len(b), nil
}

// Close is the server's: what it has written still arrives.
func (e *farEnd) Close() error {
	if !e.link.life.serial {
		e.bury()
		return nil
	}
	e.mu.Lock()
	e.closed = true
	e.mu.Unlock()
	poke(e.written)
	return nil
}

// post passes on what an embedded server writes until it closes the connection.
func (e *farEnd) post() {
	for {
		e.mu.Lock()
		outbox, closed := e.outbox, e.closed
		e.outbox = nil
		e.mu.Unlock()
		for _, m := range outbox {
			e.link.answer(m)
		}
		if closed {
			break
		}
		if len(outbox) == 0 {
			<-e.written
		}
	}
	e.bury()
}

// bury ends the connection, and frees the node from what will not be answered.
func (e *farEnd) bury() {
	l := e.link
	l.finish()
	l.mu.Lock()
	pending := l.pending
	l.pending = nil
	l.mu.Unlock()
	for _, r := range pending {
		l.leave(r)
	}
	l.path.node.forget(l)
}

func (e *farEnd) SetDeadline(time.Time) error      { return nil }
func (e *farEnd) SetReadDeadline(time.Time) error  { return nil }
func (e *farEnd) SetWriteDeadline(time.Time) error { return nil }
func (e *farEnd) LocalAddr() net.Addr              { return e.link.path.node.addr }
func (e *farEnd) RemoteAddr() net.Addr             { return clientAddr }

// array is an inline command in the form that an embedded server knows.
func array(message []byte) []byte {
	if head0(message) == '*' {
		return message
	}
	all := bytes.Fields(message)
	b := append(strconv.AppendInt([]byte("*"), int64(len(all)), 10), "\r\n"...)
	for _, w := range all {
		b = append(strconv.AppendInt(append(b, '$'), int64(len(w)), 10), "\r\n"...)
		b = append(append(b, w...), "\r\n"...)
	}
	return b
}
