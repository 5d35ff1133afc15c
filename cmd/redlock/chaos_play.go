package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/seed58520471/redlock/faultinject"
)

// outcome is what came of one run of a scenario, or of a storm.
type outcome struct {
	row          string // of the table, in which it counts
	title        string // the story, or what kind of storm it was
	seed         uint64
	acquisitions int
	faults       int
	took         time.Duration
	violation    error // something that no lock may do
	admitted     error // something that the story admits
	failed       error // it could not be played as it is written
	twoHolders   bool  // the story admits them
	history      *faultinject.History
	report       string // what was injected, and the picture
}

// breakOff corrects the outcome of a run whose context ended before it did: who
// waited for a lock has not got it, and what was to be cleaned up was not, which is
// nobody's fault. Two holders are two holders, unless the story is about them.
func (o *outcome) breakOff() {
	o.violation, o.admitted, o.failed = nil, nil, nil
	if o.history == nil {
		return
	}
	exclusive := faultinject.Exclusive(o.history)
	if o.twoHolders {
		exclusive = nil
	}
	o.violation = errors.Join(exclusive, faultinject.Tokens(o.history))
}

// job is a run to come.
type job struct {
	label string // where the campaign is, while it is the latest
	play  func(context.Context) outcome
}

// campaign is many runs, some of them at a time.
type campaign struct {
	report   chaosReport
	ttl      time.Duration
	workers  int
	svg      string // file; "" for none
	pictures bool   // of runs that nothing is wrong with, too
	first    bool   // the first violation ends it
	replay   func(row string, seed uint64) string
	out      chaosPresenter
	progress *progress
	begin    time.Time

	mu    sync.Mutex // guards what follows, and the report until all runs are over
	label string     // of the latest job
	drawn outcome    // whose picture --svg is
}

func newCampaign(cmd *cli.Command) *campaign {
	root, ttl := cmd.Root(), cmd.Duration("ttl")
	var out chaosPresenter = chaosText{newTextReport(root.Writer)}
	if cmd.Bool("json") {
		out = chaosJSON{root.Writer}
	}
	return &campaign{
		ttl: ttl, workers: cmd.Int("workers"), svg: cmd.String("svg"), out: out, progress: newProgress(root.ErrWriter),
		report: chaosReport{
			Seed: cmd.Uint64("seed"), TTL: millis(ttl), Rows: []*chaosRow{}, Violations: []chaosViolation{},
		},
	}
}

// play plays jobs until there are no more, shows what came of them, and returns an
// error if that is not what should.
func (c *campaign) play(ctx context.Context, next func() (job, bool)) error {
	c.begin = time.Now()
	c.out.begin(&c.report)
	running, stop := context.WithCancel(ctx)
	defer stop()
	quiet := c.progress.watch(c.status)
	var workers sync.WaitGroup
	for range c.workers {
		workers.Go(func() {
			for running.Err() == nil {
				j, ok := c.take(next)
				if !ok {
					return
				}
				o := j.play(running)
				c.file(o, running.Err() != nil)
				if c.first && o.violation != nil {
					stop()
				}
			}
		})
	}
	workers.Wait()
	quiet()
	return c.finish(ctx.Err() != nil)
}

func (c *campaign) take(next func() (job, bool)) (job, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	j, ok := next()
	if ok {
		c.label = j.label
	}
	return j, ok
}

// file counts an outcome. A run that was broken off is none, unless something was
// wrong until then.
func (c *campaign) file(o outcome, brokenOff bool) {
	if brokenOff {
		o.breakOff()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if brokenOff && o.violation == nil {
		return
	}
	row := c.report.row(o.row)
	if row.Error == "" && (c.pictures || o.failed != nil) {
		row.Picture = o.report
	}
	row.count(o)
	if len(c.report.Violations) == 0 {
		c.drawn = o
	}
	if o.violation != nil && row.Violations <= violationsShown {
		c.report.Violations = append(c.report.Violations, chaosViolation{
			Name: o.row, Seed: o.seed, Title: o.title, Error: o.violation.Error(), Report: o.report,
			Replay: c.replay(o.row, o.seed),
		})
	}
}

// status is the line that tells how far it is.
func (c *campaign) status() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	sum := c.report.sum()
	return fmt.Sprintf("%s: %s, %s, %s, %v", c.label, plural(sum.Acquisitions, "acquisition", "acquisitions"),
		plural(sum.Faults, "fault", "faults"), plural(sum.Violations, "violation", "violations"),
		time.Since(c.begin).Truncate(time.Second))
}

// finish shows the report.
func (c *campaign) finish(interrupted bool) error {
	r := &c.report
	r.Total, r.Took = r.sum(), millis(time.Since(c.begin))
	r.Failed = r.failed(interrupted)
	r.OK = r.Failed == ""
	err := c.out.end(r)
	if c.svg != "" {
		err = errors.Join(err, c.draw())
	}
	switch {
	case err != nil:
		return fmt.Errorf("chaos: %w", err)
	case !r.OK:
		return errors.New("chaos: " + r.Failed)
	}
	return nil
}

// draw writes the picture, if there is anything to see.
func (c *campaign) draw() error {
	if c.drawn.history == nil {
		return nil
	}
	f, err := os.Create(c.svg)
	if err != nil {
		return err
	}
	title := fmt.Sprintf("%s, seed %d", c.drawn.row, c.drawn.seed)
	return errors.Join(c.drawn.history.WriteSVG(f, title), f.Close())
}
