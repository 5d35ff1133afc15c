package faultinject

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// Cluster is a set of independent Redis nodes, the clients that use them, and
// the network between them. Everything is safe for concurrent use.
type Cluster struct {
	nodes   []*Node
	seed    uint64
	rtts    []time.Duration
	history *History
	watch   func(node int, command []string)
	tb      TB
	closing sync.WaitGroup // servers and sockets on their way out
	done    chan struct{}  // closed when Close begins
	ended   chan struct{}  // closed when it ends

	mu      sync.Mutex
	clients []*Client
	played  []*Injection
	active  []*armed // what strikes messages and commands now
	timers  map[*time.Timer]struct{}
	healthy int // nodes, when it was last recorded
	faults  []error
	closed  bool
}

// TB is what of testing.TB is needed.
type TB interface {
	Helper()
	Cleanup(func())
	Failed() bool
	Logf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// Option is a setting of [Start] and [New].
type Option func(*settings)

type settings struct {
	seed    uint64
	rtts    []time.Duration
	setup   func(*miniredis.Miniredis)
	watch   func(node int, command []string)
	process bool
	args    []string
}

// RTT sets the round-trip times of the network, a node each; the last one is that
// of all further nodes. Half of it is spent on either way, and a dial takes one.
// It is 0 by default.
func RTT(times ...time.Duration) Option { return func(s *settings) { s.rtts = times } }

// Seed sets the seed of random choices, for [Cluster.Inject]. A plan has its own.
// It is 1 by default.
func Seed(seed uint64) Option { return func(s *settings) { s.seed = seed } }

// Setup is called with every embedded server before it gets its data and its
// connections, also at restarts, and may add commands or passwords to it. Such a
// command has to answer, or to close its connection: the node does nothing else
// until then. A pre-hook that it sets takes the place of ours, which answers INFO
// server.
func Setup(setup func(*miniredis.Miniredis)) Option { return func(s *settings) { s.setup = setup } }

// Watch is called with every command that a node is given to execute, before it
// does, on whatever goroutine; of one node in the order of execution if it is
// embedded, in that of arrival else. It sees the whole command, but none that a
// script calls, and none that a fault keeps from being executed. It must not ask
// the node anything, which is busy.
func Watch(watch func(node int, command []string)) Option {
	return func(s *settings) { s.watch = watch }
}

// Servers makes the nodes processes of redis-server, which has to be in PATH,
// with these options besides. They persist nothing by default. They cannot run
// in virtual time, and have no clocks that can be bent and no copies of their
// past. What they store is not recorded, so Orphans passes whatever is left there:
// ask NoKeys. Without redis-server New fails with an error that matches ErrNoServer.
func Servers(args ...string) Option {
	return func(s *settings) { s.process, s.args = true, args }
}

// Start starts a cluster that ends with the test. If the test fails, its log gets
// what was injected, with the seed, and the picture of its History.
//
// Called inside a testing/synctest bubble it runs on the bubble's time, for
// clients that use Redis or DialContext; Addrs and Servers are refused there.
func Start(tb TB, nodes int, options ...Option) *Cluster {
	tb.Helper()
	c, err := New(nodes, options...)
	if err != nil {
		tb.Fatalf("%v", err)
	}
	c.tb = tb
	tb.Cleanup(func() {
		if tb.Failed() {
			tb.Logf("%s", c.Report())
		}
		c.Close()
	})
	return c
}

// New is Start without a test; the caller closes the cluster.
func New(nodes int, options ...Option) (*Cluster, error) {
	if nodes < 1 || nodes > maxNodes {
		return nil, fmt.Errorf("faultinject: %d nodes; a cluster has from 1 to %d", nodes, maxNodes)
	}
	s := settings{seed: 1}
	for _, o := range options {
		o(&s)
	}
	if s.process && inBubble() {
		return nil, errBubble
	}
	c := &Cluster{
		seed: s.seed, rtts: s.rtts, watch: s.watch, history: NewHistory(),
		timers: make(map[*time.Timer]struct{}), healthy: nodes,
		done: make(chan struct{}), ended: make(chan struct{}),
	}
	for i := range nodes {
		n := &Node{cluster: c, number: i + 1, count: make(map[string]int)}
		n.addr = &net.TCPAddr{IP: net.IPv4(10, 0, 0, byte(i+1)), Port: 6379}
		n.engine = embeddedEngine{setup: s.setup, closing: c.background}
		if s.process {
			n.engine = &processEngine{args: s.args, background: c.background}
		}
		c.nodes = append(c.nodes, n)
		if err := n.restart(Restart); err != nil {
			c.Close()
			return nil, err
		}
	}
	c.history.Health(nodes, nodes)
	return c, nil
}

// Nodes are all nodes; node 1 is the first.
func (c *Cluster) Nodes() []*Node { return slices.Clone(c.nodes) }

// Node is the node with a number from 1. Another number panics.
func (c *Cluster) Node(number int) *Node {
	if number < 1 || number > len(c.nodes) {
		panic(fmt.Sprintf("faultinject: no node %d: the cluster has nodes 1 to %d", number, len(c.nodes)))
	}
	return c.nodes[number-1]
}

// History is where the cluster records what strikes its nodes and what the embedded
// ones store, and where clients may record what they believe. Of what is stored it
// knows strings, under the very names that attempts are made for; a lock that has
// other keys, or hashes, calls Stored itself.
func (c *Cluster) History() *History { return c.history }

// Clients makes go-redis clients of the client "client", one for each node; see
// [Client.Redis].
func (c *Cluster) Clients(adjust ...func(*redis.Options)) []redis.UniversalClient {
	return c.Client("client").Redis(adjust...)
}

// Addrs are addresses of the client "client", one for each node; see
// [Client.Addrs].
func (c *Cluster) Addrs() ([]string, error) { return c.Client("client").Addrs() }

// Client is the client of that name; it comes into being when it is first asked
// for. Faults can be told to strike some clients' connections only. A name has
// letters, digits, '.', '_' and '-'; another one panics.
func (c *Cluster) Client(name string) *Client {
	if err := checkName(name); err != nil {
		panic("faultinject: " + err.Error())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if k := c.find(name); k != nil {
		return k
	}
	k := &Client{cluster: c, name: name}
	for i, n := range c.nodes {
		p := &path{client: k, node: n}
		p.base[requests] = c.rtt(i) / 2
		p.base[replies] = c.rtt(i) - c.rtt(i)/2
		p.socket.shut = c.closed
		k.paths = append(k.paths, p)
	}
	c.clients = append(c.clients, k)
	c.forecast()
	return k
}

// find is the client of that name, nil if nobody has asked for it. The mutex is
// held.
func (c *Cluster) find(name string) *Client {
	for _, k := range c.clients {
		if k.name == name {
			return k
		}
	}
	return nil
}

func (c *Cluster) rtt(i int) time.Duration {
	if len(c.rtts) == 0 {
		return 0
	}
	return c.rtts[min(i, len(c.rtts)-1)]
}

// forecast gives every path the weather that the active faults make. The mutex is
// held.
func (c *Cluster) forecast() {
	for _, k := range c.clients {
		for _, p := range k.paths {
			w := &weather{path: p, base: p.base, over: make(chan struct{})}
			for _, a := range c.active {
				if where := a.event.Where; !where.paused && where.hasNode(p.node.number) && where.hasClient(k.name) {
					w.add(a)
				}
			}
			if old := p.weather.Swap(w); old != nil {
				close(old.over)
			}
		}
	}
	for _, n := range c.nodes {
		if l := n.alive(); l != nil {
			l.each((*link).poke)
		}
	}
	c.examine()
}

// changed is called when something happened to a node.
func (c *Cluster) changed(n *Node) {
	c.mu.Lock()
	c.examine()
	c.mu.Unlock()
	c.refresh(n)
}

// examine opens and closes ports, and records how many nodes are well. The mutex
// is held.
func (c *Cluster) examine() {
	healthy := 0
	for i, n := range c.nodes {
		l := n.alive()
		well := l != nil && !l.isFrozen()
		for _, k := range c.clients {
			well = well && k.paths[i].weather.Load().clear()
			k.paths[i].listen(l != nil)
		}
		if well {
			healthy++
		}
	}
	if healthy != c.healthy {
		c.healthy = healthy
		c.history.Health(healthy, len(c.nodes))
	}
}

// after calls f after d, unless the cluster is closed by then.
func (c *Cluster) after(d time.Duration, f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	var t *time.Timer
	t = time.AfterFunc(d, func() {
		if c.begin() {
			defer c.closing.Done()
			c.mu.Lock()
			delete(c.timers, t)
			c.mu.Unlock()
			f()
		}
	})
	c.timers[t] = struct{}{}
}

// begin is true if Close waits for what begins now, and false if it is too late for
// that.
func (c *Cluster) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.closing.Add(1)
	}
	return !c.closed
}

// background runs what Close has to wait for. Who calls it is waited for too, or
// holds the mutex of what Close takes first.
func (c *Cluster) background(f func()) { c.closing.Go(f) }

// fail keeps an error that nobody is there to be told of, for Injection.Check.
func (c *Cluster) fail(err error) {
	if err == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.faults = append(c.faults, err)
	}
}

// Close ends all nodes, connections and clients, lets paused processes go on, and
// returns when nothing of them is left. It may be called again.
func (c *Cluster) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		<-c.ended
		return nil
	}
	c.closed = true
	close(c.done)
	for t := range c.timers {
		t.Stop()
	}
	clear(c.timers)
	clients, played := c.clients, c.played
	c.mu.Unlock()
	defer close(c.ended)
	for _, n := range c.nodes {
		n.bar()
	}
	for _, i := range played {
		i.Stop()
	}
	var errs []error
	for _, k := range clients {
		errs = append(errs, k.close())
	}
	for _, n := range c.nodes {
		n.close()
	}
	c.closing.Wait()
	return errors.Join(errs...)
}
