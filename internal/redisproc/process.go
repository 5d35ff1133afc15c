// Package redisproc runs real redis-server processes, for programs and tests that
// want to see them fail.
//
//	p, err := redisproc.Launch("")
//	…
//	defer p.Close()
//	p.Stop() // what is sent to p.Addr from now on waits
//	p.Cont()
//	p.Kill()
//	p.Start()
//
// Each has a port on the loopback and a directory of its own. On Linux none
// outlives the process that launched it, however that ends.
package redisproc

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
)

const portTries = 5 // others look for free ports too

// ErrNoServer says that redis-server is not in PATH.
var ErrNoServer = errors.New("redis-server is not in PATH")

var (
	errRuns   = errors.New("it runs")
	errDown   = errors.New("it does not run")
	errClosed = errors.New("it is closed")
)

// Process is a redis-server process and what is needed to start it again. Its
// methods may be called concurrently, and take effect one after the other: while
// Start waits for the server's first answer, the others wait for Start.
type Process struct {
	Addr string // host and port, the same over restarts
	Dir  string // working directory, an absolute path

	bin       string
	args      []string
	temporary bool // Dir is ours to remove

	mu     sync.Mutex // guards what follows
	life   *life      // the latest, nil before the first
	closed bool
}

// Find returns the path of redis-server, or ErrNoServer.
func Find() (string, error) {
	bin, err := exec.LookPath("redis-server")
	if err != nil {
		return "", ErrNoServer
	}
	return bin, nil
}

// Launch runs a server on a free port and returns when it answers. It keeps nothing
// on disk; args are redis-server's options, and override that, but must leave bind,
// port and dir alone. The server works and logs in dir, which is made if need be and
// should hold nothing else: Wipe empties it. If dir is "", it is a temporary one that
// Close removes. Without redis-server the error is ErrNoServer; after any error
// nothing runs.
func Launch(dir string, args ...string) (*Process, error) {
	bin, err := Find()
	if err != nil {
		return nil, err
	}
	p := &Process{bin: bin, args: slices.Clone(args), temporary: dir == ""}
	if p.Dir, err = makeDir(dir); err != nil {
		return nil, err
	}
	for range portTries {
		var port string
		if port, err = FreePort(); err != nil {
			break
		}
		p.Addr = net.JoinHostPort("127.0.0.1", port)
		if err = p.Start(); err == nil {
			return p, nil
		}
	}
	p.Close()
	return nil, err
}

func makeDir(dir string) (string, error) {
	if dir == "" {
		return os.MkdirTemp("", "redis-server-")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	return dir, os.MkdirAll(dir, 0o700)
}

// Kill ends the server with SIGKILL, and returns when it was reaped: it gets no
// chance to save or say anything. A server that does not run stays as it is.
func (p *Process) Kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.life.end()
}

// Stop freezes the server with SIGSTOP, and returns when it stands still: what is
// sent to it from then on waits in the kernel. Stopping a stopped server does
// nothing; one that does not run is an error, and so is a system without SIGSTOP.
func (p *Process) Stop() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.life.running() {
		return p.fail("cannot be stopped", errDown)
	}
	if p.life.stopped {
		return nil
	}
	if err := p.life.stop(); err != nil {
		return p.fail("cannot be stopped", err)
	}
	p.life.stopped = true
	return nil
}

// Cont lets a stopped server go on with SIGCONT. One that is not stopped stays as
// it is.
func (p *Process) Cont() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.stopped() {
		return nil
	}
	if err := p.life.cont(); err != nil {
		return p.fail("cannot go on", err)
	}
	p.life.stopped = false
	return nil
}

// Start runs the server again after Kill, on the same port, and returns when it
// answers. It comes up with what its persistence kept, which is nothing by default.
// After an error it does not run, and may be started once more; only if it ran
// before Start, which is an error too, it runs on.
func (p *Process) Start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return p.fail("cannot start", errClosed)
	case p.life.running():
		return p.fail("cannot start", errRuns)
	}
	log, err := os.OpenFile(filepath.Join(p.Dir, "log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return p.fail("cannot start", err)
	}
	defer log.Close()
	_, port, _ := net.SplitHostPort(p.Addr)
	cmd := exec.Command(p.bin, append([]string{
		"--bind", "127.0.0.1", "--port", port, "--dir", p.Dir, "--save", "", "--appendonly", "no",
	}, p.args...)...)
	cmd.Stdout, cmd.Stderr = log, log
	l, err := begin(cmd)
	if err != nil {
		return p.fail("cannot start", err)
	}
	if err := l.ready(p.Addr); err != nil {
		l.end()
		text, _ := os.ReadFile(log.Name())
		return fmt.Errorf("%w; its log ends\n%s", p.fail("cannot start", err), tail(text, 10))
	}
	p.life = l
	return nil
}

// Wipe deletes what is in Dir, so that Start comes up empty, as a server whose disk
// was replaced. The server must not run: it could write its data once more.
func (p *Process) Wipe() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.life.running() {
		return p.fail("cannot be wiped", errRuns)
	}
	entries, err := os.ReadDir(p.Dir)
	if err != nil {
		return p.fail("cannot be wiped", err)
	}
	for _, e := range entries {
		if err := os.RemoveAll(filepath.Join(p.Dir, e.Name())); err != nil {
			return p.fail("cannot be wiped", err)
		}
	}
	return nil
}

// Running reports whether the server has started and not ended, be it killed or on
// its own. A stopped server runs.
func (p *Process) Running() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.life.running()
}

// Stopped reports whether the server stands still after Stop.
func (p *Process) Stopped() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stopped()
}

func (p *Process) stopped() bool { return p.life.running() && p.life.stopped }

// Close kills the server for good, and removes Dir if it is a temporary one. It may
// be called again.
func (p *Process) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	p.life.end()
	if !p.temporary {
		return nil
	}
	return os.RemoveAll(p.Dir)
}

func (p *Process) fail(what string, err error) error {
	return fmt.Errorf("redis-server %s %s: %w", p.Addr, what, err)
}
