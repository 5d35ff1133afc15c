package faultinject

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func svgOf(t *testing.T, h *History, title string) string {
	t.Helper()
	var b strings.Builder
	require.NoError(t, h.WriteSVG(&b, title))
	d := xml.NewDecoder(strings.NewReader(b.String()))
	for {
		_, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err, "it must be well-formed")
	}
	return b.String()
}

func TestSVGsLookAsInTestdata(t *testing.T) {
	for name, title := range map[string]string{
		"clean":      "A killed node and a client that is cut off",
		"twoholders": "A node that forgets",
		"many":       "200 attempts",
	} {
		t.Run(name, func(t *testing.T) {
			historyStory(t, func(h *History) {
				pictureStories[name](h)
				requirePicture(t, name+".svg", svgOf(t, h, title))
			})
		})
	}
}

func TestSVGSaysAtOnceWhetherThereWereTwoHolders(t *testing.T) {
	historyStory(t, func(h *History) {
		pictureClean(h)
		text := svgOf(t, h, "clean")
		assert.Contains(t, text, "✓ never two holders")
		assert.NotContains(t, text, `class="bad k"`)
	})
	historyStory(t, func(h *History) {
		pictureTwoHolders(h)
		text := svgOf(t, h, "bad")
		assert.Contains(t, text, "✗ two holders, once")
		assert.Contains(t, text, `class="bad k">two holders<`)
		assert.Contains(t, text, "acts 150ms outside of its belief")
	})
}

func TestSVGEscapesWhatItIsGiven(t *testing.T) {
	historyStory(t, func(h *History) {
		evil := "<script>\"&'\x00\xff\n]]>"
		a := h.Try(evil, evil)
		h.Stored(1, evil, evil, historyIn(time.Second))
		a.Won(evil, historyIn(time.Second))
		h.Try("b", evil).Failed(errors.New(evil))
		h.Strike("client "+evil, time.Now(), historyIn(time.Second), evil)
		time.Sleep(2 * time.Second)
		h.Health(1, 1)
		assert.NotContains(t, svgOf(t, h, evil), "<script")
	})
}

func TestSVGOfTenThousandAttemptsIsSmallerThanTwoMegabytes(t *testing.T) {
	historyStory(t, func(h *History) {
		pictureHuge(h)
		text := svgOf(t, h, "huge")
		assert.Less(t, len(text), 2_000_000)
		assert.Contains(t, text, "too many to draw all")
		assert.Contains(t, text, "and 1 more name,")
	})
	historyStory(t, func(h *History) { // and they all overlap
		for range 10_000 {
			checkWin(h, "a", time.Second)
			time.Sleep(time.Millisecond)
		}
		assert.Less(t, len(svgOf(t, h, "huge")), 2_000_000)
	})
}

func TestSVGFillsNoGapThatOneCouldSee(t *testing.T) {
	historyStory(t, func(h *History) {
		pictureHuge(h)
		p := svgPicture{d: h.digest(), grain: 20}
		var bars []svgBar
		for _, x := range p.d.tenures {
			bars = append(bars, svgBar{from: x.tried, to: x.answered, class: x.client})
		}
		n := 0
		for _, m := range p.merged(bars) {
			n += m.n
			var last time.Duration
			for _, b := range bars {
				if b.from < m.from || b.from > m.to || b.class != m.class {
					continue
				}
				if last != 0 {
					assert.Less(t, p.x(b.from)-p.x(last), 1.0)
				}
				last = max(last, b.to)
			}
		}
		assert.Equal(t, len(bars), n, "and each bar is counted")
	})
}

func TestSVGLabelsDoNotOverlap(t *testing.T) {
	labels := svgLabels{size: 11, gap: 10}
	for i := range 200 {
		labels.add(svgLeft+svgPlot*float64(i*i)/40000, "100")
	}
	n := 0
	for i, l := range labels.all {
		n += l.n
		assert.GreaterOrEqual(t, l.x-labels.width(l)/2, float64(svgLeft))
		assert.LessOrEqual(t, l.x+labels.width(l)/2, float64(svgWidth))
		if i > 0 {
			before := labels.all[i-1]
			assert.GreaterOrEqual(t, l.x-labels.width(l)/2, before.x+labels.width(before)/2)
		}
	}
	assert.Equal(t, 200, n)
	assert.Greater(t, len(labels.all), 10)
}

func TestSVGErrorIsTheWriters(t *testing.T) {
	reader, writer := io.Pipe()
	require.NoError(t, reader.Close())
	assert.ErrorIs(t, NewHistory().WriteSVG(writer, "nowhere"), io.ErrClosedPipe)
}
