package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/seed58520471/redlock/internal/scenarios"
)

const listHelp = `The scenarios that 'redlock chaos run' plays, by name: how many nodes there
are, on what they can be played, and what happens. 'Admitted' is what no
lock with a time limit prevents, or the condition of the promise that the
story breaks. --json has the plans too, in which {0.5} is
half of the ttl.

Examples:
   redlock chaos list
   redlock chaos list --json | jq -r '.scenarios[] | .name + "\n" + .plan'`

func listCommand(s stage) *cli.Command {
	return &cli.Command{
		Name:        "list",
		Usage:       "the catalogue of scenarios",
		UsageText:   "redlock chaos list [--json]",
		Description: listHelp,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "json", Usage: "print one JSON document instead of text"},
		},
		OnUsageError: onUsageError,
		Action: func(_ context.Context, cmd *cli.Command) error {
			w := cmd.Root().Writer
			if cmd.Bool("json") {
				return writeJSON(w, listing{entries(s.catalogue())})
			}
			return listText(w, s.catalogue())
		},
	}
}

// listing is the catalogue for machines.
type listing struct {
	Scenarios []entry `json:"scenarios"`
}

type entry struct {
	Name     string   `json:"name"`
	Nodes    int      `json:"nodes"`
	Embedded bool     `json:"embedded"`          // can be played on embedded nodes
	Servers  bool     `json:"servers"`           // can be played on redis-server
	Options  []string `json:"options,omitempty"` // of redis-server
	Story    string   `json:"story"`
	Admitted string   `json:"admitted,omitempty"`
	Plan     string   `json:"plan,omitempty"`
}

func entries(all []scenarios.Scenario) []entry {
	list := []entry{}
	for _, s := range all {
		list = append(list, entry{
			s.Name, s.Nodes, s.Servers == nil, !s.Embedded, s.Servers, s.Story,
			cmp.Or(s.Residue, s.TwoHolders), strings.TrimSpace(s.Plan),
		})
	}
	return list
}

func listText(w io.Writer, all []scenarios.Scenario) (err error) {
	t := newTextReport(w)
	columns := columns(w)
	for i, e := range entries(all) {
		on := ", embedded or redis-server"
		switch {
		case !e.Servers:
			on = ", embedded only"
		case !e.Embedded:
			on = ", redis-server only"
		}
		if i > 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprintf(w, "%s  %s\n", t.paint(bold, e.Name), t.paint(faint, plural(e.Nodes, "node", "nodes")+on))
		_, err = fmt.Fprintf(w, "   %s\n", foldTo(columns, e.Story, 3, 3))
		if e.Admitted != "" {
			_, err = fmt.Fprintf(w, "   Admitted: %s\n", foldTo(columns, e.Admitted, 13, 3))
		}
	}
	return err
}

// columns is how wide a text may be: as wide as the shell says that the terminal
// is, if it says so, and never so wide that it is hard to read.
func columns(w io.Writer) int {
	const least, most = 40, 100
	if n, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil && n > 0 {
		return min(max(n, least), most)
	}
	if isTerminal(w) {
		return width
	}
	return most
}

// choose finds the scenarios that a command line names.
func choose(cmd *cli.Command, all []scenarios.Scenario) (chosen []scenarios.Scenario, err error) {
	patterns := cmd.Args().Slice()
	switch {
	case cmd.Bool("all") && len(patterns) > 0:
		return nil, misuse(cmd, "either names or --all")
	case cmd.Bool("all"):
		return all, nil
	case len(patterns) == 0:
		return nil, misuse(cmd, "which scenario? name some of 'redlock chaos list', or use --all")
	}
	wanted := make(map[string]bool)
	for _, p := range patterns {
		found := false
		for _, s := range all {
			if ok, err := path.Match(p, s.Name); ok && err == nil {
				wanted[s.Name], found = true, true
			}
		}
		if !found {
			return nil, misuse(cmd, unknown(p, all))
		}
	}
	for _, s := range all {
		if wanted[s.Name] {
			chosen = append(chosen, s)
		}
	}
	return chosen, nil
}

var patternLike = regexp.MustCompile(`^[A-Za-z0-9*?\[\]^_.-]{1,60}$`)

// unknown says that no scenario is called that, and what might be meant.
func unknown(name string, all []scenarios.Scenario) string {
	text := "no such scenario"
	if !patternLike.MatchString(name) {
		return text + "; 'redlock chaos list' has all"
	}
	text += fmt.Sprintf(": %q", name)
	if near := similar(name, all); len(near) > 0 {
		return text + "; similar are " + strings.Join(near, ", ")
	}
	return text + "; 'redlock chaos list' has all"
}

// similar are the names closest to one that does not exist, the closest first.
func similar(name string, all []scenarios.Scenario) (near []string) {
	const most = 5
	away := make(map[string]int)
	for _, s := range all {
		d := distance(name, s.Name)
		if d <= max(2, len(name)/3) || sharesWord(name, s.Name) {
			away[s.Name] = d
			near = append(near, s.Name)
		}
	}
	slices.SortStableFunc(near, func(a, b string) int { return cmp.Compare(away[a], away[b]) })
	return near[:min(len(near), most)]
}

// sharesWord tells whether a word of one name begins one of the other.
func sharesWord(a, b string) bool {
	const shortest = 3 // that says something
	for word := range strings.FieldsFuncSeq(a, func(r rune) bool { return strings.ContainsRune("-*?[]", r) }) {
		if len(word) >= shortest && strings.Contains("-"+b, "-"+word) {
			return true
		}
	}
	return false
}

// distance is how many letters have to be put in, left out or replaced to make one
// name of another.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			d := diagonal
			if a[i] != b[j] {
				d++
			}
			diagonal = row[j+1]
			row[j+1] = min(d, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
