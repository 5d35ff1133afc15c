package redlock

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// Every outcome of one, three and four nodes, against a count that anybody sees
// through.
func TestOnlyWhatHasAQuorumIsAHolder(t *testing.T) {
	kinds := []Vote{
		{Outcome: Granted}, {Outcome: Refused, Holder: "x"}, {Outcome: Refused, Holder: "y"},
		{Outcome: Refused, Err: errWrongType}, {Outcome: Failed, Holder: "x"}, {Outcome: Pending},
	}
	for _, n := range []int{1, 3, 4} {
		for k := range pow(len(kinds), n) {
			votes := make([]Vote, n)
			x, y, other, granted := 0, 0, 0, 0
			for i := range votes {
				votes[i] = kinds[k/pow(len(kinds), i)%len(kinds)]
				switch v := votes[i]; {
				case v.Outcome == Granted:
					granted++
				case v.Outcome == Refused && v.Holder == "x":
					x++
				case v.Outcome == Refused && v.Holder == "y":
					y++
				case v.Outcome == Refused:
					other++
				}
			}
			e := &QuorumError{Round: Round{Quorum: quorumOf(n), Votes: votes}}
			most := max(x, y, other)
			unknown := n - x - y - other - granted
			value, h := e.blocker()
			switch {
			case most >= quorumOf(n):
				assert.Equal(t, one, h, "%v", votes)
				if x == most {
					assert.Equal(t, "x", value)
				}
			case n-most < quorumOf(n) && most+unknown >= quorumOf(n):
				assert.Equal(t, maybe, h, "%v", votes)
			default:
				assert.Equal(t, nobodys, h, "%v", votes)
			}
			assert.False(t, n%2 == 1 && h == maybe, "an odd number leaves no doubt")
		}
	}
}

func pow(a, b int) int {
	p := 1
	for range b {
		p *= a
	}
	return p
}

// Every outcome of three nodes, with everything that may be heard of them, against
// a twin that looks at the clock every millisecond.
func TestSleepEndsWithTheFirstReasonThereIs(t *testing.T) {
	start := time.Now()
	at := func(n int) time.Time { return start.Add(ms(n)) }
	votes := []Vote{
		{Outcome: Granted}, {Outcome: Failed}, {Outcome: Refused},
		{Outcome: Refused, left: ms(60)}, {Outcome: Refused, left: ms(300)}, {Outcome: Refused, left: maxTTL},
	}
	freed := []time.Time{{}, at(5), at(50), at(120)}
	const end, trip, rest, most = 10, 20, 200, 400
	kinds := len(votes) * len(freed)
	for k := range pow(kinds, 3) {
		p := prospect{quorum: 2, start: start, end: at(end), trip: ms(trip), alone: true, rest: at(rest)}
		for i := range 3 {
			x := k / pow(kinds, i) % kinds
			p.votes = append(p.votes, votes[x%len(votes)])
			p.freed = append(p.freed, freed[x/len(votes)])
		}
		due := func(now time.Time) bool {
			granted, open, heard, gone := 0, 0, false, 0
			for i, v := range p.votes {
				known := !p.freed[i].IsZero() && v.Outcome != Granted
				switch {
				case v.Outcome == Granted:
					granted++
				case known && !p.freed[i].After(now):
					open++
				}
				heard = heard || known && !p.freed[i].Add(ms(trip)).After(now)
				if v.left > 0 && v.left < maxTTL && !start.Add(v.left+ms(1)).After(now) {
					gone++
				}
			}
			return heard || open > 0 && granted+open >= 2 || granted < 2 && granted+gone >= 2 || !now.Before(at(rest))
		}
		want := end
		for !due(at(want)) && want < most {
			want++
		}
		got := later(p.next(), p.end)
		if !assert.Equal(t, ms(want), got.Sub(start), "votes %v, freed %v", p.votes, p.freed) {
			return
		}

		// What is owed to others, and earlier errors, only make it later, and never
		// later than rest.
		for _, q := range []struct {
			misses int
			hold   time.Time
			alone  bool
			u      float64
		}{{1, time.Time{}, true, 0}, {5, time.Time{}, true, 0.9}, {0, at(150), true, 0}, {0, time.Time{}, false, 0.7}, {0, at(999), false, 0.1}} {
			x := p
			x.misses, x.hold, x.alone, x.u = q.misses, q.hold, q.alone, q.u
			next := x.next()
			assert.False(t, next.Before(p.next()), "%+v", q)
			assert.False(t, next.After(at(rest)), "%+v", q)
			if q.misses > 0 {
				assert.False(t, next.Before(at(end+trip)), "damped")
			}
		}
	}
}

func TestFalseHintsCostSomeTriesASecondAndNeverMore(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, trip := range []time.Duration{100 * time.Microsecond, ms(1), ms(40)} {
		tries, now := 0, time.Duration(0)
		for misses := 0; now < time.Second; misses++ { // there is always another hint
			p := prospect{trip: trip, misses: misses, u: rng.Float64()}
			now += p.damping() + trip
			tries++
		}
		assert.LessOrEqual(t, tries, 50, "with a round trip of %v", trip)
		assert.GreaterOrEqual(t, tries, 5, "they must not shut out true ones either, %v", trip)
	}
}

func TestContendersDoNotFollowOneHintTogether(t *testing.T) {
	start := time.Now()
	p := prospect{
		quorum: 1, votes: []Vote{{Outcome: Refused}}, start: start, end: start.Add(ms(1)),
		freed: []time.Time{start.Add(ms(10))}, trip: ms(8), rest: start.Add(time.Second),
	}
	for k := range 8 {
		p.u = float64(k) / 8
		assert.Equal(t, ms(10)+ms(k)/2, p.next().Sub(start), fmt.Sprint(k))
	}
	p.alone = true
	assert.Equal(t, ms(10), p.next().Sub(start), "nobody else, nothing to spread")
}
