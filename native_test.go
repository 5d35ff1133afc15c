package redlock

import (
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed58520471/redlock/faultinject"
)

// A dialect is which commands a server has that compare and write in one step.
type dialect struct{ delex, delifeq, set bool }

var (
	redis84   = dialect{delex: true, set: true}
	valkey9   = dialect{delifeq: true, set: true}
	valkey81  = dialect{set: true}
	neither   = dialect{}
	compliant = map[string]dialect{"Redis 8.4": redis84, "Valkey 9": valkey9}
)

// deleted is how a server of that dialect is asked to delete.
func (d dialect) deleted(name, token string) string {
	if d.delex {
		return fmt.Sprintf("DELEX %s ifeq %s", name, token)
	}
	return fmt.Sprintf("DELIFEQ %s %s", name, token)
}

// spoken is a world whose nodes stand in for servers of a dialect, which they speak
// as it is documented.
type spoken struct {
	*world
	dialect atomic.Pointer[dialect]
	waits   atomic.Int64
}

func newSpoken(t *testing.T, d dialect, rtts ...time.Duration) *spoken {
	t.Cleanup(func() { time.Sleep(time.Minute) })
	s := &spoken{world: &world{t: t, calls: make(map[int][]string)}}
	s.dialect.Store(&d)
	s.Cluster = faultinject.Start(t, len(rtts), faultinject.RTT(rtts...), faultinject.Watch(s.note),
		faultinject.Setup(func(m *miniredis.Miniredis) {
			m.Server().SetPreHook(func(c *server.Peer, cmd string, args ...string) bool { return s.hear(m, c, cmd, args) })
		}))
	return s
}

// hear executes what miniredis has not got, or should not have.
func (s *spoken) hear(m *miniredis.Miniredis, c *server.Peer, cmd string, args []string) bool {
	d := s.dialect.Load()
	switch {
	case cmd == "WAIT":
		s.waits.Add(1)
		c.WriteInt(2)
	case cmd == "DELEX" && !d.delex, cmd == "DELIFEQ" && !d.delifeq:
		c.WriteError(fmt.Sprintf("ERR unknown command '%s', with args beginning with: ", cmd))
	case cmd == "DELEX" && m.Exists(args[0]) && m.Type(args[0]) != "string":
		c.WriteError("ERR Key should be of string type if conditions are specified")
	case cmd == "DELIFEQ":
		switch held, err := m.Get(args[0]); {
		case err == miniredis.ErrWrongType:
			c.WriteError(err.Error())
		case err != nil || held != args[1]:
			c.WriteInt(0)
		default:
			m.Del(args[0])
			c.WriteInt(1)
		}
	case cmd == "SET" && len(args) == 7 && args[4] == "ifeq" && d.set:
		ttl, err := strconv.Atoi(args[3])
		if err != nil || ttl <= 0 || args[2] != "px" || args[6] != "get" {
			c.WriteError("ERR syntax error")
			break
		}
		switch held, err := m.Get(args[0]); {
		case err == miniredis.ErrWrongType:
			c.WriteError(err.Error())
		case err != nil:
			c.WriteNull()
		default:
			if held == args[5] {
				m.Set(args[0], args[1])
				m.SetTTL(args[0], ms(ttl))
			}
			c.WriteBulk(held)
		}
	default:
		return false
	}
	return true
}

// denyScripts makes these nodes deny scripts.
func (w *world) denyScripts(nodes string) *faultinject.Injection {
	return w.Inject(strings.ReplaceAll(`
		on EVAL, nodes: error "NOPERM User locker has no permissions to run the 'eval' command"
		on EVALSHA, nodes: error "NOPERM User locker has no permissions to run the 'evalsha' command"`, "nodes", nodes))
}

func TestWithoutScriptsLocksAreExtendedAndReleasedNatively(t *testing.T) {
	for name, d := range compliant {
		for _, text := range []string{"NOPERM User locker has no permissions", "ERR unknown command 'EVAL', with args", "ERR Could not find scripting engine 'lua'"} {
			synctest.Test(t, func(t *testing.T) {
				w := newSpoken(t, d, ms(1), ms(1), ms(1))
				w.Inject(fmt.Sprintf("on EVAL, all: error %[1]q\non EVALSHA, all: error %[1]q", text))
				l := w.cold()
				for try := range 3 {
					lease, err := l.TryLock(t.Context(), "a")
					require.NoError(t, err, name)
					time.Sleep(time.Second)
					begin := len(w.log(1))
					require.NoError(t, lease.Extend(t.Context(), time.Minute), "%s, %s", name, text)
					time.Sleep(ms(10))
					for i := range w.Nodes() {
						assert.Equal(t, time.Minute-ms(10), w.ttl(i+1, "a").Round(ms(5)), name)
					}
					require.NoError(t, lease.Unlock(t.Context()), "%s, %s", name, text)
					time.Sleep(ms(10))
					w.requireNoKeys()
					calls := w.log(1)[begin:]
					token := lease.Token()
					if try == 0 { // what was denied is not in the log
						begin = len(calls) - 2
						require.Equal(t, d.deleted("a", token), calls[begin])
						continue
					}
					require.Len(t, calls, 3, "found out once: %v", calls)
					assert.Equal(t, fmt.Sprintf("SET a %[1]s px 60000 ifeq %[1]s get", token), calls[0])
					assert.Equal(t, d.deleted("a", token), calls[1])
					assert.Equal(t, fmt.Sprintf("PUBLISH redlock:released:a %s:%s", l.root.id, token[:8]), calls[2])
				}
			})
		}
	}
}

func TestScriptsThatAreAllowedAreNeverReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSpoken(t, redis84, ms(1), ms(1), ms(1))
		l := w.locker()
		lease, err := l.Lock(t.Context(), "a")
		require.NoError(t, err)
		require.NoError(t, lease.Extend(t.Context(), time.Minute))
		loading := w.Inject(`on EVALSHA, all: error "LOADING Redis is loading the dataset in memory"`)
		require.Error(t, lease.Extend(t.Context(), time.Hour), "a fault that passes says nothing about scripts")
		loading.Stop()
		require.NoError(t, lease.Unlock(t.Context()))
		for i := range w.Nodes() {
			assert.Zero(t, w.executed(i+1, "DELEX")+w.executed(i+1, "PUBLISH"))
			assert.NotContains(t, strings.Join(w.log(i+1), "\n"), "ifeq")
		}
	})
}

func TestWhereNothingComparesTheScriptsErrorIsToldAndNothingElseTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSpoken(t, neither, ms(1), ms(1), ms(1))
		w.denyScripts("all")
		l := w.cold(WithTTL(2 * time.Second))
		tried := 0
		for try := range 3 {
			lease, err := l.TryLock(t.Context(), "a")
			require.NoError(t, err)
			for _, err := range []error{lease.Extend(t.Context(), time.Minute), lease.Unlock(t.Context())} {
				assert.ErrorIs(t, err, ErrNoQuorum)
				assert.NotErrorIs(t, err, ErrLost)
				assert.ErrorContains(t, err, "NOPERM")
				assert.NotContains(t, err.Error(), "unknown command")
			}
			time.Sleep(2 * time.Second)
			w.requireNoKeys()
			natives := w.executed(1, "DEL") + w.executed(1, "GET")
			if try == 0 {
				tried = natives
				require.Equal(t, 2, w.executed(1, "DELEX")+w.executed(1, "DELIFEQ"))
			}
			require.Equal(t, tried, natives, "found out once, and no DEL without a comparison")
		}
	})
}

func TestWithOnlySomeNativeCommandsTheOthersAreMissedLoudly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSpoken(t, valkey81, ms(1), ms(1), ms(1))
		w.denyScripts("all")
		l := w.cold(WithTTL(2 * time.Second))
		lease, err := l.TryLock(t.Context(), "a")
		require.NoError(t, err)
		require.NoError(t, lease.Extend(t.Context(), 3*time.Second))
		err = lease.Unlock(t.Context())
		require.ErrorIs(t, err, ErrNoQuorum)
		assert.ErrorContains(t, err, "NOPERM")
		time.Sleep(3 * time.Second)
		w.requireNoKeys()
	})
}

func TestOneNodeWithoutScriptsVotesLikeTheOthers(t *testing.T) {
	for name, d := range compliant {
		synctest.Test(t, func(t *testing.T) {
			w := newSpoken(t, d, ms(1), ms(1), ms(1))
			w.denyScripts("node 2")
			l := w.locker()
			lease, err := l.Lock(t.Context(), "a")
			require.NoError(t, err, name)
			w.Inject(`at 0s, node 1: evict "a"`)
			require.NoError(t, lease.Extend(t.Context(), time.Minute), "nodes 2 and 3 make it, %s", name)
			time.Sleep(ms(10))
			assert.Equal(t, lease.Token(), w.keys("a")[0], "repaired")
			require.NoError(t, lease.Extend(t.Context(), 2*time.Minute), name)
			time.Sleep(ms(10))
			w.Inject(`at 0s, node 3: evict "a"`)
			require.NoError(t, lease.Extend(t.Context(), time.Hour), name)
			require.NoError(t, lease.Unlock(t.Context()), name)
			time.Sleep(ms(10))
			w.requireNoKeys()
		})
	}
}

func TestARightToScriptsMayComeAndGoWhileTheLockerRuns(t *testing.T) {
	for name, d := range compliant {
		synctest.Test(t, func(t *testing.T) {
			w := newSpoken(t, d, ms(1), ms(1), ms(1))
			l := w.locker(WithTTL(time.Minute))
			work := func(when string) {
				lease, err := l.Lock(t.Context(), "a")
				require.NoError(t, err, when)
				require.NoError(t, lease.Extend(t.Context(), time.Minute), "%s, %s", when, name)
				require.NoError(t, lease.Unlock(t.Context()), "%s, %s", when, name)
				time.Sleep(ms(10))
				w.requireNoKeys()
			}
			work("with scripts")
			denied := w.denyScripts("all")
			work("without")
			denied.Stop()
			w.dialect.Store(&neither)
			work("with scripts and nothing else")
			denied = w.denyScripts("all")
			w.dialect.Store(&d)
			work("without again")
			other := redis84
			if d.delex {
				other = valkey9
			}
			w.dialect.Store(&other)
			work("with a server of the other kind")
			denied.Stop()
		})
	}
}

func TestAKeyThatMayNotBeTouchedSaysNothingAboutScripts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSpoken(t, redis84, ms(1), ms(1), ms(1))
		l := w.locker()
		lease, err := l.Lock(t.Context(), "a")
		require.NoError(t, err)
		const forbidden = "NOPERM this user has no permissions to access one of the keys used as arguments" // 7.0; 7.2: a key
		denied := w.Inject(`on EVALSHA key "a", all: error "` + forbidden + `"
			on EVAL key "a", all: error "` + forbidden + `"`)
		require.ErrorContains(t, lease.Extend(t.Context(), time.Minute), "access one of the keys")
		require.Error(t, lease.Unlock(t.Context()))
		denied.Stop()
		assert.Zero(t, w.executed(1, "DELEX"))
		assert.NotContains(t, strings.Join(w.log(1), "\n"), "ifeq")
	})
}

func TestOtherTypesAndTokensAreNotTouchedNatively(t *testing.T) {
	for name, d := range compliant {
		synctest.Test(t, func(t *testing.T) {
			w := newSpoken(t, d, ms(1), ms(1), ms(1))
			w.denyScripts("all")
			l := w.locker()
			lease, err := l.Lock(t.Context(), "a")
			require.NoError(t, err)
			client := w.Clients()[0]
			require.NoError(t, client.Del(t.Context(), "a").Err())
			require.NoError(t, client.LPush(t.Context(), "a", lease.Token()).Err())
			w.plant("a", time.Hour, 2)
			err = lease.Extend(t.Context(), time.Minute)
			require.ErrorIs(t, err, ErrLost, name)
			err = lease.Unlock(t.Context())
			require.ErrorIs(t, err, ErrLost, name)
			time.Sleep(time.Minute)
			assert.Equal(t, []string{"(list)", "foreign", ""}, w.keys("a"), name)
			assert.Zero(t, l.Stats().Owed, name)
		})
	}
}

func TestFencedLocksNeverDoWithoutScripts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSpoken(t, redis84, ms(1), ms(1), ms(1))
		l := w.locker(WithFencing())
		lease, err := l.Lock(t.Context(), "a")
		require.NoError(t, err)
		denied := w.denyScripts("all")
		_, err = l.Lock(t.Context(), "b")
		require.ErrorIs(t, err, ErrNoQuorum)
		assert.ErrorContains(t, err, "NOPERM")
		err = lease.Extend(t.Context(), time.Minute)
		require.ErrorIs(t, err, ErrNoQuorum, "it would not see to the counter")
		assert.ErrorContains(t, err, "NOPERM")
		_, err = l.Attach(t.Context(), "c", "other")
		require.ErrorIs(t, err, ErrNoQuorum)
		assert.NotContains(t, strings.Join(w.log(1), "\n"), "SET ")
		require.NoError(t, lease.Unlock(t.Context()), "to delete needs no counter")
		denied.Stop()
		time.Sleep(ms(10))
		assert.Empty(t, w.keys("a")[0])
	})
}

func TestWhatACounterOrAGuardDecidesHasNoNativeForm(t *testing.T) {
	for _, cfg := range []config{{fencing: true}, {guard: time.Minute}, {fencing: true, guard: time.Minute}, {}} {
		c := claim{lease: &Lease{locker: &Locker{cfg: cfg}}}
		for k := range kinds {
			q := &request{kind: k, claim: &c}
			native := k == release || k == extend && !cfg.fencing || k == attach && !cfg.fencing && cfg.guard == 0
			assert.Equal(t, native, len(forms[q.script()]) > 1, "%v with fencing %v, guard %v", k, cfg.fencing, cfg.guard)
		}
	}
}
