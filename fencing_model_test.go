package redlock

import (
	"fmt"
	"hash/maphash"
	"strings"
)

// A fenceModel is a small world in which clients take a fenced lock at once: their
// decisions are those of the real agreement, the nodes do what the Lua scripts do,
// and between them there is no clock and no order. A lock may vanish from a node at
// any moment, because it expired or was released. What was sent is executed late, or
// never, or once more; answers come late or never, in any order. So every
// interleaving is a path from the first state along steps, and what holds in all
// states holds whatever the times are.
//
// One goroutine does it all, and has much to do: the race detector is spared it.
//
// Of the acquisitions that succeed, two things are asked: no two tokens are equal,
// and one that returned before another began has the lower token. Nothing keeps two
// of them from holding the lock together.
type fenceModel struct {
	nodes, clients int

	copies    uint8 // how many late copies of acquires may be executed, by all nodes together
	losses    uint8 // how often a node may lose its counter, with or without its lock
	proposals bool  // clocks are right: who begins after another returned proposes more
	apart     int   // how far proposals of clients that begin together are apart
	ordered   bool  // nothing is asked of the tokens of two that overlap
	counters  []uint8

	rules
	scratch agreement
	numbers []uint64
	seed    maphash.Seed
}

// rules are what may be broken on purpose. The first two are the agreement's methods.
type rules struct {
	report func(a *agreement, i int, n uint64) (behind []int)
	failed func(a *agreement, i int)                            // a raise of node i was not answered, or refused
	taken  func(n *fenceNode, client, proposal uint8)           // what an acquire does where it finds no lock
	raised func(n *fenceNode, client, number uint8) (now uint8) // a raise; 0: the lock is not the client's
}

// realRules are the rules of the code, and of lua/ballot.lua and lua/raise.lua.
var realRules = rules{
	report: (*agreement).report,
	failed: (*agreement).drop,
	taken: func(n *fenceNode, client, proposal uint8) {
		n.holder, n.counter = client, max(n.counter+1, proposal)
	},
	raised: func(n *fenceNode, client, number uint8) uint8 {
		if n.holder != client {
			return 0
		}
		n.counter = max(n.counter, number)
		return n.counter
	},
}

// The states are values, so that they can be keys of a map. Clients are counted from
// 1; holder 0 is nobody.
type (
	fenceState struct {
		nodes          [5]fenceNode
		clients        [3]fenceClient
		copies, losses uint8
	}
	fenceNode struct {
		holder, counter uint8
		sides           [3]fenceSide
	}
	// A fenceSide is what is going on between one node and one client.
	fenceSide struct {
		acquire        uint8 // not answered, heard, or else the answer that is under way
		reached, asked uint8 // as in the client's agreement
		raises         [3]fenceRaise
	}
	// A fenceRaise is a message: a raise on its way to the node or the answer to it.
	fenceRaise struct{ state, number uint8 }

	fenceClient struct {
		begun, agreed   bool
		won             bool  // it was agreed once; the token is looked at when it returns
		before          uint8 // bits of the clients that had returned when it began
		token, returned uint8
	}
)

const (
	unanswered = 0
	heard      = 255

	astray   = 1 // the client does not wait for it any more, but the node may still execute it
	asking   = 2
	answered = 3
)

// A step is one thing that happens, for the story of a path.
type step struct {
	what                 string
	client, node, number uint8
}

func (s step) String() string {
	r := strings.NewReplacer("$c", fmt.Sprint("client ", s.client), "$n", fmt.Sprint("node ", s.node+1), "$t", fmt.Sprint(s.number))
	return r.Replace(s.what)
}

func newFenceModel(nodes, clients int, counters ...uint8) *fenceModel {
	return &fenceModel{nodes: nodes, clients: clients, counters: counters, rules: realRules, apart: 15, numbers: make([]uint64, 2*nodes), seed: maphash.MakeSeed()}
}

// starts are the states to begin with. A client that begins later, but before any
// other has returned, is as one whose messages have taken longer.
func (m *fenceModel) starts() []fenceState {
	all := make([]fenceState, m.clients)
	for i := range all {
		for j, n := range m.counters {
			all[i].nodes[j].counter = n
		}
		for k := range i + 1 {
			all[i].clients[k].begun = true
		}
	}
	return all
}

// returned are the bits of the clients that have.
//
//go:norace
func (m *fenceModel) returned(s *fenceState) (set uint8) {
	for k := range m.clients {
		if s.clients[k].returned > 0 {
			set |= 1 << k
		}
	}
	return set
}

// forget drops what makes no difference once a client has returned. What it still
// hears lets it ask nodes to catch up with its token, which its extends do anyway, at
// any moment.
//
//go:norace
func (m *fenceModel) forget(s *fenceState, k int) {
	for i := range m.nodes {
		side := &s.nodes[i].sides[k]
		side.reached, side.asked = 0, 0
		if side.acquire != unanswered {
			side.acquire = heard
		}
		for j := range side.raises {
			r := &side.raises[j]
			switch {
			case r.state == answered || r.number == s.clients[k].returned:
				*r = fenceRaise{}
			case r.state == asking:
				r.state = astray
			}
		}
		side.sort()
	}
}

// steps calls each with all states that can come next.
//
//go:norace
func (m *fenceModel) steps(s *fenceState, each func(step, *fenceState)) {
	if m.returned(s) == 1<<m.clients-1 {
		return // nothing can become wrong any more
	}
	for k := range m.clients {
		c := &s.clients[k]
		if !c.begun {
			if before := m.returned(s); before > 0 && s.clients[k-1].begun { // in this order, since they are all alike
				t := *s
				t.clients[k].begun, t.clients[k].before = true, before
				each(step{"$c begins", uint8(k + 1), 0, 0}, &t)
			}
			continue
		}
		if c.won && c.returned == 0 {
			t := *s
			t.clients[k].returned = c.token
			m.forget(&t, k)
			each(step{"$c returns with $t", uint8(k + 1), 0, c.token}, &t)
		}
		for i := range m.nodes {
			m.acquireSteps(s, k, i, each)
			m.raiseSteps(s, k, i, each)
		}
	}
	for i := range m.nodes {
		n := s.nodes[i]
		if n.holder > 0 {
			t := *s
			t.nodes[i].holder = 0
			each(step{"the lock of $c vanishes from $n", n.holder, uint8(i), 0}, &t)
		}
		if s.losses < m.losses && n.counter > 0 {
			t := *s
			t.losses++
			t.nodes[i].counter = 0
			each(step{"$n loses its counter", 0, uint8(i), 0}, &t)
			t.nodes[i].holder = 0
			each(step{"$n loses all its data", 0, uint8(i), 0}, &t)
		}
	}
}

// acquireSteps are what can become of the acquire of client k on node i.
//
//go:norace
func (m *fenceModel) acquireSteps(s *fenceState, k, i int, each func(step, *fenceState)) {
	me, n := uint8(k+1), &s.nodes[i]
	side := &n.sides[k]
	free := n.holder == 0
	if side.acquire == unanswered && (free || n.holder == me) {
		t := *s
		if free || n.counter == 0 {
			m.taken(&t.nodes[i], me, m.proposal(s, k))
		}
		t.nodes[i].sides[k].acquire = t.nodes[i].counter
		if s.clients[k].returned > 0 {
			t.nodes[i].sides[k].acquire = heard
		}
		each(step{"$n gives $c the lock with $t", me, uint8(i), t.nodes[i].counter}, &t)
	}
	// Of clients that began together and are all alike, a single copy may be the first's.
	alike := m.copies == 1 && !m.proposals && s.clients[k].before == 0
	if free && s.copies < m.copies && (k == 0 || !alike) {
		t := *s
		t.copies++
		m.taken(&t.nodes[i], me, m.proposal(s, k))
		each(step{"$n gives $c the lock with $t, which it does not hear", me, uint8(i), t.nodes[i].counter}, &t)
	}
	if side.acquire != unanswered && side.acquire != heard {
		t := *s
		t.nodes[i].sides[k].acquire = heard
		m.decide(&t, k, func(a *agreement) []int { return m.report(a, i, uint64(side.acquire)) })
		each(step{"$c hears that it has the lock of $n with $t", me, uint8(i), side.acquire}, &t)
	}
	if c := &s.clients[k]; c.returned > 0 && (free || n.holder == me) && (free || n.counter < c.returned) {
		// As lua/ballot.lua repairs: nobody is told the counter, so it need not rise.
		t := *s
		t.nodes[i].holder, t.nodes[i].counter = me, max(n.counter, c.returned)
		each(step{"$c extends on $n", me, uint8(i), 0}, &t)
	}
}

// raiseSteps are what can become of the raises that client k has asked of node i.
// That the lock is not the client's is no step of its own: it does to the client what
// the failure of a raise does, which happens at any moment.
//
//go:norace
func (m *fenceModel) raiseSteps(s *fenceState, k, i int, each func(step, *fenceState)) {
	me := uint8(k + 1)
	for j, r := range s.nodes[i].sides[k].raises {
		if r.state == answered {
			t := *s
			t.nodes[i].sides[k].raises[j] = fenceRaise{}
			m.decide(&t, k, func(a *agreement) []int { return m.report(a, i, uint64(r.number)) })
			t.nodes[i].sides[k].sort()
			each(step{"$c hears that $n has $t", me, uint8(i), r.number}, &t)
		}
		if r.state != asking && r.state != astray {
			continue
		}
		t := *s
		if now := m.raised(&t.nodes[i], me, r.number); now > 0 {
			if t.nodes[i].counter != s.nodes[i].counter {
				each(step{"$n raises to $t, which $c does not hear", me, uint8(i), r.number}, &t)
			}
			if r.state == asking {
				t.nodes[i].sides[k].raises[j] = fenceRaise{answered, now}
				t.nodes[i].sides[k].sort()
				each(step{"$n raises to $t for $c", me, uint8(i), r.number}, &t)
			}
		}
		if r.state == asking {
			t := *s
			t.nodes[i].sides[k].raises[j].state = astray
			t.nodes[i].sides[k].sort()
			m.decide(&t, k, func(a *agreement) []int { m.failed(a, i); return nil })
			each(step{"$c gives up to raise $n to $t", me, uint8(i), r.number}, &t)
		}
	}
}

// proposal is what client k proposes; with clocks, more than all who returned before
// it began can have brought about.
//
//go:norace
func (m *fenceModel) proposal(s *fenceState, k int) uint8 {
	if !m.proposals {
		return 0
	}
	p := uint8(60 + m.apart*k)
	for other := range m.clients {
		if s.clients[k].before&(1<<other) != 0 {
			p += 60
		}
	}
	return p
}

// decide lets client k's agreement take something in, and sends the raises that it
// asks for.
//
//go:norace
func (m *fenceModel) decide(s *fenceState, k int, feed func(*agreement) []int) {
	a, c := &m.scratch, &s.clients[k]
	a.quorum, a.token, a.agreed = quorumOf(m.nodes), uint64(c.token), c.agreed
	a.reached, a.asked = m.numbers[:m.nodes], m.numbers[m.nodes:]
	for i := range m.nodes {
		a.reached[i], a.asked[i] = uint64(s.nodes[i].sides[k].reached), uint64(s.nodes[i].sides[k].asked)
	}
	behind := feed(a)
	c.token, c.agreed = uint8(a.token), a.agreed
	c.won = c.won || a.agreed
	for i := range m.nodes {
		s.nodes[i].sides[k].reached, s.nodes[i].sides[k].asked = uint8(a.reached[i]), uint8(a.asked[i])
	}
	for _, i := range behind {
		s.nodes[i].sides[k].send(fenceRaise{asking, c.token})
	}
}

func (side *fenceSide) send(r fenceRaise) {
	last := len(side.raises) - 1
	if side.raises[last].state != 0 {
		panic("the model has too little room for raises")
	}
	side.raises[last] = r
	side.sort()
}

// sort puts messages in one order, since none is kept between them.
//
//go:norace
func (side *fenceSide) sort() {
	r := &side.raises
	for i := range r {
		for j := i; j > 0 && (r[j].state > r[j-1].state || r[j].state == r[j-1].state && r[j].number > r[j-1].number); j-- {
			r[j], r[j-1] = r[j-1], r[j]
		}
	}
}

// violation says what is wrong in a state; nothing, if all is well.
//
//go:norace
func (m *fenceModel) violation(s *fenceState) string {
	for a := range m.clients {
		for b := range m.clients {
			first, second := s.clients[a].returned, s.clients[b].returned
			switch {
			case a == b || first == 0 || second == 0:
			case a < b && first == second && !m.ordered:
				return fmt.Sprintf("clients %d and %d both have token %d", a+1, b+1, first)
			case s.clients[b].before&(1<<a) != 0 && first >= second:
				return fmt.Sprintf("client %d returned with %d before client %d began, which has %d", a+1, first, b+1, second)
			}
		}
	}
	return ""
}
