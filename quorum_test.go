package redlock

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The twin is a second, dumber implementation of verdict and class: it looks at
// every way in which the missing votes can turn out, and says only what is true
// in all of them.

// twinFinal judges a complete vote: nothing is pending any more.
func twinFinal(votes []Outcome) (bool, class) {
	granted, refusals := 0, 0
	for _, v := range votes {
		switch v {
		case Granted:
			granted++
		case Refused:
			refusals++
		}
	}
	n := len(votes)
	switch {
	case 2*granted > n:
		return true, unsettled
	case 2*(n-refusals) <= n: // those that did not refuse are no majority
		return false, refused
	}
	return false, noQuorum
}

func twin(votes []Outcome) (verdict, class) {
	all := [][]Outcome{slices.Clone(votes)}
	for i, v := range votes {
		if v != Pending {
			continue
		}
		var more [][]Outcome
		for _, a := range all {
			for _, o := range []Outcome{Granted, Refused, Failed} {
				b := slices.Clone(a)
				b[i] = o
				more = append(more, b)
			}
		}
		all = more
	}
	wins := 0
	classes := map[class]bool{}
	for _, a := range all {
		win, c := twinFinal(a)
		if win {
			wins++
		}
		classes[c] = true
	}
	switch {
	case wins == len(all):
		return won, unsettled
	case wins > 0:
		return undecided, unsettled
	case len(classes) > 1:
		return lost, unsettled
	}
	for c := range classes {
		return lost, c
	}
	panic("no outcome")
}

func TestVerdictAndClassOfEveryVoteInEveryOrder(t *testing.T) {
	for n := 1; n <= 7; n++ {
		cases := 0
		// Every order of every mix is a path down this tree; the votes that have
		// not come are pending, and the counts may not depend on which came first.
		var walk func(t *testing.T, path []Outcome, at tally)
		walk = func(t *testing.T, path []Outcome, at tally) {
			cases++
			votes := make([]Outcome, n)
			copy(votes, path)
			v, c := twin(votes)
			require.Equal(t, v, at.verdict(), "verdict of %v", votes)
			require.Equal(t, c, at.class(), "class of %v", votes)
			require.Equal(t, n-len(path), at.pending())
			if len(path) == n {
				return
			}
			for _, o := range []Outcome{Granted, Refused, Failed} {
				next := at
				next.add(o)
				walk(t, append(slices.Clone(path), o), next)
			}
		}
		walk(t, nil, tally{nodes: n})
		t.Logf("N=%d: %d votes in order", n, cases)
	}
}

func TestTwoQuorumsShareANode(t *testing.T) {
	for n := 1; n <= 99; n++ {
		assert.Greater(t, 2*quorumOf(n), n, "N=%d", n)
		assert.LessOrEqual(t, quorumOf(n), n)
		assert.LessOrEqual(t, 2*(quorumOf(n)-1), n, "no smaller number would do, N=%d", n)
	}
}

func TestRoundTellsItsCallerAtTheDecidingVoteAndNotBefore(t *testing.T) {
	for n := 1; n <= 5; n++ {
		var walk func(path []Outcome)
		walk = func(path []Outcome) {
			if len(path) == n {
				r := newRound(release, "unlock", &Lease{claims: fakeClaims(n)}, instant{}, 0, 0)
				for i, o := range path {
					before := r.state()
					r.answer(i, Vote{Outcome: o})
					after := r.state()
					news := len(r.news) > 0
					if news {
						<-r.news
					}
					decided := after.verdict() != undecided
					require.Equal(t, decided, news, "%v at vote %d", path, i)
					if before.verdict() != undecided {
						require.Equal(t, before.verdict(), after.verdict(), "a verdict stands, %v at vote %d", path, i)
					}
				}
				return
			}
			for _, o := range []Outcome{Granted, Refused, Failed} {
				walk(append(slices.Clone(path), o))
			}
		}
		walk(nil)
	}
}

func TestRoundCountsTheFirstAnswerOfANodeOnly(t *testing.T) {
	r := newRound(release, "unlock", &Lease{claims: fakeClaims(3)}, instant{}, 0, 0)
	r.answer(0, Vote{Outcome: Granted})
	r.answer(0, Vote{Outcome: Granted})
	assert.Equal(t, tally{nodes: 3, granted: 1}, r.state())
	r.expire()
	r.answer(1, Vote{Outcome: Granted})
	assert.Equal(t, tally{nodes: 3, granted: 1, failed: 2}, r.state(), "what comes after the verdict changes nothing")
}

func fakeClaims(n int) []claim {
	claims := make([]claim, n)
	for i := range claims {
		claims[i].node = &node{name: "n"}
	}
	return claims
}

// state is the round as it stands.
func (r *round) state() tally {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.tally
}
