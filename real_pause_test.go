//go:build unix

package redlock_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/seed58520471/redlock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// pausedTTL leaves a busy machine time to renew, and a test to be done in seconds.
const pausedTTL = 2 * time.Second

// holderOn makes the test binary a holder on the servers whose addresses it has.
const holderOn = "REDLOCK_TEST_HOLDER_ON"

func pausable() []redlock.Option {
	return []redlock.Option{redlock.WithTTL(pausedTTL), redlock.WithNodeTimeout(pausedTTL / 4)}
}

// aside is this test binary in a process of its own, in a role of one test. It ends
// with its standard input, so that it does not outlive the test.
type aside struct {
	*exec.Cmd
	said *bufio.Scanner
	end  io.Closer
}

// startAside runs the current top-level test in another process.
func startAside(t *testing.T, role string, ns nodes) *aside {
	t.Helper()
	addrs := make([]string, len(ns))
	for i, n := range ns {
		addrs[i] = n.Addr
	}
	top, _, _ := strings.Cut(t.Name(), "/")
	cmd := exec.Command(os.Args[0], "-test.run=^"+top+"$", "-test.timeout=60s")
	cmd.Env = append(os.Environ(), role+"="+strings.Join(addrs, ","))
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	a := &aside{cmd, bufio.NewScanner(out), in}
	t.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGCONT)
		cmd.Process.Kill()
		cmd.Wait()
	})
	return a
}

// hear returns the next line that the process says.
func (a *aside) hear(t *testing.T) string {
	t.Helper()
	require.True(t, a.said.Scan(), "the other process has ended")
	return a.said.Text()
}

// hears waits for a line that begins so, and returns the rest.
func (a *aside) hears(t *testing.T, prefix string) string {
	t.Helper()
	line := a.hear(t)
	rest, found := strings.CutPrefix(line, prefix)
	require.True(t, found, "wanted %q, heard %q", prefix, line)
	return strings.TrimSpace(rest)
}

// beAside is what a process does that was started by startAside.
func beAside(addrs string, role func(l *redlock.Locker) error, opts ...redlock.Option) {
	go func() {
		io.Copy(io.Discard, os.Stdin)
		os.Exit(2)
	}()
	var clients []redis.UniversalClient
	for addr := range strings.SplitSeq(addrs, ",") {
		clients = append(clients, redis.NewClient(&redis.Options{Addr: addr}))
	}
	l, err := redlock.New(clients, opts...)
	if err == nil {
		err = role(l)
	}
	if err != nil {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// holdThroughPause holds "orders", renewed, and tells what it sees when it has
// slept for far longer than it meant to.
func holdThroughPause(l *redlock.Locker) error {
	lease, err := l.Lock(context.Background(), "orders")
	if err != nil {
		return err
	}
	work := lease.Context(context.Background())
	fmt.Println("held", lease.Token())
	for slept := time.Now(); time.Since(slept) < pausedTTL; {
		slept = time.Now()
		time.Sleep(pausedTTL / 200)
	}
	err, left := lease.Err(), lease.Validity()
	var lost *redlock.LostError
	if !errors.As(err, &lost) || !errors.Is(err, redlock.ErrLost) {
		return fmt.Errorf("the first look says %v", err)
	}
	fmt.Println("woke", lost.Cause, left)
	select {
	case <-work.Done():
		fmt.Println("work ended:", errors.Is(context.Cause(work), redlock.ErrLost))
	case <-time.After(soon):
		fmt.Println("work goes on")
	}
	for until := time.Now().Add(pausedTTL); time.Now().Before(until); time.Sleep(pausedTTL / 200) {
		if !errors.Is(lease.Err(), redlock.ErrLost) || lease.Validity() > 0 {
			return fmt.Errorf("it is back: %v", lease.Err())
		}
	}
	fmt.Println("stays lost:", errors.Is(lease.Extend(context.Background(), pausedTTL), redlock.ErrLost))
	fmt.Println("unlock is lost:", errors.Is(lease.Unlock(context.Background()), redlock.ErrLost))
	return l.Close()
}

// A holder that was stopped for longer than its lease finds it lost as soon as it
// goes on, although its watchdog goes on too; whoever got the lock meanwhile keeps
// it, and if nobody has it nothing comes back.
func TestAHolderThatWasPausedForLongerThanItsLeaseIsLostAtItsFirstLook(t *testing.T) {
	if addrs := os.Getenv(holderOn); addrs != "" {
		beAside(addrs, holdThroughPause, append(pausable(), redlock.WithAutoExtend())...)
	}
	for _, tc := range []struct {
		name  string
		holds bool // the other one, when the holder goes on
		make  func(nodes, *testing.T) *redlock.Locker
	}{
		{"the other holds it, New", true, func(ns nodes, t *testing.T) *redlock.Locker {
			return ns.locker(t, append(pausable(), redlock.WithAutoExtend())...)
		}},
		{"the other has had it, Open", false, func(ns nodes, t *testing.T) *redlock.Locker {
			return ns.open(t, "", append(pausable(), redlock.WithAutoExtend())...)
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			ns := startNodes(t, 3)
			holder := startAside(t, holderOn, ns)
			token := holder.hears(t, "held")
			time.Sleep(pausedTTL) // it is renewed meanwhile
			for _, n := range ns {
				require.Equal(t, token, n.Client().Get(t.Context(), "orders").Val(), n.Addr)
			}

			require.NoError(t, holder.Process.Signal(syscall.SIGSTOP))
			paused := time.Now()
			other := tc.make(ns, t)
			ctx, cancel := context.WithTimeout(t.Context(), soon)
			defer cancel()
			lease, err := other.Lock(ctx, "orders")
			require.NoError(t, err, "a paused holder keeps the lock for its ttl only")
			t.Logf("passed on %v after the pause began", time.Since(paused).Round(time.Millisecond))
			ns.eventuallyHold(t, lease, soon)
			if !tc.holds {
				unlock(t, lease)
				ns.eventuallyEmpty(t, soon)
			}
			time.Sleep(time.Until(paused.Add(pausedTTL + pausedTTL/4)))
			ns.do(t, "config", "resetstat")
			require.NoError(t, holder.Process.Signal(syscall.SIGCONT))

			assert.Equal(t, "paused 0s", holder.hears(t, "woke"), "cause and validity")
			assert.Equal(t, "true", holder.hears(t, "work ended:"))
			assert.Equal(t, "true", holder.hears(t, "stays lost:"))
			assert.Equal(t, "true", holder.hears(t, "unlock is lost:"))
			require.NoError(t, holder.Wait())
			for _, n := range ns {
				assert.Zero(t, n.Calls("set"), "nothing was put anywhere")
				assert.Zero(t, n.Calls("del"), "nothing was taken away")
			}
			if tc.holds {
				require.NoError(t, lease.Err())
				ns.eventuallyHold(t, lease, soon)
				unlock(t, lease)
			}
			ns.eventuallyEmpty(t, soon)
		})
	}
}
