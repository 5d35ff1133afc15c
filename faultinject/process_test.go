package faultinject_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed58520471/redlock/faultinject"
	"github.com/seed58520471/redlock/internal/realredis"
)

func TestFreezeOnACommandStopsARealServerBeforeItExecutes(t *testing.T) {
	realredis.Need(t)
	c := faultinject.Start(t, 1, faultinject.Servers())
	k := c.Clients()[0]
	require.NoError(t, k.Set(t.Context(), "a", 1, 0).Err())
	struck := c.Inject("on SET #1, node 1: freeze for 300ms")
	begin := time.Now()
	require.NoError(t, k.Set(t.Context(), "a", 2, 0).Err())
	assert.GreaterOrEqual(t, time.Since(begin), 290*time.Millisecond)
	require.NoError(t, struck.Check())
}
