package redisproc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

const readyWithin = 10 * time.Second // from start to PONG, on a machine that is busy with other things

var errEnded = errors.New("it has ended")

// life is one run of a server, from start to end.
type life struct {
	*os.Process
	ended   chan struct{} // closed when it was reaped
	stopped bool
}

// begin runs cmd, and reaps it when it ends. The goroutine that starts it keeps its
// thread until then: with noOrphan the server dies with that thread. On a thread
// from the pool, any goroutine that comes there later could end it, by returning
// while locked to it.
func begin(cmd *exec.Cmd) (*life, error) {
	cmd.SysProcAttr = noOrphan()
	l := &life{ended: make(chan struct{})}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		l.Process = cmd.Process
		started <- err
		if err == nil {
			cmd.Wait() // that it was killed is no news
			close(l.ended)
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return l, nil
}

// running reports whether l has begun and not ended, by Kill or on its own.
func (l *life) running() bool {
	if l == nil {
		return false
	}
	select {
	case <-l.ended:
		return false
	default:
		return true
	}
}

func (l *life) end() {
	if l.running() {
		l.Kill() // fails only if it has ended just now
		<-l.ended
	}
}

// ready waits until this very process answers at addr. Another one may have taken
// the port; ours ends then, but not before the other could answer.
func (l *life) ready(addr string) error {
	ctx, cancel := context.WithTimeout(context.Background(), readyWithin)
	defer cancel()
	probe := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1})
	defer probe.Close()
	for {
		err := answers(ctx, probe)
		if err == nil {
			break
		}
		select {
		case <-l.ended:
			return errors.New("it ended at once")
		case <-ctx.Done():
			return fmt.Errorf("no answer within %v: %w", readyWithin, err)
		case <-time.After(2 * time.Millisecond):
		}
	}
	info, err := probe.Info(ctx, "server").Result()
	if id := fmt.Sprintf("process_id:%d\r\n", l.Pid); err == nil && !strings.Contains(info, id) {
		return errors.New("another process has the port")
	}
	return nil
}

// answers is nil once the server replies to PING; any reply will do but the one
// of a server that is still reading its data. The client is not asked before the
// port is open: it would try for long, and log each try.
func answers(ctx context.Context, probe *redis.Client) error {
	conn, err := net.DialTimeout("tcp", probe.Options().Addr, time.Second)
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
