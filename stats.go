package redlock

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// recent is how many exchanges Stats looks back on.
const recent = 128

// ring keeps the last so many durations. Adding one is a store; all arithmetic
// is left to who asks.
type ring struct {
	of   [recent]time.Duration
	seen uint64 // ever; the next goes to seen % recent
}

func (r *ring) add(d time.Duration) {
	r.of[r.seen%recent] = d
	r.seen++
}

// latencies computes the exact quantiles of what a ring holds.
func (r ring) latencies() Latencies {
	of := r.of[:min(r.seen, recent)]
	if len(of) == 0 {
		return Latencies{}
	}
	slices.Sort(of)
	at := func(percent int) time.Duration { return of[(len(of)*percent+99)/100-1] }
	return Latencies{Count: len(of), P50: at(50), P90: at(90), P99: at(99), Max: of[len(of)-1]}
}

// Latencies are quantiles of the last 128 exchanges and pings that were answered,
// or of fewer if there were no more. Each is one of the measured values, the
// smallest that is not exceeded by so many percent of them.
type Latencies struct {
	Count int           `json:"count"`  // exchanges that were measured, at most 128
	P50   time.Duration `json:"p50_ns"` // the median
	P90   time.Duration `json:"p90_ns"`
	P99   time.Duration `json:"p99_ns"`
	Max   time.Duration `json:"max_ns"`
}

// Stats is what a Locker knows of itself and its nodes at one moment. Counters
// begin at 0 with New or Open and only grow.
type Stats struct {
	Held    int         `json:"held"`    // leases whose keys are kept: held, or lost and their holder has not returned nor their time passed
	Waiters int         `json:"waiters"` // calls of Lock that wait for a name
	Owed    int         `json:"owed"`    // releases that nodes have not confirmed and that are being repeated; the sum of the nodes'
	Fenced  uint64      `json:"fenced"`  // leases obtained with a fencing token
	Raised  uint64      `json:"raised"`  // of those, for how many the nodes' counters differed, which cost one more round trip
	Nodes   []NodeStats `json:"nodes"`   // one per node, in the order in which they were given
}

// NodeStats is what a Locker knows of one node. An exchange is one batch of
// requests written in one go, and their answers.
type NodeStats struct {
	Node      string        `json:"node"`                 // the node's address, never its password
	State     string        `json:"state"`                // "new": never tried; "connecting", or broken and not yet needed again; "connected"; "down": the last try to connect failed
	Breaker   string        `json:"breaker"`              // "closed": votes are asked for; "open": they are not; "half-open": one is
	Silent    time.Duration `json:"silent_ns"`            // since the first of the exchanges in a row that had no answer; 0: the last had one
	LastError string        `json:"last_error,omitempty"` // of the last try to connect; "" once one succeeded
	Objection string        `json:"objection,omitempty"`  // the error reply to the last vote; "" once one was granted or refused

	Abstains time.Duration `json:"abstains_ns"` // with WithRestartGuard: for how much longer it does not vote, because it restarted; 0: it does

	Connections int       `json:"connections"` // open now, the idle ones too
	Queued      int       `json:"queued"`      // requests that wait to be written now
	Latency     Latencies `json:"latency"`     // from writing a batch to its last answer

	Exchanges uint64 `json:"exchanges"` // batches written
	Requests  uint64 `json:"requests"`  // in them
	Granted   uint64 `json:"granted"`   // votes; to unlock: keys deleted
	Refused   uint64 `json:"refused"`   // votes; to unlock: not there, or another's
	Failed    uint64 `json:"failed"`    // votes, those below included
	NotAsked  uint64 `json:"not_asked"` // votes that the breaker or the restart guard kept back
	GivenUp   uint64 `json:"given_up"`  // requests that nobody wanted any more before they were written
	Timeouts  uint64 `json:"timeouts"`  // requests without an answer in time
	Broken    uint64 `json:"broken"`    // requests whose connection ended before their answer
	Resent    uint64 `json:"resent"`    // requests written again on another connection

	Opened          uint64 `json:"opened"`           // how often the breaker opened
	Connects        uint64 `json:"connects"`         // connections made
	ConnectFailures uint64 `json:"connect_failures"` // tries to connect that failed
	Owed            int    `json:"owed"`             // releases not confirmed that are being repeated now
	Repeated        uint64 `json:"repeated"`         // releases that ever had to be
	Forgiven        uint64 `json:"forgiven"`         // releases left to the ttl in the end
}

// Stats tells what the Locker has counted, for metrics. It asks no
// node, so it costs microseconds and never waits for one. All of it is about the
// Locker and its siblings together: they share nodes and connections, and any of
// them tells the same.
func (l *Locker) Stats() Stats {
	s := Stats{Held: l.root.held(), Waiters: l.root.waiters(), Nodes: make([]NodeStats, len(l.root.nodes))}
	s.Raised = l.root.twice.Load()
	s.Fenced = s.Raised + l.root.once.Load()
	for i, n := range l.root.nodes {
		s.Nodes[i] = n.report()
		s.Owed += s.Nodes[i].Owed
	}
	return s
}

// held counts the leases whose keys are kept.
func (r *root) held() int {
	r.agenda.mu.Lock()
	defer r.agenda.mu.Unlock()
	return len(r.agenda.leases)
}

// waiters counts the calls of Lock that wait: they queue, or were refused.
func (r *root) waiters() int {
	r.lines.mu.Lock()
	defer r.lines.mu.Unlock()
	return r.lines.wait
}

// report is a node's row. The sorting is done when the mutex is free again.
func (n *node) report() NodeStats {
	n.mu.Lock()
	c, latency := n.stats, n.latency
	s := NodeStats{
		Node: n.name, State: n.condition(), Breaker: n.gate.state(), Silent: n.gate.silent(),
		Abstains: n.abstains(), Queued: n.queue.len, Owed: len(n.debts.of), Opened: n.gate.shuts,
		Exchanges: c.Batches, Requests: c.Requests,
		Granted: c.Granted, Refused: c.Refused, Failed: c.Failed, NotAsked: c.NotAsked, GivenUp: c.GivenUp,
		Timeouts: c.Timeouts, Broken: c.Broken, Resent: c.Resent,
		Connects: c.Connects, ConnectFailures: c.ConnectFailures, Repeated: c.Owed, Forgiven: c.Forgiven,
	}
	if n.refused != nil {
		s.LastError = n.refused.Error()
	}
	if n.objection != nil {
		s.Objection = n.objection.Error()
	}
	for w := range n.workers {
		if w.link != nil {
			s.Connections++
		}
	}
	n.mu.Unlock()
	s.Latency = latency.latencies()
	return s
}

// condition says how the node's connections are. Called with n.mu held.
func (n *node) condition() string {
	switch {
	case n.linked():
		return "connected"
	case n.refused != nil:
		return "down"
	case n.connecting > 0 || n.stats.Connects > 0: // one that broke is replaced when it is needed
		return "connecting"
	}
	return "new"
}

// Health says whether locks can be taken now, as far as is known without asking.
type Health struct {
	Usable int          `json:"usable"` // nodes that nothing speaks against
	Quorum int          `json:"quorum"` // nodes needed
	Closed bool         `json:"closed,omitempty"`
	Nodes  []NodeHealth `json:"nodes"` // one per node, in the order in which they were given
}

// NodeHealth is one node's row in Health.
type NodeHealth struct {
	Node   string `json:"node"`          // the node's address, never its password
	Usable bool   `json:"usable"`        // votes are asked for and not abstained from, and the last try to connect did not fail
	State  string `json:"state"`         // as in NodeStats
	Why    string `json:"why,omitempty"` // why it is not usable, or what else is wrong with it
}

// Health is for readiness probes and dashboards. It asks no node: it tells what
// the last exchanges have shown, and idle connections are proven, and failed ones
// tried again, every 15 s. So it can be late by that much when nothing is locked,
// while under load it knows within seconds. A node that was never tried counts as
// usable, since nothing speaks against it: a process whose readiness depends on
// Health should take a lock once at its start.
//
// A node that answers with errors (a wrong password, no memory) is usable here,
// since some of that passes and only locking finds out; Why has the words. Check finds
// out which rights are missing.
func (l *Locker) Health() Health {
	h := Health{Quorum: quorumOf(len(l.root.nodes)), Closed: l.isClosed() || l.root.locker.isClosed()}
	for _, n := range l.root.nodes {
		row := n.health()
		if row.Usable {
			h.Usable++
		}
		h.Nodes = append(h.Nodes, row)
	}
	return h
}

func (n *node) health() NodeHealth {
	n.mu.Lock()
	defer n.mu.Unlock()
	row := NodeHealth{Node: n.name, State: n.condition()}
	breaker, silent := n.gate.state(), n.gate.silent().Round(time.Millisecond)
	switch {
	case row.State == "down":
		row.Why = n.refused.Error()
	case breaker != "closed":
		row.Why = fmt.Sprintf("no answer for %v", silent)
	case n.abstains() > 0:
		row.Why = errYoung{n.abstains()}.Error()
	case n.quarantine.denied != nil: // which is asked again every 15 s
		row.Why = n.quarantine.denied.Error()
	default:
		row.Usable = true
		switch {
		case silent > 0:
			row.Why = fmt.Sprintf("no answer for %v", silent)
		case n.objection != nil:
			row.Why = n.objection.Error()
		}
	}
	return row
}

// OK says whether a lock can be taken now.
func (h Health) OK() bool { return !h.Closed && h.Usable >= h.Quorum }

// Err is nil if a lock can be taken now, else an error that matches ErrClosed or
// ErrNoQuorum and tells what String does.
func (h Health) Err() error {
	switch {
	case h.OK():
		return nil
	case h.Closed:
		return fmt.Errorf("redlock: health: %w", ErrClosed)
	}
	return fmt.Errorf("redlock: health: %w (%v)", ErrNoQuorum, h)
}

// String prints the health on one line.
func (h Health) String() string {
	var s strings.Builder
	if h.Closed {
		s.WriteString("closed; ")
	}
	fmt.Fprintf(&s, "%d of %d nodes usable, %d needed: ", h.Usable, len(h.Nodes), h.Quorum)
	for i, n := range h.Nodes {
		if i > 0 {
			s.WriteString(", ")
		}
		s.WriteString(n.String())
	}
	return s.String()
}

// String prints the row on one line.
func (n NodeHealth) String() string {
	s := n.Node + " " + n.State
	if !n.Usable && n.State != "down" {
		s += ", not usable"
	}
	if n.Why != "" {
		s += " (" + n.Why + ")"
	}
	return s
}
