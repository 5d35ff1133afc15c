package main

import (
	"fmt"
	"net"

	"github.com/seed58520471/redlock/faultinject"
)

// urlsOf are the URLs of embedded nodes.
func urlsOf(addrs []string) []string {
	urls := make([]string, len(addrs))
	for i, addr := range addrs {
		urls[i] = "redis://" + addr
	}
	return urls
}

// token is what a node has stored under the lock's name, dead or alive.
func (d *demo) token(n *faultinject.Node) string {
	for _, k := range n.Kept() {
		if k.Name == d.name {
			return k.Value
		}
	}
	return n.Get(d.name)
}

// stored is how many of the nodes have a vote for alice.
func (d *demo) stored(nodes []*faultinject.Node) (count int) {
	for _, n := range nodes {
		if ownerOf(n.Get(d.name)) == d.alice.owner {
			count++
		}
	}
	return count
}

// keys lists everything that is stored on the nodes that live, as
// "node 2: orders/42".
func (d *demo) keys() (found []string) {
	for _, n := range d.nodes.Nodes() {
		keys, err := n.Keys()
		if err != nil {
			found = append(found, err.Error())
		}
		for _, k := range keys {
			found = append(found, fmt.Sprintf("node %d: %s", k.Node, k.Name))
		}
	}
	return found
}

// dialAll tries all ports of the nodes. It returns an error for each that is shut.
func (d *demo) dialAll() (errs []error) {
	for _, addr := range d.addrs {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		conn.Close()
	}
	return errs
}
