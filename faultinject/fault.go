package faultinject

import (
	"fmt"
	"strconv"
	"time"
)

// Fault is one thing that can go wrong. It is a small value that prints itself
// as plans are written. What it does depends on when it strikes, see [When]: at a
// time, for a time, or on a command.
type Fault struct {
	verb   verb
	way    way
	stage  stage
	time   time.Duration
	jitter time.Duration
	span   time.Duration
	rate   float64
	text   string
}

type verb uint8

const (
	delay verb = iota + 1
	hang
	partition
	cut
	refuse
	loseRequest
	loseReply
	reply
	freeze
	thaw
	kill
	restart
	restartEmpty
	restartAsOf
	flushAll
	evict
	clockStep
	clockRate
	loseMessages
	delayMessages
	hangMessages
	forget
	pause
	revive // what ends a kill; no plan has it
)

// way is the direction in which a fault of the network works.
type way uint8

const (
	bothWays way = iota
	requests
	replies
)

// has says whether a fault of this way strikes messages that go in direction d.
func (w way) has(d way) bool { return w == bothWays || w == d }

func (w way) String() string { return [...]string{"", " requests", " replies"}[w] }

// stage is where in the life of a command it strikes.
type stage uint8

const (
	atOnce stage = iota
	before
	during
	after
)

func (s stage) String() string { return [...]string{"", " before", " during", " after"}[s] }

// Faults of the network between clients and nodes. [Fault.Requests] and
// [Fault.Replies] restrict those that last to one direction.
var (
	// Hang lets everything vanish, without a word to either side; dials wait. A
	// connection of which something has vanished stays silent for ever, also when
	// the fault is over: TCP never loses a piece from the middle. On a command,
	// its connection alone falls silent, before the command arrives.
	Hang = Fault{verb: hang}

	// Partition keeps everything, as kernels do that send again: dials wait, and
	// when the fault is over all arrives, also what was sent on connections that
	// their clients have given up meanwhile.
	Partition = Fault{verb: partition}

	// Cut resets connections. On a command it has to say where: see
	// [Fault.Before], [Fault.During] and [Fault.After].
	Cut = Fault{verb: cut}

	// Refuse lets dials fail. What is connected goes on.
	Refuse = Fault{verb: refuse}

	// LoseRequest lets a command vanish on its way, and its connection with it,
	// without a word: nothing is executed, no reply ever comes. Use
	// Cut.Before() for the same with a connection that is closed.
	LoseRequest = Fault{verb: loseRequest}

	// LoseReply lets the node execute a command and the reply vanish, and the
	// connection with it, without a word. Use Cut.During() for the same with a
	// connection that is closed.
	LoseReply = Fault{verb: loseReply}

	// LoseMessages drops what is published to subscribers.
	LoseMessages = Fault{verb: loseMessages}

	// HangMessages lets connections that have subscribed to something fall silent
	// for ever, without a word; all others go on.
	HangMessages = Fault{verb: hangMessages}
)

// Faults of a node.
var (
	// Freeze stops a node as SIGSTOP does: what arrives waits, what was executed
	// is answered. At the end it goes on in the order of arrival.
	Freeze = Fault{verb: freeze}

	// Thaw ends a Freeze.
	Thaw = Fault{verb: thaw}

	// Kill ends a node as SIGKILL does. Its data are kept for a restart. With a
	// duration, it restarts with them at the end. On a command it has to say
	// where: see [Fault.Before], [Fault.During] and [Fault.After].
	Kill = Fault{verb: kill}

	// Restart brings a node up with the data that it had, or ends and starts it;
	// its connections are gone, and its script cache is empty.
	Restart = Fault{verb: restart}

	// RestartEmpty is Restart without persistence.
	RestartEmpty = Fault{verb: restartEmpty}

	// FlushAll deletes everything on a node, and leaves its connections.
	FlushAll = Fault{verb: flushAll}

	// Pause stops a client's process with SIGSTOP, see [Client.SetProcess].
	Pause = Fault{verb: pause}
)

// Delay makes messages arrive later by d and up to jitter more, in their order. On
// a command, that command alone is late, and what follows on its connection; with
// [Fault.Replies] it is executed at once, and its reply is late.
func Delay(d, jitter time.Duration) Fault { return Fault{verb: delay, time: d, jitter: jitter} }

// Error answers commands with an error, which names its kind first as Redis's do:
// Error("OOM command not allowed when used memory > 'maxmemory'."). The commands
// are not executed.
func Error(text string) Fault { return Fault{verb: reply, text: text} }

// RestartAsOf restarts a node with the data of d ago, as after a power cut
// between two writes to the disk. It goes by copies that are made every 100 ms at
// most, so up to 100 ms more can be lost; the copies reach back a minute.
func RestartAsOf(d time.Duration) Fault { return Fault{verb: restartAsOf, time: d} }

// Evict deletes a key.
func Evict(key string) Fault { return Fault{verb: evict, text: key} }

// ClockStep moves a node's clock. Keys expire at times of that clock: a step
// forward ends them early, a step back lets them live longer, as with a Redis
// whose machine's clock is set.
func ClockStep(d time.Duration) Fault { return Fault{verb: clockStep, time: d} }

// ClockRate lets a node's clock run faster or slower by a factor, 1 being right.
func ClockRate(rate float64) Fault { return Fault{verb: clockRate, rate: rate} }

// Forget lets connections that were silent for more than d stay silent for ever,
// without a word, as firewalls do that forget idle ones. It strikes what is sent
// next, in either direction.
func Forget(d time.Duration) Fault { return Fault{verb: forget, time: d} }

// DelayMessages makes what is published to subscribers arrive later by d.
func DelayMessages(d time.Duration) Fault { return Fault{verb: delayMessages, time: d} }

// Requests restricts Delay, Hang and Partition to the way from clients to nodes.
func (f Fault) Requests() Fault { f.way = requests; return f }

// Replies restricts Delay, Hang and Partition to the way from nodes to clients. A
// command that they are bound to is executed when it arrives.
func (f Fault) Replies() Fault { f.way = replies; return f }

// Before lets Kill or Cut strike when the command has arrived, and is not
// executed.
func (f Fault) Before() Fault { f.stage = before; return f }

// During lets Kill or Cut strike when the command was executed, and its reply has
// not left.
func (f Fault) During() Fault { f.stage = during; return f }

// After lets Kill or Cut strike when the reply has left; it does arrive.
func (f Fault) After() Fault { f.stage = after; return f }

// For lets a Kill or a Freeze that strikes on a command end after d, Kill with a
// restart with the data. Those that begin at a time have their duration in
// [When].
func (f Fault) For(d time.Duration) Fault { f.span = d; return f }

// names are the words of faults that take no further ones, but for their way or
// their stage.
var names = map[verb]string{
	delay: "delay", hang: "hang", partition: "partition", cut: "cut", refuse: "refuse",
	loseRequest: "lose request", loseReply: "lose reply", reply: "error", freeze: "freeze", thaw: "thaw",
	kill: "kill", restart: "restart", restartEmpty: "restart empty", restartAsOf: "restart as of",
	flushAll: "flushall", evict: "evict", clockStep: "clock", clockRate: "rate", loseMessages: "lose messages",
	delayMessages: "delay messages", hangMessages: "hang messages", forget: "forget", pause: "pause",
}

// String is the fault as a plan has it.
func (f Fault) String() string {
	s := names[f.verb]
	switch f.verb {
	case delay:
		s += " " + f.time.String()
		if f.jitter > 0 {
			s += "+" + f.jitter.String()
		}
	case delayMessages, restartAsOf, forget:
		s += " " + f.time.String()
	case clockStep:
		s += fmt.Sprintf(" %+v", signed(f.time))
	case clockRate:
		s += " " + strconv.FormatFloat(f.rate, 'g', -1, 64)
	case evict:
		s += " " + strconv.Quote(f.text)
	case reply:
		s += " " + strconv.Quote(f.text)
	case 0:
		return "nothing"
	}
	s += f.way.String() + f.stage.String()
	if f.span != 0 {
		s += " for " + f.span.String()
	}
	return s
}

type signed time.Duration

// Format prints the sign in front of any duration.
func (d signed) Format(w fmt.State, _ rune) {
	if d >= 0 {
		w.Write([]byte("+"))
	}
	w.Write([]byte(time.Duration(d).String()))
}

// lasts says whether the fault is a state that has a beginning and an end; the
// others happen.
func (f Fault) lasts() bool {
	switch f.verb {
	case delay, hang, partition, refuse, loseRequest, loseReply, reply, freeze, kill, clockRate,
		loseMessages, delayMessages, hangMessages, forget, pause:
		return true
	}
	return false
}

// strikesCommands says whether the fault can be bound to a command.
func (f Fault) strikesCommands() bool {
	switch f.verb {
	case refuse, loseMessages, delayMessages, hangMessages, forget, pause, partition:
		return false
	}
	return true
}

// check says what is wrong with the fault as it stands.
func (f Fault) check() error {
	switch {
	case f.verb == 0:
		return fmt.Errorf("no fault")
	case f.way != bothWays && f.verb != delay && f.verb != hang && f.verb != partition:
		return fmt.Errorf("%#q has no direction, as in %#q", names[f.verb], f)
	case f.stage != atOnce && f.verb != kill && f.verb != cut:
		return fmt.Errorf("%#q is not before, during or after a command, as in %#q", names[f.verb], f)
	case f.verb == clockRate && !(f.rate >= 0.001 && f.rate <= 1000):
		return fmt.Errorf("a clock rate of %v is not between 0.001 and 1000", f.rate)
	case f.span != 0 && f.verb != kill && f.verb != freeze:
		return fmt.Errorf("%#q has no duration behind it, as in %#q", names[f.verb], f)
	case f.verb != clockStep && (f.time < 0 || f.jitter < 0 || f.span < 0):
		return fmt.Errorf("%#q is negative", f)
	case f.verb == delay && f.time+f.jitter <= 0, f.verb == delayMessages && f.time <= 0:
		return fmt.Errorf("%#q is no delay", f)
	case f.verb == forget && f.time <= 0:
		return fmt.Errorf("%#q needs a time of silence", f)
	case f.verb == clockStep && f.time == 0:
		return fmt.Errorf("%#q is no step", f)
	case f.verb == restartAsOf && f.time > snapshotsFor:
		return fmt.Errorf("%#q is more than %v ago", f, snapshotsFor)
	case f.verb == reply && (f.text == "" || !oneLine(f.text)):
		return fmt.Errorf("an error reply is one line of text, not %q", f.text)
	}
	return nil
}

func oneLine(s string) bool {
	for _, r := range s {
		if r == '\r' || r == '\n' {
			return false
		}
	}
	return true
}
