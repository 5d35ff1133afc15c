package redlock

import (
	"hash/maphash"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestTokensDifferAndRiseInEveryInterleavingOfTwoClients(t *testing.T) {
	for _, c := range []struct {
		name string
		m    *fenceModel
		more func(*fenceModel)
	}{
		{"one node", newFenceModel(1, 2), func(m *fenceModel) { m.copies = 3 }},
		{"two nodes", newFenceModel(2, 2), func(m *fenceModel) { m.copies = 2 }},
		{"three nodes", newFenceModel(3, 2), nil},
		{"three nodes that have counted differently", newFenceModel(3, 2, 3, 0, 0), nil},
		{"an acquire that is executed once more", newFenceModel(3, 2), func(m *fenceModel) { m.copies = 1 }},
		{"data is lost twice, with clocks", newFenceModel(3, 2), func(m *fenceModel) { m.losses, m.proposals = 2, true }},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.more != nil {
				c.more(c.m)
			}
			begin := time.Now()
			const limit = 4e6
			states, story := c.m.explore(limit)
			for _, line := range story {
				t.Log(line)
			}
			assert.Empty(t, story)
			assert.Less(t, states, int(limit), "all were visited")
			t.Logf("%d states in %v", states, time.Since(begin).Round(time.Millisecond))
		})
	}
}

func TestTokensDifferAndRiseOnRandomPathsOfMoreClientsAndNodes(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 60 {
		m := newFenceModel(3+random.IntN(3), 3)
		m.copies = uint8(random.IntN(3))
		if m.proposals = random.IntN(2) > 0; m.proposals {
			m.losses = uint8(random.IntN(4))
			m.ordered = m.losses > 0
		}
		for range m.nodes {
			m.counters = append(m.counters, uint8(random.IntN(4)))
		}
		require.Empty(t, m.walk(150, random))
	}
}

// wrongRules are rules without which tokens are wrong.
var wrongRules = []struct {
	name string
	set  func(*fenceModel)
}{
	{"no second round", func(m *fenceModel) {
		m.report = func(a *agreement, i int, n uint64) []int {
			a.report(i, n)
			a.agreed = numbered(a, 1) >= a.quorum
			return nil
		}
	}},
	{"as high as the first quorum's token is enough", func(m *fenceModel) {
		m.report = func(a *agreement, i int, n uint64) (behind []int) {
			token, settled := a.token, numbered(a, 1) >= a.quorum
			behind = a.report(i, n)
			if settled {
				a.token, a.agreed = token, numbered(a, token) >= a.quorum
			}
			return behind
		}
	}},
	{"a raise that failed counts", func(m *fenceModel) {
		m.failed = func(a *agreement, i int) { a.report(i, a.asked[i]) }
	}},
	{"a late answer changes the token", func(m *fenceModel) {
		m.report = func(a *agreement, i int, n uint64) (behind []int) {
			behind = a.report(i, n)
			a.token = max(a.token, n)
			return behind
		}
	}},
	{"a node raises for who has not got the lock", func(m *fenceModel) {
		m.raised = func(n *fenceNode, _, number uint8) uint8 {
			n.counter = max(n.counter, number)
			return n.counter
		}
	}},
	{"a raise can lower", func(m *fenceModel) {
		m.counters = []uint8{2, 1, 0}
		m.raised = func(n *fenceNode, client, number uint8) uint8 {
			if n.holder != client {
				return 0
			}
			n.counter = number
			return number
		}
	}},
	{"an acquire does not count", func(m *fenceModel) {
		m.taken = func(n *fenceNode, client, proposal uint8) {
			n.holder, n.counter = client, max(n.counter, proposal, 1)
		}
	}},
	{"a node loses its data, without clocks", func(m *fenceModel) { m.losses = 1 }},
	{"a node loses its data between two that overlap, with clocks", func(m *fenceModel) {
		m.losses, m.copies, m.proposals, m.apart = 1, 1, true, 1
	}},
}

// numbered counts the nodes that have reached n.
func numbered(a *agreement, n uint64) (nodes int) {
	for _, r := range a.reached {
		if r >= n {
			nodes++
		}
	}
	return nodes
}

func TestWithoutAnyOfItsRulesTokensAreWrong(t *testing.T) {
	for _, c := range wrongRules {
		t.Run(c.name, func(t *testing.T) {
			m := newFenceModel(3, 2)
			c.set(m)
			states, story := m.explore(2e6)
			require.NotEmpty(t, story, "%d states, and nothing wrong", states)
			for i, line := range story {
				t.Logf("%2d. %s", i+1, line)
			}
			t.Logf("found at %d states", states)
		})
	}
}

// key is the same for states that differ only in the order of nodes, which makes no
// difference to what can happen. It is a hash; that two of a few million others have
// the same is a matter of one in millions.
//
//go:norace
func (m *fenceModel) key(s *fenceState) uint64 {
	var all struct {
		nodes          [5]uint64
		clients        [3]fenceClient
		copies, losses uint8
	}
	for i := range m.nodes {
		all.nodes[i] = maphash.Comparable(m.seed, s.nodes[i])
		for j := i; j > 0 && all.nodes[j] < all.nodes[j-1]; j-- {
			all.nodes[j], all.nodes[j-1] = all.nodes[j-1], all.nodes[j]
		}
	}
	all.clients, all.copies, all.losses = s.clients, s.copies, s.losses
	return maphash.Comparable(m.seed, all)
}

// explore visits every state that can be reached, up to a limit, and returns how many
// there are and the shortest story that ends in a violation.
//
//go:norace
func (m *fenceModel) explore(limit int) (states int, story []string) {
	type visit struct {
		from int
		step
	}
	type frontier struct {
		at int
		fenceState
	}
	seen := make(map[uint64]struct{})
	var visits []visit
	var now, next []frontier
	add := func(from int, what step, s *fenceState) bool {
		key := m.key(s)
		if _, ok := seen[key]; ok {
			return false
		}
		seen[key] = struct{}{}
		visits = append(visits, visit{from, what})
		next = append(next, frontier{len(visits) - 1, *s})
		return true
	}
	for i, s := range m.starts() {
		add(-1, step{what: "$t clients begin", number: uint8(i + 1)}, &s)
	}
	for len(next) > 0 && len(visits) < limit {
		now, next = next, now[:0]
		for _, s := range now {
			m.steps(&s.fenceState, func(what step, t *fenceState) {
				if story == nil && add(s.at, what, t) {
					if v := m.violation(t); v != "" {
						story = []string{v}
					}
				}
			})
			if story != nil {
				for i := len(visits) - 1; i >= 0; i = visits[i].from {
					story = append(story, visits[i].String())
				}
				slices.Reverse(story)
				return len(visits), story
			}
		}
	}
	return len(visits), nil
}

// walk takes up to n paths at random, and returns the story of the first that ends in
// a violation.
//
//go:norace
func (m *fenceModel) walk(n int, random *rand.Rand) (story []string) {
	const length = 150
	var next []fenceState
	var what, path []step
	for range n {
		all := m.starts()
		s := all[random.IntN(len(all))]
		path = path[:0]
		for range length {
			next, what = next[:0], what[:0]
			m.steps(&s, func(w step, t *fenceState) { next, what = append(next, *t), append(what, w) })
			if len(next) == 0 {
				break
			}
			i := random.IntN(len(next))
			s = next[i]
			path = append(path, what[i])
			if v := m.violation(&s); v != "" {
				for _, p := range path {
					story = append(story, p.String())
				}
				return append(story, v)
			}
		}
	}
	return nil
}
