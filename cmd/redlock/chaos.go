package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/seed58520471/redlock/internal/scenarios"
)

// stage is what chaos plays. Tests bring plays of their own.
type stage struct {
	catalogue func() []scenarios.Scenario
	storm     stormPlayer
}

var theStage = stage{scenarios.Catalogue, playStorm}

// Bounds of the flags. With a shorter ttl a run measures how busy the machine is.
const (
	minChaosTTL = 100 * time.Millisecond
	maxChaosTTL = time.Hour
	maxWorkers  = 256
	fewWorkers  = 8 // with servers, each has processes
)

const chaosHelp = `A catalogue of ways in which locks on Redis have failed, each as a story
that is played in real time: clients take, extend, lose and abandon locks
while nodes are killed, wiped, frozen, cut off or slow. Whatever happens, at
most one client may hold a name, and it has to be free again in time.

   redlock chaos list
   redlock chaos run --all
   redlock chaos soak --for 60s`

// chaosCommand breaks things, and checks that locks do not break.
func chaosCommand(s stage) *cli.Command {
	return &cli.Command{
		Name:            "chaos",
		Usage:           "break nodes, networks and clients, and see whether locks hold",
		UsageText:       "redlock chaos list|run|soak [options]",
		Description:     chaosHelp,
		Commands:        []*cli.Command{listCommand(s), runCommand(s), soakCommand(s)},
		HideHelpCommand: true,
		OnUsageError:    onUsageError,
	}
}

const runHelp = `Plays scenarios in real time and checks, after each, that no two clients
have held a name at the same time, that every lock could be had again, that
fencing tokens have risen, and that no key is left behind but the counters
of these. A NAME may be a pattern, as 'killed-*'.

The nodes are embedded in this program. With --redis they are redis-server
processes on loopback ports, which end with it; what these store is checked
at the end and not in the pictures. Some scenarios are for one of the two
only; where one cannot be played it is skipped, and that is said.

What is random in a scenario is a function of the seed; how goroutines take
turns is not. The first run has --seed, each further one the next number.

Some stories end with what no lock with a time limit prevents: a holder that
was paused acts when its time is over. Others break a condition of the
promise, as that no majority forgets its votes, and two hold the lock. They
say so, and that is 'admitted', no violation.

A short --ttl makes it quick, and below a second a busy machine can look
like a fault. The exit code is 0 if all held, 1 after a violation, an
interrupt or a scenario that could not be played, and 2 for a call that
makes no sense.

Examples:
   redlock chaos run --all
   redlock chaos run 'killed-*' --runs 20 --seed 100
   redlock chaos run killed-after-set --redis --picture
   redlock chaos run killed-after-set --svg picture.svg
   redlock chaos run --all --json | jq '.rows[] | select(.violations > 0)'`

func runCommand(s stage) *cli.Command {
	return &cli.Command{
		Name:        "run",
		Usage:       "play scenarios of the catalogue",
		UsageText:   "redlock chaos run NAME… | --all  [options]",
		Description: runHelp,
		Flags: append([]cli.Flag{
			&cli.BoolFlag{Name: "all", Usage: "play the whole catalogue"},
			&cli.BoolFlag{Name: "redis", Usage: "on redis-server processes"},
			&cli.IntFlag{Name: "runs", Usage: "play each `N` times", Value: 1},
			&cli.Uint64Flag{Name: "seed", Usage: "the first run has seed `N`", Value: 1},
			&cli.BoolFlag{Name: "picture", Usage: "draw the last run of each scenario"},
		}, commonFlags(min(runtime.NumCPU(), fewWorkers))...),
		OnUsageError: onUsageError,
		ArgValidator: func(context.Context, *cli.Command) error { return nil }, // choose sees to it
		Action: func(ctx context.Context, cmd *cli.Command) error {
			chosen, err := choose(cmd, s.catalogue())
			if err != nil {
				return err
			}
			if err := checkCommon(cmd); err != nil {
				return err
			}
			runs := cmd.Int("runs")
			if runs < 1 {
				return misuse(cmd, fmt.Sprintf("--runs %d is not positive", runs))
			}
			c := newCampaign(cmd)
			c.pictures = cmd.Bool("picture")
			return c.run(ctx, chosen, runs, cmd.Bool("redis"))
		},
	}
}

const soakHelp = `Random storms, one after the other and several at a time: three to seven
embedded nodes far or near, with clocks that run too fast or too slow, up to
seven clients, and faults that nobody has thought of as a story. Each is
drawn from its seed; the next one has the next seed. In half of them some
locks have fencing tokens, and in every sixth all have, while commands fail,
counters get lost and clocks are wrong; tokens have to rise all the same.

It ends with the first violation, and shows its seed, plan and picture. If
there is none, it ends when the storms are over that have begun within
--for, a few seconds later. The exit code is 0, or 1 after a violation or an
interrupt.

A seed draws the same storm again; how goroutines take turns in it may
differ.

Examples:
   redlock chaos soak
   redlock chaos soak --for 8h --svg violation.svg
   redlock chaos soak --seed 4711 --workers 1 --for 1s      that storm, alone`

func soakCommand(s stage) *cli.Command {
	return &cli.Command{
		Name:        "soak",
		Usage:       "random storms until the time is over",
		UsageText:   "redlock chaos soak [--for 60s] [--seed N] [--workers K] [options]",
		Description: soakHelp,
		Flags: append([]cli.Flag{
			&cli.DurationFlag{Name: "for", Usage: "begin storms for `TIME`", Value: time.Minute},
			&cli.Uint64Flag{Name: "seed", Usage: "the first storm has seed `N`", DefaultText: "a fresh one"},
		}, commonFlags(min(2*runtime.NumCPU(), maxWorkers))...), // they wait most of the time
		OnUsageError: onUsageError,
		Action: func(ctx context.Context, cmd *cli.Command) error {
			if err := checkCommon(cmd); err != nil {
				return err
			}
			last := cmd.Duration("for")
			if last <= 0 {
				return misuse(cmd, fmt.Sprintf("--for %v is not positive", last))
			}
			c := newCampaign(cmd)
			if !cmd.IsSet("seed") {
				c.report.Seed = uint64(rand.Uint32()) // short enough to be typed
			}
			return c.soak(ctx, s.storm, last)
		},
	}
}

func commonFlags(workers int) []cli.Flag {
	return []cli.Flag{
		&cli.DurationFlag{Name: "ttl", Usage: "`TIME` that locks last; all others follow from it", Value: scenarios.Real},
		&cli.IntFlag{Name: "workers", Usage: "`K` runs at a time", Value: workers},
		&cli.StringFlag{Name: "svg", Usage: "draw the first violation, or else the last run, into `FILE`"},
		&cli.BoolFlag{Name: "json", Usage: "print one JSON document at the end instead of text"},
	}
}

func checkCommon(cmd *cli.Command) error {
	if ttl := cmd.Duration("ttl"); ttl < minChaosTTL || ttl > maxChaosTTL {
		return misuse(cmd, fmt.Sprintf("--ttl %v is not from %v to %v", ttl, minChaosTTL, maxChaosTTL))
	}
	if n := cmd.Int("workers"); n < 1 || n > maxWorkers {
		return misuse(cmd, fmt.Sprintf("--workers %d is not from 1 to %d", n, maxWorkers))
	}
	if cmd.IsSet("svg") {
		// Hours of storms must not end with a picture that cannot be written.
		f, err := os.OpenFile(cmd.String("svg"), os.O_CREATE|os.O_WRONLY, 0o666)
		if err != nil {
			return misuse(cmd, "--svg: "+err.Error())
		}
		return f.Close()
	}
	return nil
}
