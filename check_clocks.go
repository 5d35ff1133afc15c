package redlock

import (
	"fmt"
	"math"
	"slices"
	"time"
)

const (
	// farClock is how far apart clocks may be without a word. Exclusion does not
	// depend on it, but a clock that is off by so much is not being kept, and will be
	// stepped one day.
	farClock = time.Second

	// farProposal is where fencing counters stop to follow proposals, see
	// WithFencing.
	farProposal = 10 * time.Minute

	// fastDrift is twice what a clock that NTP slews may run fast or slow.
	fastDrift = 1e-3

	// lookAgain is how long the first of two looks stays the first, so that calls in
	// a row do not lose the base of a longer look.
	lookAgain = 10 * time.Second
)

// offset is how far their clock was ahead of ours.
func (k *look) offset() time.Duration { return k.theirs - time.Duration(k.ours.wall) }

// drift is how much faster their clock ran than ours between two looks, as a part
// of one, what the error of that is, and how long that was. Ours is the clock that
// nobody sets, and counts the time asleep. Zero for two looks at different processes,
// or at the same moment.
func (k *look) drift(before *look) (rate, within float64, over time.Duration) {
	if k == nil || before == nil || k.run != before.run {
		return 0, 0, 0
	}
	over = k.ours.mono.Sub(before.ours.mono) + max(0, k.ours.asleep-before.ours.asleep)
	if over <= 0 {
		return 0, 0, 0
	}
	gained := k.theirs - before.theirs - over
	return float64(gained) / float64(over), float64(k.within+before.within) / float64(over), over
}

// judgeClock says what a node's clock shows.
func judgeClock(cfg *config, r reading, tell func(Finding)) {
	if r.timeErr != nil {
		tell(Finding{SeverityInfo, r.node, "clock-unknown", "time: " + r.timeErr.Error(),
			"allow TIME if the node's clock is to be compared with others; the offset and drift are not known"})
	}
	if r.seen == nil {
		return
	}
	if far := r.seen.offset().Abs() - r.seen.within; far > farClock {
		f := Finding{SeverityWarning, r.node, "clock-offset",
			fmt.Sprintf("its clock is %+v from ours, ±%v", r.seen.offset().Round(time.Millisecond), short(r.seen.within)),
			"keep all clocks by NTP, slewed and not stepped: a step of a node's clock ends or prolongs every lock there"}
		if cfg.fencing && far > farProposal {
			f.Severity = SeverityError
			f.Advice += "; beyond 10 minutes the node follows its own clock in the order of fencing tokens"
		}
		tell(f)
	}
	rate, within, over := r.seen.drift(r.before)
	sure := math.Abs(rate) - within
	if over == 0 || sure <= fastDrift {
		return
	}
	margin := float64(drift(cfg.ttl, cfg.leastDrift)) / float64(cfg.ttl)
	f := Finding{SeverityWarning, r.node, "clock-drift",
		fmt.Sprintf("its clock gained %v on ours in %v (%+.0f±%.0f ppm)",
			time.Duration(rate*float64(over)).Round(time.Millisecond), short(over), rate*1e6, within*1e6),
		fmt.Sprintf("find out what sets or drives that clock; the drift margin covers %.0f ppm", margin*1e6)}
	if sure > margin {
		f.Severity = SeverityError
		f.Advice += ", so two can hold a name at a time"
	}
	tell(f)
}

// judgeClocks compares the nodes' clocks with each other.
func judgeClocks(rs []reading, tell func(Finding)) {
	var first, last *reading
	for i := range rs {
		r := &rs[i]
		if r.seen == nil {
			continue
		}
		if first == nil || r.seen.offset() < first.seen.offset() {
			first = r
		}
		if last == nil || r.seen.offset() > last.seen.offset() {
			last = r
		}
	}
	if first == nil {
		return
	}
	apart, within := last.seen.offset()-first.seen.offset(), first.seen.within+last.seen.within
	if apart-within > farClock {
		tell(Finding{SeverityWarning, "", "clocks-apart",
			fmt.Sprintf("%s is ahead of %s by %v ±%v", last.node, first.node, apart.Round(time.Millisecond), short(within)),
			"keep all clocks by NTP, slewed and not stepped; a node whose clock is not kept is stepped one day, which ends or prolongs every lock there"})
	}
}

// tempo is what the measured round trips make of a lock.
type tempo struct {
	longest          time.Duration // of all round trips
	lock, oneDown    time.Duration // 0: too few nodes
	nodeTimeout, ttl time.Duration // 0: no node was measured
}

// pace computes what Report's fields say.
func pace(quorum int, rs []reading) (t tempo) {
	var medians []time.Duration
	for _, r := range rs {
		if _, median, most := spread(r.trips); len(r.trips) > 0 {
			medians = append(medians, median)
			t.longest = max(t.longest, most)
		}
	}
	slices.Sort(medians)
	if len(medians) >= quorum {
		t.lock = medians[quorum-1]
	}
	if len(medians) > quorum {
		t.oneDown = medians[quorum]
	}
	if len(medians) > 0 {
		t.nodeTimeout = max(minNodeTimeout, roundUp(3*t.longest))
		t.ttl = max(2*minNodeTimeout, roundUp(30*t.longest))
	}
	return t
}

// spread is the least, the median and the most of some durations, zero of none.
func spread(of []time.Duration) (least, median, most time.Duration) {
	if len(of) == 0 {
		return 0, 0, 0
	}
	of = append([]time.Duration(nil), of...)
	slices.Sort(of)
	return of[0], of[(len(of)-1)/2], of[len(of)-1]
}

// roundUp gives a duration in whole milliseconds.
func roundUp(d time.Duration) time.Duration {
	return (d + time.Millisecond - 1).Truncate(time.Millisecond)
}

// judgePace compares the settings with what was measured.
func judgePace(cfg *config, rs []reading, tell func(Finding)) {
	t := pace(quorumOf(len(rs)), rs)
	for _, r := range rs {
		least, _, most := spread(r.trips)
		if len(r.trips) == 0 || most < cfg.nodeTimeout {
			continue
		}
		f := Finding{SeverityWarning, r.node, "node-timeout",
			fmt.Sprintf("round trips of %v to %v, node timeout %v", short(least), short(most), cfg.nodeTimeout),
			fmt.Sprintf("set WithNodeTimeout(%v) or more: this node's votes come too late to count", t.nodeTimeout)}
		if least >= cfg.nodeTimeout {
			f.Severity = SeverityError
		}
		tell(f)
	}
	if cfg.ttl < t.ttl {
		tell(Finding{SeverityWarning, "", "ttl",
			fmt.Sprintf("ttl %v, longest round trip %v", cfg.ttl, short(t.longest)),
			fmt.Sprintf("set WithTTL(%v) or more: a renewal that fails once leaves too little time to repeat it", t.ttl)})
	}
}
