package redlock

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// hearing is one thing that an agreement is told, and what it makes of that.
type hearing struct {
	node   int
	n      uint64 // dropped: it is out
	behind []int
	token  uint64
	agreed bool
}

const dropped = math.MaxUint64

func TestAgreement(t *testing.T) {
	for _, c := range []struct {
		name  string
		nodes int
		heard []hearing
	}{
		{"a single node is enough for itself", 1, []hearing{
			{0, 7, nil, 7, true},
		}},
		{"equal counters need no second round", 3, []hearing{
			{0, 7, nil, 7, false},
			{2, 7, nil, 7, true},
			{1, 7, nil, 7, true},
		}},
		{"nobody is asked before a quorum takes part", 5, []hearing{
			{0, 9, nil, 9, false},
			{1, 3, nil, 9, false},
			{2, 5, []int{1, 2}, 9, false},
			{1, 9, nil, 9, false},
			{2, 9, nil, 9, true},
		}},
		{"each is asked once for one token", 5, []hearing{
			{0, 9, nil, 9, false},
			{1, 3, nil, 9, false},
			{2, 5, []int{1, 2}, 9, false},
			{3, 4, []int{3}, 9, false},
			{4, 9, nil, 9, false},
			{3, 9, nil, 9, true},
		}},
		{"and once more when the token has become higher", 5, []hearing{
			{0, 9, nil, 9, false},
			{1, 3, nil, 9, false},
			{2, 5, []int{1, 2}, 9, false},
			{3, 11, []int{0, 1, 2}, 11, false},
			{1, 9, nil, 11, false},
			{1, 11, nil, 11, false},
			{0, 11, nil, 11, true},
		}},
		{"a node that could only be raised to more makes the token higher", 3, []hearing{
			{0, 9, nil, 9, false},
			{1, 3, []int{1}, 9, false},
			{1, 12, []int{0}, 12, false},
			{0, 12, nil, 12, true},
		}},
		{"two numbers that are each had by one are no agreement", 3, []hearing{
			{0, 2, nil, 2, false},
			{1, 1, []int{1}, 2, false},
			{2, 3, []int{0, 1}, 3, false},
			{1, 2, nil, 3, false},
			{0, 3, nil, 3, true},
		}},
		{"a node that is out does not count, and what it had still does", 3, []hearing{
			{0, 9, nil, 9, false},
			{1, 3, []int{1}, 9, false},
			{0, dropped, nil, 9, false},
			{2, 4, []int{2}, 9, false},
			{1, 9, nil, 9, false},
			{2, 9, nil, 9, true},
		}},
		{"a node that is out is not asked", 5, []hearing{
			{0, 1, nil, 1, false},
			{1, 2, nil, 2, false},
			{0, dropped, nil, 2, false},
			{2, 2, nil, 2, false},
			{3, 3, []int{1, 2}, 3, false},
		}},
		{"a late node is asked to catch up, once", 3, []hearing{
			{0, 7, nil, 7, false},
			{1, 7, nil, 7, true},
			{2, 3, []int{2}, 7, true},
			{2, 4, nil, 7, true},
			{2, 7, nil, 7, true},
		}},
		{"a late node that is ahead changes nothing", 3, []hearing{
			{0, 7, nil, 7, false},
			{1, 7, nil, 7, true},
			{2, 8, nil, 7, true},
			{0, dropped, nil, 7, true},
			{1, 9, nil, 7, true},
		}},
		{"an older answer does not take back a newer one", 3, []hearing{
			{0, 9, nil, 9, false},
			{1, 3, []int{1}, 9, false},
			{2, 12, []int{0, 1}, 12, false},
			{1, 12, nil, 12, true},
			{1, 9, nil, 12, true},
		}},
		{"a vote without a number takes no part", 3, []hearing{
			{0, 0, nil, 0, false},
			{1, 0, nil, 0, false},
			{2, 5, nil, 5, false},
			{1, 5, nil, 5, true},
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := newAgreement(c.nodes)
			for i, h := range c.heard {
				var behind []int
				if h.n == dropped {
					a.drop(h.node)
				} else {
					behind = a.report(h.node, h.n)
				}
				got := hearing{h.node, h.n, behind, a.token, a.agreed}
				require.Equal(t, h, got, "line %d", i+1)
			}
		})
	}
}

// A minute keeps all that an agreement is told and works it out anew each time. It is
// what agreement has to be, without its thrift.
type minute struct {
	nodes int
	lines []hearing
}

// has is the highest that a node reported since it was out.
func (m *minute) has(node int, lines []hearing) (n uint64) {
	for _, l := range lines {
		switch {
		case l.node == node && l.n == dropped:
			n = 0
		case l.node == node:
			n = max(n, l.n)
		}
	}
	return n
}

// after is the token and whether it was agreed on after so many lines.
func (m *minute) after(lines int) (token uint64, agreed bool) {
	for i, l := range m.lines[:lines] {
		if l.n == dropped {
			continue
		}
		token = max(token, l.n)
		exact := 0
		for node := range m.nodes {
			if n := m.has(node, m.lines[:i+1]); n > 0 && n == token {
				exact++
			}
		}
		if 2*exact > m.nodes {
			return token, true
		}
	}
	return token, false
}

// check compares an agreement that was told one more thing with the minute.
func (m *minute) check(a *agreement, behind []int) error {
	last := len(m.lines) - 1
	token, agreed := m.after(len(m.lines))
	m.lines[last].behind, m.lines[last].token = behind, token
	if a.token != token || a.agreed != agreed {
		return fmt.Errorf("token %d, agreed %v; want %d, %v", a.token, a.agreed, token, agreed)
	}
	taking := 0
	for node := range m.nodes {
		if m.has(node, m.lines) > 0 {
			taking++
		}
	}
	for node := range m.nodes {
		n, asked := m.has(node, m.lines), 0
		for _, l := range m.lines {
			if l.token == token && slices.Contains(l.behind, node) {
				asked++
			}
		}
		now := slices.Contains(behind, node)
		lags := n > 0 && n < token
		switch {
		case a.lagging(node) != lags:
			return fmt.Errorf("node %d has %d and lags: %v", node, n, !lags)
		case asked > 1:
			return fmt.Errorf("node %d is asked twice for %d", node, token)
		case now && m.lines[last].n >= token && agreed:
			return fmt.Errorf("node %d is asked for nothing", node)
		case now && !lags && !agreed:
			return fmt.Errorf("node %d has %d and is asked for %d", node, n, token)
		case now && !agreed && 2*taking <= m.nodes:
			return fmt.Errorf("node %d is asked by %d of %d", node, taking, m.nodes)
		case lags && asked == 0 && !agreed && 2*taking > m.nodes && m.lines[last].n != dropped:
			return fmt.Errorf("node %d has %d and was never asked for %d", node, n, token)
		}
	}
	return nil
}

func (m *minute) tell(a *agreement, node int, n uint64) error {
	m.lines = append(m.lines, hearing{node: node, n: n})
	if n == dropped {
		a.drop(node)
		return m.check(a, nil)
	}
	return m.check(a, a.report(node, n))
}

func TestAgreementIsWhatItsMinuteSaysInEveryOrderOfReports(t *testing.T) {
	paths := 0
	var more func(a *agreement, m minute)
	more = func(a *agreement, m minute) {
		if paths++; len(m.lines) == 5 {
			return
		}
		for node := range m.nodes {
			for _, n := range []uint64{1, 2, 3, dropped} {
				b, longer := *a, minute{m.nodes, slices.Clone(m.lines)}
				b.reached, b.asked = slices.Clone(a.reached), slices.Clone(a.asked)
				require.NoError(t, longer.tell(&b, node, n), "%v", longer.lines)
				more(&b, longer)
			}
		}
	}
	for nodes := 1; nodes <= 3; nodes++ {
		more(newAgreement(nodes), minute{nodes: nodes})
	}
	t.Logf("%d paths", paths)
}

func TestAgreementIsWhatItsMinuteSaysOfManyNodes(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for range 1000 {
		m := minute{nodes: 4 + random.IntN(4)}
		a := newAgreement(m.nodes)
		for range 20 {
			n := uint64(random.IntN(8))
			if random.IntN(6) == 0 {
				n = dropped
			}
			require.NoError(t, m.tell(a, random.IntN(m.nodes), n), "%+v", m.lines)
		}
	}
}

// shaped makes a reply of the kinds that s names: a list if it begins with a bracket.
func shaped(s string, number int64, text, other string) any {
	var list []any
	for _, c := range strings.TrimPrefix(s, "[") {
		list = append(list, map[rune]any{
			'i': number, 's': text, 'o': other, '1': int64(1), '2': int64(2), 'e': redis.Nil, 'f': float64(number), 'b': true,
			'l': []any{int64(1), text}, 'm': map[any]any{text: number}, 'u': uint64(number), 'd': int(number),
		}[c]) // anything else is nil
	}
	switch {
	case strings.HasPrefix(s, "["):
		return list
	case len(list) > 0:
		return list[0]
	}
	return nil
}

// FuzzBallot: whatever a server answers to an acquire or a raise with a fencing
// counter, it is granted only by what means that, with a number that can be a token.
func FuzzBallot(f *testing.F) {
	f.Add("[1s", int64(0), "1796035000123457", "")                  // granted
	f.Add("[2s", int64(0), "9007199254740991", "")                  // it was ours before
	f.Add("[1s", int64(0), "", "")                                  // without a counter
	f.Add("[oi", int64(29999), "", "4b0a3d3e-1c6f-4a57-9f5e-owner") // another's
	f.Add("[oi", int64(-1), "", "4b0a3d3e-1c6f-4a57-9f5e-owner")    // for ever
	f.Add("[i", int64(0), "", "")                                   // nothing to replace
	f.Add("[ii", int64(-1), "", "")                                 // young, for how long is not plausible
	f.Add("[1i", int64(1796035000123457), "", "")                   // a number where text is due
	f.Add("s", int64(0), "1796035000123457", "")                    // raised
	f.Add("i", int64(-1), "", "")                                   // no longer ours
	f.Add("s", int64(0), "1.7960350001235e+15", "")                 // what Lua's tostring makes of it
	for _, n := range []string{"0", "-1", "9007199254740992", "18446744073709551616", "+5", "0x5", " 5", "5 ", "1e3", "٣"} {
		f.Add("[1s", int64(1), n, n)
		f.Add("s", int64(1), n, n)
	}
	for _, s := range []string{"", "[", "[1", "[n", "[1n", "[ns", "[ls", "l", "m", "f", "u", "d", "b", "e", "[es", "[fs", "[bs", "[us", "[ds", "[1so"} {
		f.Add(s, int64(1), "5", "x")
	}
	lease := &Lease{token: "mine", locker: &Locker{cfg: config{fencing: true}}}
	f.Fuzz(func(t *testing.T, kinds string, number int64, text, other string) {
		val := shaped(kinds, number, text, other)
		for _, k := range []kind{acquire, attach, repair, raise} {
			q := &request{kind: k, claim: &claim{lease: lease}}
			cmd := command{redis.NewCmd(background)}
			if cmd.SetVal(val); val == nil {
				cmd.SetErr(redis.Nil)
			}
			r, found, err := q.read(cmd)
			if err := meant(k, val, r, found, err); err != nil {
				t.Errorf("%v answered with %#v is %d, %+v: %v", k, val, r, found, err)
			}
		}
	})
}

// meant says whether what a reply was read as is what it means.
func meant(k kind, val any, r reply, found findings, err error) error {
	list, _ := val.([]any)
	list = append(slices.Clone(list), nil, nil)
	text, _ := list[1].(string)
	if k == raise {
		text, _ = val.(string)
	}
	switch {
	case (err != nil) != (r == refusal || r == abstains):
		return fmt.Errorf("error %w", err)
	case found.fence > 0 && (r != yes && r != already || strconv.FormatUint(found.fence, 10) != strings.TrimLeft(text, "0")):
		return fmt.Errorf("it said %q", text)
	case found.fence > 1<<53-1:
		return fmt.Errorf("too large a token")
	case found.left < 0 || found.left > maxTTL || found.left > 0 && r != foreign:
		return fmt.Errorf("%v left", found.left)
	}
	ok := r == refusal
	switch {
	case k == raise && r == yes:
		ok = found.fence > 0
	case k == raise && r == absent: // which is no grant either
		ok = val == nil
	case k == raise && r == foreign:
		ok = val == any(int64(-1))
	case k == raise:
	case r == yes:
		ok = list[0] == any(int64(1)) && (found.fence > 0 || list[1] == any(""))
	case r == already:
		ok = list[0] == any(int64(2)) && (found.fence > 0 || list[1] == any(""))
	case r == foreign:
		ok = list[0] == any(found.other) && found.left >= time.Millisecond
	case r == absent:
		ok = list[0] == any(int64(0))
	case r == abstains:
		ok = list[0] == any(int64(-1))
	}
	if !ok {
		return fmt.Errorf("it does not mean that")
	}
	return nil
}

func TestBallotIsReadAsItIsMeant(t *testing.T) {
	for _, c := range []struct {
		val   any
		want  reply
		found findings
	}{
		{[]any{int64(1), "1796035000123457"}, yes, findings{fence: 1796035000123457}},
		{[]any{int64(1), "9007199254740991"}, yes, findings{fence: maxFence}},
		{[]any{int64(2), "3"}, already, findings{fence: 3}},
		{[]any{int64(1), ""}, yes, findings{}},
		{[]any{"t", int64(29999)}, foreign, findings{other: "t", left: 29999 * time.Millisecond}},
		{[]any{"t", int64(-1)}, foreign, findings{other: "t", left: maxTTL}},
		{[]any{int64(0)}, absent, findings{}},
		{[]any{int64(-1), int64(3)}, abstains, findings{}},
		{[]any{int64(1), "0"}, refusal, findings{}},
		{[]any{int64(1), "-3"}, refusal, findings{}},
		{[]any{int64(1), "9007199254740992"}, refusal, findings{}},
		{[]any{int64(1), int64(3)}, refusal, findings{}},
		{[]any{int64(3), "3"}, refusal, findings{}},
		{[]any{int64(1)}, refusal, findings{}},
		{"3", refusal, findings{}},
		{int64(1), refusal, findings{}},
		{nil, refusal, findings{}},
	} {
		r, found, err := readBallot(c.val)
		assert.Equal(t, c.want, r, "%v", c.val)
		assert.Equal(t, c.found, found, "%v", c.val)
		assert.Equal(t, r == refusal || r == abstains, err != nil, "%v", c.val)
	}
}
