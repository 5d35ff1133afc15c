package redlock

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestBackoffGrowsToItsCapAndIsNeverShorterThanAnAcquire(t *testing.T) {
	b := Backoff{Min: ms(20), Max: ms(100), Factor: 2}
	for _, c := range []struct {
		n    int
		took time.Duration
		low  time.Duration
	}{
		{1, 0, ms(10)}, {2, 0, ms(20)}, {3, 0, ms(40)}, {4, 0, ms(50)}, {1000000, 0, ms(50)},
		{1, ms(30), ms(30)}, {9, ms(30), ms(50)}, {9, ms(300), ms(300)},
	} {
		assert.Equal(t, c.low, b.pause(c.n, c.took, 0), "attempt %d took %v", c.n, c.took)
		assert.InDelta(t, 2*c.low, b.pause(c.n, c.took, 1), 2, "attempt %d took %v", c.n, c.took)
	}
}

func TestBackoffSpreadsContenders(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	var sum, squares float64
	const draws = 10000
	for range draws {
		d := defaultBackoff.pause(5, ms(1), rng.Float64()).Seconds()
		sum += d
		squares += d * d
	}
	mean := sum / draws
	variation := (squares/draws - mean*mean) / (mean * mean)
	assert.Greater(t, variation, 0.01, "the squared coefficient of variation, so a tenth at least")
}

func TestBackoffKeepsDefaultsForWhatIsNotSet(t *testing.T) {
	assert.Equal(t, defaultBackoff, Backoff{}.fill())
	assert.Equal(t, Backoff{Min: time.Second, Max: time.Second, Factor: 2}, Backoff{Min: time.Second}.fill())
}

func TestBackoffAfterSplitVotesGivesContendersRoom(t *testing.T) {
	b := Backoff{Min: ms(2), Max: ms(100), Factor: 2}
	for _, c := range []struct {
		n          int
		took       time.Duration
		base, room time.Duration
	}{
		{1, 0, ms(1), ms(1)}, {2, 0, ms(1), ms(2)}, {4, 0, ms(1), ms(8)}, {1000000, 0, ms(1), ms(8)},
		{1, ms(20), ms(20), ms(20)}, {3, ms(20), ms(20), ms(80)}, {4, ms(20), ms(20), ms(100)}, {4, ms(300), ms(300), ms(300)},
	} {
		assert.Equal(t, c.base, b.spread(c.n, c.took, 0), "attempt %d took %v", c.n, c.took)
		assert.InDelta(t, c.base+c.room, b.spread(c.n, c.took, 1), 2, "attempt %d took %v", c.n, c.took)
	}
}
