package redlock

import (
	"fmt"
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
		for i := range begin {
			begin[i] = len(w.log(i + 1))
		}
		lease, err := l.Lock(t.Context(), "a")
		require.NoError(t, err)
		time.Sleep(ms(10))
		require.NoError(t, lease.Unlock(t.Context()))
		time.Sleep(ms(10))
		for i := range begin {
			calls := w.log(i + 1)[begin[i]:]
			require.Len(t, calls, 2)
			assert.Equal(t, fmt.Sprintf("SET a %s px 10000 nx get", lease.Token()), calls[0])
			assert.Regexp(t, "^EVALSHA [0-9a-f]{40} 1 a "+lease.Token()+" redlock:released:a [0-9a-z]+:"+lease.Token()[:8]+"$", calls[1])
		}
	})
}

func TestOldServerGetsTheScript(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ms(1), ms(1), ms(1))
		asked := w.Inject(`on SET key "get", node 1: error "ERR syntax error"`)
		w.Inject(`on SET key "get", nodes 2,3: error "ERR syntax error"`)
		l := w.cold()
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		assert.Equal(t, []string{lease.Token(), lease.Token(), lease.Token()}, w.keys("a"))
		_, err = l.TryLock(t.Context(), "a")
		assert.ErrorIs(t, err, ErrHeld)
		require.NoError(t, lease.Unlock(t.Context()))
		time.Sleep(ms(10))
		w.requireNoKeys()
		before := asked.Fired()
		require.Positive(t, before)
		lease, err = l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		time.Sleep(ms(10))
		assert.Equal(t, lease.Token(), w.keys("a")[0])
		assert.Equal(t, before, asked.Fired(), "found out once")
		require.NoError(t, lease.Unlock(t.Context()))
	})
}

func TestScriptsSurviveFlushesAndServersThatWantTheText(t *testing.T) {
	const unknown = `"ERR unknown command 'EVALSHA', with args beginning with: "`
	const noPermission = `"NOPERM this user has no permissions to run the 'evalsha' command"`
	for name, deny := range map[string]string{
		"flushed each time":     "on EVALSHA, %[1]s: error \"NOSCRIPT No matching script. Please use EVAL.\"",
		"EVALSHA unknown":       "on EVALSHA, %[1]s: error " + unknown + "\non SCRIPT, %[1]s: error " + unknown,
		"EVALSHA not permitted": "on EVALSHA, %[1]s: error " + noPermission + "\non SCRIPT, %[1]s: error " + noPermission,
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, ms(1), ms(1), ms(1))
			l := w.locker()
			denied := w.Inject(fmt.Sprintf(deny, "node 1"))
			w.Inject(fmt.Sprintf(deny, "nodes 2,3"))
			commands := func() int { return w.executed(1, "EVAL") + denied.Fired() } // of node 1
			for range 3 {
				lease, err := l.TryLock(t.Context(), "a")
				require.NoError(t, err, name)
				require.NoError(t, lease.Extend(t.Context(), time.Minute), name)
				before := commands()
				require.NoError(t, lease.Unlock(t.Context()), name)
				assert.LessOrEqual(t, commands()-before, 2, "commands per node and call, %s", name)
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
		w.Inject(`
			on EVAL, all: error "NOPERM no permissions to run the 'EVAL' command"
			on EVALSHA, all: error "NOPERM no permissions to run the 'EVALSHA' command"
			on DELEX, all: error "ERR unknown command 'delex', with args beginning with: "`)
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

func TestAKeyThatIsDeniedSaysNothingAboutEvalsha(t *testing.T) {
	for text, want := range map[string]bool{
		"NOPERM this user has no permissions to run the 'evalsha' command":                true,
		"NOPERM User locker has no permissions to run the 'evalsha' command":              true,
		"ERR unknown command 'evalsha', with args beginning with: ":                       true,
		"NOPERM this user has no permissions to access one of the keys used as arguments": false,
		"NOPERM No permissions to access a key":                                           false,
		"ERR something else":                                                              false,
	} {
		assert.Equal(t, want, shaDenied(serverError(text)), text)
	}
}
