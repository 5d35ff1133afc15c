package redlock

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// Severity is how much a Finding matters.
type Severity uint8

const (
	// SeverityNone is the worst severity of a Report without findings.
	SeverityNone Severity = iota
	// SeverityInfo: worth knowing, or something could not be known.
	SeverityInfo
	// SeverityWarning: a fault that is not unlikely can break locks, or they cost
	// more than they need.
	SeverityWarning
	// SeverityError: locks are not exclusive or cannot be taken as things are, or
	// will not be after the next ordinary fault.
	SeverityError
)

var severities = [...]string{"none", "info", "warning", "error"}

func (s Severity) String() string {
	if int(s) < len(severities) {
		return severities[s]
	}
	return fmt.Sprintf("severity %d", uint8(s))
}

// MarshalText is String, for logs and JSON.
func (s Severity) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads what MarshalText wrote.
func (s *Severity) UnmarshalText(text []byte) error {
	for i, name := range severities {
		if string(text) == name {
			*s = Severity(i)
			return nil
		}
	}
	return fmt.Errorf("redlock: %q is no severity", text)
}

// Finding is one thing that Check has to say.
type Finding struct {
	Severity Severity `json:"severity"`
	Node     string   `json:"node,omitempty"`     // the node's address, never its password; "": all of them, or this client
	What     string   `json:"what"`               // which finding it is, the same for ever; see Check for the list
	Evidence string   `json:"evidence,omitempty"` // what was read, such as "maxmemory_policy:allkeys-lru"
	Advice   string   `json:"advice"`             // what to do, and why
}

// String prints the finding on one line.
func (f Finding) String() string {
	s := f.Severity.String() + " " + f.What
	if f.Node != "" {
		s += " on " + f.Node
	}
	if f.Evidence != "" {
		s += " (" + f.Evidence + ")"
	}
	return s + ": " + f.Advice
}

// NodeReport is what Check has read and measured of one node. What could not be read
// is zero.
type NodeReport struct {
	Node    string        `json:"node"`                // the node's address, never its password
	Version string        `json:"version,omitempty"`   // of the server, as in "7.2.4" or "valkey 8.1.0"
	Role    string        `json:"role,omitempty"`      // "master" or "slave"
	Uptime  time.Duration `json:"uptime_ns,omitempty"` // since the server came up, by its own wall clock; whole seconds

	Connect time.Duration `json:"connect_ns"` // from asking the client for a connection to its first answer; less with one that was open
	Trips   int           `json:"trips"`      // round trips that were measured one by one
	Min     time.Duration `json:"min_ns"`     // the shortest of them
	Median  time.Duration `json:"median_ns"`
	Max     time.Duration `json:"max_ns"`

	Offset       time.Duration `json:"offset_ns"`        // the server's wall clock less ours
	OffsetWithin time.Duration `json:"offset_within_ns"` // the error of that: half of the shortest round trip; 0: the clock was not read
	Drift        float64       `json:"drift_ppm"`        // how much faster its clock runs than ours, in millionths
	DriftWithin  float64       `json:"drift_within_ppm"` // the error of that
	DriftOver    time.Duration `json:"drift_over_ns"`    // since which earlier Check; 0: there was none to compare with

	Err error `json:"-"` // why nothing more is known of it; "error" in JSON, as text
}

// Report is what Check has found.
type Report struct {
	Findings []Finding    `json:"findings"` // the worst first; those of one kind together, in the order of the nodes
	Nodes    []NodeReport `json:"nodes"`    // one row per node, in the order in which they were given
	Quorum   int          `json:"quorum"`   // nodes that make a lock

	// A lock takes the median round trip of the quorum-th fastest node; with the
	// fastest one down it takes that of the next. 0: too few nodes answered.
	Lock        time.Duration `json:"lock_ns"`
	LockOneDown time.Duration `json:"lock_one_down_ns"`

	// The node timeout that would do is three times the longest round trip of any
	// node, and at least 50 ms; the smallest ttl that makes sense is thirty times that
	// round trip, and at least 100 ms: so three renewals fit into it, each of which
	// can fail once and be repeated. 0: no node answered.
	NodeTimeout time.Duration `json:"node_timeout_ns"`
	TTL         time.Duration `json:"ttl_ns"`

	Took time.Duration `json:"took_ns"` // the whole call
}

// Worst is the highest severity of all findings; SeverityNone of a nil Report.
func (r *Report) Worst() (worst Severity) {
	if r == nil {
		return SeverityNone
	}
	for _, f := range r.Findings {
		worst = max(worst, f.Severity)
	}
	return worst
}

// summary is the report on one line.
func (r *Report) summary() string {
	if r == nil {
		return "no report"
	}
	count := make(map[Severity]int)
	for _, f := range r.Findings {
		count[f.Severity]++
	}
	return fmt.Sprintf("%d nodes, %d needed: %s, %s, %s", len(r.Nodes), r.Quorum,
		plural(count[SeverityError], "error"), plural(count[SeverityWarning], "warning"), fmt.Sprintf("%d info", count[SeverityInfo]))
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// String prints a line of summary, a table of the nodes, what a lock costs, and the
// findings: what to do, and below it what was read where.
func (r *Report) String() string {
	if r == nil {
		return r.summary()
	}
	var s strings.Builder
	fmt.Fprintln(&s, r.summary())
	w := tabwriter.NewWriter(&s, 0, 0, 2, ' ', 0)
	for _, n := range r.Nodes {
		fmt.Fprintln(w, n.row())
	}
	w.Flush()
	if r.Lock > 0 {
		fmt.Fprintf(&s, "a lock takes %v", short(r.Lock))
		if r.LockOneDown > 0 {
			fmt.Fprintf(&s, ", with the fastest node down %v", short(r.LockOneDown))
		}
		fmt.Fprintf(&s, "; a node timeout of %v and a ttl from %v on would do\n", r.NodeTimeout, r.TTL)
	}
	for i, f := range r.Findings {
		if i == 0 || !f.sameAs(r.Findings[i-1]) {
			fmt.Fprintf(&s, "%v %s: %s\n", f.Severity, f.What, f.Advice)
		}
		if where := strings.TrimSpace(f.Node + "  " + f.Evidence); where != "" {
			fmt.Fprintln(&s, "   ", where)
		}
	}
	return strings.TrimSuffix(s.String(), "\n")
}

// sameAs tells whether two findings say the same of different nodes.
func (f Finding) sameAs(other Finding) bool {
	return f.Severity == other.Severity && f.What == other.What && f.Advice == other.Advice
}

// LogValue is the report on one line; Findings have the rest.
func (r *Report) LogValue() slog.Value { return slog.StringValue(r.summary()) }

// row is a line of a table.
func (n NodeReport) row() string {
	cells := []string{n.Node}
	if n.Err != nil {
		cells = append(cells, n.Err.Error())
	}
	if n.Version != "" {
		known := slices.DeleteFunc([]string{n.Version, n.Role}, func(s string) bool { return s == "" })
		cells = append(cells, fmt.Sprintf("%s, up %v", strings.Join(known, ", "), n.Uptime))
	}
	if n.Trips > 0 {
		cells = append(cells, fmt.Sprintf("%v to %v, median %v", short(n.Min), short(n.Max), short(n.Median)))
	}
	if n.OffsetWithin > 0 {
		cells = append(cells, fmt.Sprintf("clock %+.1fms ±%v", float64(n.Offset)/1e6, short(n.OffsetWithin)))
	}
	if n.DriftOver > 0 {
		cells = append(cells, fmt.Sprintf("drift %+.0f±%.0f ppm over %v", n.Drift, n.DriftWithin, short(n.DriftOver)))
	}
	return strings.Join(cells, "\t")
}

// String prints the row on one line.
func (n NodeReport) String() string { return strings.ReplaceAll(n.row(), "\t", "  ") }

// short rounds a duration to what people want to read of it.
func short(d time.Duration) time.Duration {
	switch {
	case d >= time.Second:
		return d.Round(10 * time.Millisecond)
	case d >= 10*time.Millisecond:
		return d.Round(100 * time.Microsecond)
	}
	return d.Round(time.Microsecond)
}

// bareNode is a NodeReport without its methods, nodeJSON what JSON makes of one: an
// error would be lost.
type (
	bareNode NodeReport
	nodeJSON struct {
		bareNode
		Error string `json:"error,omitempty"`
	}
)

// MarshalJSON writes the error as text.
func (n NodeReport) MarshalJSON() ([]byte, error) {
	out := nodeJSON{bareNode: bareNode(n)}
	if n.Err != nil {
		out.Error = n.Err.Error()
	}
	return json.Marshal(out)
}

// UnmarshalJSON reads what MarshalJSON wrote; of an error it has the text.
func (n *NodeReport) UnmarshalJSON(data []byte) error {
	var in nodeJSON
	if err := json.Unmarshal(data, &in); err != nil {
		return err
	}
	*n = NodeReport(in.bareNode)
	if in.Error != "" {
		n.Err = opaque{in.Error}
	}
	return nil
}
