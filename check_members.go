package redlock

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"
)

// membersKey is where Check enters how its Locker is set up, on each of its nodes.
const membersKey = "redlock:members"

//go:embed lua/members.lua
var membersLua string

// membership is how a client is set up, as far as all clients have to agree. Its JSON
// is a field of the hash under membersKey.
//
// Two clients that spell the same servers differently are no fault, and the same
// spelling may lead to different servers; so the nodes are told apart by ids, which
// each keeps in that hash: the first Check gives it one.
type membership struct {
	Nodes   []string `json:"nodes"`    // their addresses, sorted
	IDs     []string `json:"ids"`      // those that answered when it was entered, sorted
	Guard   int64    `json:"guard_ms"` // of restarts; 0: none
	Fencing bool     `json:"fencing"`
}

// maxField is the longest field that is looked at: the others are not ours.
const maxField = 1 << 14

func (m membership) text() string {
	text, _ := json.Marshal(m) // strings and numbers cannot fail
	return string(text)
}

func parseMembership(text string) (m membership, ok bool) {
	if len(text) > maxField || json.Unmarshal([]byte(text), &m) != nil || len(m.Nodes) == 0 || len(m.IDs) == 0 {
		return membership{}, false
	}
	return m, true
}

// membersView is what one node has told of its members.
type membersView struct {
	id  string // of the node; "": it has not told
	now int64  // by its clock, in seconds since 1970
	of  []member
}

type member struct {
	membership
	field string // as it is stored
	at    int64  // when it was entered last, by the node's clock
}

// readMembers reads what lua/members.lua answers.
func readMembers(val any) (v membersView, err error) {
	list, _ := val.([]any)
	if len(list) != 3 {
		return v, fmt.Errorf("unexpected reply %v", val)
	}
	id, _ := list[0].(string)
	text, _ := list[1].(string)
	fields, ok := list[2].([]any)
	now, err := strconv.ParseInt(text, 10, 64)
	if err != nil || id == "" || !ok {
		return v, fmt.Errorf("unexpected reply %v", val)
	}
	v = membersView{id: id, now: now}
	for i := 0; i+1 < len(fields); i += 2 {
		field, _ := fields[i].(string)
		value, _ := fields[i+1].(string)
		at, err := strconv.ParseInt(value, 10, 64)
		if m, ok := parseMembership(field); ok && err == nil {
			v.of = append(v.of, member{m, field, at})
		}
	}
	return v, nil
}

// meet asks the node who it is; register, which follows when all nodes have been
// asked that, enters how this client is set up and reads how others are. An entry so
// has the ids of all nodes that it is about from its first moment, on whichever node
// it is read: two Checks at the same time cannot misunderstand each other.
func (t *talk) meet(ctx context.Context) {
	t.members, t.membersErr = t.enter(ctx, strconv.FormatUint(rand.Uint64(), 36))
}

func (t *talk) register(ctx context.Context, own membership) {
	if t.members.id == "" {
		return
	}
	args := []any{t.members.id, own.text()}
	for _, m := range t.members.of {
		if m.like(own) && m.field != own.text() {
			args = append(args, m.field)
		}
	}
	t.members, t.membersErr = t.enter(ctx, args...)
}

// like tells whether two entries differ in nothing but which nodes answered, or what
// these were called then: the later one takes the place of the other.
func (m membership) like(other membership) bool {
	m.IDs = other.IDs
	return m.text() == other.text()
}

func (t *talk) enter(ctx context.Context, args ...any) (membersView, error) {
	cmd := ask(append([]any{"eval", membersLua, 1, membersKey}, args...)...)
	if !t.say(ctx, cmd) {
		return membersView{}, t.silent
	}
	if cmd.Err() != nil {
		return membersView{}, cmd.Err()
	}
	return readMembers(cmd.Val())
}

// membershipOf is how this client is set up, by what its nodes have answered. False:
// none has an id.
func membershipOf(cfg *config, rs []reading) (m membership, ok bool) {
	m.Guard, m.Fencing = cfg.guard.Milliseconds(), cfg.fencing
	for _, r := range rs {
		m.Nodes = append(m.Nodes, r.node)
		if r.members.id != "" {
			m.IDs = append(m.IDs, r.members.id)
		}
	}
	slices.Sort(m.Nodes)
	slices.Sort(m.IDs)
	m.IDs = slices.Compact(m.IDs)
	return m, len(m.IDs) > 0
}

// judgeMembers compares this client with the others that its nodes know of.
func judgeMembers(cfg *config, rs []reading, tell func(Finding)) {
	own, ok := membershipOf(cfg, rs)
	if !ok {
		return
	}
	for _, other := range others(own, rs) {
		evidence := fmt.Sprintf("this client: %v; another, %v ago: %v", own, time.Duration(other.age)*time.Second, other.membership)
		strangers, unsure := other.strangers(own, rs)
		if severity := SeverityError; len(other.Nodes) != len(own.Nodes) || strangers > 0 {
			if len(other.Nodes) == len(own.Nodes) && strangers <= unsure {
				severity = SeverityWarning
			}
			tell(Finding{severity, "", "other-nodes", evidence,
				"let all clients name the same nodes: majorities of different sets need not meet, so two can hold a name. " +
					"An entry can also be older than a node's loss of its data. " + endsItself})
		}
		if other.Guard != own.Guard {
			tell(Finding{SeverityError, "", "other-guard", evidence,
				"let all clients have the same restart guard: a node that has just forgotten its votes grants a held name to a client whose guard is shorter or missing. " + endsItself})
		}
		if other.Fencing != own.Fencing {
			tell(Finding{SeverityInfo, "", "other-fencing", evidence,
				"if the two have lock names in common, let both or none use WithFencing: a lock without takes no number. " + endsItself})
		}
	}
}

// endsItself is what to do about entries that are right no more.
const endsItself = "An entry of clients that are gone ends a day after their last Check; DEL " + membersKey + " on all nodes ends it at once"

// An entry is what another client has entered last, anywhere.
type entry struct {
	membership
	age int64 // in seconds, by the clock of the node that has it
}

// others are the entries of clients that are set up in another way, each once, the
// one entered last first.
func others(own membership, rs []reading) (list []entry) {
	index := make(map[string]int)
	for _, r := range rs {
		for _, m := range r.members.of {
			text, age := m.text(), max(0, r.members.now-m.at)
			i, known := index[text]
			switch {
			case text == own.text():
			case !known:
				index[text] = len(list)
				list = append(list, entry{m.membership, age})
			default:
				list[i].age = min(list[i].age, age)
			}
		}
	}
	slices.SortStableFunc(list, func(a, b entry) int { return int(a.age - b.age) })
	return list
}

// strangers counts the nodes of another client that are none of ours. An id that we
// do not know may also be that of a node of ours which has not answered now, or has
// come up since and forgotten what it was called. Of how many nodes that is not known,
// because they do not tell since when they are up, is unsure.
func (e entry) strangers(own membership, rs []reading) (k, unsure int) {
	for _, id := range e.IDs {
		if !slices.Contains(own.IDs, id) {
			k++
		}
	}
	for _, r := range rs {
		up, told := r.info.number("uptime_in_seconds")
		switch {
		case r.members.id == "":
			k--
		case slices.Contains(e.IDs, r.members.id):
		case !told:
			unsure++
		case up <= e.age:
			k--
		}
	}
	return k, unsure
}

// String is the membership for people. What others have entered may be anything.
func (m membership) String() string {
	s := fmt.Sprintf("%d nodes %s", len(m.Nodes), addresses(m.Nodes))
	if m.Guard > 0 {
		s += fmt.Sprintf(", guard %v", time.Duration(m.Guard)*time.Millisecond)
	} else {
		s += ", no guard"
	}
	if m.Fencing {
		s += ", fencing"
	}
	return s
}

func addresses(list []string) string {
	const most = 16
	shown := make([]string, 0, most)
	for _, a := range list[:min(len(list), most)] {
		if strings.ContainsFunc(a, func(r rune) bool { return r <= ' ' || r > '~' }) {
			a = quote(a)
		}
		shown = append(shown, a[:min(len(a), 100)])
	}
	if len(list) > most {
		shown = append(shown, "…")
	}
	return strings.Join(shown, " ")
}
