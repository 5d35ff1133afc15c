package faultinject

import (
	"fmt"
	"strings"
	"time"
)

// observe records what a command has changed under the names that clients of the
// history lock. The node does nothing else meanwhile.
func (c *Cluster) observe(n *Node, l *life, cmd command) {
	names := c.history.watched.names()
	if len(names) == 0 {
		return
	}
	for _, a := range cmd.args {
		if _, ok := names[string(a)]; ok {
			n.tell(l, string(a))
		}
	}
}

// refresh records everything, after something that no command did.
func (c *Cluster) refresh(n *Node) {
	if l := n.alive(); l != nil && l.serial {
		for name := range c.history.watched.names() {
			n.tell(l, name)
		}
	}
}

// tell records what the node has stored under a name.
func (n *Node) tell(l *life, name string) {
	e, ok := l.server.(*embedded)
	if !ok {
		return
	}
	n.mu.Lock()
	rate := 1.0
	if n.clock.bent {
		rate = n.clock.rate
	}
	if n.life == l {
		n.tick(e)
	}
	n.mu.Unlock()
	value, ttl := e.look(name)
	var until time.Time
	if value != "" && ttl > 0 {
		until = time.Now().Add(time.Duration(float64(ttl) / rate))
	}
	n.cluster.history.Stored(n.number, name, value, until)
}

// Report is what was injected and the picture of what happened, for a log.
func (c *Cluster) Report() string {
	c.mu.Lock()
	played := c.played
	c.mu.Unlock()
	var b strings.Builder
	for _, i := range played {
		for _, a := range i.armed {
			a.record(time.Now(), false)
		}
		fmt.Fprintf(&b, "%v\n", i)
	}
	b.WriteString(c.history.String())
	return b.String()
}
