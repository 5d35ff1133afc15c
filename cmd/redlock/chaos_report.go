package main

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// violationsShown bounds how many violations of one row are shown in full; all are
// counted.
const violationsShown = 3

// chaosReport is what a campaign found out, apart from how it is shown. Its JSON is
// one document:
//
//	ok          all that was played held
//	failed      if not: what did not, or that it was interrupted
//	ttl_ms      of the locks
//	seed        of the first run
//	took_ms     all of it
//	rows        one per scenario, by name; of storms, one per kind of network
//	total       of the rows
//	violations  in full, up to three of each row
type chaosReport struct {
	OK         bool             `json:"ok"`
	Failed     string           `json:"failed,omitempty"`
	TTL        millis           `json:"ttl_ms"`
	Seed       uint64           `json:"seed"`
	Took       millis           `json:"took_ms"`
	Rows       []*chaosRow      `json:"rows"`
	Total      chaosRow         `json:"total"`
	Violations []chaosViolation `json:"violations"`

	What string `json:"-"` // is played, for people
}

// chaosRow counts the runs of one scenario, or of some storms.
type chaosRow struct {
	Name         string `json:"name"`
	Runs         int    `json:"runs"`
	Acquisitions int    `json:"acquisitions"`
	Faults       int    `json:"faults"` // that have struck
	Violations   int    `json:"violations"`
	Took         millis `json:"took_ms"` // the runs, one after the other

	Admitted string `json:"admitted,omitempty"` // by the story, and seen
	Skipped  string `json:"skipped,omitempty"`  // why
	Error    string `json:"error,omitempty"`    // why it could not be played
	Picture  string `json:"picture,omitempty"`  // of the last run, if asked for or not played
}

// chaosViolation is a run in which something happened that no lock may do.
type chaosViolation struct {
	Name   string `json:"name"`
	Seed   uint64 `json:"seed"`
	Title  string `json:"title"`
	Error  string `json:"error"`
	Report string `json:"report"` // what was injected, and the picture
	Replay string `json:"replay"` // a command line
}

// row is the row of that name, a new one in its place if there is none.
func (r *chaosReport) row(name string) *chaosRow {
	at, found := slices.BinarySearchFunc(r.Rows, name, func(row *chaosRow, name string) int {
		return strings.Compare(row.Name, name)
	})
	if !found {
		r.Rows = slices.Insert(r.Rows, at, &chaosRow{Name: name})
	}
	return r.Rows[at]
}

func (row *chaosRow) count(o outcome) {
	row.Runs++
	row.Acquisitions += o.acquisitions
	row.Faults += o.faults
	row.Took += millis(o.took)
	if o.violation != nil {
		row.Violations++
	}
	if o.admitted != nil {
		row.Admitted = o.admitted.Error()
	}
	if o.failed != nil && row.Error == "" {
		row.Error = fmt.Sprintf("seed %d: %v", o.seed, o.failed)
	}
}

func (r *chaosReport) sum() chaosRow {
	sum := chaosRow{Name: "total"}
	for _, row := range r.Rows {
		sum.Runs += row.Runs
		sum.Acquisitions += row.Acquisitions
		sum.Faults += row.Faults
		sum.Violations += row.Violations
		sum.Took += row.Took
	}
	return sum
}

// failed says in a line what is wrong; it is empty if nothing is.
func (r *chaosReport) failed(interrupted bool) string {
	var parts, violated, unplayed []string
	for _, row := range r.Rows {
		if row.Violations > 0 {
			violated = append(violated, row.Name)
		}
		if row.Error != "" {
			unplayed = append(unplayed, row.Name)
		}
	}
	if n := r.sum().Violations; n > 0 {
		parts = append(parts, plural(n, "violation", "violations")+" in "+strings.Join(violated, ", "))
	}
	if len(unplayed) > 0 {
		parts = append(parts, strings.Join(unplayed, ", ")+" could not be played")
	}
	switch {
	case interrupted:
		parts = append(parts, "interrupted")
	case r.sum().Runs == 0:
		parts = append(parts, "nothing was played")
	}
	return strings.Join(parts, "; ")
}

// A chaosPresenter shows a report.
type chaosPresenter interface {
	begin(*chaosReport)
	end(*chaosReport) error
}

// chaosJSON shows it as one JSON document, at the end.
type chaosJSON struct{ w io.Writer }

func (chaosJSON) begin(*chaosReport)         {}
func (j chaosJSON) end(r *chaosReport) error { return writeJSON(j.w, r) }

// chaosText shows it to people.
type chaosText struct{ textReport }

func (t chaosText) begin(r *chaosReport) {
	fmt.Fprintf(t.w, "%s. ttl %v, seed %d.\n\n", r.What, time.Duration(r.TTL), r.Seed)
}

func (t chaosText) end(r *chaosReport) error {
	t.table(r)
	t.notes(r)
	for _, row := range r.Rows {
		if row.Picture != "" {
			fmt.Fprintf(t.w, "\n%s\n%s", t.paint(bold, row.Name), indent(row.Picture))
		}
	}
	for _, v := range r.Violations {
		t.violation(v)
	}
	word := t.paint(green, "ok")
	text := fmt.Sprintf("No lock broke in %s, under %s.",
		plural(r.Total.Runs, "run", "runs"), plural(r.Total.Faults, "fault", "faults"))
	if !r.OK {
		word, text = t.paint(red, "FAILED"), r.Failed+"."
	}
	_, err := fmt.Fprintf(t.w, "\n%s  %s %s.\n", word, text, span(r.Took))
	return err
}

// table has a line for each row that was played, and for all of them.
func (t chaosText) table(r *chaosReport) {
	rows := [][]string{{"", "runs", "acquisitions", "faults", "violations"}}
	for _, row := range append(r.Rows, &r.Total) {
		if row.Runs > 0 || row == &r.Total {
			rows = append(rows, []string{row.Name, strconv.Itoa(row.Runs), strconv.Itoa(row.Acquisitions),
				strconv.Itoa(row.Faults), strconv.Itoa(row.Violations)})
		}
	}
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	for k, row := range rows {
		line := fmt.Sprintf("%-*s", widths[0], row[0])
		for i, cell := range row[1:] {
			line += fmt.Sprintf("  %*s", widths[i+1], cell)
		}
		code := ""
		switch {
		case k == 0:
			code = faint
		case row[4] != "0":
			code = red
		case k == len(rows)-1:
			code = bold
		}
		if code != "" {
			line = t.paint(code, line)
		}
		fmt.Fprintln(t.w, line)
	}
}

// notes say what numbers do not.
func (t chaosText) notes(r *chaosReport) {
	first := true
	for _, row := range r.Rows {
		for _, note := range []struct{ word, code, text string }{
			{"admitted", yellow, row.Admitted}, {"skipped", faint, row.Skipped}, {"not played", red, row.Error},
		} {
			if note.text == "" {
				continue
			}
			if first {
				fmt.Fprintln(t.w)
			}
			first = false
			text := strings.ReplaceAll(strings.ReplaceAll(note.text, "faultinject: ", ""), "\n", "; ")
			fmt.Fprintf(t.w, "%s: %s\n", t.paint(note.code, note.word), fold(row.Name+": "+text, len(note.word)+2, 3))
		}
	}
}

func (t chaosText) violation(v chaosViolation) {
	fmt.Fprintf(t.w, "\n%s\n", t.paint(red, fmt.Sprintf("VIOLATION in %s, seed %d", v.Name, v.Seed)))
	fmt.Fprintf(t.w, "   %s\n\n%s\n%s", fold(v.Title, 3, 3), indent(v.Error), indent(v.Report))
	fmt.Fprintf(t.w, "\n   To play it again: %s\n", t.paint(bold, v.Replay))
}

// indent moves all lines of a text to the right.
func indent(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if line != "\n" {
			b.WriteString("   ")
		}
		b.WriteString(strings.TrimSuffix(line, "\n") + "\n")
	}
	return b.String()
}
