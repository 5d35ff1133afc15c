package faultinject

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestATrueHistoryPassesEveryChecker(t *testing.T) {
	for _, tell := range []func(*History){pictureClean, pictureMany, pictureHuge} {
		historyStory(t, func(h *History) {
			tell(h)
			for _, err := range checkAll(h) {
				assert.NoError(t, err)
			}
		})
	}
}

// checkCase is a short story, and what its checker has to say in it: nothing, or
// one violation with all of these words.
type checkCase struct {
	name  string
	tell  func(h *History)
	words []string
}

func checkCases(t *testing.T, check func(*History) error, cases []checkCase) {
	t.Helper()
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			historyStory(t, func(h *History) {
				c.tell(h)
				err := check(h)
				if len(c.words) == 0 {
					assert.NoError(t, err)
					return
				}
				require.Error(t, err)
				assert.NotContains(t, err.Error(), "\n", "one violation")
				for _, w := range c.words {
					assert.ErrorContains(t, err, w)
				}
			})
		})
	}
}

// checkWin is an attempt that wins at once, for a while.
func checkWin(h *History, client string, d time.Duration) *Attempt {
	a := h.Try(client, "x")
	a.Won("token-of-"+client, historyIn(d))
	return a
}

func TestExclusiveTellsWhenTwoBelieveAtATime(t *testing.T) {
	const s = time.Second
	checkCases(t, Exclusive, []checkCase{
		{"a lease begins as the last one's time ends", func(h *History) {
			checkWin(h, "a", s)
			time.Sleep(s)
			checkWin(h, "b", s)
		}, nil},
		{"a lease begins as the last one is released", func(h *History) {
			a := checkWin(h, "a", 9*s)
			time.Sleep(s)
			a.Release()
			checkWin(h, "b", s)
		}, nil},
		{"a lease begins after the last one was lost", func(h *History) {
			a := checkWin(h, "a", 9*s)
			time.Sleep(s)
			a.Lost(nil)
			checkWin(h, "b", s)
		}, nil},
		{"other names are other locks", func(h *History) {
			checkWin(h, "a", s)
			h.Try("b", "y").Won("other", historyIn(s))
			time.Sleep(s)
		}, nil},
		{"a lease of no length overlaps nothing", func(h *History) {
			checkWin(h, "a", 2*s)
			time.Sleep(s)
			checkWin(h, "b", s).Release()
		}, nil},
		{"a lease whose time was over when it was returned", func(h *History) {
			checkWin(h, "a", 2*s)
			time.Sleep(s)
			checkWin(h, "b", -s/2)
		}, nil},
		{"a lease is not over yet", func(h *History) {
			checkWin(h, "a", 2*s)
			time.Sleep(1234567 * time.Microsecond)
			checkWin(h, "b", 2*s)
		}, []string{
			`two holders of "x" from 1.234567s to 2.000000s (for 765.433ms)`,
			"client a (token token-of) from 0.000000s to 2.000000s", "client b (token token-of) from 1.234567s to 3.234567s",
		}},
		{"a client is no exception", func(h *History) {
			checkWin(h, "a", 2*s)
			time.Sleep(s)
			checkWin(h, "a", s)
		}, []string{"two holders"}},
		{"an extension moves the end", func(h *History) {
			a := checkWin(h, "a", 2*s)
			time.Sleep(s)
			a.Extend()
			a.Extended(historyIn(4 * s))
			time.Sleep(3 * s)
			checkWin(h, "b", s)
		}, []string{`two holders of "x" from 4.000000s to 5.000000s`}},
		{"a smaller extension does not move it back", func(h *History) {
			a := checkWin(h, "a", 4*s)
			a.Extended(historyIn(s))
			time.Sleep(2 * s)
			checkWin(h, "b", s)
		}, []string{`two holders of "x" from 2.000000s to 3.000000s`}},
		{"a loss that comes after the time does not prolong it", func(h *History) {
			a := checkWin(h, "a", s)
			time.Sleep(s)
			checkWin(h, "b", s)
			a.Lost(nil)
		}, nil},
	})
}

func TestExclusiveTellsWhenALeaseComesBackToLife(t *testing.T) {
	const s = time.Second
	checkCases(t, Exclusive, []checkCase{
		{"by an extension at the last moment", func(h *History) {
			a := checkWin(h, "a", s)
			time.Sleep(s)
			a.Extended(historyIn(s))
		}, nil},
		{"by an extension after its time", func(h *History) {
			a := checkWin(h, "a", s)
			time.Sleep(2 * s)
			a.Extended(historyIn(s))
		}, []string{`"x": client a (token token-of): at 2.000000s came back to life`, "its time was over at 1.000000s"}},
		{"by an extension that was asked for after the release", func(h *History) {
			a := checkWin(h, "a", 9*s)
			time.Sleep(s)
			a.Release()
			a.Extend()
			a.Extended(historyIn(s))
		}, []string{"client a", "came back to life", "it was over at 1.000000s"}},
		{"not by an extension whose answer crossed the release", func(h *History) {
			a := checkWin(h, "a", 9*s)
			a.Extend()
			a.Release()
			a.Extended(historyIn(9 * s))
			checkWin(h, "b", s)
		}, nil},
		{"by being won twice", func(h *History) {
			a := checkWin(h, "a", s)
			a.Won("other", historyIn(s))
		}, []string{"client a", "won a second time"}},
		{"by being won after it failed", func(h *History) {
			a := h.Try("a", "x")
			a.Failed(nil)
			a.Won("other", historyIn(s))
		}, []string{"client a", "won after it had failed"}},
		{"by failing after it was won", func(h *History) {
			checkWin(h, "a", s).Failed(nil)
		}, []string{"client a", "failed after it was won"}},
		{"by an extension of what was never won", func(h *History) {
			h.Try("a", "x").Extended(historyIn(s))
		}, []string{"client a (tried at 0.000000s)", "extended, but it was never won"}},
	})

	historyStory(t, func(h *History) {
		a := checkWin(h, "a", s)
		time.Sleep(2 * s)
		checkWin(h, "b", 9*s)
		time.Sleep(s)
		a.Extended(historyIn(s))
		assert.ErrorContains(t, Exclusive(h), `two holders of "x" from 3.000000s to 4.000000s`,
			"it believes again from the moment it heard of it")
	})
}

func TestOfManyViolationsTenAreShownAndTheOthersCounted(t *testing.T) {
	historyStory(t, func(h *History) {
		for i := range 15 {
			checkWin(h, fmt.Sprint("c", i), time.Second)
		}
		err := Exclusive(h)
		require.Error(t, err)
		lines := strings.Split(err.Error(), "\n")
		assert.Len(t, lines, 11)
		assert.Equal(t, "and 4 more", lines[10])
	})
}

// TestExclusiveAgreesWithADumbTwin compares random histories, pair by pair: a span
// overlaps another if and only if the checker says so of it.
func TestExclusiveAgreesWithADumbTwin(t *testing.T) {
	found := 0
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		synctest.Test(t, func(t *testing.T) {
			h := NewHistory()
			var all []*Attempt
			for range 2 + r.IntN(12) {
				time.Sleep(time.Duration(r.IntN(5)) * time.Second)
				a := checkWin(h, fmt.Sprint("c", r.IntN(4)), time.Duration(r.IntN(8))*time.Second)
				all = append(all, a)
				switch a := all[r.IntN(len(all))]; r.IntN(4) {
				case 0:
					a.Release()
				case 1:
					a.Lost(nil)
				case 2:
					a.Extended(historyIn(time.Duration(r.IntN(6)) * time.Second))
				}
			}
			found += checkTwin(t, h)
		})
	}
	assert.Greater(t, found, 300, "the histories must have something to find")
}

func checkTwin(t *testing.T, h *History) int {
	d := h.digest()
	var spans []historySpan
	for _, x := range d.tenures {
		spans = append(spans, x.spans...)
	}
	both := make(map[time.Duration]bool) // seconds within which two believe
	pairs := 0
	for i, a := range spans {
		for _, b := range spans[:i] {
			for at := max(a.from, b.from); a.of != b.of && at < min(a.to, b.to); at += time.Second {
				both[at] = true
			}
			if a.of != b.of && max(a.from, b.from) < min(a.to, b.to) {
				pairs++
			}
		}
	}
	told := make(map[time.Duration]bool)
	for _, pair := range d.overlaps("x") {
		assert.NotSame(t, pair[0].of, pair[1].of)
		for at := pair[1].from; at < min(pair[0].to, pair[1].to); at += time.Second {
			told[at] = true
		}
	}
	assert.Equal(t, both, told, "%v", spans)
	return pairs
}

func TestFencesRiseTellsFencesThatDoNot(t *testing.T) {
	fenced := func(h *History, client string, fence uint64) *Attempt {
		a := checkWin(h, client, time.Second)
		a.Fence(fence)
		time.Sleep(time.Second)
		return a
	}
	checkCases(t, FencesRise, []checkCase{
		{"they rise, with gaps", func(h *History) {
			fenced(h, "a", 1)
			fenced(h, "b", 5)
			checkWin(h, "c", time.Second)
			fenced(h, "d", 6)
		}, nil},
		{"attempts that overlap get theirs in any order", func(h *History) {
			b := h.Try("b", "x")
			fenced(h, "a", 2)
			b.Won("late", historyIn(time.Second))
			b.Fence(1)
		}, nil},
		{"other names have their own", func(h *History) {
			fenced(h, "a", 7)
			a := h.Try("a", "y")
			a.Won("other", historyIn(time.Second))
			a.Fence(1)
		}, nil},
		{"a later one is smaller", func(h *History) {
			fenced(h, "a", 1)
			fenced(h, "b", 9)
			fenced(h, "c", 8)
		}, []string{`"x"`, "client b", "won at 1.000000s with 9", "client c", "asked at 2.000000s and got 8"}},
		{"two are the same", func(h *History) {
			fenced(h, "a", 3)
			fenced(h, "b", 3)
		}, []string{"client a", "client b", "the same fencing token 3"}},
		{"one has two", func(h *History) {
			fenced(h, "a", 3).Fence(4)
		}, []string{"client a", "two fencing tokens, 3 and 4"}},
	})
}

func TestTokensTellsTokensThatAreTheSame(t *testing.T) {
	checkCases(t, Tokens, []checkCase{
		{"they differ", func(h *History) {
			checkWin(h, "a", time.Second)
			checkWin(h, "b", time.Second)
		}, nil},
		{"two names, one token", func(h *History) {
			checkWin(h, "a", time.Second)
			h.Try("b", "y").Won("token-of-a", time.Now())
		}, []string{`client a won "x"`, `client b won "y"`, `the same token "token-of"`}},
	})
}

func TestLateActsTellsWhatOnlyAFenceWouldStop(t *testing.T) {
	const s = time.Second
	checkCases(t, LateActs, []checkCase{
		{"acts at the first and the last moment are in time", func(h *History) {
			a := checkWin(h, "a", s)
			a.Act()
			time.Sleep(s)
			a.Act()
		}, nil},
		{"after the time", func(h *History) {
			a := checkWin(h, "a", s)
			time.Sleep(1500 * time.Millisecond)
			a.Act()
		}, []string{`"x": client a`, "acted at 1.500000s, 500ms after its belief ended at 1.000000s"}},
		{"after the release", func(h *History) {
			a := checkWin(h, "a", 9*s)
			a.Release()
			time.Sleep(s)
			a.Act()
		}, []string{"1s after its belief ended at 0.000000s"}},
		{"before it was won", func(h *History) {
			a := h.Try("a", "x")
			a.Act()
			time.Sleep(s)
			a.Won("token", historyIn(s))
		}, []string{"acted at 0.000000s, 1s before its belief began at 1.000000s"}},
		{"without ever having won it", func(h *History) {
			h.Try("a", "x").Act()
		}, []string{"client a (tried at 0.000000s) acted at 0.000000s and never held it"}},
	})
}

func TestProgressTellsWhenNobodyGetsALockThatIsFree(t *testing.T) {
	const s = time.Second
	check := func(h *History) error { return Progress(h, 3*s) }
	try := func(h *History, client string, d time.Duration) {
		a := h.Try(client, "x")
		time.Sleep(d)
		a.Failed(nil)
	}
	stalled := []string{`nobody got "x"`, "client a asked for it", "bound 3s"}
	checkCases(t, check, []checkCase{
		{"within the bound", func(h *History) { try(h, "a", 3*s) }, nil},
		{"not within the bound", func(h *History) { try(h, "a", 4*s) }, append(stalled, "from 0.000000s to 4.000000s (for 4s")},
		{"the attempt is still under way", func(h *History) {
			h.Try("a", "x")
			time.Sleep(4 * s)
			h.Health(3, 3)
		}, stalled},
		{"one after the other without a pause", func(h *History) {
			try(h, "a", 2*s)
			try(h, "b", 2*s)
		}, []string{"clients a, b asked for it"}},
		{"a pause in which nobody asks", func(h *History) {
			try(h, "a", 2*s)
			time.Sleep(time.Millisecond)
			try(h, "a", 2*s)
		}, nil},
		{"somebody holds it", func(h *History) {
			checkWin(h, "b", 9*s)
			try(h, "a", 9*s)
		}, nil},
		{"somebody had it for no time", func(h *History) {
			a := h.Try("a", "x")
			time.Sleep(2 * s)
			checkWin(h, "b", s).Release()
			time.Sleep(2 * s)
			a.Failed(nil)
		}, nil},
		{"a majority is not well", func(h *History) {
			h.Health(1, 3)
			try(h, "a", 9*s)
		}, nil},
		{"a majority is well", func(h *History) {
			h.Health(2, 3)
			try(h, "a", 9*s)
		}, stalled},
		{"a majority is well again", func(h *History) {
			h.Health(1, 3)
			time.AfterFunc(2*s, func() { h.Health(2, 3) })
			try(h, "a", 6*s)
		}, append(stalled, "from 2.000000s to 6.000000s")},
	})
}
