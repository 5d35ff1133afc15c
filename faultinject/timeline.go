package faultinject

import (
	"fmt"
	"maps"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

const (
	timelineLabel  = 14 // columns
	timelineCells  = 94
	timelineWidth  = timelineLabel + 1 + timelineCells
	timelineBlocks = 6
	timelineRows   = 16 // of clients, of nodes, and of places of faults each
	timelineList   = 30 // faults
)

// String draws the history for a log: at most 110 columns, per name one row for
// each client, one for each node that stored something, and one for each place at
// which a fault struck. A legend and the list of faults come last. Six names are
// drawn, those with two holders first; what is left out is said.
func (h *History) String() string {
	t := timeline{d: h.digest()}
	if len(t.d.tenures) == 0 {
		t.b.WriteString("history: nobody tried for a lock\n")
		t.listFaults()
		return t.b.String()
	}
	t.letters = t.d.letters()
	panels, hidden := t.d.panels(timelineBlocks, timelineRows)
	fmt.Fprintf(&t.b, "history of %s: %v\n", historyTime(t.d.end), h.Summary())
	for _, p := range panels {
		t.block(p)
	}
	if hidden > 0 {
		t.b.WriteString("\n" + historyMore(hidden, "name") + ", less interesting\n")
	}
	t.legend()
	return t.b.String()
}

// timeline is a drawing in the making.
type timeline struct {
	d       *historyDigest
	letters map[string]rune
	b       strings.Builder
}

func (t *timeline) block(p historyPanel) {
	fmt.Fprintf(&t.b, "\n%s: %s, %d acquired\n",
		historyCut(strconv.Quote(p.name), 60), historyAttempts(len(p.tenures)), p.acquired)
	t.axis()
	for _, c := range p.clients {
		label := historyLabel(c, timelineLabel)
		if letter := string(t.letters[c]); letter != c {
			label = historyLabel(c, timelineLabel-4) + " (" + letter + ")"
		}
		t.row(label, t.client(p, c))
	}
	if p.hidden > 0 {
		t.b.WriteString(historyMore(p.hidden, "client") + ", less lucky\n")
	}
	if len(p.overlaps) > 0 {
		row := timelineRow()
		for _, pair := range p.overlaps {
			t.paint(row, pair[1].from, min(pair[0].to, pair[1].to), '!')
		}
		t.row("TWO HOLDERS", row)
	}
	owners := t.d.owners(p.name)
	nodes, hidden := t.d.nodes(false, timelineRows)
	for _, n := range nodes {
		t.row(fmt.Sprintf("node %d", n), t.node(p.name, n, owners))
	}
	if hidden > 0 {
		t.b.WriteString(historyMore(hidden, "node") + "\n")
	}
	t.faults()
}

func timelineRow() []rune { return []rune(strings.Repeat(" ", timelineCells)) }

// row writes a line without what is blank at its end.
func (t *timeline) row(label string, cells []rune) {
	pad := strings.Repeat(" ", max(0, timelineLabel-utf8.RuneCountInString(label)))
	t.b.WriteString(strings.TrimRight(label+pad+" "+string(cells), " ") + "\n")
}

// axis has the names of the ticks above the ticks. Ten columns are enough for one.
func (t *timeline) axis() {
	ticks, labels := historyTicks(t.d.end, timelineCells/10)
	names, line := timelineRow(), []rune(strings.Repeat("-", timelineCells))
	for i, at := range ticks {
		c := t.cell(at)
		line[c] = '|'
		if c+utf8.RuneCountInString(labels[i]) <= timelineCells {
			copy(names[c:], []rune(labels[i]))
		}
	}
	t.row("", names)
	t.row("", line)
}

// cell is the column of a moment.
func (t *timeline) cell(at time.Duration) int {
	return timelineScale(at, t.d.end, timelineCells, false)
}

// cells are the first and last column of a stretch of time. It ends before the
// moment at which the next one begins.
func (t *timeline) cells(from, to time.Duration) (first, last int) {
	first = t.cell(from)
	return first, max(first, timelineScale(to, t.d.end, timelineCells, true)-1)
}

// timelineScale is ⌊at·n/end⌋, or ⌈⌉, held between 0 and n-1, or n. In integers,
// because a picture must not depend on how a machine rounds.
func timelineScale(at, end time.Duration, n int, up bool) int {
	at, end = max(0, at), max(1, end)
	if at >= end {
		return n - historyCount(!up)
	}
	hi, lo := bits.Mul64(uint64(at), uint64(n))
	c, rest := bits.Div64(hi, lo, uint64(end))
	return int(c) + historyCount(up && rest > 0)
}

func (t *timeline) paint(row []rune, from, to time.Duration, r rune) {
	first, last := t.cells(from, to)
	for c := first; c <= last; c++ {
		row[c] = r
	}
}

// client draws what cannot hide anything first, and beliefs over that.
func (t *timeline) client(p historyPanel, client string) []rune {
	row := timelineRow()
	for _, x := range p.tenures {
		if x.client == client {
			t.paint(row, x.tried, x.answered, '·')
		}
	}
	for _, x := range p.tenures {
		if x.client == client && x.failed {
			row[t.cell(x.answered)] = 'x'
		}
	}
	for _, x := range p.tenures {
		if x.client != client {
			continue
		}
		for _, s := range x.spans {
			t.paint(row, s.from, s.to, '█')
			// A belief of one column must stay one to see.
			if first, last := t.cells(s.from, s.to); last > first && s.to <= t.d.end {
				row[last] = map[historyKind]rune{historyWon: '|', historyLost: 'L', historyRelease: 'R'}[s.why]
			}
		}
	}
	for _, x := range p.tenures {
		if x.client != client {
			continue
		}
		for _, at := range x.acts {
			c := t.cell(at)
			switch {
			case x.late(at) != 0:
				row[c] = '*'
			case c > 0 && row[c] == '█' && row[c-1] == '█': // a bar of stars is no bar
				row[c] = '*'
			}
		}
	}
	return row
}

// node draws in each column what was stored for the longest part of it. What is
// somebody's goes before what is nobody's.
func (t *timeline) node(name string, node int, owners map[string]*historyTenure) []rune {
	row := timelineRow()
	best := make([]time.Duration, timelineCells)
	for _, s := range t.d.stored {
		if s.node != node || s.name != name {
			continue
		}
		r := '?'
		if x := owners[s.value]; x != nil {
			r = t.letters[x.client]
		}
		first, last := t.cells(s.from, s.to)
		for c := first; c <= last; c++ {
			begin := t.d.end / timelineCells * time.Duration(c)
			share := min(s.to, begin+t.d.end/timelineCells) - max(s.from, begin)
			same := (row[c] == '?') == (r == '?')
			if row[c] == ' ' || same && share > best[c] || row[c] == '?' && r != '?' {
				row[c], best[c] = r, share
			}
		}
	}
	return row
}

// faults draws a row per place. The number of a fault stands where it begins, if
// there is room, behind its first character.
func (t *timeline) faults() {
	seen := make(map[string]bool)
	for _, s := range t.d.strikes {
		seen[s.where] = true
	}
	places := slices.SortedFunc(maps.Keys(seen), historyNatural)
	for i, place := range places {
		if i == timelineRows {
			t.b.WriteString(historyMore(len(places)-i, "place") + " with faults\n")
			break
		}
		row := timelineRow()
		for _, s := range t.d.strikes {
			switch {
			case s.where != place:
			case s.from == s.to:
				row[t.cell(s.from)] = '^'
			default:
				t.paint(row, s.from, s.to, '~')
			}
		}
		free := 0
		for n, s := range t.d.strikes {
			number := []rune(fmt.Sprint(n + 1))
			c := t.cell(s.from) + 1
			if s.where == place && c >= free && c+len(number) <= timelineCells && timelineFits(row[c:c+len(number)]) {
				copy(row[c:], number)
				free = c + len(number)
			}
		}
		t.row("! "+historyLabel(place, timelineLabel-2), row)
	}
}

// timelineFits tells whether a number may stand here: it must not hide a moment.
func timelineFits(cells []rune) bool { return !slices.Contains(cells, '^') }

func (t *timeline) legend() {
	t.b.WriteString("\n· trying   █ believes to hold   * acts   R releases   L is told of the loss   " +
		"| time is over   x fails\n" +
		"on nodes: the letter of the client whose token is stored, ? a token that never won   " +
		"faults: ~ span  ^ moment\n")
	t.listFaults()
}

// listFaults has a line for each fault, up to some.
func (t *timeline) listFaults() {
	for i, s := range t.d.strikes {
		if i == timelineList {
			t.b.WriteString(historyMore(len(t.d.strikes)-i, "fault") + "\n")
			break
		}
		t.b.WriteString(historyCut(fmt.Sprintf("%d: %v", i+1, s), timelineWidth) + "\n")
	}
}
