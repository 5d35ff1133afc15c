package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/seed58520471/redlock"
)

// report is what a run found out, apart from how it is shown. Its JSON is one
// document:
//
//	ok                 everything that was shown did happen
//	failed             if not: the step and the claim that did not hold
//	lock               the lock's name
//	nodes              how many there are
//	quorum             how many of them must grant
//	ttl_ms             of the lock, before it is extended
//	node_timeout_ms    how long a node may take to answer
//	took_ms            all of it
//	steps              in their order; after one that failed there are no others
//	warnings           nodes that a quorum did without, if all else is well
type report struct {
	OK          bool      `json:"ok"`
	Failed      string    `json:"failed,omitempty"`
	Lock        string    `json:"lock"`
	Nodes       int       `json:"nodes"`
	Quorum      int       `json:"quorum"`
	TTL         millis    `json:"ttl_ms"`
	NodeTimeout millis    `json:"node_timeout_ms"`
	Took        millis    `json:"took_ms"`
	Steps       []*step   `json:"steps"`
	Warnings    []warning `json:"warnings"`

	where string // the nodes are, for people
}

// step is one thing that was shown: what was claimed about it, and the round of
// votes behind it if there was one.
type step struct {
	Name     string  `json:"step"`
	Title    string  `json:"title"`
	OK       bool    `json:"ok"`
	Checks   []check `json:"checks"`
	Round    *round  `json:"round,omitempty"`
	Validity millis  `json:"validity_ms,omitempty"` // of the lease that the step is about
	Error    string  `json:"error,omitempty"`       // what the library returned
}

// round is what the nodes said.
type round struct {
	Op      string `json:"op"`
	Attempt int    `json:"attempt,omitempty"` // of a lock: 1 unless it was repeated
	Quorum  int    `json:"quorum"`
	Granted int    `json:"granted"`
	Took    millis `json:"took_ms"` // from its start to its verdict
	Votes   []vote `json:"votes"`
}

// check is one claim and what was found.
type check struct {
	Claim string `json:"claim"`
	OK    bool   `json:"ok"`
	Found string `json:"found,omitempty"`
}

// warning is about one node, whatever the quorum says.
type warning struct {
	Number int    `json:"number"` // in the list, from 1
	Node   string `json:"node"`
	Text   string `json:"text"`
}

// vote is one node's row.
type vote struct {
	Node    string `json:"node"`
	Outcome string `json:"outcome"`          // the library's, or notAsked
	Latency millis `json:"latency_ms"`       // 0 while pending, or if not asked
	Holder  string `json:"holder,omitempty"` // owner label of who has the lock there
	Error   string `json:"error,omitempty"`

	err error
}

// notAsked is the outcome of an unlock at a node that the lock was never sent to.
// The library counts it as refused, and says neverThere.
const (
	notAsked   = "not asked"
	neverThere = "was never there"
)

// millis is a duration that JSON shows in milliseconds.
type millis time.Duration

func (m millis) MarshalJSON() ([]byte, error) {
	return strconv.AppendFloat(nil, float64(m)/float64(time.Millisecond), 'f', 3, 64), nil
}

// check files a claim. The format says what was found, for better or worse.
func (s *step) check(ok bool, claim, format string, args ...any) {
	s.Checks = append(s.Checks, check{Claim: claim, OK: ok, Found: fmt.Sprintf(format, args...)})
	s.OK = s.OK && ok
}

// succeeds files the claim that a call gave no error. Where the votes say the rest
// of it, only its class is repeated.
func (s *step) succeeds(claim string, err error) bool {
	if err == nil {
		s.check(true, claim, "")
		return true
	}
	s.Error = err.Error()
	found := s.Error
	if errors.As(err, new(*redlock.QuorumError)) {
		found = class(err)
	}
	s.check(false, claim, "%s", found)
	return false
}

// class is the name of the state that an error tells.
func class(err error) string {
	for _, c := range []struct {
		name string
		err  error
	}{
		{"ErrHeld", redlock.ErrHeld}, {"ErrNoQuorum", redlock.ErrNoQuorum}, {"ErrExpired", redlock.ErrExpired},
		{"ErrLost", redlock.ErrLost}, {"ErrReleased", redlock.ErrReleased}, {"ErrClosed", redlock.ErrClosed},
	} {
		if errors.Is(err, c.err) {
			return c.name
		}
	}
	return fmt.Sprint(err)
}

// failed is the first claim that did not hold.
func (s *step) failed() string {
	for _, c := range s.Checks {
		if !c.OK {
			return fmt.Sprintf("step %s: claim does not hold: %s (%s)", s.Name, c.Claim, c.Found)
		}
	}
	return ""
}

// take files a round of votes; one without any is none.
func (s *step) take(r redlock.Round) {
	if len(r.Votes) == 0 {
		return
	}
	s.Round = &round{
		Op: r.Op, Attempt: r.Attempt, Quorum: r.Quorum,
		Granted: r.Count(redlock.Granted), Took: millis(r.Took),
	}
	for _, v := range r.Votes {
		s.Round.Votes = append(s.Round.Votes, newVote(v))
	}
}

func newVote(v redlock.Vote) vote {
	row := vote{Node: v.Node, Outcome: v.Outcome.String(), Latency: millis(v.Latency), err: v.Err}
	if v.Holder != "" {
		row.Holder = ownerOf(v.Holder)
	}
	if v.Err != nil {
		row.Error = v.Err.Error()
	}
	if v.Outcome == redlock.Refused && row.Error == neverThere {
		return vote{Node: v.Node, Outcome: notAsked, Error: "it never had the lock"}
	}
	return row
}

// voted tells whether a node, counted from zero, has said yes or no in any step.
func (r *report) voted(node int) bool {
	for _, s := range r.Steps {
		if s.Round == nil {
			continue
		}
		switch s.Round.Votes[node].Outcome {
		case redlock.Granted.String(), redlock.Refused.String():
			return true
		}
	}
	return false
}

// warn files a warning about a node, counted from zero.
func (r *report) warn(node int, address, format string, args ...any) {
	r.Warnings = append(r.Warnings, warning{node + 1, address, fmt.Sprintf(format, args...)})
}

// plural is a number with the word that goes with it.
func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// count is the number of nodes with that outcome.
func (r *round) count(o redlock.Outcome) (n int) {
	if r == nil {
		return 0
	}
	for _, v := range r.Votes {
		if v.Outcome == o.String() {
			n++
		}
	}
	return n
}

// ownerOf is the label in a token; of one without a label, or of a value that
// another program stored, the beginning. Whoever knows a whole token can release
// the lock, so it is never shown.
func ownerOf(token string) string {
	const uuid, most = 36, 8
	if len(token) > uuid+1 && token[uuid] == ':' {
		return token[uuid+1:]
	}
	if len(token) > most {
		return strings.ToValidUTF8(token[:most], "") + "…"
	}
	return token
}

// A presenter shows a report while it grows.
type presenter interface {
	begin(*report)
	step(number int, s *step)
	end(*report) error
}

// jsonReport shows a report as one JSON document, at the end.
type jsonReport struct{ w io.Writer }

func (jsonReport) begin(*report)   {}
func (jsonReport) step(int, *step) {}

func (j jsonReport) end(r *report) error { return writeJSON(j.w, r) }

func writeJSON(w io.Writer, document any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(document)
}
