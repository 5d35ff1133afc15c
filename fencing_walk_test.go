package redlock

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// fenceWalk is a random walk over everything that can come in between when clients
// agree on fencing tokens: each step, one request arrives somewhere, or one reply, or
// a node loses a lock, or a client gives up. Between one client and one node the order
// is kept, as lanes do; nothing else is.
type fenceWalk struct {
	*rand.Rand
	nodes   []walkNode
	clients []walkClient
	holders int             // attempts so far
	taken   map[uint64]bool // tokens
	highest uint64          // of those that were agreed on
	agreed  int
}

type walkNode struct {
	counter uint64
	holder  int // the attempt that has its lock; 0: none
}

type walkClient struct {
	attempt  int
	failed   int    // how many requests
	passed   uint64 // the highest token when it began
	fence    *agreement
	requests [][]walkMessage // by node
	replies  [][]walkMessage
}

type walkMessage struct {
	kind    kind
	attempt int
	number  uint64 // of a reply: 0 if it was refused
	lost    bool   // the reply says nothing
}

func newFenceWalk(seed uint64, nodes, clients int) *fenceWalk {
	w := &fenceWalk{Rand: rand.New(rand.NewPCG(seed, 1)), taken: make(map[uint64]bool)}
	w.nodes = make([]walkNode, nodes)
	for range clients {
		c := walkClient{requests: make([][]walkMessage, nodes), replies: make([][]walkMessage, nodes)}
		w.clients = append(w.clients, c)
	}
	return w
}

func (w *fenceWalk) step(t *testing.T) {
	c, i := &w.clients[w.IntN(len(w.clients))], w.IntN(len(w.nodes))
	switch k := w.IntN(200); {
	case k < 5:
		w.nodes[i].holder = 0
	case k == 5 && c.fence != nil, c.fence != nil && c.fence.agreed && k < 40:
		c.end()
	case c.fence == nil && k < 40:
		w.holders++
		c.failed, c.attempt, c.passed, c.fence = 0, w.holders, w.highest, newAgreement(len(w.nodes))
		c.send(acquire, 0)
	case k%2 == 0 && len(c.requests[i]) > 0:
		q := c.requests[i][0]
		c.requests[i] = c.requests[i][1:]
		if q.kind != release {
			c.replies[i] = append(c.replies[i], w.execute(&w.nodes[i], q))
		} else if w.nodes[i].holder == q.attempt {
			w.nodes[i].holder = 0
		}
	case len(c.replies[i]) > 0:
		r := c.replies[i][0]
		c.replies[i] = c.replies[i][1:]
		if c.fence != nil && r.attempt == c.attempt {
			w.hear(t, c, i, r)
		}
	}
}

// end gives back what it has got, or given up.
func (c *walkClient) end() {
	c.send(release, 0)
	c.fence = nil
}

// send puts a request into the lanes to all nodes.
func (c *walkClient) send(k kind, number uint64) {
	for i := range c.requests {
		c.requests[i] = append(c.requests[i], walkMessage{kind: k, attempt: c.attempt, number: number})
	}
}

// execute is what the scripts do.
func (w *fenceWalk) execute(n *walkNode, q walkMessage) walkMessage {
	r := walkMessage{kind: q.kind, attempt: q.attempt}
	switch {
	case q.kind == acquire && n.holder == 0:
		n.holder, n.counter = q.attempt, n.counter+1
		r.number = n.counter
	case q.kind == raise && n.holder == q.attempt:
		n.counter = max(n.counter, q.number)
		r.number = n.counter
	}
	r.lost = w.IntN(20) == 0
	return r
}

// hear is what a round does with a reply.
func (w *fenceWalk) hear(t *testing.T, c *walkClient, i int, r walkMessage) {
	if r.lost || r.number == 0 {
		if r.kind == raise {
			c.fence.drop(i)
		}
		if c.failed++; c.failed > 2*len(w.nodes)-2*quorumOf(len(w.nodes)) {
			c.end()
		}
		return
	}
	before := c.fence.agreed
	for _, i := range c.fence.report(i, r.number) {
		c.requests[i] = append(c.requests[i], walkMessage{kind: raise, attempt: c.attempt, number: c.fence.token})
	}
	if before || !c.fence.agreed {
		return
	}
	w.agreed++
	require.False(t, w.taken[c.fence.token], "two holders have %d", c.fence.token)
	require.Greater(t, c.fence.token, c.passed)
	w.taken[c.fence.token] = true
	w.highest = max(w.highest, c.fence.token)
}

// No order of what arrives gives two holders the same token, or a later one a lower
// one, although nodes lose locks, so that several hold at once.
func TestNoOrderOfMessagesGivesAFenceTwice(t *testing.T) {
	for seed := range uint64(300) {
		w := newFenceWalk(seed, 3+2*int(seed%2), 2+int(seed%3))
		for range 100_000 {
			w.step(t)
		}
		require.Greater(t, w.agreed, 10)
	}
}
