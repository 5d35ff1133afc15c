package faultinject

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// A svgFrame is where a panel's lanes are.
type svgFrame struct {
	historyPanel
	top, bottom float64 // of all lanes
	clientY     map[string]float64
	nodeY       map[int]float64
}

// panel draws one name, from back to front: grid, faults, bars, overlaps, marks.
func (p *svgPicture) panel(panel historyPanel) {
	p.text(16, p.y+16, "h2", historyCut(fmt.Sprintf("lock %q", panel.name), 70))
	counts := fmt.Sprintf("%s, %d acquired", historyAttempts(len(panel.tenures)), panel.acquired)
	p.text(svgWidth-24, p.y+16, "s e", counts)
	p.y += 26
	if len(panel.overlaps) > 0 {
		p.y += 16 // for the words
	}
	f := svgFrame{historyPanel: panel, top: p.y, clientY: make(map[string]float64), nodeY: make(map[int]float64)}
	for _, c := range panel.clients {
		f.clientY[c] = p.y
		p.y += svgClient
	}
	p.y += 6
	for _, n := range p.nodes {
		f.nodeY[n] = p.y
		p.y += svgNode
	}
	f.bottom = p.y
	p.frame(f)
	p.faults(f)
	for _, c := range panel.clients {
		p.tries(f, c)
		p.beliefs(f, c)
	}
	p.segments(f)
	p.overlaps(f)
	for _, c := range panel.clients {
		p.marks(f, c)
	}
	p.faultNumbers(f)
	if panel.hidden > 0 {
		p.text(svgLeft, p.y+14, "s", historyMore(panel.hidden, "client")+", less lucky")
		p.y += 18
	}
	if p.hiddenNodes > 0 {
		p.text(svgLeft, p.y+14, "s", historyMore(p.hiddenNodes, "node"))
		p.y += 18
	}
	p.y += 12
}

// frame draws grid and labels.
func (p *svgPicture) frame(f svgFrame) {
	fmt.Fprintf(&p.b, `<rect x="%d" y="%s" width="%d" height="%s" fill="#fafafa"/>`+"\n",
		svgLeft, svgNum(f.top), svgPlot, svgNum(f.bottom-f.top))
	for _, t := range p.ticks {
		p.line("g", p.x(t), f.top, p.x(t), f.bottom)
	}
	for _, c := range f.clients {
		y := f.clientY[c]
		p.line("g", svgLeft, y+svgClient, svgLeft+svgPlot, y+svgClient)
		fmt.Fprintf(&p.b, `<rect class="c%d" x="16" y="%s" width="10" height="10" rx="2"/>`+"\n",
			p.colours[c], svgNum(y+9))
		label := "client " + c
		if len([]rune(label)) > 13 {
			label = historyLabel(c, 13)
		}
		p.text(32, y+18, "", label)
	}
	for _, n := range p.nodes {
		p.line("g", svgLeft, f.nodeY[n]+svgNode, svgLeft+svgPlot, f.nodeY[n]+svgNode)
		p.text(32, f.nodeY[n]+12.5, "s", fmt.Sprintf("node %d", n))
	}
}

// A svgBar is something that lasts.
type svgBar struct {
	from, to time.Duration
	class    string
	tip      func() string // most are never asked for
	label    string
	n        int           // things in it
	end      time.Duration // of them; later than to if some are left out
}

// ink is the class of what is written on it: white, but black on light colours.
func (b svgBar) ink() string {
	if slices.Contains([]string{"c1", "c3", "c4"}, b.class) {
		return "id"
	}
	return "in"
}

// merged joins bars that are too narrow or too close to be told apart. They must
// be in order of from. Where all the bars would be too many it leaves narrow ones
// out: what is drawn must be true where it is drawn, so a bar grows over no gap
// that one could see, and over none of another colour. Filling the gaps between
// two clients' turns would show two holders where there are none.
func (p *svgPicture) merged(bars []svgBar) (merged []svgBar) {
	for _, b := range bars {
		b.end, b.n = b.to, 1
		if n := len(merged); n > 0 {
			last := &merged[n-1]
			gap := p.x(b.from) - p.x(last.to)
			narrow := min(p.x(b.to)-p.x(b.from), p.x(last.to)-p.x(last.from)) < 2*p.grain
			if gap < 1 && narrow && b.class == last.class {
				last.to, last.end, last.n = max(last.to, b.to), max(last.end, b.to), last.n+1
				continue
			}
			if gap < p.grain && narrow && p.x(b.to)-p.x(last.from) < 2*p.grain {
				last.end, last.n = max(last.end, b.to), last.n+1
				continue
			}
		}
		merged = append(merged, b)
	}
	return merged
}

func (p *svgPicture) bars(bars []svgBar, y, height float64) []svgBar {
	bars = p.merged(bars)
	for _, b := range bars {
		tip := b.tip
		if b.n > 1 {
			tip = func() string {
				return fmt.Sprintf("%d of them, %s–%s", b.n, historyTime(b.from), historyTime(b.end))
			}
		}
		p.rect(b.class, p.x(b.from), y, max(1, p.x(b.to)-p.x(b.from)), height, tip)
	}
	return bars
}

func (p *svgPicture) tries(f svgFrame, client string) {
	var bars []svgBar
	for _, t := range f.tenures {
		if t.client != client {
			continue
		}
		tip := func() string {
			what := "tries"
			switch {
			case t.failed && t.failErr != nil:
				what = "tries and fails: " + historyCut(t.failErr.Error(), 80)
			case t.won:
				what = "tries and wins"
			}
			return fmt.Sprintf("%s %s, %s–%s", client, what, historyTime(t.tried), historyTime(t.answered))
		}
		class := fmt.Sprintf("t c%d", p.colours[client])
		bars = append(bars, svgBar{from: t.tried, to: t.answered, class: class, tip: tip})
	}
	p.bars(bars, f.clientY[client]+10, 8)
}

// beliefs draws when a client believed, and from the end of a belief that ended
// early a thin line to where it could have lasted, or to the client's next try: a
// rest's n says which.
func (p *svgPicture) beliefs(f svgFrame, client string) {
	var bars, rests []svgBar
	for _, t := range f.tenures {
		if t.client != client {
			continue
		}
		if n := len(rests); n > 0 && rests[n-1].to > t.tried {
			rests[n-1].to, rests[n-1].n = t.tried, 1
		}
		for _, s := range t.spans {
			tip := func() string {
				tip := fmt.Sprintf("%v, time until %s", s, historyTime(t.until))
				for _, n := range t.fences {
					tip += fmt.Sprintf(", fence %d", n)
				}
				return tip
			}
			class := fmt.Sprintf("c%d", p.colours[client])
			bars = append(bars, svgBar{from: s.from, to: s.to, class: class, tip: tip})
			if t.until > s.to {
				rests = append(rests, svgBar{from: s.to, to: t.until})
			}
		}
	}
	y := f.clientY[client] + 14
	for _, r := range rests {
		stop := "m0-4v8"
		if r.n > 0 || r.to > p.d.end {
			stop = "" // it is cut off, not over
		}
		if w := p.x(r.to) - p.x(r.from); w > 6*p.grain {
			fmt.Fprintf(&p.b, `<path class="w w%d" d="M%s %sh%s%s"/>`+"\n",
				p.colours[client], svgNum(p.x(r.from)), svgNum(y), svgNum(w), stop)
		}
	}
	slices.SortStableFunc(bars, func(a, b svgBar) int { return cmp.Compare(a.from, b.from) })
	p.bars(bars, y-8, 16)
}

// marks draws moments over everything else. Those that would hide each other are
// one.
func (p *svgPicture) marks(f svgFrame, client string) {
	y := f.clientY[client] + svgClient/2
	type mark struct {
		class string
		at    time.Duration
		tip   string
	}
	var marks []mark
	for _, t := range f.tenures {
		if t.client != client {
			continue
		}
		if t.failed {
			marks = append(marks, mark{"x", t.answered, client + " fails"})
		}
		if t.lost != historyNever {
			marks = append(marks, mark{"l", t.lost, client + " is told that its lease is lost"})
		}
		for _, at := range t.acts {
			switch late := t.late(at); {
			case late == 0 && p.x(t.spans[0].to)-p.x(t.spans[0].from) < 10:
				// It would hide the belief that it is in.
			case late == 0:
				marks = append(marks, mark{"a", at, client + " acts"})
			case late == historyForever:
				marks = append(marks, mark{"la", at, client + " acts and never held it"})
			default:
				marks = append(marks, mark{"la", at, fmt.Sprintf("%s acts %v outside of its belief", client, late.Abs())})
			}
		}
	}
	slices.SortStableFunc(marks, func(a, b mark) int { return cmp.Compare(a.at, b.at) })
	last := make(map[string]float64)
	for _, m := range marks {
		x := p.x(m.at)
		if before, ok := last[m.class]; ok && x-before < 6*p.grain {
			continue
		}
		last[m.class] = x
		if p.terse {
			p.b.WriteString(svgSign(m.class, x, y) + "\n")
			continue
		}
		fmt.Fprintf(&p.b, "<g><title>%s</title>%s</g>\n",
			svgEscape(m.tip+" at "+historyTime(m.at)), svgSign(m.class, x, y))
	}
}

// segments draws what the nodes stored, with the client's name where there is room.
func (p *svgPicture) segments(f svgFrame) {
	owners := p.d.owners(f.name)
	for _, n := range p.nodes {
		var bars []svgBar
		for _, s := range p.d.stored {
			if s.node != n || s.name != f.name {
				continue
			}
			class, whose, label := "u", "a token that never won", ""
			if t := owners[s.value]; t != nil {
				class, label = fmt.Sprintf("c%d", p.colours[t.client]), historyLabel(t.client, 16)
				whose = "the token of " + t.client
			}
			tip := func() string {
				return fmt.Sprintf("node %d stores %s (%s), %s–%s",
					n, whose, checkToken(s.value), historyTime(s.from), historyTime(s.to))
			}
			bars = append(bars, svgBar{from: s.from, to: s.to, class: class, tip: tip, label: label})
		}
		for _, b := range p.bars(bars, f.nodeY[n]+3, 12) {
			if w := p.x(b.to) - p.x(b.from); b.label != "" && b.n == 1 && svgTextWidth(b.label, 10) < w-8 {
				p.text(p.x(b.from)+5, f.nodeY[n]+12.8, b.ink(), b.label)
			}
		}
	}
}

// overlaps hatches both lanes and what is between them, up to the words.
func (p *svgPicture) overlaps(f svgFrame) {
	words := svgLabels{size: 11, gap: 6}
	var bars []svgBar
	for _, pair := range f.overlaps {
		from, to := pair[1].from, min(pair[0].to, pair[1].to)
		words.add(min(p.x(from)+p.x(to), 2*(svgLeft+svgPlot))/2, "two holders")
		tip := func() string { return fmt.Sprintf("two holders: %v, and %v", pair[0], pair[1]) }
		if n := len(bars); n > 0 && from <= bars[n-1].to {
			bars[n-1].to = max(bars[n-1].to, to)
		} else {
			bars = append(bars, svgBar{from: from, to: to, class: "o", tip: tip})
		}
		above, below := f.clientY[pair[0].of.client], f.clientY[pair[1].of.client]
		if above == 0 || below == 0 { // of a client that is not shown
			above, below = f.top, f.top
		}
		if len(f.overlaps) <= 200 {
			top, bottom := min(above, below), max(above, below)+svgClient
			p.rect("o", p.x(from), top, max(3, p.x(to)-p.x(from)), bottom-top, tip)
		}
	}
	if len(f.overlaps) > 200 { // too many to show whose each is: only when
		p.bars(bars, f.top, float64(svgClient*len(f.clients)))
	}
	for _, l := range words.all {
		text := l.first
		if l.n > 1 {
			text = fmt.Sprintf("two holders ×%d", l.n)
		}
		p.text(l.x, f.top-5, "bad k", text)
	}
}
