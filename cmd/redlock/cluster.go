package main

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
)

// cluster is a set of embedded Redis servers on loopback ports. They are
// independent of each other; what they have in common is this process.
type cluster []*embedded

// embedded is one server. Its data outlive a kill and a restart.
type embedded struct {
	*miniredis.Miniredis
	addr string
	srv  *server.Server
	gone chan struct{} // closed when a server that was killed has ended
	down atomic.Bool
}

// startCluster starts n servers whose keys expire in real time.
func startCluster(n int) (cluster, error) {
	var c cluster
	for range n {
		m := miniredis.NewMiniRedis()
		m.ClockTTL(true)
		if err := m.Start(); err != nil {
			c.stop()
			return nil, fmt.Errorf("embedded node %d: %w", len(c)+1, err)
		}
		c = append(c, &embedded{Miniredis: m, addr: m.Addr(), srv: m.Server(), gone: make(chan struct{})})
	}
	return c, nil
}

func (c cluster) urls() []string {
	urls := make([]string, len(c))
	for i, e := range c {
		urls[i] = "redis://" + e.addr
	}
	return urls
}

// kill closes the port and all connections, and returns when they are closed. It
// may be called from a hook, that is, by the server itself; so it does not wait
// for the server to end, stop and restart do.
func (e *embedded) kill() {
	if e.down.Swap(true) {
		return
	}
	go func() {
		e.Close()
		close(e.gone)
	}()
	// The server forgets its listener and closes the connections under one lock,
	// which Addr takes too.
	for e.srv.Addr() != nil {
		time.Sleep(10 * time.Microsecond)
	}
}

// restart brings a server back that was killed, on its old port.
func (e *embedded) restart() error {
	<-e.gone
	if err := e.Restart(); err != nil {
		return err
	}
	e.srv, e.gone = e.Server(), make(chan struct{})
	e.down.Store(false)
	return nil
}

// stop ends all servers.
func (c cluster) stop() {
	for _, e := range c {
		e.kill()
		<-e.gone
	}
}

// token is what a node has stored under a name, dead or alive.
func (e *embedded) token(name string) string {
	value, err := e.Get(name)
	if err != nil && !errors.Is(err, miniredis.ErrKeyNotFound) {
		return err.Error()
	}
	return value
}

// keys lists everything that is stored on those of the nodes for which want is
// true, as "node 2: orders/42".
func (c cluster) keys(want func(*embedded) bool) (found []string) {
	for i, e := range c {
		if !want(e) {
			continue
		}
		for _, key := range e.Keys() {
			found = append(found, fmt.Sprintf("node %d: %s", i+1, key))
		}
	}
	return found
}

func anyNode(*embedded) bool { return true }

func liveNode(e *embedded) bool { return !e.down.Load() }
