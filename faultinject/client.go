package faultinject

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// Client is one user of the cluster, with a network path of its own to each node.
type Client struct {
	cluster *Cluster
	name    string
	paths   []*path

	mu      sync.Mutex
	made    []redis.UniversalClient
	process *os.Process
}

// Name is the client's name in plans and pictures.
func (k *Client) Name() string { return k.name }

// SetLine sets how long messages take from the client to a node, and back. It is
// no fault, but where the client is; RTT sets it for all clients.
func (k *Client) SetLine(node int, there, back time.Duration) {
	c := k.cluster
	c.mu.Lock()
	defer c.mu.Unlock()
	p := k.paths[node-1]
	p.base[requests], p.base[replies] = max(there, 0), max(back, 0)
	c.forecast()
}

// Redis makes new go-redis clients, one for each node, that dial through the
// client's paths. They have go-redis's default settings unless a function adjusts
// them, and are closed with the cluster. One whose dials have failed has goroutines
// that sleep for up to a second after that; at the end of a bubble let them, with
// t.Cleanup(func() { time.Sleep(time.Minute) }) in front of Start, for one.
func (k *Client) Redis(adjust ...func(*redis.Options)) []redis.UniversalClient {
	clients := make([]redis.UniversalClient, len(k.paths))
	for i, p := range k.paths {
		o := &redis.Options{Addr: p.node.addr.String(), Dialer: k.DialContext}
		for _, f := range adjust {
			f(o)
		}
		clients[i] = redis.NewClient(o)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.made = append(k.made, clients...)
	return clients
}

// DialContext connects to a node by the address that Node.Addr gives. It is a
// dialer for any client library that takes one.
func (k *Client) DialContext(ctx context.Context, _, addr string) (net.Conn, error) {
	for _, p := range k.paths {
		if addr == p.node.addr.String() {
			return p.dial(ctx)
		}
	}
	return nil, fmt.Errorf("faultinject: no node has the address %q", addr)
}

// Addrs are addresses on the loopback, one for each node, for clients that have no
// dialer and for other processes. The ports open at the first call and close with
// the cluster. On them a connection to a node that hangs, or is cut off by a
// partition, is accepted by the system, and silent then. In a testing/synctest bubble
// there are none.
func (k *Client) Addrs() ([]string, error) {
	if inBubble() {
		return nil, errBubble
	}
	addrs := make([]string, len(k.paths))
	for i, p := range k.paths {
		addr, err := p.open()
		if err != nil {
			return nil, fmt.Errorf("faultinject: a port for node %d: %w", i+1, err)
		}
		addrs[i] = addr
	}
	return addrs, nil
}

// SetProcess tells what Pause stops: the process in which the client runs.
func (k *Client) SetProcess(p *os.Process) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.process = p
}

// pause stops the client's process, or lets it go on.
func (k *Client) pause(stop bool) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.process == nil {
		return fmt.Errorf("faultinject: client %s has no process to pause: see SetProcess", k.name)
	}
	if err := pauseProcess(k.process, stop); err != nil {
		return fmt.Errorf("faultinject: client %s: %w", k.name, err)
	}
	return nil
}

func (k *Client) hasProcess() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.process != nil
}

func (k *Client) close() error {
	k.mu.Lock()
	made := k.made
	k.made = nil
	k.mu.Unlock()
	var errs []error
	for _, c := range made {
		if err := c.Close(); !errors.Is(err, redis.ErrClosed) {
			errs = append(errs, err)
		}
	}
	for _, p := range k.paths {
		p.shut()
	}
	return errors.Join(errs...)
}
