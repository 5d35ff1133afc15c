package faultinject

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestOrphansTellsWhatStaysOnNodes(t *testing.T) {
	const s = time.Second
	check := func(h *History) error { return Orphans(h, s) }
	end := func(h *History, d time.Duration) { time.Sleep(d); h.Health(3, 3) }
	// left is a lease that is on node 2 for a minute whatever happens.
	left := func(h *History) *Attempt {
		a := h.Try("a", "x")
		h.Stored(2, "x", "token-of-a", historyIn(60*s))
		a.Won("token-of-a", historyIn(5*s))
		return a
	}
	stays := []string{"node 2 still stored \"x\" for client a (token token-of)", "bound 1s"}
	checkCases(t, check, []checkCase{
		{"removed in time", func(h *History) {
			left(h).Release()
			end(h, s)
			h.Stored(2, "x", "", time.Time{})
			end(h, 9*s)
		}, nil},
		{"not removed in time", func(h *History) {
			left(h).Release()
			end(h, 2*s)
			h.Stored(2, "x", "", time.Time{})
			end(h, 9*s)
		}, append(stays, "until 2.000000s, 2s after its end at 0.000000s")},
		{"the unlock itself took long", func(h *History) {
			a := left(h)
			a.Release()
			time.Sleep(4 * s)
			a.Released(nil)
			end(h, s)
		}, nil},
		{"lost, and not over yet", func(h *History) {
			left(h).Lost(nil)
			end(h, 6*s)
		}, nil},
		{"lost, and over", func(h *History) {
			left(h).Lost(nil)
			end(h, 7*s)
		}, append(stays, "2s after its end at 5.000000s")},
		{"never ended, and over", func(h *History) { left(h); end(h, 7*s) }, stays},
		{"the ttl removes it", func(h *History) {
			h.Stored(2, "x", "token-of-a", historyIn(5*s))
			checkWin(h, "a", 4*s)
			end(h, 60*s)
		}, nil},
		{"stored again after the end", func(h *History) {
			checkWin(h, "a", 5*s).Release()
			time.Sleep(3 * s)
			h.Stored(2, "x", "token-of-a", historyIn(60*s))
			end(h, 2*s)
		}, append(stays, "2s after its end at 3.000000s")},
		{"extended on the node meanwhile", func(h *History) {
			left(h).Release()
			for range 4 {
				time.Sleep(s / 2)
				h.Stored(2, "x", "token-of-a", historyIn(60*s))
			}
		}, stays},
		{"a token of nobody, removed in time", func(h *History) {
			h.Try("a", "x")
			h.Stored(2, "x", "stray", historyIn(s))
			end(h, 9*s)
		}, nil},
		{"a token of nobody", func(h *History) {
			h.Try("a", "x")
			h.Stored(2, "x", "stray-and-long", historyIn(3*s))
			end(h, 9*s)
		}, []string{`node 2 stored "x" from 0.000000s to 3.000000s with "stray-an", which nobody won`}},
		{"a name of somebody else", func(h *History) {
			h.Try("a", "x")
			h.Stored(2, "y", "stray", historyIn(60*s))
			end(h, 9*s)
		}, nil},
		{"while nodes are not well the clock stands still", func(h *History) {
			left(h).Release()
			h.Health(2, 3)
			end(h, 9*s)
			end(h, s)
		}, nil},
		{"and goes on when they are", func(h *History) {
			left(h).Release()
			h.Health(2, 3)
			end(h, 9*s)
			end(h, 2*s)
		}, append(stays, "all nodes well for 2s of that")},
	})
}

func TestTheClockOfOrphansAgreesWithADumbTwin(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	historyStory(t, func(h *History) {
		well := []bool{true}
		for range 50 {
			h.Health(2+r.IntN(2), 3)
			well[len(well)-1] = h.health[len(h.health)-1].healthy == 3
			for range 1 + r.IntN(3) {
				well = append(well, well[len(well)-1])
				time.Sleep(time.Second)
			}
		}
		clock := h.digest().wellClock()
		for range 1000 {
			from, to := r.IntN(len(well)), r.IntN(len(well))
			from, to = min(from, to), max(from, to)
			sum := len(slices.DeleteFunc(slices.Clone(well[from:to]), func(w bool) bool { return !w }))
			assert.Equal(t, time.Duration(sum)*time.Second, clock(time.Duration(from)*time.Second, time.Duration(to)*time.Second))
		}
	})
}
