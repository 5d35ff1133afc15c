package scenarios

import (
	"context"
	"flag"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/stretchr/testify/assert"

	"github.com/seed58520471/redlock/faultinject"
)

var (
	seeds     = flag.Int("seeds", 8, "storms of fixed seeds to run")
	firstSeed = flag.Uint64("first-seed", 1, "seed of the first")
	fresh     = flag.Int("fresh", 4, "storms of seeds that were never used to run")
	soak      = flag.Duration("soak", 0, "how long to go on with fresh seeds")
)

func TestMain(m *testing.M) {
	redis.SetLogger(&logging.VoidLogger{})
	if addrs := os.Getenv(holderEnv); addrs != "" {
		os.Exit(holdAndTell(addrs))
	}
	os.Exit(m.Run())
}

// endure runs the storm of a seed in virtual time, and ends the test with a small
// plan if something was wrong.
func endure(t *testing.T, seed uint64) (total Tally) {
	s := DrawStorm(seed, Virtual)
	draw := func(uint64) (faultinject.Plan, error) { return s.Plan() }
	err := faultinject.Explore(seed, 1, draw, func(p faultinject.Plan) (picture string, err error) {
		synctest.Test(t, func(*testing.T) {
			tally, history, e := s.Run(context.Background(), p)
			total.Add(tally)
			if err = e; err != nil {
				picture = history.String()
			}
		})
		return picture, err
	})
	if err != nil {
		t.Fatalf("%v\n%v\ngo test ./internal/scenarios -run TestNoStormBreaksALock -fresh 0 -seeds 1 -first-seed %d", s, err, seed)
	}
	return total
}

func TestNoStormBreaksALock(t *testing.T) {
	var total Tally
	for seed := *firstSeed; seed < *firstSeed+uint64(*seeds); seed++ {
		total.Add(endure(t, seed))
	}
	now := freshSeed()
	t.Logf("fresh seeds from %d", now)
	for seed := now; seed < now+uint64(*fresh); seed++ {
		total.Add(endure(t, seed))
	}
	if total.Storms >= 2*len(flavours) { // a single one may be calm, or for few
		assert.Greater(t, total.Acquisitions, 20*total.Storms)
		assert.Greater(t, total.Faults, total.Storms)
	}
	t.Logf("%+v", total)
}

// Progress looks for stretches of time that are longer than its bound: in a storm
// that is shorter there are none, whatever happens.
func TestStormsAreLongEnoughForALockThatCannotBeHad(t *testing.T) {
	for seed := range uint64(8 * len(flavours)) {
		s := DrawStorm(seed, Virtual)
		if s.fences() { // the network is never well there
			continue
		}
		assert.Less(t, s.stall(), s.Climate.Length/2, "%v", s)
	}
}

func freshSeed() uint64 { return uint64(time.Now().UnixNano()) % 1_000_000_000_000 }

func TestNoStormBreaksALockForLong(t *testing.T) {
	if *soak == 0 {
		t.Skip("for -soak 3m, for example")
	}
	begin, seed := time.Now(), freshSeed()
	t.Logf("fresh seeds from %d", seed)
	var mu sync.Mutex
	var total Tally
	t.Run("both halves", func(t *testing.T) { // of the machine
		for range 2 {
			t.Run("", func(t *testing.T) {
				t.Parallel()
				for time.Since(begin) < *soak {
					mu.Lock()
					seed++
					mine := seed
					mu.Unlock()
					tally := endure(t, mine)
					mu.Lock()
					total.Add(tally)
					mu.Unlock()
				}
			})
		}
	})
	t.Logf("%+v in %v", total, time.Since(begin).Round(time.Second))
}
