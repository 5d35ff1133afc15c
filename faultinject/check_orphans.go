package faultinject

import (
	"sort"
	"time"
)

// Orphans checks that nothing stays on nodes that are well: no node stores what a
// won attempt left for longer than bound after its end, nor what never became a
// won attempt for longer than bound at all. An attempt's end is when giving it back
// returned, or else was asked for; when its time was over, if the client was told
// that it is lost; and for one that never ended, because its client crashed say,
// its until.
//
// While Health says that fewer than all nodes are well the clock of bound stands
// still: what cannot be reached cannot be cleaned up. Names that no client ever
// tried are somebody else's and are left alone.
//
// It knows what Stored was told, which the embedded nodes of a Cluster do for strings
// under the names of attempts. Of other keys, and of those of redis-server, it has
// nothing to say: [Cluster.NoKeys] has.
//
// What is still stored at the last record is watched until then only, so call
// Health, or anything else, when all is over and bound has passed once more.
func Orphans(h *History, bound time.Duration) error {
	var v checkViolations
	d := h.digest()
	well := d.wellClock()
	owners := make(map[string]map[string]*historyTenure)
	for _, name := range d.names {
		owners[name] = d.owners(name)
	}
	for _, s := range d.stored {
		if owners[s.name] == nil {
			continue
		}
		if t := owners[s.name][s.value]; t != nil {
			from := max(s.from, t.over())
			if stayed := well(from, s.to); from < s.to && stayed > bound {
				v.add("node %d still stored %q for %s until %s, %v after its end at %s "+
					"(all nodes well for %v of that, bound %v)", s.node,
					s.name, t.who(), historyTime(s.to), s.to-from, historyTime(from), stayed, bound)
			}
			continue
		}
		if stayed := well(s.from, s.to); stayed > bound {
			v.add("node %d stored %q from %s to %s with %q, which nobody won (all nodes well for %v of that, bound %v)",
				s.node, s.name, historyTime(s.from), historyTime(s.to), checkToken(s.value), stayed, bound)
		}
	}
	return v.err()
}

// wellClock gives how much of a stretch of time all nodes were well for.
func (d *historyDigest) wellClock() func(from, to time.Duration) time.Duration {
	// sums[i] is the time that was well until health[i].
	sums := make([]time.Duration, len(d.health))
	well := func(i int) bool { return i < 0 || d.health[i].healthy >= d.health[i].nodes }
	for i := range d.health {
		last, sum := time.Duration(0), time.Duration(0)
		if i > 0 {
			last, sum = d.health[i-1].at, sums[i-1]
		}
		sums[i] = sum
		if well(i - 1) {
			sums[i] += d.health[i].at - last
		}
	}
	until := func(at time.Duration) time.Duration {
		i := sort.Search(len(d.health), func(i int) bool { return d.health[i].at > at }) - 1
		last, sum := time.Duration(0), time.Duration(0)
		if i >= 0 {
			last, sum = d.health[i].at, sums[i]
		}
		if well(i) {
			sum += at - last
		}
		return sum
	}
	return func(from, to time.Duration) time.Duration {
		if from >= to {
			return 0
		}
		return until(to) - until(from)
	}
}
