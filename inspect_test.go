package redlock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestInspectTellsWhatTheNodesTogetherSay(t *testing.T) {
	const a, b = "token-of-a", "token-of-b"
	for _, c := range []struct {
		about   string
		values  [5]string // "": nothing, "list": another type
		plan    string
		verdict Verdict
		holders int
		silent  int
	}{
		{"all hold it", [5]string{a, a, a, a, a}, "", Held, 5, 0},
		{"just a quorum holds it", [5]string{a, a, "", b, a}, "", Held, 3, 0},
		{"one node hangs, the rest holds it", [5]string{a, a, a, a, a}, "at 0s, node 5: hang", Held, 4, 1},
		{"a minority is dead", [5]string{a, a, a, "", ""}, "at 0s, nodes 4,5: kill", Held, 3, 2},
		{"nobody has it", [5]string{}, "", Free, 0, 0},
		{"a leftover on a minority", [5]string{a, "", a, "", ""}, "", Free, 0, 0},
		{"nobody has it, two nodes hang", [5]string{}, "at 0s, nodes 1,5: hang", Free, 0, 2},
		{"two owners", [5]string{a, a, b, b, ""}, "", Split, 2, 0},
		{"a holder short of a quorum and nothing free enough", [5]string{a, a, "", "", b}, "", Split, 2, 0},
		{"other types are in the way", [5]string{"list", "list", "list", "", ""}, "", Split, 0, 0},
		{"a quorum holds it all the same", [5]string{"list", "list", a, a, a}, "", Held, 3, 0},
		{"the decisive node hangs", [5]string{a, a, "", "", a}, "at 0s, node 5: hang", Split, 2, 1},
		{"a majority hangs", [5]string{a, a, a, a, a}, "at 0s, nodes 3-5: hang", Unknown, 2, 3},
		{"a majority answers with errors", [5]string{a, a, a, a, a}, `on EVALSHA, nodes 3-5: error "LOADING x"`, Unknown, 2, 3},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, ms(1), ms(2), ms(3), ms(4), ms(5))
			w.lists("a", c.values[:])
			l := w.locker(WithNodeTimeout(ms(100)))
			_, err := l.Inspect(t.Context(), "other") // the script is known from here on
			require.NoError(t, err)
			for i, v := range c.values {
				if v != "" && v != "list" {
					require.NoError(t, w.Node(i+1).Set("a", v, 8*time.Second))
				}
			}
			w.Inject(c.plan)
			begin := time.Now()
			in, err := l.Inspect(t.Context(), "a")
			assert.LessOrEqual(t, time.Since(begin), ms(100), c.about)
			if c.silent == 0 {
				assert.Equal(t, ms(5), time.Since(begin), "%s: as soon as all have answered", c.about)
			}
			require.NotNil(t, in, c.about)
			t.Log(c.about, in, err)
			if c.verdict == Unknown {
				assert.ErrorIs(t, err, ErrNoQuorum)
				assert.NotErrorIs(t, err, context.DeadlineExceeded)
			} else {
				assert.NoError(t, err, c.about)
			}
			assert.Equal(t, c.verdict, in.Verdict, c.about)
			assert.Equal(t, c.holders, in.Holders, c.about)
			silent := 0
			for i, s := range in.Nodes {
				assert.Equal(t, w.Node(i+1).Addr(), s.Node)
				if s.Err != nil {
					silent++
					continue
				}
				assert.Equal(t, c.values[i] != "", s.Stored, c.about)
				assert.Equal(t, c.values[i] == "list", s.WrongType, c.about)
				if s.Stored && !s.WrongType {
					assert.Equal(t, c.values[i], s.Value, c.about)
					assert.InDelta(t, 8*time.Second, s.Left, float64(ms(3)), c.about)
				}
				assert.Equal(t, ms(i+1), s.Latency, c.about)
			}
			assert.Equal(t, c.silent, silent, c.about)
			if c.verdict == Held {
				assert.Equal(t, "token-of…", in.Owner)
				assert.InDelta(t, 8*time.Second, in.Left, float64(ms(3)), c.about)
			}
		})
	}
}

// lists puts a list under a name where values say so.
func (w *world) lists(name string, values []string) {
	for i, v := range values {
		if v == "list" {
			require.NoError(w.t, w.Clients()[i].LPush(w.t.Context(), name, "x").Err())
		}
	}
}

func TestInspectSeesALeaseUntilItsTimeIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker(WithTTL(10*time.Second), WithOwner("host-1"))
		require.NoError(t, w.Node(2).Set(fenceCounter("a"), "1796035000123457", 0))
		require.NoError(t, w.Node(3).Set(fenceCounter("a"), "1796035000123456", 0))
		_, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		time.Sleep(4 * time.Second)

		in, err := l.Inspect(t.Context(), "a")
		require.NoError(t, err)
		assert.Equal(t, Held, in.Verdict)
		assert.Equal(t, "host-1", in.Owner)
		assert.Equal(t, uint64(1796035000123457), in.Fence)
		assert.Equal(t, uint64(1796035000123456), in.Nodes[2].Fence)
		assert.Zero(t, in.Nodes[0].Fence)
		assert.InDelta(t, 6*time.Second, in.Left, float64(ms(2)))

		time.Sleep(6 * time.Second)
		in, err = l.Inspect(t.Context(), "a")
		require.NoError(t, err)
		assert.Equal(t, Free, in.Verdict)
		assert.Zero(t, in.Left)
		assert.Empty(t, in.Owner)
		assert.Equal(t, uint64(1796035000123457), in.Fence, "the counter outlives the lock")

		require.NoError(t, w.Node(1).Set("b", "x", 0))
		require.NoError(t, w.Node(2).Set("b", "x", time.Minute))
		require.NoError(t, w.Node(3).Set("b", "x", 0))
		in, err = l.Inspect(t.Context(), "b")
		require.NoError(t, err)
		assert.True(t, in.NoExpiry)
		assert.True(t, in.Nodes[0].NoExpiry)
		assert.False(t, in.Nodes[1].NoExpiry)
		require.NoError(t, w.Node(3).Set("b", "x", time.Hour))
		in, err = l.Inspect(t.Context(), "b")
		require.NoError(t, err)
		assert.False(t, in.NoExpiry)
		assert.InDelta(t, time.Hour, in.Left, float64(ms(2)), "a quorum lasts as long as its shortest")
	})
}

func TestInspectChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker()
		before := w.stored(1)
		for range 3 {
			_, err := l.Inspect(t.Context(), "a")
			require.NoError(t, err)
		}
		time.Sleep(time.Second)
		assert.Equal(t, before, w.stored(1))
		assert.Zero(t, l.lane(0).Failed, "and is no vote")
		assert.Equal(t, 2, w.executed(1, "EVALSHA "+hashes[inspect]))
	})
}

func TestInspectIsNotWrittenOnceItsCallerHasGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker()
		slow := w.Inject(`on SET key "x" #1, node 3: delay 200ms`)
		go l.TryLock(t.Context(), "x") // keeps node 3's lane busy
		time.Sleep(ms(2))
		ctx, cancel := context.WithTimeout(t.Context(), ms(20))
		defer cancel()
		begin := time.Now()
		in, err := l.Inspect(ctx, "a")
		assert.Equal(t, ms(20), time.Since(begin))
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotNil(t, in)
		assert.Equal(t, Free, in.Verdict, "what is there is told")
		assert.ErrorIs(t, in.Nodes[2].Err, errUnread)
		time.Sleep(time.Second)
		require.NoError(t, slow.Check())
		assert.Zero(t, w.executed(3, "EVAL "+sources[inspect]))
		assert.Zero(t, w.executed(3, "EVALSHA "+hashes[inspect]))
		n := l.root.nodes[2]
		n.mu.Lock()
		assert.Zero(t, n.queue.len)
		n.mu.Unlock()

		in, err = l.Inspect(ctx, "a")
		assert.Nil(t, in)
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		require.NoError(t, l.Close())
		_, err = l.Inspect(t.Context(), "a")
		assert.ErrorIs(t, err, ErrClosed)
		assert.ErrorIs(t, l.ForceRelease(t.Context(), "a"), ErrClosed)
		for _, name := range []string{"", fencePrefix + "x"} {
			_, err = l.Inspect(t.Context(), name)
			assert.ErrorIs(t, err, ErrInvalid)
			assert.ErrorIs(t, l.ForceRelease(t.Context(), name), ErrInvalid)
		}
	})
}

func TestNoWayOfPrintingAnInspectionShowsAToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker(WithOwner("host-1"))
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		time.Sleep(ms(10))
		in, err := l.Inspect(t.Context(), "a")
		require.NoError(t, err)
		require.Equal(t, lease.Token(), in.Nodes[0].Value)
		js, err := json.Marshal(in)
		require.NoError(t, err)
		for _, text := range []string{
			fmt.Sprint(in), fmt.Sprint(*in), fmt.Sprintf("%+v", in), fmt.Sprintf("%#v", *in), fmt.Sprint(in.Nodes),
			fmt.Sprintf("%#v", in.Nodes), fmt.Sprintf("%+v", in.Nodes[0]), in.LogValue().String(), string(js),
		} {
			assert.NotContains(t, text, lease.Token()[9:36])
			assert.Contains(t, text, "host-1")
		}
		assert.Equal(t, `"a" is held by "host-1", for another 9.989s, on 3 of 3 nodes
10.0.0.1:6379  "host-1", for another 9.989s  1ms
10.0.0.2:6379  "host-1", for another 9.989s  1ms
10.0.0.3:6379  "host-1", for another 9.989s  1ms`, in.String())
	})
}

func TestInspectionSaysHowManyNodesAreFreeOrHaveAnswered(t *testing.T) {
	none, theirs, mute := Sighting{}, Sighting{Stored: true, Value: "x"}, Sighting{Err: opaque{"no answer"}}
	other, list := Sighting{Stored: true, Value: "y"}, Sighting{Stored: true, WrongType: true}
	for text, nodes := range map[string][]Sighting{
		`"a" is free on 3 of 3 nodes`:                              {none, none, none},
		`"a" is free on 2 of 3 nodes`:                              {none, none, theirs},
		`"a" is split: 3 of 3 nodes answered, 2 needed to agree`:   {theirs, other, list},
		`"a" is split: 2 of 3 nodes answered, 2 needed to agree`:   {none, theirs, mute},
		`"a" is unknown: 1 of 3 nodes answered, 2 needed to agree`: {none, mute, mute},
		`"a" is held by "x", for another 0s, on 2 of 3 nodes`:      {theirs, none, theirs},
	} {
		in := Inspection{Name: "a", Quorum: 2, Nodes: nodes}
		in.judge()
		assert.Equal(t, text, in.summary())
	}
}

func TestInspectionSurvivesJSON(t *testing.T) {
	in := Inspection{Name: "a", Verdict: Held, Owner: "o", Holders: 2, Left: ms(7), Fence: 1796035000123457, Quorum: 2, Took: ms(1), Nodes: []Sighting{
		{Node: "x", Stored: true, Owner: "o", Left: ms(7), Fence: 1796035000123457, Latency: ms(1)},
		{Node: "y", Stored: true, WrongType: true, NoExpiry: true},
		{Node: "z", Err: opaque{"no answer"}},
	}}
	js, err := json.Marshal(in)
	require.NoError(t, err)
	var out Inspection
	require.NoError(t, json.Unmarshal(js, &out))
	assert.Equal(t, in, out)
	assert.Contains(t, string(js), `"error":"no answer"`)
	assert.Contains(t, string(js), `"left_ns":7000000`)
}

func TestForceReleaseFreesANameWhoeverHasIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(2), ms(3))
		l := w.locker()
		other := w.locker(WithOwner("other"))
		messages := w.Clients()[0].Subscribe(t.Context(), releasedChannel+"own")
		defer messages.Close()
		_, err := messages.Receive(t.Context())
		require.NoError(t, err)

		own, err := l.TryLock(t.Context(), "own")
		require.NoError(t, err)
		theirs, err := other.TryLock(t.Context(), "theirs")
		require.NoError(t, err)
		w.plant("foreign", 0, 1, 2)
		time.Sleep(ms(10))
		for _, name := range []string{"own", "theirs", "foreign", "nothing"} {
			begin := time.Now()
			assert.NoError(t, l.ForceRelease(t.Context(), name), name)
			assert.Equal(t, ms(3), time.Since(begin), "it waits for all")
			assert.Equal(t, []string{"", "", ""}, w.keys(name))
			if name == "own" {
				m, err := messages.ReceiveMessage(t.Context())
				require.NoError(t, err)
				assert.NotContains(t, m.Payload, own.Token(), "on another node it may still be the key")
			}
		}
		for _, lease := range []*Lease{own, theirs} {
			assert.NoError(t, lease.Err(), "nobody tells the holder before it asks")
			assert.ErrorIs(t, lease.Extend(t.Context(), 10*time.Second), ErrLost)
			assert.ErrorIs(t, lease.Err(), ErrLost)
		}
	})
}

func TestForceReleaseLeavesOtherTypesAloneAndSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker()
		w.lists("a", []string{"list", "", ""})
		w.plant("a", 0, 2, 3)
		assert.NoError(t, l.ForceRelease(t.Context(), "a"), "a quorum is free of it")
		assert.NotEmpty(t, w.key(1, "a").Name)
		assert.Empty(t, w.key(2, "a").Name)

		w.lists("b", []string{"list", "list", ""})
		w.plant("b", 0, 3)
		err := l.ForceRelease(t.Context(), "b")
		assert.ErrorIs(t, err, ErrNoQuorum)
		var verdict *QuorumError
		require.ErrorAs(t, err, &verdict)
		assert.Equal(t, 2, verdict.Round.Count(Refused))
		assert.ErrorContains(t, err, `forcerelease "b": no quorum (1 of 3 granted, 2 needed: 10.0.0.1:6379 refused in `)
		assert.NotEmpty(t, w.key(1, "b").Name)
		assert.Empty(t, w.key(3, "b").Name)
	})
}

func TestForceReleaseIsBoundedByOneNodeTimeoutAndItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker(WithNodeTimeout(ms(100)))
		w.plant("a", 0, 1, 2, 3)
		hung := w.Inject("at 0s, node 3: hang")
		begin := time.Now()
		assert.NoError(t, l.ForceRelease(t.Context(), "a"))
		assert.Equal(t, ms(100), time.Since(begin))
		also := w.Inject("at 0s, node 2: hang")
		w.plant("a", 0, 1, 2)
		begin = time.Now()
		err := l.ForceRelease(t.Context(), "a")
		assert.ErrorIs(t, err, ErrNoQuorum)
		assert.Equal(t, ms(100), time.Since(begin))
		assert.Empty(t, w.keys("a")[0])

		ctx, cancel := context.WithTimeoutCause(t.Context(), ms(30), errors.New("enough"))
		defer cancel()
		begin = time.Now()
		err = l.ForceRelease(ctx, "a")
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		assert.ErrorContains(t, err, "enough")
		assert.Equal(t, ms(30), time.Since(begin))
		hung.Stop()
		also.Stop()
		time.Sleep(5 * time.Second)
		assert.Equal(t, "foreign", w.keys("a")[1], "what was not written in time is not written later")
		assert.Error(t, l.ForceRelease(ctx, "a"))
	})
}

func TestForceReleaseIsToldToHooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		var seen []string
		l := w.locker()
		l, err := l.With(WithHooks(Hooks{
			Start: func(ctx context.Context, op Op) context.Context {
				seen = append(seen, "start "+op.Kind)
				return nil
			},
			Round: func(_ context.Context, r Round) {
				seen = append(seen, fmt.Sprint("round ", r.Op, " ", r.Count(Granted)))
			},
			Done: func(_ context.Context, op Op, lease *Lease, err error) {
				seen = append(seen, fmt.Sprint("done ", op.Kind, " ", lease == nil, " ", err))
			},
		}))
		require.NoError(t, err)
		require.NoError(t, l.ForceRelease(t.Context(), "a"))
		_, err = l.Inspect(t.Context(), "a")
		require.NoError(t, err)
		assert.Equal(t, []string{"start forcerelease", "round forcerelease 3", "done forcerelease true <nil>"}, seen)
	})
}

func TestFenceCounterLiesBesideItsLock(t *testing.T) {
	for name, key := range map[string]string{
		"a":         "redlock:fence:{a}:a",
		"a{b}c":     "redlock:fence:{b}:a{b}c",
		"a{}c{d}":   "redlock:fence:{a{}c{d}}:a{}c{d}",
		"{x":        "redlock:fence:{{x}:{x",
		"{a}{b}":    "redlock:fence:{a}:{a}{b}",
		"orders/42": "redlock:fence:{orders/42}:orders/42",
	} {
		assert.Equal(t, key, fenceCounter(name))
	}
	assert.True(t, strings.HasPrefix(fenceCounter("a"), fencePrefix))
}

func TestForceReleaseThatIsGivenUpIsNotWrittenAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker()
		require.NoError(t, l.ForceRelease(t.Context(), "a"))
		w.plant("a", 0, 1, 2, 3)
		w.Inject("on EVALSHA #1, node 3: delay 50ms")
		ctx, cancel := context.WithTimeout(t.Context(), ms(10))
		defer cancel()
		time.AfterFunc(ms(20), func() { w.Inject("at 0s, node 3: cut") }) // a broken connection is replaced
		assert.NoError(t, l.ForceRelease(ctx, "a"), "a quorum is free of it")
		time.Sleep(time.Second)
		assert.Equal(t, []string{"", "", "foreign"}, w.keys("a"))
	})
}
