// Package realredis runs real redis-server processes for tests.
//
//	nodes := realredis.Start(t, 5)
//	nodes[0].Kill()
//	nodes[1].Stop()
//
// Each has a free port on the loopback and an empty directory of its own, and
// ends with the test. Without redis-server in PATH the test is skipped, or fails
// where REDLOCK_REQUIRE_REDIS is 1.
package realredis

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	readyWithin = 10 * time.Second // from start to PONG, on a machine that is busy with other tests
	portTries   = 5                // other tests look for free ports too
)

// Server is one redis-server process and what is needed to start it again. Its
// methods fail the test instead of returning errors. They must be called from
// one goroutine at a time.
type Server struct {
	Addr string // host and port, the same over restarts
	Dir  string // working directory

	tb      testing.TB
	bin     string
	args    []string
	client  *redis.Client
	process *process // nil when it does not run
	stopped bool
}

// process is one life of a Server.
type process struct {
	*os.Process
	ended chan struct{} // closed when it was reaped
}

// Start runs n servers and returns when all answer. They keep nothing on disk;
// args are redis-server's options, and override that.
func Start(tb testing.TB, n int, args ...string) []*Server {
	tb.Helper()
	bin, err := exec.LookPath("redis-server")
	if err != nil {
		if os.Getenv("REDLOCK_REQUIRE_REDIS") == "1" {
			tb.Fatal("redis-server is not in PATH, and REDLOCK_REQUIRE_REDIS is 1")
		}
		tb.Skip("redis-server is not in PATH")
	}
	servers := make([]*Server, n)
	errs := make([]error, n)
	var starting sync.WaitGroup
	for i := range servers {
		s := &Server{tb: tb, bin: bin, Dir: tb.TempDir(), args: args}
		servers[i] = s
		starting.Go(func() { errs[i] = s.startAnywhere() })
	}
	starting.Wait()
	for _, s := range servers {
		tb.Cleanup(s.end)
	}
	if err := errors.Join(errs...); err != nil {
		tb.Fatal(err)
	}
	return servers
}

// Client is an administrator's client with go-redis's defaults, the same one
// each time. It is closed with the test.
func (s *Server) Client() *redis.Client { return s.client }

// Kill ends the server with SIGKILL: it gets no chance to save or say anything.
func (s *Server) Kill() {
	if s.process == nil {
		return
	}
	s.process.Kill() // fails only if it has ended already
	<-s.process.ended
	s.process, s.stopped = nil, false
}

// Stop freezes the server with SIGSTOP, and returns when it stands still: what
// is sent to it from then on waits in the kernel.
func (s *Server) Stop() {
	s.tb.Helper()
	if s.stopped {
		return
	}
	if s.process == nil {
		s.tb.Fatalf("redis-server %s does not run", s.Addr)
	}
	if err := s.process.stop(); err != nil {
		s.tb.Fatalf("redis-server %s cannot be stopped: %v", s.Addr, err)
	}
	s.stopped = true
}

// Cont lets a stopped server go on with SIGCONT.
func (s *Server) Cont() {
	s.tb.Helper()
	if !s.stopped {
		return
	}
	if err := s.process.cont(); err != nil {
		s.tb.Fatalf("redis-server %s cannot go on: %v", s.Addr, err)
	}
	s.stopped = false
}

// Restart kills the server if it runs, and starts it again on the same port. It
// comes up with what its persistence kept, which is nothing by default.
func (s *Server) Restart() {
	s.tb.Helper()
	s.Kill()
	_, port, _ := net.SplitHostPort(s.Addr)
	if err := s.start(port); err != nil {
		s.tb.Fatal(err)
	}
}

func (s *Server) end() {
	s.Kill()
	if s.client != nil {
		s.client.Close()
	}
}

// startAnywhere starts the server on a free port.
func (s *Server) startAnywhere() (err error) {
	for range portTries {
		var port string
		if port, err = FreePort(); err != nil {
			return err
		}
		s.Addr = net.JoinHostPort("127.0.0.1", port)
		if err = s.start(port); err == nil {
			s.client = redis.NewClient(&redis.Options{Addr: s.Addr})
			return nil
		}
	}
	return err
}

// FreePort returns a port of the loopback that nobody listened on just now. It is
// below those that systems give to outgoing connections: one of these could take
// the port before the server binds it, or while the server is down.
func FreePort() (port string, err error) {
	const from, to = 15000, 30000
	for range 100 {
		port = strconv.Itoa(from + rand.IntN(to-from))
		var l net.Listener
		if l, err = net.Listen("tcp", net.JoinHostPort("127.0.0.1", port)); err == nil {
			return port, l.Close()
		}
	}
	return "", err
}

func (s *Server) start(port string) error {
	log, err := os.OpenFile(filepath.Join(s.Dir, "log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(s.bin, append([]string{
		"--bind", "127.0.0.1", "--port", port, "--dir", s.Dir, "--save", "", "--appendonly", "no",
	}, s.args...)...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = noOrphan()
	if err := cmd.Start(); err != nil {
		return err
	}
	s.process = &process{cmd.Process, make(chan struct{})}
	go func(p *process) {
		cmd.Wait() // that it was killed is no news
		close(p.ended)
	}(s.process)
	if err := s.ready(); err != nil {
		s.Kill()
		text, _ := os.ReadFile(log.Name())
		return fmt.Errorf("redis-server %s: %w; its log ends\n%s", s.Addr, err, tail(text, 10))
	}
	return nil
}

// ready waits until this very process answers. Another one may have taken the
// port; ours ends then, but not before the other could answer.
func (s *Server) ready() error {
	ctx, cancel := context.WithTimeout(context.Background(), readyWithin)
	defer cancel()
	probe := redis.NewClient(&redis.Options{Addr: s.Addr, MaxRetries: -1})
	defer probe.Close()
	for {
		err := s.answers(ctx, probe)
		if err == nil {
			break
		}
		select {
		case <-s.process.ended:
			return errors.New("it ended at once")
		case <-ctx.Done():
			return fmt.Errorf("no answer within %v: %w", readyWithin, err)
		case <-time.After(2 * time.Millisecond):
		}
	}
	info, err := probe.Info(ctx, "server").Result()
	if id := fmt.Sprintf("process_id:%d\r\n", s.process.Pid); err == nil && !strings.Contains(info, id) {
		return errors.New("another process has the port")
	}
	return nil
}

// answers is nil once the server replies to PING; any reply will do but the one
// of a server that is still reading its data. The client is not asked before the
// port is open: it would try for long, and log each try.
func (s *Server) answers(ctx context.Context, probe *redis.Client) error {
	conn, err := net.DialTimeout("tcp", s.Addr, time.Second)
	if err != nil {
		return err
	}
	conn.Close()
	err = probe.Ping(ctx).Err()
	var reply redis.Error
	if errors.As(err, &reply) && !redis.IsLoadingError(err) {
		return nil // NOAUTH, with a password set
	}
	return err
}

// tail is the last lines of a log.
func tail(text []byte, lines int) []byte {
	all := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	return bytes.Join(all[max(0, len(all)-lines):], []byte("\n"))
}

// Calls is how often the server has executed a command since it started or since
// CONFIG RESETSTAT, whether a client or a script called it.
func (s *Server) Calls(command string) int {
	s.tb.Helper()
	info, err := s.client.Info(context.Background(), "commandstats").Result()
	if err != nil {
		s.tb.Fatalf("redis-server %s: %v", s.Addr, err)
	}
	_, rest, found := strings.Cut(info, "cmdstat_"+command+":calls=")
	if !found {
		return 0
	}
	count, _, _ := strings.Cut(rest, ",")
	n, err := strconv.Atoi(count)
	if err != nil {
		s.tb.Fatalf("redis-server %s: calls of %s: %v", s.Addr, command, err)
	}
	return n
}
