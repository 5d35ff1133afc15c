package realredis

import (
	"context"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestServersAreApart(t *testing.T) {
	servers := Start(t, 3)
	require.NoError(t, servers[0].Client().Set(t.Context(), "k", "v", 0).Err())
	for _, s := range servers[1:] {
		assert.NotEqual(t, servers[0].Addr, s.Addr)
		assert.ErrorIs(t, s.Client().Get(t.Context(), "k").Err(), redis.Nil)
	}
}

func TestAServerThatWasKilledComesBackOnItsPort(t *testing.T) {
	for _, tc := range []struct {
		keeps string
		want  error
	}{{"no", redis.Nil}, {"yes", nil}} {
		s := Start(t, 1, "--appendonly", tc.keeps, "--appendfsync", "always")[0]
		addr := s.Addr
		require.NoError(t, s.Client().Set(t.Context(), "k", "v", 0).Err())
		s.Kill()
		_, err := net.Dial("tcp", addr)
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
		s.Restart()
		assert.Equal(t, addr, s.Addr)
		assert.ErrorIs(t, s.Client().Get(t.Context(), "k").Err(), tc.want, "appendonly %s", tc.keeps)
	}
}

func TestAStoppedServerAnswersNothingUntilItGoesOn(t *testing.T) {
	s := Start(t, 1)[0]
	s.Stop()
	s.Stop() // no more than stopped
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	impatient := redis.NewClient(&redis.Options{Addr: s.Addr, ContextTimeoutEnabled: true})
	defer impatient.Close()
	assert.Error(t, impatient.Ping(ctx).Err())
	s.Cont()
	assert.NoError(t, s.Client().Ping(t.Context()).Err())
}

func TestCallsCountsWhatScriptsCallToo(t *testing.T) {
	s := Start(t, 1)[0]
	assert.Equal(t, 0, s.Calls("set"))
	require.NoError(t, s.Client().Set(t.Context(), "k", "v", 0).Err())
	require.NoError(t, s.Client().Eval(t.Context(), `return redis.call("SET", KEYS[1], "w")`, []string{"k"}).Err())
	assert.Equal(t, 2, s.Calls("set"))
	assert.Equal(t, 1, s.Calls("eval"))
}
