package faultinject

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// What both pictures need: which names and clients to show, and ticks.

// A historyPanel is what a picture shows of one name.
type historyPanel struct {
	name     string
	tenures  []*historyTenure
	overlaps [][2]historySpan
	lateActs int
	losses   int
	acquired int
	clients  []string // that are shown
	hidden   int      // clients that are not
}

// panels are the most interesting names, in order of name, and how many others
// there are. Two holders are the most interesting, then acts outside of a belief,
// then losses, then many attempts.
func (d *historyDigest) panels(most, mostClients int) (panels []historyPanel, hidden int) {
	for _, name := range d.names {
		p := historyPanel{name: name, tenures: d.byName[name], overlaps: d.overlaps(name)}
		for _, t := range p.tenures {
			p.losses += historyCount(t.lost != historyNever)
			p.acquired += historyCount(t.won)
			for _, at := range t.acts {
				p.lateActs += historyCount(t.late(at) != 0)
			}
		}
		p.clients, p.hidden = p.chooseClients(mostClients)
		panels = append(panels, p)
	}
	slices.SortStableFunc(panels, func(a, b historyPanel) int {
		return cmp.Or(cmp.Compare(len(b.overlaps), len(a.overlaps)), cmp.Compare(b.lateActs, a.lateActs),
			cmp.Compare(b.losses, a.losses), cmp.Compare(len(b.tenures), len(a.tenures)))
	})
	if len(panels) > most {
		panels, hidden = panels[:most], len(panels)-most
	}
	slices.SortStableFunc(panels, func(a, b historyPanel) int { return historyNatural(a.name, b.name) })
	return panels, hidden
}

// chooseClients takes those who were one of two holders first, then those who won
// most often.
func (p *historyPanel) chooseClients(most int) (clients []string, hidden int) {
	weight := make(map[string]int)
	for _, t := range p.tenures {
		if _, ok := weight[t.client]; !ok {
			clients = append(clients, t.client)
		}
		weight[t.client] += historyCount(t.won)
	}
	for _, pair := range p.overlaps {
		for _, s := range pair {
			weight[s.of.client] += len(p.tenures)
		}
	}
	slices.SortFunc(clients, historyNatural)
	slices.SortStableFunc(clients, func(a, b string) int { return cmp.Compare(weight[b], weight[a]) })
	if len(clients) > most {
		clients, hidden = clients[:most], len(clients)-most
	}
	slices.SortFunc(clients, historyNatural)
	return clients, hidden
}

// historyNatural compares names as people count: worker-2 before worker-10.
func historyNatural(a, b string) int {
	split := func(s string) (string, int) {
		head := strings.TrimRight(s, "0123456789")
		n, _ := strconv.Atoi(s[len(head):])
		return head, n
	}
	aHead, aN := split(a)
	bHead, bN := split(b)
	return cmp.Or(strings.Compare(aHead, bHead), cmp.Compare(aN, bN), strings.Compare(a, b))
}

// allClients are those of all names, in order.
func (d *historyDigest) allClients() (clients []string) {
	seen := make(map[string]bool)
	for _, t := range d.tenures {
		if !seen[t.client] {
			seen[t.client] = true
			clients = append(clients, t.client)
		}
	}
	slices.SortFunc(clients, historyNatural)
	return clients
}

// letters gives each client one that stands for it: its first if that tells all of
// them apart, else its last, else its place in the alphabet.
func (d *historyDigest) letters() map[string]rune {
	clients := d.allClients()
	first := func(s string, _ int) rune { r, _ := utf8.DecodeRuneInString(s); return r }
	last := func(s string, _ int) rune { r, _ := utf8.DecodeLastRuneInString(s); return r }
	place := func(_ string, i int) rune {
		const alphabet = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
		return rune(alphabet[i%len(alphabet)])
	}
	for _, letter := range []func(string, int) rune{first, last} {
		letters, seen := make(map[string]rune), make(map[rune]bool)
		for i, c := range clients {
			r := letter(c, i)
			if !unicode.IsLetter(r) && !unicode.IsDigit(r) || seen[r] {
				break
			}
			letters[c], seen[r] = r, true
		}
		if len(letters) == len(clients) {
			return letters
		}
	}
	letters := make(map[string]rune)
	for i, c := range clients {
		letters[c] = place(c, i)
	}
	return letters
}

// nodes are those that anything was stored on, whatever its name, and, if counted,
// those that Health counted; at most so many, and how many others there are.
func (d *historyDigest) nodes(counted bool, most int) (nodes []int, hidden int) {
	for _, s := range d.stored {
		if !slices.Contains(nodes, s.node) {
			nodes = append(nodes, s.node)
		}
	}
	all := 0
	for _, s := range d.health {
		all = max(all, s.nodes)
	}
	for n := 1; counted && n <= min(all, 1000); n++ {
		if !slices.Contains(nodes, n) {
			nodes = append(nodes, n)
		}
	}
	slices.Sort(nodes)
	shown := min(len(nodes), most)
	return nodes[:shown], len(nodes) - shown
}

// historyTicks are the moments that an axis names, at most so many, and their
// names. They are 1, 2 or 5 times a power of ten apart.
func historyTicks(end time.Duration, most int) (ticks []time.Duration, labels []string) {
	step := time.Duration(1)
	for factors := 0; end/step >= time.Duration(most); factors++ {
		if factors%3 == 1 {
			step = step / 2 * 5 // 2 becomes 5
		} else {
			step *= 2 // 1 becomes 2, 5 becomes 10
		}
	}
	unit, suffix := time.Second, "s"
	if step < time.Millisecond {
		unit, suffix = time.Millisecond, "ms"
	}
	if step < time.Microsecond {
		unit, suffix = time.Microsecond, "µs"
	}
	for t := time.Duration(0); t <= end; t += step {
		ticks = append(ticks, t)
		labels = append(labels, strconv.FormatFloat(float64(t)/float64(unit), 'f', -1, 64)+suffix)
	}
	return ticks, labels
}

// historyMore says what is left out.
func historyMore(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("and %d more %s", n, what)
}

// historyCut shortens a text to so many characters and takes out what would break
// a line.
func historyCut(s string, most int) string {
	r := []rune(s)
	for i, c := range r {
		if !unicode.IsPrint(c) {
			r[i] = '\uFFFD'
		}
	}
	if len(r) > most {
		r = append(r[:most-1], '…')
	}
	return string(r)
}

// historyLabel is a name as a label: of a long one the end, which is what differs,
// stays.
func historyLabel(s string, most int) string {
	r := []rune(historyCut(s, math.MaxInt))
	if len(r) <= most {
		return string(r)
	}
	head := (most - 1) / 2
	return string(r[:head]) + "…" + string(r[len(r)-(most-1-head):])
}

// String is one line of a list of faults. Milliseconds are enough to find them.
func (s historyStrike) String() string {
	when := fmt.Sprintf("%.3fs", s.from.Seconds())
	if s.from != s.to {
		when += fmt.Sprintf("–%.3fs", s.to.Seconds())
	}
	return when + " " + s.where + " " + s.what
}

// places are what a fault is limited to; none if that is not a node or client.
func (s historyStrike) places() (nodes []int, clients []string) {
	for part := range strings.SplitSeq(s.where, ",") {
		part = strings.TrimSpace(part)
		if rest, ok := strings.CutPrefix(part, "client "); ok {
			clients = append(clients, rest)
			continue
		}
		rest, _ := strings.CutPrefix(part, "node ")
		n, err := strconv.Atoi(rest)
		if err != nil {
			return nil, nil
		}
		nodes = append(nodes, n)
	}
	return nodes, clients
}
