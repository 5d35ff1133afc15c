package redlock

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed58520471/redlock/faultinject"
)

// restarts is two minutes in which nodes restart empty all the time, one to three of
// five at once, while clients take one lock, extend it, unlock it or let it run out.
type restarts struct {
	*world
	opts   []Option
	clocks bool // are set forward after each start; else clients come and go
	end    time.Time
}

func (s *restarts) begin(seed uint64) {
	time.Sleep(guardTime + 3*time.Second)
	s.end = time.Now().Add(2 * time.Minute)
	var clients sync.WaitGroup
	for i := range 3 {
		l, r := s.locker(s.opts...), rand.New(rand.NewPCG(seed, uint64(i)))
		clients.Go(func() { s.client(fmt.Sprint("client ", i), l, r) })
	}
	for r := rand.New(rand.NewPCG(seed, 99)); time.Now().Before(s.end); {
		time.Sleep(time.Duration(r.Int64N(int64(20 * time.Second))))
		for _, i := range r.Perm(5)[:1+r.IntN(3)] {
			s.Node(i + 1).Do(faultinject.RestartEmpty)
			if s.clocks {
				s.Node(i + 1).Do(faultinject.ClockStep(time.Hour))
			}
		}
	}
	clients.Wait()
}

func (s *restarts) client(name string, l *Locker, r *rand.Rand) {
	for time.Now().Before(s.end) {
		if !s.clocks && r.IntN(20) == 0 {
			l.Close()
			l = s.cold(s.opts...)
		}
		seen := s.History().Try(name, "a")
		lease, err := l.TryLock(background, "a")
		if err != nil {
			seen.Failed(err)
			time.Sleep(time.Duration(r.Int64N(int64(time.Second))))
			continue
		}
		seen.Won(lease.Token(), lease.Until())
		if lease.Fence() > 0 {
			seen.Fence(lease.Fence())
		}
		for lease.Err() == nil && r.IntN(6) > 0 {
			time.Sleep(time.Duration(r.Int64N(int64(3 * time.Second))))
			seen.Extend()
			if lease.Extend(background, time.Duration(1+r.IntN(10))*time.Second) == nil {
				seen.Extended(lease.Until())
			}
		}
		if r.IntN(2) == 0 {
			time.Sleep(lease.Validity())
		}
		seen.Release()
		seen.Released(lease.Unlock(background))
	}
}

// playRestarts says how often the lock was had, and what was wrong with that.
func playRestarts(t *testing.T, seed uint64, clocks bool, opts ...Option) (won int, err error) {
	synctest.Test(t, func(t *testing.T) {
		s := &restarts{world: newWorld(t, ms(2), ms(2), ms(2), ms(2), ms(2)), opts: opts, clocks: clocks}
		s.begin(seed)
		won = s.History().Summary().Acquisitions
		if err = faultinject.Exclusive(s.History()); !clocks {
			err = errors.Join(err, faultinject.FencesRise(s.History()))
		}
	})
	return won, err
}

func TestNoSeriesOfRestartsGivesANameToTwoUnderTheGuard(t *testing.T) {
	for seed := range uint64(3) {
		for _, clocks := range []bool{false, true} {
			for name, opts := range map[string][]Option{"plain": nil, "fenced": {WithFencing()}} {
				t.Run(fmt.Sprintf("%s, seed %d, clocks set %t", name, seed, clocks), func(t *testing.T) {
					won, err := playRestarts(t, seed, clocks, append(opts, WithRestartGuard(guardTime))...)
					assert.NoError(t, err)
					assert.Positive(t, won)
				})
			}
		}
	}
}

func TestSeriesOfRestartsGivesANameToTwoWithoutTheGuard(t *testing.T) {
	_, err := playRestarts(t, 1, false)
	require.ErrorContains(t, err, "two holders")
}
