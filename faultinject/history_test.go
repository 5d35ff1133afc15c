package faultinject

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// historyStory gives a history in virtual time, in which nothing takes time but
// what the story waits for.
func historyStory(t *testing.T, tell func(h *History)) {
	t.Helper()
	synctest.Test(t, func(*testing.T) { tell(NewHistory()) })
}

// historyIn is a moment from now.
func historyIn(d time.Duration) time.Time { return time.Now().Add(d) }

func TestNilHistoryRecordsNothingAndPasses(t *testing.T) {
	var h *History
	a := h.Try("a", "x")
	require.Nil(t, a)
	a.Won("token", time.Now())
	a.Failed(nil)
	a.Fence(1)
	a.Extend()
	a.Extended(time.Now())
	a.Act()
	a.Lost(nil)
	a.Release()
	a.Released(nil)
	h.Stored(1, "x", "token", time.Now())
	h.Strike("node 1", time.Now(), time.Time{}, "kill")
	h.Health(1, 1)

	assert.True(t, h.Start().IsZero())
	assert.Equal(t, Summary{}, h.Summary())
	assert.Contains(t, h.String(), "nobody tried for a lock")
	assert.NoError(t, h.WriteSVG(t.Output(), "nothing"))
	for _, err := range checkAll(h) {
		assert.NoError(t, err)
	}
}

// checkAll is what every checker says.
func checkAll(h *History) []error {
	return []error{
		Exclusive(h), FencesRise(h), Tokens(h), LateActs(h),
		Orphans(h, time.Second), Progress(h, 5*time.Second),
	}
}

func TestSummaryCountsWhatWasRecorded(t *testing.T) {
	historyStory(t, func(h *History) {
		pictureClean(h)
		s := h.Summary()
		assert.Equal(t, Summary{
			Attempts: 5, Acquisitions: 3, Failures: 2, Extensions: 1, Releases: 2, Losses: 1, Acts: 5, Strikes: 3,
		}, s)
		assert.Equal(t, "5 attempts, 3 acquired, 2 failed, 1 extended, 2 released, 1 lost, 5 acts, 3 faults", s.String())
	})
	assert.Equal(t, "1 attempt, 0 acquired, 1 act", Summary{Attempts: 1, Acts: 1}.String())
}

func TestMethodsInAnyOrderAndTwiceOnlyRecord(t *testing.T) {
	steps := []func(a *Attempt){
		func(a *Attempt) { a.Won("token", historyIn(time.Second)) },
		func(a *Attempt) { a.Failed(errors.New("no")) },
		func(a *Attempt) { a.Fence(1) },
		(*Attempt).Extend,
		func(a *Attempt) { a.Extended(historyIn(time.Second)) },
		(*Attempt).Act,
		func(a *Attempt) { a.Lost(nil) },
		(*Attempt).Release,
		func(a *Attempt) { a.Released(nil) },
	}
	// All sequences of three: every order of every two, and every thing twice.
	for i := range len(steps) * len(steps) * len(steps) {
		historyStory(t, func(h *History) {
			a := h.Try("a", "x")
			for n := i; ; n /= len(steps) {
				time.Sleep(700 * time.Millisecond)
				steps[n%len(steps)](a)
				if n < len(steps) {
					break
				}
			}
			checkAll(h)
			assert.NotEmpty(t, h.String())
			assert.NoError(t, h.WriteSVG(new(svgDiscard), "any order"))
			for _, x := range h.digest().tenures {
				for k, s := range x.spans {
					assert.LessOrEqual(t, s.from, s.to)
					assert.True(t, k == 0 || x.spans[k-1].to <= s.from, "spans are in order and disjoint")
				}
			}
		})
	}
}

type svgDiscard struct{}

func (*svgDiscard) Write(b []byte) (int, error) { return len(b), nil }

func TestRecordsOfOneMomentKeepTheOrderOfTheirGoroutine(t *testing.T) {
	historyStory(t, func(h *History) {
		for i := range 100 {
			h.Stored(1, "x", fmt.Sprint(i), time.Time{})
			h.Try("a", "x").Won(fmt.Sprint(i), time.Now())
		}
		time.Sleep(time.Second)
		h.Health(1, 1)
		d := h.digest()
		require.Len(t, d.stored, 1)
		assert.Equal(t, historySegment{1, "x", "99", 0, time.Second}, d.stored[0])
		for i, x := range d.tenures {
			assert.Equal(t, fmt.Sprint(i), x.token)
		}
	})
}

func TestManyGoroutinesMayRecordWhileOthersLook(t *testing.T) {
	h := NewHistory()
	var writers, readers sync.WaitGroup
	done := make(chan struct{})
	var lock sync.Mutex
	for i := range 8 {
		writers.Go(func() {
			client := fmt.Sprint("client-", i)
			for k := range 200 {
				a := h.Try(client, "x")
				lock.Lock()
				token := fmt.Sprint(i, "/", k)
				h.Stored(1+i%3, "x", token, historyIn(time.Hour))
				a.Won(token, historyIn(time.Hour))
				a.Act()
				a.Release()
				h.Stored(1+i%3, "x", "", time.Time{})
				a.Released(nil)
				lock.Unlock()
				h.Health(3, 3)
				h.Strike("network", time.Now(), time.Time{}, "nothing")
			}
		})
	}
	readers.Go(func() {
		for {
			for _, err := range checkAll(h) {
				assert.NoError(t, err)
			}
			select {
			case <-done:
				return
			default:
			}
		}
	})
	writers.Wait()
	close(done)
	readers.Wait()
	assert.Equal(t, 1600, h.Summary().Acquisitions)
}

// BenchmarkHistoryRecords is an attempt's whole life, with what three nodes store,
// recorded by eight goroutines at a time.
func BenchmarkHistoryRecords(b *testing.B) {
	h := NewHistory()
	until := time.Now().Add(time.Hour)
	clients := make([]string, 8)
	for i := range clients {
		clients[i] = fmt.Sprint("client-", i)
	}
	b.ReportAllocs()
	var all sync.WaitGroup
	for i, client := range clients {
		all.Go(func() {
			for range b.N/len(clients) + 1 {
				a := h.Try(client, "name")
				for n := range 3 {
					h.Stored(8*n+i, "name", "token", until)
				}
				a.Won("token", until)
				a.Act()
				a.Release()
				a.Released(nil)
			}
		})
	}
	all.Wait()
}
