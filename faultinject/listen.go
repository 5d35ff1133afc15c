package faultinject

import (
	"bytes"
	"errors"
	"io"
	"net"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"github.com/seed58520471/redlock/internal/redisproc"
)

// socket is the loopback port of a path. It is closed while dials are refused.
type socket struct {
	mu       sync.Mutex
	addr     string
	wanted   bool
	shut     bool
	listener net.Listener
	conns    map[*net.TCPConn]struct{}
}

// errBubble says why ports and processes are refused: what waits for them in a bubble
// waits for ever, or with the bubble's clock standing still.
var errBubble = errors.New("faultinject: a testing/synctest bubble has no sockets and no processes: " +
	"use Client.Redis or Client.DialContext, or real time")

// inBubble says whether the caller runs in a testing/synctest bubble, which only the
// first line of its stack tells.
func inBubble() bool {
	first, _, _ := bytes.Cut(debug.Stack(), []byte("\n"))
	return bytes.Contains(first, []byte("synctest bubble"))
}

// portTries bounds the search for a port: other programs look for them too.
const portTries = 20

// open opens the port, the first time, and returns its address.
func (p *path) open() (addr string, err error) {
	s := &p.socket
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shut {
		return "", net.ErrClosed
	}
	if s.addr != "" {
		return s.addr, nil
	}
	for range portTries {
		port, err := redisproc.FreePort()
		if err != nil {
			return "", err
		}
		if err = p.bind(net.JoinHostPort("127.0.0.1", port)); err == nil {
			break
		}
	}
	if s.listener == nil {
		return "", errors.New("none is free")
	}
	s.conns = make(map[*net.TCPConn]struct{})
	s.addr = s.listener.Addr().String()
	s.wanted = true
	if p.node.alive() == nil || len(p.weather.Load().refusing) > 0 {
		s.wanted = false
		s.listener.Close()
		s.listener = nil
	}
	return s.addr, nil
}

// bind opens the port and accepts. The mutex is held.
func (p *path) bind(addr string) error {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	p.socket.listener = l
	p.client.cluster.background(func() { p.accept(l) })
	return nil
}

// listen opens and closes the port, as the node and the weather are.
func (p *path) listen(up bool) {
	s := &p.socket
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.addr == "" || s.shut {
		return
	}
	s.wanted = up && len(p.weather.Load().refusing) == 0
	switch {
	case !s.wanted && s.listener != nil:
		s.listener.Close()
		s.listener = nil
	case s.wanted && s.listener == nil:
		p.rebind(portTries)
	}
}

// rebind opens the port again. A connection of somebody else may have it for a
// moment. The mutex is held.
func (p *path) rebind(tries int) {
	s := &p.socket
	if s.shut || !s.wanted || s.listener != nil {
		return
	}
	err := p.bind(s.addr)
	switch {
	case err == nil:
	case tries == 0:
		go p.client.cluster.fail(err)
	default:
		p.client.cluster.background(func() {
			time.Sleep(10 * time.Millisecond)
			s.mu.Lock()
			defer s.mu.Unlock()
			p.rebind(tries - 1)
		})
	}
}

// shut closes the port and its connections for good.
func (p *path) shut() {
	s := &p.socket
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shut = true
	if s.listener != nil {
		s.listener.Close()
		s.listener = nil
	}
	for c := range s.conns {
		c.Close()
	}
}

func (p *path) accept(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		p.relay(c.(*net.TCPConn))
	}
}

// relay joins a connection of the system to one of ours.
func (p *path) relay(c *net.TCPConn) {
	k, err := p.node.connect(p)
	s := &p.socket
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil || s.shut {
		c.SetLinger(0)
		c.Close()
		if err == nil {
			k.near.Close()
		}
		return
	}
	s.conns[c] = struct{}{}
	background := p.client.cluster.background
	background(func() {
		io.Copy(&k.near, c)
		k.near.Close()
	})
	background(func() {
		if _, err := io.Copy(c, &k.near); errors.Is(err, syscall.ECONNRESET) {
			c.SetLinger(0) // the other side shall see the same
		}
		c.Close()
		s.mu.Lock()
		delete(s.conns, c)
		s.mu.Unlock()
	})
}
