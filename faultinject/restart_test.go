package faultinject_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed58520471/redlock/faultinject"
)

// A node that comes back has its keys for as long as if it had been there, whatever
// its clock shows.
func TestARestartTakesNothingFromATTLButItsTime(t *testing.T) {
	for _, tc := range []struct {
		name  string
		bend  []faultinject.Fault
		wants time.Duration // of a minute, after 20 seconds
	}{
		{"right", nil, 40 * time.Second},
		{"ahead", []faultinject.Fault{faultinject.ClockStep(time.Hour)}, 40 * time.Second},
		{"behind", []faultinject.Fault{faultinject.ClockStep(-time.Hour)}, 40 * time.Second},
		{"fast", []faultinject.Fault{faultinject.ClockStep(time.Hour), faultinject.ClockRate(2)}, 20 * time.Second},
		{"slow", []faultinject.Fault{faultinject.ClockStep(-time.Hour), faultinject.ClockRate(0.5)}, 50 * time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := faultinject.Start(t, 1)
				n := c.Node(1)
				for _, f := range tc.bend {
					require.NoError(t, n.Do(f))
				}
				client := c.Clients()[0]
				require.NoError(t, client.Set(t.Context(), "a", "1", time.Minute).Err())
				time.Sleep(10 * time.Second)
				require.NoError(t, n.Do(faultinject.Kill))
				time.Sleep(10 * time.Second)
				require.NoError(t, n.Do(faultinject.Restart))
				keys, err := n.Keys()
				require.NoError(t, err)
				require.Len(t, keys, 1)
				assert.Equal(t, tc.wants, keys[0].TTL)
			})
		})
	}
}
