package faultinject

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// goodLines print exactly as they are written.
var goodLines = []string{
	"at 0s, all: hang",
	"at 1s, node 1: hang requests",
	"at 1.5s for 300ms, nodes 1,3-5 from a,b: hang replies",
	"at 1h0m0s, nodes 2-3: partition",
	"at 0s, all from web-1_x.y: partition requests",
	"at 0s, all: partition replies",
	"at 0s, all: cut",
	"at 0s for 1ms, all: refuse",
	"at 0s, all: delay 20ms",
	"at 0s, all: delay 20ms+5ms",
	"at 0s, all: delay 0s+5ms",
	"at 0s, all: delay 20ms+5ms requests",
	"at 0s, all: delay 20ms replies",
	"at 0s, all: lose messages",
	"at 0s, all: hang messages",
	"at 0s, all: delay messages 1.25s",
	"at 0s for 2s, all: freeze",
	"at 0s, node 64: thaw",
	"at 0s, all: kill",
	"at 0s, all: restart",
	"at 0s, all: restart empty",
	"at 0s, all: restart as of 250ms",
	"at 0s, all: flushall",
	`at 0s, all: evict "orders/42"`,
	`at 0s, all: evict ""`,
	"at 0s, all: clock +1h0m0s",
	"at 0s, all: clock -1m30s",
	"at 0s for 10s, all: rate 1.01",
	"at 0s, all: rate 0.001",
	"at 1s for 300ms, client a: pause",
	"at 1s, clients a,b: pause",
	"on SET, all: lose request",
	"on any, all: lose reply",
	"on SET #1, node 3: kill during",
	"on SET #2-5, node 3: kill before for 2s",
	"on SET #2-, node 3: kill after",
	"on SET, node 3 from a: kill after",
	"on SET, all: cut before and delay 1ms",
	"on SET, all: cut during",
	"on SET, all: cut after",
	"on SET, all: freeze for 1s",
	"on SET, all: hang",
	"on SET, all: restart empty",
	"on SET, all: delay 20ms+5ms replies and lose reply",
	`on EVALSHA key "orders/42" 10%, all: delay 20ms+5ms and lose reply`,
	`on SET key "a \"#1\": b, \\ \x00\n" #7 0.125%, all: error "OOM command not allowed when used memory > 'maxmemory'."`,
	"at 1s for 2s on CLIENT 100%, all: cut before",
	"for 2s on JSON.SET 1e-05%, all: cut before",
}

func TestAPlanPrintsAsItIsWritten(t *testing.T) {
	for _, line := range goodLines {
		e, err := ParseEvent(line)
		require.NoError(t, err, line)
		assert.Equal(t, line, e.String())
	}
	text := "seed 18446744073709551615\n" + strings.Join(goodLines, "\n") + "\n"
	p, err := ParsePlan(text)
	require.NoError(t, err)
	assert.Equal(t, text, p.String())
	again, err := ParsePlan(p.String())
	require.NoError(t, err)
	assert.Equal(t, p, again)
}

func TestAPlanMayBeWrittenFreely(t *testing.T) {
	p, err := ParsePlan(`
# 3 nodes, and a comment that begins with a number

	seed 7   # lucky
  at 0, nodes 2,3 :delay 20ms	#1 a numbered comment
on set#3,node 1:kill during# no space
on SET key "#1 # 2" #3-3, all: flushall # "quotes" in a comment
for 1s on get , all:  hang   ` + "\r" + `
at 1000ms,all:hang and partition  and   refuse`)
	require.NoError(t, err)
	assert.Equal(t, `seed 7
at 0s, nodes 2,3: delay 20ms
on SET #3, node 1: kill during
on SET key "#1 # 2" #3, all: flushall
for 1s on GET, all: hang
at 1s, all: hang and partition and refuse
`, p.String())
	p, err = ParsePlan("")
	require.NoError(t, err)
	assert.Equal(t, Plan{}, p)
}

// badLines are lines with what is said about them.
var badLines = map[string]string{
	"hang":                             `expected a time or a command, as "at 1s" or "on SET", at "hang"`,
	"at soon, all: hang":               `"soon" is no duration, as 1.5s or 20ms`,
	"at -1s, all: hang":                `at -1s is before the start`,
	"at 1s for 0s, all: hang":          `for 0s is not positive`,
	"at 1s":                            `expected a place, as ", all" or ", node 1", at ""`,
	"at 1s, everywhere: hang":          `expected all, node 1, nodes 1,3-5 or client a at "everywhere: hang"`,
	"at 1s, node 0: hang":              `"0" is no node: numbers from 1 to 64, as in 1,3-5`,
	"at 1s, node 65: hang":             `"65" is no node: numbers from 1 to 64, as in 1,3-5`,
	"at 1s, nodes 3-1: hang":           `"3-1" is no node: numbers from 1 to 64, as in 1,3-5`,
	"at 1s, nodes 1,,2: hang":          `"" is no node: numbers from 1 to 64, as in 1,3-5`,
	"at 1s, node: hang":                `"" is no node: numbers from 1 to 64, as in 1,3-5`,
	"at 1s, node 01: hang":             `"01" is no node: numbers from 1 to 64, as in 1,3-5`,
	"at 1s, all from: hang":            `expected names of clients at ": hang"`,
	"at 1s, all from a,,b: hang":       `"" is no client's name: letters, digits, '.', '_' and '-'`,
	"at 1s, all from a/b: hang":        `"a/b" is no client's name: letters, digits, '.', '_' and '-'`,
	"at 1s, client: pause":             `no client is named`,
	"at 1s, all hang":                  `expected a colon and a fault at "hang"`,
	"at 1s, all: explode":              `expected a fault at "explode": ` + catalogue(),
	"at 1s, all:":                      `expected a fault at "": ` + catalogue(),
	"at 1s, all: hang and":             `expected a fault at "": ` + catalogue(),
	"at 1s, all: hang up":              `expected the end of the line at "up"`,
	"at 1s, all: delay":                `"" is no delay, as 20ms or 20ms+5ms`,
	"at 1s, all: delay 5":              `"5" is no delay, as 20ms or 20ms+5ms`,
	"at 1s, all: delay 5ms+x":          `"5ms+x" is no delay, as 20ms or 20ms+5ms`,
	"at 1s, all: delay 0s":             "`delay 0s` is no delay",
	"at 1s, all: delay -1s":            "`delay -1s` is negative",
	"at 1s, all: delay messages 0s":    "`delay messages 0s` is no delay",
	"at 1s, all: clock 0s":             "`clock +0s` is no step",
	"at 1s, all: clock fast":           `"fast" is no duration, as 1.5s or 20ms`,
	"at 1s, all: rate fast":            `"fast" is no rate, as 1.01`,
	"at 1s, all: rate 0":               `a clock rate of 0 is not between 0.001 and 1000`,
	"at 1s, all: rate NaN":             `a clock rate of NaN is not between 0.001 and 1000`,
	"at 1s, all: evict a":              `expected a text in double quotes at "a"`,
	"at 1s, all: restart as of 2m":     "`restart as of 2m0s` is more than 1m0s ago",
	"at 1s, all: kill during":          "`kill during` needs a command: on SET, for one",
	"at 1s, all: lose reply":           "`lose reply` needs a command: on SET, for one",
	"at 1s, all: kill for 2s":          "`kill for 2s` at a time has its duration in front: at 1s for 2s",
	"at 1s for 1s, all: flushall":      "`flushall` happens, and has no duration",
	"at 1s, all from a: kill":          "`kill` happens to a node, whoever the clients are",
	"at 1s, client a: kill":            "`kill` is not for client a",
	"at 1s, clients a,b: hang":         "`hang` is not for clients a,b",
	"at 1s, node 1: pause":             "`pause` is not for node 1",
	"on SET, all: pause":               "`pause` cannot be bound to a command",
	"on SET, all: partition":           "`partition` cannot be bound to a command",
	"on SET, all: hang replies":        "`hang replies` cannot be bound to a command: lose request or lose reply",
	"on SET, all: kill":                "`kill` on a command is before, during or after it",
	"on SET, all: kill for 1s":         "`kill for 1s` on a command is before, during or after it",
	"on SET, all: hang for 1s":         "`hang` has no duration behind it, as in `hang for 1s`",
	"on SET, all: kill during for 0s":  `for 0s is not positive`,
	"on SET, all: freeze during":       "`freeze` is not before, during or after a command, as in `freeze during`",
	"on SET, all: lose reply requests": "`lose reply` has no direction, as in `lose reply requests`",
	"on SET #0, all: hang":             `#0 counts nothing: #3, #3-5 or #3-`,
	"on SET #5-3, all: hang":           `#5-3 counts nothing: #3, #3-5 or #3-`,
	"on SET #x, all: hang":             `expected a place, as ", all" or ", node 1", at ""`, // # x begins a comment
	"on SET 0%, all: hang":             `"0%" is no part: above 0%, up to 100%`,
	"on SET 101%, all: hang":           `"101%" is no part: above 0%, up to 100%`,
	"on SET often, all: hang":          `"often" is no part: above 0%, up to 100%`,
	"on SET: hang":                     `expected a place, as ", all" or ", node 1", at ": hang"`,
	"on SET #1: hang":                  `expected a place, as ", all" or ", node 1", at ": hang"`,
	"on SET 5%: hang":                  `expected a place, as ", all" or ", node 1", at ": hang"`,
	"on SET #1 node 1: hang":           `expected a place, as ", all" or ", node 1", at "node 1: hang"`,
	"on SET all: hang":                 `expected a place, as ", all" or ", node 1", at "all: hang"`,
	"on SET key a, all: hang":          `expected a text in double quotes at "a, all: hang"`,
	"on SET!, all: hang":               `SET! is no command: letters, digits, '.', '_' and '-'`,
	"on , all: hang":                   `expected a command at ", all: hang"`,
	`on SET, all: error ""`:            `an error reply is one line of text, not ""`,
	`on SET, all: error "a\nb"`:        `an error reply is one line of text, not "a\nb"`,
	"seed x":                           `"x" is no seed: a number from 0 to 2^64-1`,
	"seed -1":                          `"-1" is no seed: a number from 0 to 2^64-1`,
	"seed":                             `expected a time or a command, as "at 1s" or "on SET", at "seed"`,
}

func TestABadLineIsNamedWithItsReason(t *testing.T) {
	for line, want := range badLines {
		_, err := ParsePlan("\n\n" + line + "\nat 0s, all: hang")
		var planErr *PlanError
		require.ErrorAs(t, err, &planErr, line)
		assert.Equal(t, 3, planErr.Line, line)
		assert.Equal(t, line, planErr.Text)
		assert.EqualError(t, planErr.Err, want, line)
		assert.Equal(t, planErr.Err, errors.Unwrap(err))
	}
	_, err := ParsePlan("at 0s, all: hang\nat 1s, all: bang  # boom")
	assert.EqualError(t, err, `faultinject: plan, line 2, "at 1s, all: bang  # boom": expected a fault at "bang": `+catalogue())
	for _, text := range []string{"seed 1\nseed 2", "at 0s, all: hang\nseed 2"} {
		_, err := ParsePlan(text)
		assert.ErrorContains(t, err, "line 2")
		assert.ErrorContains(t, err, "the seed is the first line, once")
	}
}

func FuzzPlanPrintsBack(f *testing.F) {
	for _, line := range goodLines {
		f.Add(line)
	}
	f.Add("seed 7\n" + strings.Join(goodLines, "\n# comment\n\n"))
	f.Fuzz(func(t *testing.T, text string) {
		p, err := ParsePlan(text)
		if err != nil {
			var planErr *PlanError
			require.ErrorAs(t, err, &planErr)
			require.True(t, planErr.Line >= 1 && planErr.Line <= 1+strings.Count(text, "\n"))
			return
		}
		again, err := ParsePlan(p.String())
		require.NoError(t, err)
		require.Equal(t, p, again)
		require.Equal(t, p.String(), again.String())
	})
}

// Each fault that Go programs can make, with an event that it fits.
func TestWhatGoProgramsMakePrintsAndParsesBack(t *testing.T) {
	now := []Fault{
		Hang, Hang.Requests(), Hang.Replies(), Partition, Partition.Requests(), Partition.Replies(), Cut, Refuse,
		LoseMessages, HangMessages, Freeze, Thaw, Kill, Restart, RestartEmpty, FlushAll, Delay(time.Second, 0),
		Delay(0, 3*ms), Delay(5*ms, 3*ms).Requests(), Delay(5*ms, 0).Replies(), RestartAsOf(time.Minute),
		RestartAsOf(0), Evict("a b\n\"#"), ClockStep(-time.Hour), ClockStep(1), ClockRate(1.0 / 3), DelayMessages(1), Forget(time.Minute),
	}
	onCommand := []Fault{
		Hang, Cut.Before(), Cut.During(), Cut.After(), LoseRequest, LoseReply, Freeze, Freeze.For(1), Thaw,
		Kill.Before(), Kill.During().For(time.Hour), Kill.After(), Restart, RestartEmpty, RestartAsOf(5), FlushAll,
		Evict("\xff"), ClockStep(5), ClockRate(1000), Delay(1, 1), Delay(1, 1).Replies(), Error("OOM é \t \x01 \\"),
	}
	var events []Event
	for _, f := range now {
		events = append(events, Event{Faults: []Fault{f}}, Event{When: When{At: 90 * time.Minute}, Where: Nodes(1, 7), Faults: []Fault{f, Cut}})
	}
	for _, on := range []Trigger{
		On("set"), On("ANY"), On("Set").Key(""), On("SET").Key("a\"b, c: # \x00"), On("SET").Nth(3), On("SET").Between(2, 5),
		On("SET").Between(2, 0), On("SET").Between(4, 4).Percent(1e-9), On("SET").Percent(100), On("X").Key("k").Nth(1).Percent(33.3),
	} {
		for _, f := range onCommand {
			events = append(events, Event{When{On: on, For: time.Second}, Nodes(3).From("a", "b"), []Fault{f}})
		}
	}
	events = append(events, Event{Where: Processes("a", "b"), Faults: []Fault{Pause}})
	for _, e := range events {
		require.NoError(t, e.Check(), "%v", e)
		again, err := ParseEvent(e.String())
		require.NoError(t, err, "%v", e)
		assert.Equal(t, e, again)
	}
	used := map[verb]bool{reply: true}
	for _, e := range events {
		for _, f := range e.Faults {
			used[f.verb] = true
		}
	}
	for v, name := range names {
		assert.True(t, used[v], "%s is not in this test", name)
	}
}

func TestWhatGoProgramsMakeIsCheckedAsPlansAre(t *testing.T) {
	for want, e := range map[string]Event{
		"no fault": {},
		`"" is no command: letters, digits, '.', '_' and '-'`:                        {When: When{On: On("")}, Faults: []Fault{Hang}},
		"GET X is no command: letters, digits, '.', '_' and '-'":                     {When: When{On: On("get x")}, Faults: []Fault{Hang}},
		"#0-1 counts nothing: commands are counted from 1":                           {When: When{On: On("a").Nth(0)}, Faults: []Fault{Hang}},
		"#3-2 counts nothing: commands are counted from 1":                           {When: When{On: On("a").Between(3, 2)}, Faults: []Fault{Hang}},
		"#0-0 counts nothing: commands are counted from 1":                           {When: When{On: On("a").Between(0, 0)}, Faults: []Fault{Hang}},
		"0% is no part: above 0%, up to 100%":                                        {When: When{On: On("a").Percent(0)}, Faults: []Fault{Hang}},
		"-1% is no part: above 0%, up to 100%":                                       {When: When{On: On("a").Percent(-1)}, Faults: []Fault{Hang}},
		`"0" is no node: numbers from 1 to 64, as in 1,3-5`:                          {Where: Nodes(1, 0), Faults: []Fault{Hang}},
		`"70" is no node: numbers from 1 to 64, as in 1,3-5`:                         {Where: Nodes(70), Faults: []Fault{Hang}},
		`"-3" is no node: numbers from 1 to 64, as in 1,3-5`:                         {Where: Nodes(-3), Faults: []Fault{Hang}},
		"for -1s is negative":                                                        {When: When{For: -time.Second}, Faults: []Fault{Hang}},
		"no client is named":                                                         {Where: Processes(), Faults: []Fault{Pause}},
		`"a b" is no client's name: letters, digits, '.', '_' and '-'`:               {Where: Nodes().From("a b"), Faults: []Fault{Hang}},
		"`evict` has no direction, as in `evict \"k\" requests`":                     {Faults: []Fault{Evict("k").Requests()}},
		"`cut during` strikes what was executed, and an error says that nothing was": {When: When{On: On("a")}, Faults: []Fault{Cut.During(), Error("x")}},
		"`kill during for -1s` is negative":                                          {When: When{On: On("a")}, Faults: []Fault{Kill.During().For(-time.Second)}},
	} {
		assert.EqualError(t, e.Check(), want)
	}
	assert.EqualError(t, Event{Where: Nodes().From(""), Faults: []Fault{Hang}}.Check(), `"" is no client's name: letters, digits, '.', '_' and '-'`)
	assert.Equal(t, "nothing", Fault{}.String())
}
