package faultinject

import (
	"context"
	"fmt"
	"net"
	"os"
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

	mu    sync.Mutex
	life  *life // nil while the node is down
	kept  state // what a restart with data comes up with, while the node is down
	clock clock
	past  past // for RestartAsOf
	count map[string]int
	last  time.Time // when a command was executed last
}

// server is one run of Redis, embedded or as a process.
type server interface {
	serve(*link) error                      // lets it talk to the far end of a connection
	kill(at time.Time) (kept state)         // ends it at once; at is what its clock shows
	freeze(bool) error                      // not called for embedded ones
	flush() error                           // deletes everything
	evict(key string) error                 // deletes one key
	keys() ([]Key, error)                   // what is stored
	setTime(time.Time, time.Duration) error // its clock shows t now, after a step of d
}

// engine starts servers for one node.
type engine interface {
	// start starts a server with data that are a while old. Its clock shows that
	// time; with the zero time it is right.
	start(from state, after time.Duration, shows time.Time) (s server, serial bool, err error)
	close()
}

// Key is something that a node has stored.
type Key struct {
	Node  int // from 1
	Name  string
	Value string        // of a string; the others have their type's name in brackets
	TTL   time.Duration // by the node's clock; 0 is none
}

func (k Key) String() string {
	ttl := "for ever"
	if k.TTL > 0 {
		ttl = "for " + k.TTL.String()
	}
	return fmt.Sprintf("node %d: %s = %s %s", k.Node, k.Name, k.Value, ttl)
}

// Number is the node's, counted from 1.
func (n *Node) Number() int { return n.number }

// Up says whether the node runs; a frozen one does.
func (n *Node) Up() bool { return n.alive() != nil }

func (n *Node) alive() *life {
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
	return n.do(f)
}

// do is Do for what was checked before. It waits until no command is being
// executed.
func (n *Node) do(f Fault) error {
	for {
		l := n.alive()
		if l != nil && !l.enterFirst() {
			<-l.buried
			continue
		}
		err := n.suffer(f, l)
		if l != nil {
			l.leave()
		}
		return err
	}
}

// suffer lets the fault happen. No command is being executed; l is the node's
// life, or nil.
func (n *Node) suffer(f Fault, l *life) error {
	if l == nil {
		switch f.verb {
		case restart, restartEmpty, restartAsOf:
			err := n.restart(f)
			n.cluster.changed(n)
			return err
		case kill, thaw, freeze, flushAll, evict:
			return nil // a dead node cannot be harmed
		}
		return n.setClock(f, nil)
	}
	var err error
	switch f.verb {
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
		err = l.server.flush()
	case evict:
		err = l.server.evict(f.text)
	case clockStep, clockRate:
		err = n.setClock(f, l.server)
	}
	n.cluster.changed(n)
	return err
}

// later does f after d, unless d is 0.
func (n *Node) later(d time.Duration, f Fault) {
	if d > 0 {
		n.cluster.after(d, func() { n.cluster.fail(n.do(f)) })
	}
}

// kill ends a life. What was executed is kept; what was answered still arrives.
func (n *Node) kill(l *life) {
	links, once := l.end()
	if !once {
		return
	}
	for _, k := range links {
		k.finish()
	}
	n.mu.Lock()
	if n.clock.bent {
		l.server.setTime(n.clock.now(), 0)
	}
	n.kept = l.server.kill(n.clock.now())
	n.life = nil
	n.mu.Unlock()
	close(l.buried)
	n.cluster.changed(n)
}

// restart brings a dead node up.
func (n *Node) restart(f Fault) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.life != nil {
		return nil // somebody else was faster
	}
	from := n.kept
	switch f.verb {
	case restartEmpty:
		from = state{empty: true}
	case restartAsOf:
		from = n.past.asOf(time.Now().Add(-f.time))
		from.asOf = f.time
	}
	var gap time.Duration
	if !from.at.IsZero() {
		gap = n.clock.now().Sub(from.at)
	}
	var shows time.Time
	if n.clock.bent {
		shows = n.clock.now()
	}
	s, serial, err := n.engine.start(from, gap, shows)
	if err != nil {
		return fmt.Errorf("faultinject: node %d: %w", n.number, err)
	}
	if f.verb != restart {
		n.past = past{} // it never was
	}
	n.life = newLife(s, serial)
	return nil
}

// connect makes a connection to the node as it is.
func (n *Node) connect(p *path) (*link, error) {
	l := n.alive()
	if l == nil {
		return nil, n.refused()
	}
	k := newLink(p, l)
	if !l.add(k) {
		return nil, n.refused()
	}
	if err := l.server.serve(k); err != nil {
		l.remove(k)
		return nil, n.refused()
	}
	return k, nil
}

func (n *Node) refused() error {
	return &net.OpError{Op: "dial", Net: "tcp", Addr: n.addr, Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
}

func (n *Node) forget(k *link) { k.life.remove(k) }

// executes is called before every command, when the node has nothing else to do.
func (n *Node) executes(l *life, c command) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.count[c.kind]++
	n.last = time.Now()
	if !l.serial || n.life != l {
		return
	}
	if n.clock.bent {
		l.server.setTime(n.clock.now(), 0)
	}
	if e, ok := l.server.(*embedded); ok {
		e.sees(c)
		n.past.add(n.last, func() state { return e.copy(n.clock.now()) })
	}
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
	return n.count[kind]
}

// Keys is what is stored on the node now; nothing, while it is down. A real
// server that does not answer within a second is an error.
func (n *Node) Keys() ([]Key, error) {
	l := n.alive()
	if l == nil || !l.enterFirst() {
		return nil, nil
	}
	defer l.leave()
	n.mu.Lock()
	if n.clock.bent {
		l.server.setTime(n.clock.now(), 0)
	}
	n.mu.Unlock()
	keys, err := l.server.keys()
	for i := range keys {
		keys[i].Node = n.number
	}
	return keys, err
}

// Get is the string that the node has stored under a name, "" if there is none.
func (n *Node) Get(name string) string {
	keys, _ := n.Keys()
	for _, k := range keys {
		if k.Name == name {
			return k.Value
		}
	}
	return ""
}

// dial is a client's connection to the node.
func (p *path) dial(ctx context.Context) (net.Conn, error) {
	for {
		w := p.weather.Load()
		if w.gates[requests] == open && w.gates[replies] == open {
			break
		}
		w.struck(requests)
		select {
		case <-w.over: // the system tries again
		case <-p.node.cluster.ended: // a pool that is closed waits for nobody who dials
			return nil, p.node.refused()
		case <-ctx.Done():
			return nil, &net.OpError{Op: "dial", Net: "tcp", Addr: p.node.addr, Err: ctx.Err()}
		}
	}
	w := p.weather.Load()
	if d := w.delay(requests) + w.delay(replies); d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-p.node.cluster.ended:
			return nil, p.node.refused()
		case <-ctx.Done():
			return nil, &net.OpError{Op: "dial", Net: "tcp", Addr: p.node.addr, Err: ctx.Err()}
		}
	}
	for _, e := range w.refusing {
		e.of.hit()
		return nil, p.node.refused()
	}
	k, err := p.node.connect(p)
	if err != nil {
		return nil, err
	}
	return &k.near, nil
}
