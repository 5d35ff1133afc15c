package redlock

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestQueueKeepsItsOrderWhateverLeavesFromTheMiddle(t *testing.T) {
	for mask := range 1 << 5 {
		var l queue
		var want []*request
		all := make([]*request, 5)
		for i := range all {
			all[i] = &request{writes: i}
			l.push(all[i])
		}
		for i, q := range all {
			if mask>>i&1 == 1 {
				l.drop(q)
				l.drop(q)
			} else {
				want = append(want, q)
			}
		}
		front := &request{writes: 9}
		l.unpop(front)
		want = slices.Insert(want, 0, front)
		require.Equal(t, len(want), l.len)
		for _, q := range want {
			require.Same(t, q, l.pop())
		}
		require.Zero(t, l.len)
		require.Nil(t, l.head)
		require.Nil(t, l.tail)
	}
}
