// Package mutants breaks the library on purpose, a rule at a time, and demands
// that random storms notice. Each mutant is a file in testdata: a sentence, the
// storms that show it best, and pieces of source with what stands in their place.
// They are applied with go test's -overlay; no file of the tree changes.
//
//	go test ./internal/mutants -seeds 100
//
// builds a program for each and takes minutes. Without -seeds it is only checked
// that the mutants still fit the source.
package mutants

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var (
	seeds     = flag.Int("seeds", 0, "seeds for each mutant, and for the true code")
	firstSeed = flag.Uint64("first-seed", 0, "the first seed; 0 is a fresh one")
)

const (
	root    = "../.."
	storms  = "./internal/scenarios"
	patient = 90 * time.Second // with one seed; a mutant can let time stand still
)

// first is the first seed of this run.
func first(t *testing.T) uint64 {
	s := *firstSeed
	if s == 0 {
		s = uint64(time.Now().UnixNano()) % 1_000_000_000
	}
	t.Logf("go test ./internal/mutants -run '%s' -seeds %d -first-seed %d", t.Name(), *seeds, s)
	return s
}

func needSeeds(t *testing.T) {
	if *seeds == 0 {
		t.Skip("the hunt is for -seeds 100, for example")
	}
}

func TestStormsFindNothingInTheTrueCode(t *testing.T) {
	needSeeds(t)
	t.Parallel()
	from := first(t)
	found := judge(t, build(t, nil), "", from, *seeds)
	assert.Empty(t, found)
}

func TestStormsFindEveryMutant(t *testing.T) {
	files, err := filepath.Glob("testdata/*.mutant")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".mutant"), func(t *testing.T) {
			m := readMutant(t, file)
			overlay := m.overlay(t)
			needSeeds(t)
			t.Parallel()
			found := judge(t, build(t, overlay), m.storm, first(t), *seeds)
			reasons := make(map[string]int)
			for _, why := range found {
				reasons[strings.Fields(why)[0]]++
			}
			t.Logf("%s: found in %d of %d seeds: %v", m.story, len(found), *seeds, reasons)
			// One seed in twenty may miss it; of a few, one.
			assert.GreaterOrEqual(t, len(found), *seeds-max(*seeds/20, 1), m.story)
		})
	}
}

// mutant is a file of testdata.
type mutant struct {
	story string
	storm string // the flavour of storms that shows it best
	edits []edit
}

// edit replaces a piece of a source file that stands there exactly once.
type edit struct{ file, old, new string }

func readMutant(t *testing.T, file string) (m mutant) {
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	story, rest, ok := strings.Cut(string(text), "\n--- ")
	require.True(t, ok, "%s: no edit", file)
	m.story, m.storm, ok = strings.Cut(story, "\nstorm: ")
	require.True(t, ok, "%s: no storm", file)
	for piece := range strings.SplitSeq(rest, "\n--- ") {
		name, body, ok1 := strings.Cut(piece, "\n")
		old, new, ok2 := strings.Cut(body, "\n+++\n")
		require.True(t, ok1 && ok2, "%s: an edit is --- file, old, +++, new", file)
		m.edits = append(m.edits, edit{name, old, strings.TrimSuffix(new, "\n")})
	}
	return m
}

// overlay writes the edited files and what go's -overlay wants to know of them.
func (m mutant) overlay(t *testing.T) []string {
	dir := t.TempDir()
	replace := make(map[string]string)
	for _, e := range m.edits {
		path, err := filepath.Abs(filepath.Join(root, e.file))
		require.NoError(t, err)
		from := path
		if edited, again := replace[path]; again {
			from = edited
		}
		source, err := os.ReadFile(from)
		require.NoError(t, err)
		require.Equal(t, 1, bytes.Count(source, []byte(e.old)), "%q in %s: the mutant is out of date", e.old, e.file)
		replace[path] = filepath.Join(dir, strings.ReplaceAll(e.file, "/", "_"))
		edited := bytes.Replace(source, []byte(e.old), []byte(e.new), 1)
		require.NoError(t, os.WriteFile(replace[path], edited, 0o600))
	}
	list, err := json.Marshal(map[string]any{"Replace": replace})
	require.NoError(t, err)
	overlay := filepath.Join(dir, "overlay.json")
	require.NoError(t, os.WriteFile(overlay, list, 0o600))
	return []string{"-overlay", overlay}
}

// build makes the test program of the storms.
func build(t *testing.T, flags []string) (program string) {
	program = filepath.Join(t.TempDir(), "storms.test")
	cmd := exec.Command("go", append(append([]string{"test", "-c", "-o", program}, flags...), storms)...)
	cmd.Dir = root
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return program
}

// judge runs the seeds and returns those in which something was found, and what.
// A program that ends or hangs in the middle of a seed has found something too,
// and is started again behind it.
func judge(t *testing.T, program, storm string, from uint64, n int) map[uint64]string {
	found := make(map[uint64]string)
	for seed := from; seed < from+uint64(n); {
		seed = judgeOn(t, program, storm, seed, from+uint64(n), found)
	}
	return found
}

// judgeOn runs the program once, and returns the seed to go on with.
func judgeOn(t *testing.T, program, storm string, seed, end uint64, found map[uint64]string) (next uint64) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "-test.run", "^TestEverySeedIsJudged$", "-test.v", "-test.timeout", "0",
		"-likely", storm, "-judge", fmt.Sprint(end-seed), "-first-seed", fmt.Sprint(seed))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	watch := time.AfterFunc(patient, cancel)
	defer watch.Stop()
	lines := bufio.NewScanner(out)
	for next = seed; lines.Scan(); {
		line, ours := strings.CutPrefix(lines.Text(), "judged ")
		judged, verdict, ok := strings.Cut(line, " ")
		if !ours || !ok {
			continue
		}
		require.Equal(t, fmt.Sprint(next), judged)
		if verdict != "ok" {
			found[next] = verdict
		}
		next++
		watch.Reset(patient)
	}
	err = cmd.Wait()
	if next < end {
		var exit *exec.ExitError
		require.True(t, errors.As(err, &exit), "seed %d: %v", next, err)
		found[next] = "crashed"
		if ctx.Err() != nil {
			found[next] = "hung"
		}
		next++
	}
	return next
}
