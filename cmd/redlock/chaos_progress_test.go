package main

import (
	"bytes"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestProgressIsOneLineOnATerminalAndIsGoneInTheEnd(t *testing.T) {
	var b bytes.Buffer
	p := &progress{w: &b, terminal: true}
	p.show("a long line")
	p.show("short")
	p.show("short")
	p.clear()
	p.clear()
	assert.Equal(t, "\ra long line\rshort      \r     \r", b.String())

	b.Reset()
	p.show(strings.Repeat("é", 2*width))
	assert.Equal(t, width, utf8.RuneCountInString(b.String()), "with the carriage return")
}

func TestProgressIsLinesElsewhere(t *testing.T) {
	var b bytes.Buffer
	p := &progress{w: &b, every: time.Millisecond}
	shown := make(chan struct{}, 1)
	stop := p.watch(func() string {
		select {
		case shown <- struct{}{}:
		default:
		}
		return "as far as this"
	})
	<-shown
	stop()
	assert.Regexp(t, `^(as far as this\n)+$`, b.String())
}

// The null device stands in for a terminal: both are character devices.
func TestProgressKnowsATerminal(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("depends on the console")
	}
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	require.NoError(t, err)
	defer null.Close()
	t.Setenv("NO_COLOR", "1")
	t.Setenv("TERM", "xterm")
	assert.True(t, newProgress(null).terminal, "no escape codes are used")
	assert.False(t, newProgress(new(bytes.Buffer)).terminal)
	t.Setenv("COLUMNS", "")
	assert.Equal(t, width, columns(null))
	t.Setenv("TERM", "dumb")
	assert.False(t, newProgress(null).terminal)
	assert.Equal(t, 100, columns(null))
}
