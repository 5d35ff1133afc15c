package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/redis/go-redis/v9"
	"github.com/seed58520471/redlock"
)

// textReport shows a report to people, step by step.
type textReport struct {
	w      io.Writer
	colour bool
}

func newTextReport(w io.Writer) textReport { return textReport{w, wantsColour(w)} }

// wantsColour tells whether escape codes are welcome: on a terminal that knows
// them, unless NO_COLOR is set.
func wantsColour(w io.Writer) bool {
	if runtime.GOOS == "windows" && os.Getenv("WT_SESSION") == "" {
		return false // the old console prints them
	}
	return os.Getenv("NO_COLOR") == "" && isTerminal(w)
}

// isTerminal tells whether a line can be written over again.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok || os.Getenv("TERM") == "dumb" {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

const (
	bold   = "1"
	faint  = "2"
	red    = "31"
	green  = "32"
	yellow = "33"
)

// paint colours a text that has its final width.
func (t textReport) paint(code, text string) string {
	if !t.colour || text == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

const (
	width = 80 // of a terminal, where the words allow it
	hang  = 11 // columns in front of what stands beside a mark or a node's number
)

// fold breaks a text between words, so that it fits into the width when the first
// line begins in one column and the others in another.
func fold(text string, first, others int) string { return foldTo(width, text, first, others) }

func foldTo(width int, text string, first, others int) string {
	var b strings.Builder
	column := first
	for i, word := range strings.Split(text, " ") {
		size := utf8.RuneCountInString(word)
		switch {
		case i == 0:
		case column+1+size > width:
			b.WriteString("\n" + strings.Repeat(" ", others))
			column = others
		default:
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column += size
	}
	return b.String()
}

func (t textReport) begin(r *report) {
	fmt.Fprintf(t.w, "%s, %s. A lock needs %s.\n",
		plural(r.Nodes, "node", "nodes"), r.where, plural(r.Quorum, "vote", "votes"))
	fmt.Fprintf(t.w, "Lock %q, ttl %v, node timeout %v.\n",
		r.Lock, time.Duration(r.TTL), time.Duration(r.NodeTimeout))
}

func (t textReport) step(number int, s *step) {
	fmt.Fprintf(t.w, "\n%s\n", t.paint(bold, fmt.Sprintf("%d. %s", number, s.Title)))
	if r := s.Round; r != nil {
		if r.Attempt > 0 || !r.smooth() {
			t.votes(r.Votes)
		}
		op := r.Op
		if r.Attempt > 1 {
			op += fmt.Sprintf(", attempt %d", r.Attempt)
		}
		line := fmt.Sprintf("%s: %d of %d granted, %d needed, decided in %s",
			op, r.Granted, len(r.Votes), r.Quorum, span(r.Took))
		if s.Validity > 0 {
			line += ", valid for " + span(s.Validity)
		}
		fmt.Fprintf(t.w, "   %s\n", fold(line, 3, hang))
	}
	for _, c := range s.Checks {
		t.check(c)
	}
}

// smooth tells that no row of the votes says more than their count.
func (r *round) smooth() bool {
	return r.count(redlock.Granted)+r.count(redlock.Pending) == len(r.Votes)
}

func (t textReport) votes(votes []vote) {
	node := 0
	for _, v := range votes {
		node = max(node, utf8.RuneCountInString(v.Node))
	}
	for i, v := range votes {
		code, latency := yellow, span(v.Latency)
		switch v.Outcome {
		case "granted":
			code = green
		case "failed":
			code = red
		case "pending", notAsked:
			code, latency = faint, ""
		}
		head := fmt.Sprintf("   node %d  %-*s  ", i+1, node, v.Node)
		outcome, note := fmt.Sprintf("%-9s", v.Outcome), printable(v.note())
		line := fmt.Sprintf("%s%s  %9s  ", head, t.paint(code, outcome), latency)
		column := utf8.RuneCountInString(head+outcome) + 2 + 9 + 2
		if column+utf8.RuneCountInString(note) > width {
			line = strings.TrimRight(line, " ") + "\n" + strings.Repeat(" ", hang)
			note = fold(note, hang, hang)
		}
		fmt.Fprintln(t.w, strings.TrimRight(line+note, " "))
	}
}

// note is the last column of a row.
func (v vote) note() string {
	switch {
	case v.Outcome == "pending":
		return "not waited for"
	case v.Outcome == notAsked:
		return v.Error
	case v.Holder != "":
		return "held by " + v.Holder
	case v.err != nil:
		return reason(v.err)
	}
	return ""
}

func (t textReport) check(c check) {
	mark := t.paint(green, "ok    ")
	if !c.OK {
		mark = t.paint(red, "FAILED")
	}
	line := c.Claim
	if c.Found != "" {
		line += ": " + c.Found
	}
	fmt.Fprintf(t.w, "   %s  %s\n", mark, fold(line, hang, hang))
}

func (t textReport) end(r *report) error {
	word := t.paint(green, "ok")
	text := fmt.Sprintf("All %d steps did what they say, in %s.", len(r.Steps), span(r.Took))
	if !r.OK {
		word = t.paint(red, "FAILED")
		text = fmt.Sprintf("Stopped at step %d.", len(r.Steps))
	}
	_, err := fmt.Fprintf(t.w, "\n%s  %s\n", word, text)
	for _, w := range r.Warnings {
		const indent = len("warning  ")
		line := printable(fmt.Sprintf("node %d (%s) %s", w.Number, w.Node, w.Text))
		_, err = fmt.Fprintf(t.w, "%s  %s\n", t.paint(yellow, "warning"), fold(line, indent, indent))
	}
	return err
}

// printable keeps a terminal safe from what strangers have stored.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, text)
}

// reason is an error in few words: what the server said, or what is wrong with
// the connection to an address that the row shows already.
func reason(err error) string {
	var reply redis.Error
	var network *net.OpError
	var system *os.SyscallError
	switch {
	case errors.As(err, &reply):
		return reply.Error()
	case errors.As(err, &system):
		return system.Err.Error()
	case errors.As(err, &network):
		return network.Err.Error()
	}
	return err.Error()
}

// span is a duration with the digits that matter to people.
func span(m millis) string {
	d := time.Duration(m)
	if d < time.Second {
		return fmt.Sprintf("%.2fms", float64(d)/float64(time.Millisecond))
	}
	return fmt.Sprintf("%.3fs", d.Seconds())
}
