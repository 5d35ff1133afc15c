package scenarios

import (
	"context"
	"flag"
	"os"
	"testing"
	"testing/synctest"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"github.com/seed58520471/redlock/faultinject"
)

var (
	seeds     = flag.Int("seeds", 8, "storms to run")
	firstSeed = flag.Uint64("first-seed", 1, "seed of the first")
)

func TestMain(m *testing.M) {
	redis.SetLogger(&logging.VoidLogger{})
	if addrs := os.Getenv(holderEnv); addrs != "" {
		os.Exit(holdAndTell(addrs))
	}
	os.Exit(m.Run())
}

func TestNoStormBreaksALock(t *testing.T) {
	var total Tally
	for seed := *firstSeed; seed < *firstSeed+uint64(*seeds); seed++ {
		s := DrawStorm(seed, Virtual)
		err := faultinject.Explore(seed, 1, func(uint64) (faultinject.Plan, error) { return s.Plan() }, func(p faultinject.Plan) (string, error) {
			var picture string
			var err error
			synctest.Test(t, func(t *testing.T) {
				tally, h, e := s.Run(context.Background(), p)
				total.Add(tally)
				if err = e; e != nil && h != nil {
					picture = h.String()
				}
			})
			return picture, err
		})
		if err != nil {
			t.Fatalf("%v\n%v\ngo test ./internal/scenarios -run %s -seeds 1 -first-seed %d", s, err, t.Name(), seed)
		}
	}
	t.Logf("%+v", total)
}
