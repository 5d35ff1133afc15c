package faultinject

import (
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Node is one server of a cluster, with its place in the network. Its methods
// are the administrator's: they do not pass through the network, and faults of it
// do not strike them. They are safe for concurrent use.
type Node struct {
	cluster *Cluster
	number  int // from 1
	addr    *net.TCPAddr
	engine  engine // makes servers

	starting sync.Mutex // one start at a time; it may take a while

	mu     sync.Mutex
	life   *life // nil while the node is down
	closed bool  // it has no further life
	kept   state // what a restart with data comes up with, while the node is down
	clock  clock
	past   past // for RestartAsOf
	count  map[string]int
	last   time.Time // when data may have changed last
}

// server is one run of Redis, embedded or as a process.
type server interface {
	serve(*link) error              // lets it talk to the far end of a connection
	kill(at time.Time) (kept state) // ends it at once; at is what its clock shows
	freeze(bool) error              // not called for embedded ones
	flush() error                   // deletes everything
	evict(key string) error         // deletes one key
	set(name, value string, ttl time.Duration) error
	keys() ([]Key, error)                   // what is stored
	setTime(time.Time, time.Duration) error // its clock shows t now, after a step of d
}

// engine starts servers for one node, with a state that is a while old. The clock
// shows a time, or the world's if that is zero.
type engine interface {
	start(from state, shown time.Time, after time.Duration) (s server, serial bool, err error)
	close()
}

// Number is the node's, counted from 1.
func (n *Node) Number() int { return n.number }

// Addr is the address by which a client's DialContext knows the node, "10.0.0.1:6379"
// for the first. It is no address of the system; Client.Addrs gives those.
func (n *Node) Addr() string { return n.addr.String() }

// Up says whether the node runs; a frozen one does.
func (n *Node) Up() bool {
	l := n.alive()
	return l != nil && !l.ended()
}

// alive is the node's life, nil when it is over.
func (n *Node) alive() *life {
	if l := n.latest(); l != nil && !l.ended() {
		return l
	}
	return nil
}

// latest is the node's life, also while it ends; nil when it can have another.
func (n *Node) latest() *life {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.life
}

// Do does to the node what a fault of nodes says, now: node.Do(Kill),
// node.Do(Evict("name")). The ones that last do so until their opposite: Restart,
// Thaw, ClockRate(1).
func (n *Node) Do(f Fault) error {
	if err := f.check(); err != nil {
		return fmt.Errorf("faultinject: %w", err)
	}
	if !f.ofNode() || f.stage != atOnce || f.span != 0 {
		return fmt.Errorf("faultinject: %q is nothing that is done to a node; use Inject", f)
	}
	if err := n.can(f); err != nil {
		return fmt.Errorf("faultinject: node %d: %w", n.number, err)
	}
	_, err := n.do(f)
	return err
}

// can says whether the node's server is able to do what a fault says.
func (n *Node) can(f Fault) error {
	_, embedded := n.engine.(embeddedEngine)
	if (f.verb == clockStep || f.verb == clockRate || f.verb == restartAsOf) && !embedded {
		return fmt.Errorf("%v: %w", f, errEmbeddedOnly)
	}
	return nil
}

// do is Do for what was checked before. It waits until no command is being
// executed. It says whether there was anything to strike.
func (n *Node) do(f Fault) (struck bool, err error) {
	for {
		l := n.latest()
		if l != nil && !l.enterFirst() {
			<-l.buried
			continue
		}
		struck, err := n.suffer(f, l)
		if l != nil {
			l.leave()
		}
		return struck, err
	}
}

// suffer lets the fault happen. No command is being executed; l is the node's
// life, or nil.
func (n *Node) suffer(f Fault, l *life) (struck bool, err error) {
	if l == nil {
		switch f.verb {
		case revive, restart, restartEmpty, restartAsOf:
			err := n.restart(f)
			n.cluster.changed(n)
			return true, err
		case kill, thaw, freeze, flushAll, evict:
			return false, nil // a dead node cannot be harmed
		}
		return true, n.setClock(f, nil)
	}
	switch f.verb {
	case revive:
		return false, nil
	case kill:
		n.kill(l)
	case restart, restartEmpty, restartAsOf:
		n.kill(l)
		err = n.restart(f)
	case freeze, thaw:
		l.setFrozen(f.verb == freeze)
		if !l.serial {
			err = l.server.freeze(f.verb == freeze)
		}
	case flushAll:
		n.remember(l)
		err = l.server.flush()
	case evict:
		n.remember(l)
		err = l.server.evict(f.text)
	case clockStep, clockRate:
		err = n.setClock(f, l.server)
	}
	n.cluster.changed(n)
	return true, err
}

// later does f after d, unless d is 0.
func (n *Node) later(d time.Duration, f Fault) {
	if d > 0 {
		n.cluster.after(d, func() {
			_, err := n.do(f)
			n.cluster.fail(err)
		})
	}
}

// kill ends a life. What was executed is kept; what was answered still arrives.
// When a client can tell, because its connection ends, the node is down for
// everybody and its ports are closed.
func (n *Node) kill(l *life) {
	links, once := l.end()
	if !once {
		return
	}
	n.cluster.changed(n)
	for _, k := range links {
		k.finish()
	}
	n.mu.Lock()
	n.tick(l.server)
	n.kept = l.server.kill(n.clock.now())
	n.life = nil
	n.mu.Unlock()
	close(l.buried)
}

// restart brings a dead node up.
func (n *Node) restart(f Fault) error {
	n.starting.Lock()
	defer n.starting.Unlock()
	n.mu.Lock()
	if n.closed || n.life != nil {
		defer n.mu.Unlock()
		if n.closed {
			return fmt.Errorf("faultinject: node %d: %w", n.number, net.ErrClosed)
		}
		return nil // somebody else was faster
	}
	from := n.kept
	switch f.verb {
	case restartEmpty:
		from = state{empty: true}
	case restartAsOf:
		from = n.past.asOf(time.Now().Add(-f.time), n.last, n.kept)
	}
	var shown time.Time
	if n.clock.bent {
		shown = n.clock.now()
	}
	var gap time.Duration
	if !from.at.IsZero() {
		gap = n.clock.now().Sub(from.at)
	}
	n.mu.Unlock()

	s, serial, err := n.engine.start(from, shown, gap)
	if err != nil {
		return fmt.Errorf("faultinject: node %d: %w", n.number, err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		s.kill(n.clock.now())
		return fmt.Errorf("faultinject: node %d: %w", n.number, net.ErrClosed)
	}
	if f.verb == restartEmpty || f.verb == restartAsOf {
		n.past, n.last = past{}, time.Time{} // it never was
	}
	n.life = newLife(s, serial)
	n.tick(s)
	return nil
}

// bar lets the node have no further life.
func (n *Node) bar() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.closed = true
}

// close ends the node, which is barred. It returns when nobody is ending it any
// more.
func (n *Node) close() {
	if l := n.latest(); l != nil {
		n.kill(l)
		<-l.buried // somebody else may have killed it just now
	}
	n.starting.Lock() // a start that has begun ends by itself
	defer n.starting.Unlock()
	n.engine.close()
}

// connect makes a connection to the node as it is.
func (n *Node) connect(p *path) (*link, error) {
	l := n.alive()
	if l == nil || !n.cluster.begin() {
		return nil, n.refused()
	}
	defer n.cluster.closing.Done()
	k := newLink(p, l)
	if !l.add(k) {
		return nil, n.refused()
	}
	return k, nil
}

func (n *Node) refused() error {
	err := os.NewSyscallError("connect", syscall.ECONNREFUSED)
	return &net.OpError{Op: "dial", Net: "tcp", Addr: n.addr, Err: err}
}

func (n *Node) forget(k *link) { k.life.remove(k) }

// executes is called before every command, when the node has nothing else to do.
func (n *Node) executes(l *life, c command) {
	if watch := n.cluster.watch; watch != nil {
		watch(n.number, c.strings())
	}
	n.remember(l)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.count[c.kind]++
	if e, ok := l.server.(*embedded); ok {
		e.sees(c)
	}
}

// remember keeps a copy of the data, which may be about to change, for RestartAsOf.
func (n *Node) remember(l *life) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.life != l {
		return
	}
	n.tick(l.server)
	now := time.Now()
	if e, ok := l.server.(*embedded); ok {
		n.past.add(n.last, now, func() state { return e.copy(n.clock.now()) })
	}
	n.last = now
}

// executed is called after it.
func (n *Node) executed(l *life, c command) {
	if l.serial {
		n.cluster.observe(n, l, c)
	}
}

// Executed is how many commands of a kind, "SET" say, the node was given to
// execute since the cluster started. Those that a script calls do not count.
func (n *Node) Executed(kind string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.count[strings.ToUpper(kind)]
}
