package faultinject

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// Measures of the picture, in pixels.
const (
	svgWidth   = 1200
	svgLeft    = 130 // of the plot: labels stand there
	svgPlot    = 1046
	svgClient  = 28 // height of a lane
	svgNode    = 18
	svgPanels  = 8
	svgClients = 12
	svgNodes   = 15
	svgFaults  = 40      // that are listed
	svgBytes   = 3 << 19 // a longer picture is drawn again with a coarser grain
)

// WriteSVG draws the history as one self-contained SVG, 1200 pixels wide: a panel
// per name, in it a lane per client (pale while it tries, solid while it believes
// to hold) over a lane per node (in the colour of the client whose token is
// stored), shaded bands where faults struck, and red hatching where two clients
// believed to hold the name. Tooltips have the exact times. Eight names are drawn,
// those with two holders first; what is left out is said. What is narrower than a
// pixel is merged with its neighbours, and a picture that would be too large (2 MB)
// goes without tooltips and then without the narrowest things. The error is w's.
func (h *History) WriteSVG(w io.Writer, title string) error {
	d := h.digest()
	p := svgPicture{d: d, title: title, summary: h.Summary().String(), grain: 1}
	for p.draw(); p.b.Len() > svgBytes && p.grain < 64; p.draw() {
		if p.terse {
			p.grain *= max(1.5, float64(p.b.Len())/svgBytes)
		}
		p.terse = true
	}
	_, err := w.Write(p.b.Bytes())
	return err
}

// svgPicture is a drawing in the making.
type svgPicture struct {
	d              *historyDigest
	title, summary string
	terse          bool    // without most of the tooltips, which are two thirds of a picture
	grain          float64 // what is closer together than this becomes one
	b              bytes.Buffer
	colours        map[string]int
	panels         []historyPanel
	nodes          []int
	hiddenNodes    int
	ticks          []time.Duration
	labels         []string
	y              float64 // where the next thing goes
}

// svgColours are those of Okabe and Ito, which the colour-blind can tell apart,
// without the vermilion, which faults have, and with grey for black.
var svgColours = []string{"#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#8A7A00", "#555555"}

func (p *svgPicture) draw() {
	p.b.Reset()
	p.colours = make(map[string]int)
	for i, c := range p.d.allClients() {
		p.colours[c] = i % len(svgColours)
	}
	var hidden int
	p.panels, hidden = p.d.panels(svgPanels, svgClients)
	p.nodes, p.hiddenNodes = p.d.nodes(true, svgNodes)
	p.ticks, p.labels = historyTicks(p.d.end, 11)

	// The body first: only then is the height known.
	p.y = 0
	p.header()
	p.axis(p.y - 6)
	for i, panel := range p.panels {
		if i == 0 && svgTextWidth(strconv.Quote(panel.name), 13) < 340 {
			p.text(svgLeft+svgPlot/2, p.y+16, "s k",
				"above: what each client believes · below: whose token each node stores")
		}
		p.panel(panel)
	}
	if len(p.panels) == 0 {
		p.text(svgLeft, p.y+20, "m", "nobody tried for a lock")
		p.y += 40
	} else {
		p.axis(p.y + 6)
		p.y += 26
	}
	if hidden > 0 {
		p.text(svgLeft, p.y, "m", historyMore(hidden, "name")+", less interesting")
		p.y += 20
	}
	p.faultList()
	body := bytes.Clone(p.b.Bytes())

	p.b.Reset()
	height := strconv.Itoa(int(p.y + 12))
	fmt.Fprintf(&p.b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%s" viewBox="0 0 %[1]d %[2]s">`+"\n",
		svgWidth, height)
	p.b.WriteString("<style>\n" + svgStyle)
	for i, c := range svgColours {
		fmt.Fprintf(&p.b, ".c%d{fill:%s}.w%d{stroke:%s}\n", i, c, i, c)
	}
	p.b.WriteString("</style>\n" + svgDefs)
	fmt.Fprintf(&p.b, `<rect width="%d" height="%s" fill="#fff"/>`+"\n", svgWidth, height)
	p.b.Write(body)
	p.b.WriteString("</svg>\n")
}

const svgStyle = `text{font-family:ui-sans-serif,system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",Arial,sans-serif}
text{font-size:12px;fill:#222}
.h1{font-size:18px;font-weight:700}.h2{font-size:13px;font-weight:700}.m{fill:#666}.s{font-size:11px;fill:#555}
.ok{fill:#00704F;font-weight:700}.bad{fill:#C4001A;font-weight:700}
.e{text-anchor:end}.k{text-anchor:middle}.b{font-weight:700;fill:#B34A00}
.in{font-size:10px;fill:#fff;font-weight:700}.id{font-size:10px;font-weight:700}
.n{font-size:9px;text-anchor:middle;fill:#fff;font-weight:700}
.t{fill-opacity:.3}.g{stroke:#e4e4e4}.f{fill:#D55E00;fill-opacity:.2}.fl{stroke:#D55E00;stroke-width:1.5}
.fd{stroke:#D55E00;stroke-dasharray:1 3}.fn{fill:#B34A00}.u{fill:url(#u)}
.o{fill:url(#o);stroke:#C4001A;stroke-width:1.5}
.w{stroke-width:1.2;stroke-opacity:.5;fill:none}.x{stroke:#444;stroke-width:1.4;fill:none}
.a{fill:#fff;stroke:#222}.la{fill:#C4001A;stroke:#fff}.l{fill:#fff;stroke:#C4001A;stroke-width:2}
`

const svgDefs = `<defs>` +
	`<pattern id="u" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">` +
	`<rect width="5" height="5" fill="#ddd"/><rect width="2" height="5" fill="#999"/></pattern>` +
	`<pattern id="o" width="9" height="9" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">` +
	`<rect width="9" height="9" fill="#C4001A" fill-opacity=".12"/>` +
	`<rect width="4" height="9" fill="#C4001A" fill-opacity=".75"/></pattern></defs>
`

// header is the title, the verdict, the counts, and the legend.
func (p *svgPicture) header() {
	p.text(16, 30, "h1", historyCut(p.title, 100))
	overlaps := 0
	for _, name := range p.d.names {
		overlaps += len(p.d.overlaps(name))
	}
	class, verdict := "ok", "✓ never two holders"
	if overlaps > 0 {
		class, verdict = "bad", fmt.Sprintf("✗ two holders, %s", svgTimes(overlaps))
	}
	p.text(16, 52, class, verdict)
	counts := fmt.Sprintf("%s in %.3fs", p.summary, p.d.end.Seconds())
	if p.grain > 1 {
		counts += fmt.Sprintf("; too many to draw all that are shorter than %.0f ms",
			2*p.grain*p.d.end.Seconds()*1000/svgPlot)
	}
	p.text(26+svgTextWidth(verdict, 13), 52, "m", counts)
	p.legend(66)
	p.y = 118
}

func svgTimes(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

// legend shows each sign beside its name.
func (p *svgPicture) legend(y float64) {
	x := 16.0
	for _, s := range []struct{ sign, name string }{
		{`<rect class="t c0" y="4" width="22" height="8"/>`, "tries"},
		{`<rect class="c0" width="22" height="16" rx="2"/>`, "believes to hold"},
		{`<path class="w w0" d="M0 8h22m0-4v8"/>`, "could have lasted"},
		{svgSign("a", 11, 8), "acts"},
		{svgSign("la", 11, 8), "acts too late"},
		{svgSign("x", 11, 8), "fails"},
		{svgSign("l", 11, 8), "told of the loss"},
		{`<rect class="u" y="3" width="22" height="10"/>`, "token of nobody"},
		{`<rect class="f" width="22" height="16"/>`, "fault"},
		{`<rect class="o" width="22" height="16"/>`, "two holders"},
	} {
		fmt.Fprintf(&p.b, `<g transform="translate(%s %s)">%s</g>`+"\n", svgNum(x), svgNum(y), s.sign)
		p.text(x+28, y+12, "s", s.name)
		x += 42 + svgTextWidth(s.name, 11)
	}
}

// svgSign is the mark of a moment: a for an act, la for one that is late, x for a
// failure, l for a loss.
func svgSign(class string, x, y float64) string {
	switch class {
	case "x":
		return fmt.Sprintf(`<path class="x" d="M%s %sl5 5m0-5l-5 5"/>`, svgNum(x-2.5), svgNum(y-2.5))
	case "l":
		return fmt.Sprintf(`<path class="l" d="M%s %sl5 5l-5 5l-5-5z"/>`, svgNum(x), svgNum(y-5))
	}
	return fmt.Sprintf(`<circle class="%s" cx="%s" cy="%s" r="%s"/>`, class, svgNum(x), svgNum(y),
		map[string]string{"a": "2.5", "la": "4.5"}[class])
}

// axis writes the ticks' names at a height.
func (p *svgPicture) axis(y float64) {
	for i, t := range p.ticks {
		p.text(p.x(t), y, "s k", p.labels[i])
	}
}

// faultList is the key to the numbers, in two columns.
func (p *svgPicture) faultList() {
	all := p.d.strikes
	if len(all) == 0 {
		return
	}
	p.y += 8
	p.text(16, p.y, "h2", "Faults")
	p.y += 18
	shown := min(len(all), svgFaults)
	rows := (shown + 1) / 2
	for i, s := range all[:shown] {
		x, y := 16+float64(i/rows)*592, p.y+float64(i%rows)*17
		p.text(x+18, y, "s e b", fmt.Sprint(i+1))
		p.text(x+26, y, "s", historyCut(s.String(), 86))
	}
	p.y += float64(rows) * 17
	if more := len(all) - shown; more > 0 {
		p.text(16, p.y, "s", historyMore(more, "fault"))
		p.y += 17
	}
}

// x is the place of a moment.
func (p *svgPicture) x(at time.Duration) float64 {
	end := max(1, p.d.end)
	return svgLeft + svgPlot*float64(min(max(0, at), end))/float64(end)
}

func (p *svgPicture) text(x, y float64, class, s string) {
	fmt.Fprintf(&p.b, `<text x="%s" y="%s" class="%s">%s</text>`+"\n", svgNum(x), svgNum(y), class, svgEscape(s))
}

func (p *svgPicture) line(class string, x1, y1, x2, y2 float64) {
	fmt.Fprintf(&p.b, `<line class="%s" x1="%s" y1="%s" x2="%s" y2="%s"/>`+"\n",
		class, svgNum(x1), svgNum(y1), svgNum(x2), svgNum(y2))
}

// rect draws a bar with a tooltip. Wide ones have round corners, so that two that
// touch stay two.
func (p *svgPicture) rect(class string, x, y, w, h float64, tip func() string) {
	rx := ""
	if w > 5 && h < svgClient {
		rx = ` rx="2"`
	}
	fmt.Fprintf(&p.b, `<rect class="%s" x="%s" y="%s" width="%s" height="%s"%s`,
		class, svgNum(x), svgNum(y), svgNum(w), svgNum(h), rx)
	if p.terse && class != "o" {
		p.b.WriteString("/>\n")
		return
	}
	p.b.WriteString("><title>" + svgEscape(tip()) + "</title></rect>\n")
}

// svgNum writes a measure to a tenth of a pixel.
func svgNum(x float64) string {
	return strings.TrimSuffix(strconv.FormatFloat(x, 'f', 1, 64), ".0")
}

// svgTextWidth is about how wide a text is. It errs on the wide side, because the
// reader's font is not known.
func svgTextWidth(s string, size float64) float64 { return float64(len([]rune(s))) * size * 0.58 }

func svgEscape(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // a strings.Builder does not fail
	return b.String()
}
