package scenarios

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
)

var (
	judged = flag.Uint64("judge", 0, "seeds to judge, each by a storm of every flavour")
	likely = flag.String("likely", "", "the flavour to begin with")
)

// TestEverySeedIsJudged prints a line for each seed, which tells whether its storms
// found something, and goes on. It is for programs that read them.
func TestEverySeedIsJudged(t *testing.T) {
	if *judged == 0 {
		t.Skip("for other tests, with -judge")
	}
	for seed := *firstSeed; seed < *firstSeed+*judged; seed++ {
		verdict := "ok"
		n := len(flavours)
		begin := max(slices.Index(flavours, *likely), 0)
		for i := range n {
			if err := weather(t, seed*uint64(n)+uint64((begin+i)%n)); err != nil {
				verdict, _, _ = strings.Cut(strings.TrimPrefix(err.Error(), "faultinject: "), "\n")
				break
			}
		}
		fmt.Printf("judged %d %s\n", seed, verdict)
	}
}

// weather runs the storm of a seed in virtual time.
func weather(t *testing.T, seed uint64) (err error) {
	s := DrawStorm(seed, Virtual)
	plan, err := s.Plan()
	if err != nil {
		return err
	}
	synctest.Test(t, func(*testing.T) { _, _, err = s.Run(context.Background(), plan) })
	return err
}
