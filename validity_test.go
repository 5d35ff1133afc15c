package redlock

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

var zeroDay = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// at is a reading at which the monotonic clock has run for mono, the wall clock
// for wall, and the machine was suspended for asleep.
func at(mono, wall, asleep time.Duration) instant {
	return instant{mono: zeroDay.Add(mono), wall: zeroDay.UnixNano() + int64(wall), asleep: asleep}
}

func TestElapsedBelievesTheSlowestExcuseOfNoClock(t *testing.T) {
	from := at(0, 0, time.Hour)
	for _, c := range []struct {
		name               string
		mono, wall, asleep time.Duration
		want               time.Duration
	}{
		{"all agree", ms(50), ms(50), 0, ms(50)},
		{"the wall clock jumped ahead", ms(50), time.Hour, 0, time.Hour},
		{"the wall clock was set back", ms(50), -time.Hour, 0, ms(50)},
		{"the machine slept and the wall clock shows it", ms(50), ms(50) + time.Minute, time.Minute, ms(50) + time.Minute},
		{"the machine slept and the wall clock was set back", ms(50), -time.Hour, time.Minute, ms(50) + time.Minute},
		{"the reading of the sleep errs by a moment", ms(50), ms(50), -ms(1), ms(50)},
		{"nothing went forward", 0, -ms(5), 0, 0},
	} {
		assert.Equal(t, c.want, elapsed(from, at(c.mono, c.wall, time.Hour+c.asleep)), c.name)
	}
}

func TestDriftIsOnePercentAndTwoMillisecondsAndOnlyGrows(t *testing.T) {
	assert.Equal(t, ms(102), drift(10*time.Second, 0))
	assert.Equal(t, ms(3), drift(ms(100), 0))
	assert.Equal(t, ms(500), drift(10*time.Second, ms(500)))
	assert.Equal(t, ms(102), drift(10*time.Second, ms(1)), "a wish below the default does not narrow it")
}

func TestValidityIsWhatAQuorumStillVouchesFor(t *testing.T) {
	now := at(ms(1000), ms(1000), 0)
	v := func(t0, span int) *vouch { return &vouch{at(ms(t0), ms(t0), 0), ms(span)} }
	var none *vouch
	for _, c := range []struct {
		name    string
		vouches []*vouch
		want    time.Duration
	}{
		{"one of one", []*vouch{v(900, 500)}, ms(400)},
		{"all from one round", []*vouch{v(900, 500), v(900, 500), v(900, 500)}, ms(400)},
		{"a minority vouches", []*vouch{v(900, 500), none, none}, -maxTTL},
		{"the second of three counts", []*vouch{v(900, 500), v(900, 300), none}, ms(200)},
		{"a longer promise of a minority adds nothing", []*vouch{v(900, 500), v(900, 300), v(1000, 90000)}, ms(400)},
		{"an extension that reached two of five", []*vouch{v(1000, 9000), v(1000, 9000), v(500, 600), v(500, 600), none}, ms(100)},
		{"a promise that has run out", []*vouch{v(0, 500), v(0, 500), v(0, 500)}, -ms(500)},
		{"four nodes need three", []*vouch{v(900, 500), v(900, 400), v(900, 300), none}, ms(200)},
	} {
		assert.Equal(t, c.want, validity(c.vouches, quorumOf(len(c.vouches)), now), c.name)
	}
}

// A lease whose promises were made before and after a jump of the wall clock must
// not gain from the clock being set back: at no time may it count as valid when
// a quorum's promises, by true time, have run out.
func TestValidityNeverOutlivesTheTrueEndHoweverTheWallClockJumps(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 20000 {
		n := 1 + rng.IntN(5)
		now, wall := time.Duration(0), time.Duration(0)
		vouches := make([]*vouch, n)
		ends := make([]time.Duration, n) // true ends
		for range 12 {
			step := ms(rng.IntN(300))
			now += step
			wall += step
			if rng.IntN(3) == 0 {
				wall += ms(rng.IntN(2000) - 1000)
			}
			if i := rng.IntN(n); rng.IntN(2) == 0 {
				span := ms(1 + rng.IntN(900))
				vouches[i] = &vouch{at(now, wall, 0), span}
				ends[i] = now + span
			}
			left := validity(vouches, quorumOf(n), at(now, wall, 0))
			alive := 0
			for _, e := range ends {
				if e > 0 && e-now >= left {
					alive++
				}
			}
			if left > 0 {
				assert.GreaterOrEqual(t, alive, quorumOf(n), "claims %v at %v of %v", left, now, ends)
			}
		}
	}
}

func TestSystemClockSeesNoSleepWhereThereWasNone(t *testing.T) {
	var c systemClock
	for range 1000 {
		from := c.start()
		to := c.look()
		assert.LessOrEqual(t, to.asleep-from.asleep, time.Duration(0))
		assert.GreaterOrEqual(t, elapsed(from, to), time.Duration(0))
	}
}
