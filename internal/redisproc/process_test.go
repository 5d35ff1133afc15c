package redisproc_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed58520471/redlock/internal/realredis"
	"github.com/seed58520471/redlock/internal/redisproc"
)

func launch(t *testing.T, args ...string) *redisproc.Process {
	t.Helper()
	realredis.Need(t)
	p, err := redisproc.Launch(t.TempDir(), args...)
	require.NoError(t, err)
	t.Cleanup(func() { p.Close() })
	return p
}

// with calls f with a client for p that does not retry.
func with(p *redisproc.Process, f func(*redis.Client) error) error {
	c := redis.NewClient(&redis.Options{Addr: p.Addr, MaxRetries: -1, ContextTimeoutEnabled: true})
	defer c.Close()
	return f(c)
}

func set(t *testing.T, p *redisproc.Process) {
	t.Helper()
	require.NoError(t, with(p, func(c *redis.Client) error { return c.Set(t.Context(), "k", "v", 0).Err() }))
}

// get is nil if p has what set has set, and redis.Nil if not.
func get(t *testing.T, p *redisproc.Process) error {
	return with(p, func(c *redis.Client) error { return c.Get(t.Context(), "k").Err() })
}

func TestAKilledProcessStartsAgainEmptyOnItsPort(t *testing.T) {
	p := launch(t)
	addr := p.Addr
	assert.True(t, p.Running())
	set(t, p)

	p.Kill()
	assert.False(t, p.Running())
	_, err := net.Dial("tcp", addr)
	require.Error(t, err)

	require.NoError(t, p.Start())
	assert.True(t, p.Running())
	assert.Equal(t, addr, p.Addr)
	assert.ErrorIs(t, get(t, p), redis.Nil)
}

func TestWhatPersistenceKeptOutlivesKillButNotWipe(t *testing.T) {
	p := launch(t, "--appendonly", "yes", "--appendfsync", "always")
	set(t, p)
	p.Kill()
	require.NoError(t, p.Start())
	require.NoError(t, get(t, p))

	assert.ErrorContains(t, p.Wipe(), "it runs")
	require.NoError(t, get(t, p))

	p.Kill()
	require.NoError(t, p.Wipe())
	left, err := os.ReadDir(p.Dir)
	require.NoError(t, err)
	assert.Empty(t, left)
	require.NoError(t, p.Start())
	assert.ErrorIs(t, get(t, p), redis.Nil)
}

func TestAStoppedProcessRunsButAnswersNothingUntilItGoesOn(t *testing.T) {
	p := launch(t)
	assert.NoError(t, p.Cont(), "it goes on already")
	for range 3 {
		require.NoError(t, p.Stop())
		require.NoError(t, p.Stop(), "no more than stopped")
		assert.True(t, p.Stopped())
		assert.True(t, p.Running())
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		assert.Error(t, with(p, func(c *redis.Client) error { return c.Ping(ctx).Err() }))
		cancel()

		require.NoError(t, p.Cont())
		assert.False(t, p.Stopped())
		assert.NoError(t, with(p, func(c *redis.Client) error { return c.Ping(t.Context()).Err() }))
	}
}

func TestAStoppedProcessCanBeKilledAndStartsUnstopped(t *testing.T) {
	p := launch(t)
	require.NoError(t, p.Stop())
	p.Kill()
	assert.False(t, p.Stopped())
	assert.ErrorContains(t, p.Stop(), "does not run")
	assert.NoError(t, p.Cont(), "nothing to do")
	require.NoError(t, p.Start())
	assert.False(t, p.Stopped())
	assert.ErrorContains(t, p.Start(), "it runs")
}

func TestAProcessThatEndedOnItsOwnDoesNotRun(t *testing.T) {
	p := launch(t)
	with(p, func(c *redis.Client) error { return c.ShutdownNoSave(t.Context()).Err() })
	require.Eventually(t, func() bool { return !p.Running() }, 10*time.Second, time.Millisecond)
	assert.ErrorContains(t, p.Stop(), "does not run")
	p.Kill()
	require.NoError(t, p.Start())
	assert.True(t, p.Running())
}

func TestCloseIsForGoodAndRemovesATemporaryDirectoryOnly(t *testing.T) {
	realredis.Need(t)
	t.Setenv("TMPDIR", t.TempDir())
	own := filepath.Join(t.TempDir(), "made", "if need be")
	for _, dir := range []string{"", own} {
		p, err := redisproc.Launch(dir)
		require.NoError(t, err)
		assert.DirExists(t, p.Dir)
		for range 2 {
			assert.NoError(t, p.Close())
		}
		assert.False(t, p.Running())
		assert.ErrorContains(t, p.Start(), "closed")
		if dir == "" {
			assert.NoDirExists(t, p.Dir)
		} else {
			assert.Equal(t, own, p.Dir)
			assert.DirExists(t, p.Dir)
		}
	}
}

func TestWithoutAServerInPathLaunchSaysSo(t *testing.T) {
	t.Setenv("PATH", "")
	p, err := redisproc.Launch(t.TempDir())
	assert.ErrorIs(t, err, redisproc.ErrNoServer)
	assert.Nil(t, p)
}

func TestAServerThatCannotStartShowsItsLog(t *testing.T) {
	realredis.Need(t)
	p, err := redisproc.Launch(t.TempDir(), "--no-such-option", "x")
	require.ErrorContains(t, err, "no-such-option")
	assert.Nil(t, p)
}

func TestConcurrentKillsAllReturnWhenItHasEnded(t *testing.T) {
	p := launch(t)
	for range 3 {
		var kills sync.WaitGroup
		for range 8 {
			kills.Go(func() {
				p.Kill()
				assert.False(t, p.Running())
			})
		}
		kills.Wait()
		require.NoError(t, p.Start())
	}
}

// Whatever the order in which they come, each call finds a whole server or none.
func TestMethodsMayBeCalledConcurrently(t *testing.T) {
	p := launch(t)
	var calls sync.WaitGroup
	for _, call := range []func(){
		p.Kill,
		func() { p.Stop() },
		func() { p.Cont() },
		func() { p.Start() },
		func() { p.Wipe() },
		func() { p.Running() },
		func() { p.Stopped() },
	} {
		calls.Go(func() {
			for range 20 {
				call()
			}
		})
	}
	calls.Wait()
	p.Kill()
	require.NoError(t, p.Start())
	assert.ErrorIs(t, get(t, p), redis.Nil)
}

// Go ends the thread of a goroutine that returns while locked to it.
func TestAServerOutlivesTheThreadThatLaunchedIt(t *testing.T) {
	realredis.Need(t)
	dir := t.TempDir()
	launched := make(chan *redisproc.Process)
	go func() {
		runtime.LockOSThread()
		p, err := redisproc.Launch(dir)
		assert.NoError(t, err)
		launched <- p
	}()
	p := <-launched
	require.NotNil(t, p)
	t.Cleanup(func() { p.Close() })
	time.Sleep(100 * time.Millisecond) // for the thread to end
	assert.True(t, p.Running())
	set(t, p)
}
