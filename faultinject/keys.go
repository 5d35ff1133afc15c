package faultinject

import (
	"fmt"
	"time"
)

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

// Keys is what is stored on the node now; nothing, while it is down. A real
// server that does not answer within a second is an error.
func (n *Node) Keys() ([]Key, error) {
	l := n.alive()
	if l == nil || !l.enterFirst() {
		return nil, nil
	}
	defer l.leave()
	n.mu.Lock()
	n.tick(l.server)
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

// Kept is what a node that is down would come up with at a Restart. Of a real
// server nobody knows that before; and of one that runs, Keys tells.
func (n *Node) Kept() []Key {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.life != nil {
		return nil
	}
	var keys []Key
	gap := max(n.clock.now().Sub(n.kept.at), 0)
	for _, it := range n.kept.items {
		if it.ttl > 0 && it.ttl <= gap {
			continue
		}
		k := Key{Node: n.number, Name: it.key, Value: it.text(), TTL: it.ttl}
		if k.TTL > 0 {
			k.TTL -= gap
		}
		keys = append(keys, k)
	}
	return keys
}

// Set stores a string under a name, for a ttl if that is above 0, as another
// program could. A node that is down has an error.
func (n *Node) Set(name, value string, ttl time.Duration) error {
	l := n.alive()
	if l == nil || !l.enterFirst() {
		return fmt.Errorf("faultinject: node %d is down", n.number)
	}
	defer l.leave()
	err := l.server.set(name, value, max(ttl, 0))
	n.cluster.refresh(n)
	return err
}
