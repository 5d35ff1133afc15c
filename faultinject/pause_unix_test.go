//go:build unix

package faultinject

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// echo runs cat as a client's process. It answers each line while it runs.
func echo(t *testing.T, k *Client) (say func(), heard <-chan string) {
	cmd := exec.Command("cat")
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	lines := make(chan string, 10)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			lines <- s.Text()
		}
	}()
	t.Cleanup(func() {
		in.Close()
		for range lines {
		}
		assert.NoError(t, cmd.Wait())
	})
	k.SetProcess(cmd.Process)
	return func() { io.WriteString(in, "hello\n") }, lines
}

func TestAPausedProcessDoesNothingUntilItGoesOn(t *testing.T) {
	c := Start(t, 1)
	say, heard := echo(t, c.Client("a"))
	say()
	require.Equal(t, "hello", <-heard)
	i := c.Inject("at 0s for 100ms, client a: pause")
	begin := time.Now()
	for stopped := false; !stopped; { // the signal takes a moment
		say()
		select {
		case <-heard:
			stopped = time.Since(begin) > 90*ms
		case <-time.After(20 * ms):
			stopped = true
		}
	}
	require.Equal(t, "hello", <-heard)
	assert.GreaterOrEqual(t, time.Since(begin), 100*ms)
	assert.NoError(t, i.Check())
	assert.Equal(t, 1, i.Fired())
}

func TestCloseLetsAPausedProcessGoOn(t *testing.T) {
	c, err := New(1)
	require.NoError(t, err)
	say, heard := echo(t, c.Client("a"))
	c.Inject("at 0s, client a: pause")
	require.NoError(t, c.Close())
	say()
	assert.Equal(t, "hello", <-heard)
}

func TestTheFailureOfAPauseIsTold(t *testing.T) {
	c := Start(t, 1)
	p, err := os.StartProcess("/bin/sh", []string{"sh", "-c", "exit 0"}, &os.ProcAttr{})
	require.NoError(t, err)
	_, err = p.Wait()
	require.NoError(t, err)
	c.Client("a").SetProcess(p)
	i := c.Inject("at 0s, client a: pause")
	assert.ErrorContains(t, i.Check(), "faultinject: client a: os: process already finished")
	assert.ErrorContains(t, i.Check(), "has never struck")
}
