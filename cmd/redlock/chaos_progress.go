package main

import (
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"
)

// progress shows how far something is: on a terminal in one line, which is written
// over and is gone at the end; elsewhere in a line now and then. No escape codes
// are needed for that.
type progress struct {
	w        io.Writer
	terminal bool
	every    time.Duration
	line     string // that stands on the terminal
}

func newProgress(w io.Writer) *progress {
	if isTerminal(w) {
		return &progress{w: w, terminal: true, every: 100 * time.Millisecond}
	}
	return &progress{w: w, every: 5 * time.Second}
}

// watch shows the status again and again, until the function that it returns is
// called.
func (p *progress) watch(status func() string) (stop func()) {
	over, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		t := time.NewTicker(p.every)
		defer t.Stop()
		for {
			select {
			case <-t.C:
				p.show(status())
			case <-over:
				p.clear()
				return
			}
		}
	}()
	return func() {
		close(over)
		<-done
	}
}

func (p *progress) show(line string) {
	if !p.terminal {
		fmt.Fprintln(p.w, line)
		return
	}
	if r := []rune(line); len(r) >= width { // a line that wraps cannot be written over
		line = string(r[:width-1])
	}
	if line == p.line {
		return
	}
	rest := utf8.RuneCountInString(p.line) - utf8.RuneCountInString(line)
	fmt.Fprint(p.w, "\r"+line+strings.Repeat(" ", max(0, rest)))
	p.line = line
}

func (p *progress) clear() {
	if p.line != "" {
		p.show("")
		fmt.Fprint(p.w, "\r")
	}
}
