package main

import (
	"context"
	"fmt"
	"time"

	"github.com/seed58520471/redlock/internal/redisproc"
	"github.com/seed58520471/redlock/internal/scenarios"
)

// run plays scenarios of the catalogue, each so many times.
func (c *campaign) run(ctx context.Context, chosen []scenarios.Scenario, runs int, redis bool) error {
	_, err := redisproc.Find()
	if redis && err != nil {
		return fmt.Errorf("chaos: %w; --redis needs it", err)
	}
	c.report.What = plural(len(chosen), "scenario", "scenarios")
	if runs > 1 {
		c.report.What += fmt.Sprintf(", %d times", runs)
	}
	c.replay = func(name string, seed uint64) string {
		command := fmt.Sprintf("redlock chaos run %s --seed %d", name, seed)
		if redis {
			command += " --redis"
		}
		return command + c.ttlFlag()
	}
	var jobs []job
	for i, s := range chosen {
		row := c.report.row(s.Name)
		if row.Skipped = skipped(s, redis, err); row.Skipped != "" {
			continue
		}
		for run := range runs {
			o := scenarios.Options{TTL: c.ttl, Servers: redis, Seed: c.report.Seed + uint64(run)}
			label := fmt.Sprintf("scenario %d of %d", i+1, len(chosen))
			if runs > 1 {
				label += fmt.Sprintf(", run %d of %d", run+1, runs)
			}
			jobs = append(jobs, job{label, func(ctx context.Context) outcome { return playScenario(ctx, s, o) }})
		}
	}
	return c.play(ctx, func() (j job, ok bool) {
		if ok = len(jobs) > 0; ok {
			j, jobs = jobs[0], jobs[1:]
		}
		return j, ok
	})
}

// skipped says why a scenario cannot be played here; it is empty if it can.
func skipped(s scenarios.Scenario, redis bool, noServer error) string {
	switch {
	case redis && s.Embedded:
		return "it is for embedded nodes only"
	case s.Servers != nil && noServer != nil:
		return noServer.Error()
	}
	return ""
}

func playScenario(ctx context.Context, s scenarios.Scenario, o scenarios.Options) outcome {
	r, err := s.Run(ctx, o)
	return outcome{
		row: s.Name, title: s.Story, seed: o.Seed, acquisitions: r.Acquisitions, faults: r.Faults, took: r.Took,
		violation: r.Violation, admitted: r.Residue, failed: err, history: r.History, report: r.Report,
		twoHolders: s.TwoHolders != "",
	}
}

// soak lets storms begin for some time.
func (c *campaign) soak(ctx context.Context, play stormPlayer, last time.Duration) error {
	c.first = true
	c.report.What = fmt.Sprintf("Storms for %v, %d at a time", last, c.workers)
	c.replay = func(_ string, seed uint64) string {
		return fmt.Sprintf("redlock chaos soak --seed %d --workers 1 --for 1s%s", seed, c.ttlFlag())
	}
	end, begun := time.Now().Add(last), 0
	return c.play(ctx, func() (job, bool) {
		seed := c.report.Seed + uint64(begun)
		begun++
		return job{fmt.Sprintf("storm %d", begun), func(ctx context.Context) outcome {
			return play(ctx, seed, c.ttl)
		}}, time.Now().Before(end)
	})
}

// ttlFlag is what has to be added to a command line to get this ttl.
func (c *campaign) ttlFlag() string {
	if c.ttl == scenarios.Real {
		return ""
	}
	return fmt.Sprintf(" --ttl %v", c.ttl)
}

// stormPlayer plays the storm of a seed.
type stormPlayer func(ctx context.Context, seed uint64, ttl time.Duration) outcome

// playStorm plays one that is drawn. Storms count by the lines between their
// clients and nodes. A plan that fails is not made smaller, as tests in virtual
// time do: in real time that takes minutes.
func playStorm(ctx context.Context, seed uint64, ttl time.Duration) outcome {
	s := scenarios.DrawStorm(seed, ttl)
	o := outcome{row: s.Line, title: s.String(), seed: seed}
	plan, err := s.Plan()
	if err != nil {
		o.failed = err
		return o
	}
	begin := time.Now()
	tally, history, err := s.Run(ctx, plan)
	o.acquisitions, o.faults, o.took = tally.Acquisitions, tally.Faults, time.Since(begin)
	if history == nil { // there was no cluster
		o.failed = err
		return o
	}
	o.violation, o.history = err, history
	if err != nil {
		o.report = plan.String() + "\n" + history.String()
	}
	return o
}
