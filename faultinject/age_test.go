package faultinject

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// about is what node 1 tells of itself, directly and to a script.
func about(t *testing.T, client redis.UniversalClient) (run string, up, saved int64) {
	t.Helper()
	info := client.Info(t.Context(), "server").Val()
	within, err := client.Eval(t.Context(), "return redis.call('INFO', 'server')", nil).Text()
	require.NoError(t, err)
	assert.Equal(t, info, within)
	run = regexp.MustCompile(`(?m)^run_id:([0-9a-f]{40})\r$`).FindStringSubmatch(info)[1]
	_, rest, _ := strings.Cut(info, "uptime_in_seconds:")
	fmt.Sscan(rest, &up)
	ago, err := client.Eval(t.Context(), "return redis.call('TIME')[1] - redis.call('LASTSAVE')", nil).Int64()
	require.NoError(t, err)
	assert.Equal(t, up, ago, "the start counts as a save")
	return run, up, client.LastSave(t.Context()).Val()
}

// As Redis does: by the node's clock, so that one that is set after the start makes
// the server look older, and with another run id at each start.
func TestAnEmbeddedServerTellsOfItsStart(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := Start(t, 2)
		client := c.Clients()[0]
		begin := time.Now().Unix()
		first, up, saved := about(t, client)
		assert.Zero(t, up)
		assert.Equal(t, begin, saved)
		time.Sleep(90 * time.Second)
		same, up, saved := about(t, client)
		assert.Equal(t, first, same)
		assert.Equal(t, int64(90), up)
		assert.Equal(t, begin, saved)
		other, _, _ := about(t, c.Clients()[1])
		assert.NotEqual(t, first, other)

		for _, f := range []Fault{Restart, RestartEmpty, ClockStep(time.Hour)} {
			require.NoError(t, c.Node(1).Do(f))
			time.Sleep(5 * time.Second)
			run, up, saved := about(t, client)
			if f == ClockStep(time.Hour) {
				assert.Equal(t, first, run)
				assert.Equal(t, int64(3610), up)
				continue
			}
			assert.NotEqual(t, first, run)
			assert.Equal(t, int64(5), up)
			assert.Equal(t, time.Now().Unix()-5, saved)
			first = run
		}
		require.NoError(t, c.Node(1).Do(Restart))
		time.Sleep(5 * time.Second)
		_, up, saved = about(t, client)
		assert.Equal(t, int64(5), up, "the clock was wrong before its start")
		assert.Equal(t, time.Now().Unix()+3600-5, saved)
		require.NoError(t, c.Node(1).Do(ClockStep(-time.Minute)))
		_, up, _ = about(t, client)
		assert.Equal(t, int64(-55), up)
		assert.ErrorContains(t, client.Info(t.Context(), "memory").Err(), "not supported")
	})
}
