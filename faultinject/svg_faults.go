package faultinject

import (
	"fmt"
	"slices"
	"time"
)

// svgLabels are texts in a row that must not overlap. Those that would become one.
// They are added in order of x, which is where their middle goes.
type svgLabels struct {
	size, gap float64
	all       []svgLabel
}

type svgLabel struct {
	x           float64
	first, last string
	n           int
}

// width leaves room for what is written when there are several.
func (s *svgLabels) width(l svgLabel) float64 {
	if l.n > 1 {
		return svgTextWidth(l.first+"–"+l.last, s.size)
	}
	return svgTextWidth(l.first, s.size)
}

func (s *svgLabels) add(x float64, text string) {
	next := svgLabel{s.within(x, svgTextWidth(text, s.size)), text, text, 1}
	for n := len(s.all); n > 0; n = len(s.all) {
		before := s.all[n-1]
		if next.x-s.width(next)/2-(before.x+s.width(before)/2) >= s.gap {
			break
		}
		// Being wider, the two may touch the one before: look again.
		next = svgLabel{before.x, before.first, next.last, before.n + next.n}
		next.x = s.within(next.x, s.width(next))
		s.all = s.all[:n-1]
	}
	s.all = append(s.all, next)
}

// within moves a label into the picture.
func (s *svgLabels) within(x, width float64) float64 {
	return min(max(x, svgLeft+width/2), svgLeft+svgPlot+8-width/2)
}

// faults shades the lanes of each fault's place, or all of them, and draws a line
// where each begins. Faults of one place that overlap share one shade: several
// would add up to a colour that hides what they struck.
func (p *svgPicture) faults(f svgFrame) {
	shades, begins := make(map[string][]svgBar), make(map[string][]time.Duration)
	var places []string
	for i, s := range p.d.strikes {
		if begins[s.where] == nil {
			places = append(places, s.where)
		}
		begins[s.where] = append(begins[s.where], s.from)
		if n := len(shades[s.where]); n > 0 && s.from <= shades[s.where][n-1].to {
			last := &shades[s.where][n-1]
			first := last.label
			last.to = max(last.to, s.to)
			last.tip = func() string { return fmt.Sprintf("%s … %d: %v", first, i+1, s) }
			continue
		}
		first := fmt.Sprintf("%d: %v", i+1, s)
		shade := svgBar{from: s.from, to: s.to, class: "f", label: first, tip: func() string { return first }}
		shades[s.where] = append(shades[s.where], shade)
	}
	for _, place := range places {
		for _, lane := range p.lanes(f, place) {
			p.bars(shades[place], lane[0], lane[1]-lane[0])
			last := 0.0
			for _, at := range begins[place] {
				if x := p.x(at); x-last >= 3*p.grain {
					p.line("fl", x, lane[0], x, lane[1])
					last = x
				}
			}
		}
	}
}

// lanes are the top and bottom of where a fault struck. One that struck a client
// that never tried this name struck nothing here.
func (p *svgPicture) lanes(f svgFrame, where string) (lanes [][2]float64) {
	nodes, clients := historyStrike{where: where}.places()
	if len(nodes)+len(clients) == 0 {
		return [][2]float64{{f.top, f.bottom}}
	}
	for _, n := range nodes {
		if y, ok := f.nodeY[n]; ok {
			lanes = append(lanes, [2]float64{y, y + svgNode})
		}
	}
	for _, c := range clients {
		if y, ok := f.clientY[c]; ok {
			lanes = append(lanes, [2]float64{y, y + svgClient})
		}
	}
	return lanes
}

// faultNumbers writes the numbers of the list below the lanes, and draws a thin
// line from each to the lane.
func (p *svgPicture) faultNumbers(f svgFrame) {
	labels := svgLabels{size: 11, gap: 10}
	for i, s := range p.d.strikes {
		lanes := p.lanes(f, s.where)
		if len(lanes) == 0 {
			continue
		}
		labels.add(p.x(s.from), fmt.Sprint(i+1))
		lowest := slices.MaxFunc(lanes, func(a, b [2]float64) int { return int(a[1] - b[1]) })
		if len(p.d.strikes) <= svgFaults {
			p.line("fd", p.x(s.from), lowest[1], p.x(s.from), f.bottom+4)
		}
	}
	if len(labels.all) == 0 {
		return
	}
	for _, l := range labels.all {
		text := l.first
		if l.n > 1 {
			text += "–" + l.last
		}
		w := max(14, labels.width(l)+6)
		fmt.Fprintf(&p.b, `<rect class="fn" x="%s" y="%s" width="%s" height="13" rx="6.5"/>`+"\n",
			svgNum(l.x-w/2), svgNum(f.bottom+4), svgNum(w))
		p.text(l.x, f.bottom+13.8, "n", text)
	}
	p.text(32, f.bottom+14, "s", "faults")
	p.y += 20
}
