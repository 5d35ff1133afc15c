// Command redlock shows what quorum locks do.
//
//	redlock demo                                          on embedded nodes, without any set-up
//	redlock demo --nodes redis://a,redis://b,redis://c    on real servers
//	REDLOCK_NODES=redis://a,redis://b,redis://c redlock demo
//	redlock demo --json | jq .ok                          the same for machines
//	redlock chaos list                                    ways in which locks have failed
//	redlock chaos run --all                               and whether these do
//	redlock chaos soak --for 60s                          random storms, as many as fit
//
// It exits with 0 when all went as it should, with 1 when something did not, and
// with 2 when it was called in a way that makes no sense.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"syscall"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/seed58520471/redlock"
	"github.com/urfave/cli/v3"
)

const (
	exitOK = iota
	exitFailed
	exitUsage
)

func main() {
	// A node that is down is shown as a vote that failed; go-redis's own lines
	// about it would cut through the tables.
	redis.SetLogger(&logging.VoidLogger{})
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second interrupt ends the process at once
	os.Exit(run(ctx, os.Args, os.Stdout, os.Stderr))
}

// run is the whole program but for the process around it: it returns the exit
// code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return exitCode(app(stdout, stderr, theStage).Run(ctx, args), stderr)
}

// exitCode says what went wrong, if anything did.
func exitCode(err error, stderr io.Writer) int {
	if err == nil {
		return exitOK
	}
	fmt.Fprintf(stderr, "redlock: %s\n", strings.TrimPrefix(err.Error(), "redlock: "))
	var misuse usageError
	if errors.As(err, &misuse) || errors.Is(err, redlock.ErrInvalid) {
		return exitUsage
	}
	return exitFailed
}

func app(stdout, stderr io.Writer, s stage) *cli.Command {
	return &cli.Command{
		Name:  "redlock",
		Usage: "locks that a quorum of independent Redis nodes agrees on",
		Description: "Start with the demo. It needs this program alone, and less than a second:\n\n" +
			"   redlock demo\n\n" +
			"Then see what it takes to break a lock, and try:\n\n" +
			"   redlock chaos list\n" +
			"   redlock chaos run --all\n\n" +
			"'redlock <command> --help' tells more about a command.",
		Commands:        []*cli.Command{demoCommand(), chaosCommand(s)},
		HideHelpCommand: true,
		Writer:          stdout,
		ErrWriter:       stderr,
		ExitErrHandler:  func(context.Context, *cli.Command, error) {}, // run sees to it
		OnUsageError:    onUsageError,
		ArgValidator:    noArguments, // of all commands that do not set their own
	}
}

// usageError marks a call that makes no sense.
type usageError struct{ text string }

func (e usageError) Error() string { return e.text }

// onUsageError keeps the parser's message short, without the help around it.
func onUsageError(_ context.Context, cmd *cli.Command, err error, _ bool) error {
	text := flagName.ReplaceAllString(hideURLs(err.Error()), "$1--$2")
	return misuse(cmd, parserName.ReplaceAllString(text, ""))
}

// What the parser says of flags is not how they are typed, and names its own insides.
var (
	flagName   = regexp.MustCompile(`(for |not defined: )(?:flag )?-(\w+)`)
	parserName = regexp.MustCompile(`strconv\.\w+: parsing "[^"]*": `)
)

func misuse(cmd *cli.Command, what string) error {
	return usageError{fmt.Sprintf("%s; see '%s --help'", what, cmd.FullName())}
}

// noArguments refuses what is left on the command line. Only what looks like a
// command is repeated in the message: it may be a URL with a password that --nodes
// should have been in front of.
func noArguments(_ context.Context, cmd *cli.Command) error {
	if !cmd.Args().Present() {
		return nil
	}
	what := cmd.Name + " takes no arguments, only flags"
	if len(cmd.Commands) > 0 {
		what = "no such command"
		if name := cmd.Args().First(); commandLike.MatchString(name) {
			what += fmt.Sprintf(": %q", name)
		}
	}
	return misuse(cmd, what)
}

var commandLike = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_-]{0,19}$`)

var anyURL = regexp.MustCompile(`\S*://\S*`)

// hideURLs takes out of a message what may contain a password.
func hideURLs(text string) string { return anyURL.ReplaceAllString(text, "…") }
