package redlock

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestPlainLockIsOneNativeCommandPerNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker()
		begin := make([]int, 3)
		for i, n := range w.nodes {
			begin[i] = len(n.log())
		}
		lease, err := l.Lock(t.Context(), "a")
		require.NoError(t, err)
		time.Sleep(ms(10))
		require.NoError(t, lease.Unlock(t.Context()))
		time.Sleep(ms(10))
		for i, n := range w.nodes {
			calls := n.log()[begin[i]:]
			require.Len(t, calls, 2)
			assert.Equal(t, fmt.Sprintf("SET a %s px 10000 nx get", lease.Token()), calls[0])
			assert.Regexp(t, "^EVALSHA [0-9a-f]{40} 1 a "+lease.Token()+"$", calls[1])
		}
	})
}

func TestOldServerGetsTheScript(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		for _, n := range w.nodes {
			n.on(func(cmd string, args []string) string {
				if cmd == "SET" && args[len(args)-1] == "get" { // the script's own SET ends otherwise
					return "ERR syntax error"
				}
				return ""
			})
		}
		l := w.cold()
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		assert.Equal(t, []string{lease.Token(), lease.Token(), lease.Token()}, w.keys("a"))
		_, err = l.TryLock(t.Context(), "a")
		assert.ErrorIs(t, err, ErrHeld)
		require.NoError(t, lease.Unlock(t.Context()))
		time.Sleep(ms(10))
		w.requireNoKeys()
		before := w.nodes[0].executed("SET a")
		lease, err = l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		time.Sleep(ms(10))
		assert.Equal(t, 1, w.nodes[0].executed("SET a")-before, "found out once: only the script's own SET")
		require.NoError(t, lease.Unlock(t.Context()))
	})
}

func TestScriptsSurviveFlushesAndServersThatWantTheText(t *testing.T) {
	for name, deny := range map[string]func(cmd string) string{
		"flushed each time": func(cmd string) string {
			if cmd == "EVALSHA" {
				return "NOSCRIPT No matching script. Please use EVAL."
			}
			return ""
		},
		"EVALSHA unknown": func(cmd string) string {
			if cmd == "EVALSHA" || cmd == "SCRIPT" {
				return "ERR unknown command 'EVALSHA', with args beginning with: "
			}
			return ""
		},
		"EVALSHA not permitted": func(cmd string) string {
			if cmd == "EVALSHA" || cmd == "SCRIPT" {
				return "NOPERM this user has no permissions to run the 'evalsha' command"
			}
			return ""
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, ms(1), ms(1), ms(1))
			l := w.locker()
			for _, n := range w.nodes {
				n.on(func(cmd string, _ []string) string { return deny(cmd) })
			}
			for range 3 {
				lease, err := l.TryLock(t.Context(), "a")
				require.NoError(t, err, name)
				require.NoError(t, lease.Extend(t.Context(), time.Minute), name)
				before := w.nodes[0].executed("EVAL")
				require.NoError(t, lease.Unlock(t.Context()), name)
				assert.LessOrEqual(t, w.nodes[0].executed("EVAL")-before, 2, "commands per node and call, %s", name)
				time.Sleep(ms(10))
				w.requireNoKeys()
			}
		})
	}
}

func TestScriptsDeniedIsToldByUnlockAndNeverHeldOrLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		l := w.locker(WithTTL(2 * time.Second))
		for _, n := range w.nodes {
			n.on(func(cmd string, _ []string) string {
				if strings.HasPrefix(cmd, "EVAL") {
					return "NOPERM no permissions to run the '" + cmd + "' command"
				}
				return ""
			})
		}
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		for _, err := range []error{lease.Extend(t.Context(), time.Minute), lease.Unlock(t.Context())} {
			assert.ErrorIs(t, err, ErrNoQuorum)
			assert.NotErrorIs(t, err, ErrHeld)
			assert.NotErrorIs(t, err, ErrLost)
			assert.ErrorContains(t, err, "NOPERM")
		}
		time.Sleep(2 * time.Second)
		w.requireNoKeys()
	})
}
