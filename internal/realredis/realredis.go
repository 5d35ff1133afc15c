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
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/seed58520471/redlock/internal/redisproc"
)

// Server is a redis-server process that belongs to a test. The methods declared
// here fail the test instead of returning errors, so they are for its goroutine.
type Server struct {
	*redisproc.Process

	tb     testing.TB
	client *redis.Client
}

// Need skips the test if redis-server is not in PATH, or fails it where
// REDLOCK_REQUIRE_REDIS is 1.
func Need(tb testing.TB) {
	tb.Helper()
	_, err := redisproc.Find()
	if err == nil {
		return
	}
	if os.Getenv("REDLOCK_REQUIRE_REDIS") == "1" {
		tb.Fatalf("%v, and REDLOCK_REQUIRE_REDIS is 1", err)
	}
	tb.Skip(err)
}

// Start runs n servers and returns when all answer. They keep nothing on disk;
// args are redis-server's options, and override that.
func Start(tb testing.TB, n int, args ...string) []*Server {
	tb.Helper()
	Need(tb)
	servers := make([]*Server, n)
	errs := make([]error, n)
	var starting sync.WaitGroup
	for i := range servers {
		s := &Server{tb: tb}
		servers[i] = s
		dir := tb.TempDir()
		starting.Go(func() { s.Process, errs[i] = redisproc.Launch(dir, args...) })
	}
	starting.Wait()
	for i, s := range servers {
		if errs[i] == nil {
			s.client = redis.NewClient(&redis.Options{Addr: s.Addr})
			tb.Cleanup(s.end)
		}
	}
	if err := errors.Join(errs...); err != nil {
		tb.Fatal(err)
	}
	return servers
}

func (s *Server) end() {
	s.Close()
	s.client.Close()
}

// FreePort returns a port of the loopback that nobody listened on just now.
func FreePort() (port string, err error) { return redisproc.FreePort() }

// Client is an administrator's client with go-redis's defaults, the same one
// each time. It is closed with the test.
func (s *Server) Client() *redis.Client { return s.client }

// Stop freezes the server with SIGSTOP, and returns when it stands still: what
// is sent to it from then on waits in the kernel.
func (s *Server) Stop() {
	s.tb.Helper()
	s.must(s.Process.Stop())
}

// Cont lets a stopped server go on with SIGCONT.
func (s *Server) Cont() {
	s.tb.Helper()
	s.must(s.Process.Cont())
}

// Restart kills the server if it runs, and starts it again on the same port. It
// comes up with what its persistence kept, which is nothing by default.
func (s *Server) Restart() {
	s.tb.Helper()
	s.Kill()
	s.must(s.Start())
}

func (s *Server) must(err error) {
	s.tb.Helper()
	if err != nil {
		s.tb.Fatal(err)
	}
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
