package redlock

import (
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestCheckReadsClocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWellWorld(t, nil, ms(2), ms(2), ms(2))
		l := w.cold()
		w.Inject("at 0s, node 2: clock +3s")
		report := w.check(l)
		assert.Equal(t, "warning clocks-apart; warning clock-offset 2", w.say(report))
		assert.InDelta(t, 3*time.Second, report.Nodes[1].Offset, float64(ms(1)))

		w.Inject("at 0s for 1m, node 3: rate 1.03")
		time.Sleep(5 * time.Second)
		report = w.check(l)
		assert.Equal(t, "error clock-drift 3; warning clocks-apart; warning clock-offset 2", w.say(report))
		assert.InDelta(t, 30000, report.Nodes[2].Drift, report.Nodes[2].DriftWithin)
		assert.InDelta(t, 0, report.Nodes[1].Drift, report.Nodes[1].DriftWithin)
		assert.InDelta(t, 5*time.Second, report.Nodes[2].DriftOver, float64(ms(100)))
		assert.InDelta(t, 2*1e3/5, report.Nodes[2].DriftWithin, 20)

		time.Sleep(5 * time.Second)
		report = w.check(l)
		assert.InDelta(t, 10*time.Second, report.Nodes[2].DriftOver, float64(ms(200)), "the first look is the base until it is ten seconds old")
		time.Sleep(5 * time.Second)
		report = w.check(l)
		assert.InDelta(t, 5*time.Second, report.Nodes[2].DriftOver, float64(ms(200)))
	})
}

func TestAReportIsTextAndJSON(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWellWorld(t, map[int]string{2: "role:slave\r\nmaster_host:h\r\nmaster_port:1"}, ms(1), ms(2), ms(3))
		w.Inject("at 0s, node 3: kill")
		report := w.check(w.cold())
		text := report.String()
		t.Log(text)
		for _, want := range []string{"3 nodes, 2 needed: 1 error, 1 warning, 0 info", "error replica: ", "role:slave, of h:1", "a lock takes 2ms;", w.Node(3).Addr()} {
			assert.Contains(t, text, want)
		}
		assert.Equal(t, "3 nodes, 2 needed: 1 error, 1 warning, 0 info", report.LogValue().String())
		data, err := json.Marshal(report)
		require.NoError(t, err)
		var back Report
		require.NoError(t, json.Unmarshal(data, &back))
		assert.Equal(t, text, back.String())
		assert.Equal(t, report.Findings, back.Findings)
		assert.Contains(t, string(data), `"severity":"error","node":"`+w.Node(2).Addr()+`","what":"replica","evidence":"role:slave`)
		var s Severity
		assert.Error(t, s.UnmarshalText([]byte("fatal")))
		assert.Equal(t, "severity 9", Severity(9).String())
	})
}

func TestCheckSeesWhatARestartGuardNeeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWellWorld(t, nil, ms(1), ms(2), ms(3))
		l := w.cold(WithRestartGuard(time.Minute))
		assert.Equal(t, "info young 1; info young 2; info young 3", w.say(w.check(l)))
		time.Sleep(time.Hour)
		assert.Empty(t, w.check(l).Findings)
		begin := time.Now()
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		assert.Equal(t, ms(2), time.Since(begin), "it is warm with a guard too")
		require.NoError(t, lease.Unlock(t.Context()))

		assert.Equal(t, "error other-guard", w.say(w.check(w.cold())), "one without")
		assert.Equal(t, "error other-guard; error other-guard", w.say(w.check(w.cold(WithRestartGuard(2*time.Minute)))), "one with another")
		denied := w.Inject(`on LASTSAVE, node 2: error "NOPERM this user has no permissions to run the 'lastsave' command"`)
		assert.Contains(t, w.say(w.check(l)), "error guard-denied 2")
		denied.Stop()
		assert.NotContains(t, w.say(w.check(l)), "guard-denied")
	})
}
