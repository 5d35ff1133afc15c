package faultinject_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed58520471/redlock/faultinject"
)

func TestSetStoresAsAnotherProgramWould(t *testing.T) {
	for name, options := range map[string][]faultinject.Option{"embedded": nil, "process": {faultinject.Servers()}} {
		t.Run(name, func(t *testing.T) {
			c, err := faultinject.New(1, options...)
			if errors.Is(err, faultinject.ErrNoServer) {
				t.Skip(err)
			}
			require.NoError(t, err)
			defer c.Close()
			n := c.Node(1)
			require.NoError(t, n.Set("a", "x", 0))
			require.NoError(t, n.Set("a", "y", time.Minute))
			keys, err := n.Keys()
			require.NoError(t, err)
			require.Len(t, keys, 1)
			assert.Equal(t, "y", keys[0].Value)
			assert.InDelta(t, time.Minute, keys[0].TTL, float64(time.Second))
			require.NoError(t, n.Do(faultinject.Kill))
			assert.Error(t, n.Set("b", "x", 0))
		})
	}
}

func TestKeptIsWhatARestartBrings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := faultinject.Start(t, 1)
		n := c.Node(1)
		require.NoError(t, n.Set("short", "x", time.Second))
		require.NoError(t, n.Set("long", "y", time.Minute))
		require.NoError(t, n.Set("for ever", "z", 0))
		require.NoError(t, c.Clients()[0].LPush(t.Context(), "list", "e").Err())
		assert.Empty(t, n.Kept(), "it runs")
		require.NoError(t, n.Do(faultinject.Kill))
		assert.Len(t, n.Kept(), 4)
		time.Sleep(2 * time.Second)
		kept := n.Kept()
		assert.ElementsMatch(t, []faultinject.Key{
			{Node: 1, Name: "long", Value: "y", TTL: 58 * time.Second},
			{Node: 1, Name: "for ever", Value: "z"},
			{Node: 1, Name: "list", Value: "(list)"},
		}, kept)
		require.NoError(t, n.Do(faultinject.Restart))
		keys, err := n.Keys()
		require.NoError(t, err)
		assert.ElementsMatch(t, kept, keys)
		assert.Empty(t, n.Kept())

		require.NoError(t, n.Do(faultinject.ClockStep(-time.Hour)))
		require.NoError(t, n.Do(faultinject.Kill))
		require.NoError(t, n.Do(faultinject.ClockStep(time.Hour)))
		assert.Len(t, n.Kept(), 3, "the clock went back and forth")
	})
}
