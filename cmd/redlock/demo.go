package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/seed58520471/redlock"
	"github.com/seed58520471/redlock/faultinject"
	"github.com/urfave/cli/v3"
)

const (
	embeddedNodes = 5

	// ttl is the library's default. It is long compared with the demo: a key that
	// disappears meanwhile was released, and did not expire.
	ttl = 10 * time.Second

	// The node timeouts are longer than the default of ttl/20. Embedded nodes share
	// the machine with all else that runs on it; real ones may be far away, and the
	// first contact costs several round trips.
	embeddedTimeout = time.Second
	remoteTimeout   = 2 * time.Second

	// margin is what a busy machine may add to any bound on time that is checked.
	margin = 500 * time.Millisecond

	// namePrefix begins the random names on real servers. It is for access rules.
	namePrefix = "redlock-demo/"

	nodesVariable = "REDLOCK_NODES"
)

// demoHelp is what --help says about it.
const demoHelp = `Starts five embedded Redis nodes on loopback ports and two clients, alice
and bob. alice takes a lock and bob is refused; he waits, and has it when she
unlocks. Then nodes are killed in the middle of an acquire: with three of
five the lock is still obtained, with two nobody gets it, and when the nodes
come back all is well again, and no key is left anywhere.

With --nodes it uses your servers instead, and kills nothing: lock, refuse,
extend, unlock, all on one name, which is released again. The name is random
and begins with ` + namePrefix + `, unless --name sets another; take one that
nothing else locks. A last look at each node by itself finds those that the
quorum did without, and servers that are listed twice; these are warnings.

A URL is redis[s]://[user:password@]host:port[/db], with a password's special
characters in percent-encoding. Others on the machine can see a command line:
put URLs with a password into the variable ` + nodesVariable + `, which stands
in for --nodes. No output shows a password.

Every claim is checked. The exit code is 0 if all were true, warnings or not,
1 if one was not, and 2 for a call that makes no sense. Colours are for
terminals, unless NO_COLOR is set.

Examples:
   redlock demo
   redlock demo --json | jq '.steps[] | {step, ok, granted: .round.granted}'
   redlock demo --nodes redis://eu:6379,redis://us:6379,redis://ap:6379
   export ` + nodesVariable + `="$(cat nodes.secret)"
   redlock demo --name app/check
   redlock demo --json | jq -e '.ok and .warnings == []'

How to read the votes: a round is decided as soon as enough nodes have
granted, so the slower ones are 'pending'; what they say later still counts.
'refused' is the answer that another owner has the name, 'failed' is no
useful answer, and a node that the lock was never sent to is 'not asked' to
unlock.`

// demoCommand shows what a quorum lock does, and checks that it does.
func demoCommand() *cli.Command {
	return &cli.Command{
		Name:        "demo",
		Usage:       "lock, refuse, kill nodes, recover, and check it all",
		UsageText:   "redlock demo [--json] [--nodes URL,URL,URL [--name NAME]]",
		Description: demoHelp,
		Flags: []cli.Flag{
			&cli.StringFlag{
				Name:    "nodes",
				Usage:   "use the servers at `URL,URL,…`",
				Sources: cli.EnvVars(nodesVariable),
			},
			&cli.StringFlag{
				Name:        "name",
				Usage:       "the lock's `NAME` there",
				DefaultText: namePrefix + "<random>",
			},
			&cli.BoolFlag{
				Name:  "json",
				Usage: "print one JSON document at the end instead of text",
			},
		},
		OnUsageError: onUsageError,
		Action: func(ctx context.Context, cmd *cli.Command) error {
			var out presenter = newTextReport(cmd.Root().Writer)
			if cmd.Bool("json") {
				out = jsonReport{cmd.Root().Writer}
			}
			nodes, name := cmd.String("nodes"), namePrefix+rand.Text()
			if cmd.IsSet("name") {
				name = cmd.String("name")
			}
			switch {
			case cmd.IsSet("nodes") && nodes == "":
				// It may be a variable that was to be filled in. The embedded nodes
				// would say that all is well.
				return misuse(cmd, "--nodes or "+nodesVariable+" is set, and names no node")
			case cmd.IsSet("nodes"):
				return demoRemote(ctx, out, strings.Split(nodes, ","), name)
			case cmd.IsSet("name"):
				return misuse(cmd, "--name needs --nodes or "+nodesVariable)
			}
			return demoEmbedded(ctx, out)
		},
	}
}

// demoEmbedded is the whole show.
func demoEmbedded(ctx context.Context, out presenter) error {
	d, err := newEmbedded(embeddedTimeout)
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	defer d.close()
	d.report.where = "embedded here, on loopback ports"
	return d.play(ctx, out, []act{
		{"lock", "alice takes the lock", d.lock},
		{"refuse", "bob wants the same lock and is refused", d.refuse},
		{"extend", "alice extends her lease", d.extend},
		{"unlock", "bob waits, alice unlocks, he has it at once, and leaves", d.unlock},
		{"two-die", "two nodes are killed while alice locks again, and she wins", d.twoDie},
		{"third-dies", "a third is killed while alice tries once more, and nobody can win", d.thirdDies},
		{"return", "the nodes come back with their data, and alice wins", d.comeBack},
		{"end", "all is stopped, and nothing is left", d.end},
	})
}

// newEmbedded starts the nodes. Each client has ports of its own to them.
func newEmbedded(nodeTimeout time.Duration) (*demo, error) {
	before := runtime.NumGoroutine()
	nodes, err := faultinject.New(embeddedNodes)
	if err != nil {
		return nil, err
	}
	alice, err1 := nodes.Client("alice").Addrs()
	bob, err2 := nodes.Client("bob").Addrs()
	if err := errors.Join(err1, err2); err != nil {
		nodes.Close()
		return nil, err
	}
	d, err := newDemo(urlsOf(alice), urlsOf(bob), "orders/42", nodeTimeout)
	if err != nil {
		nodes.Close()
		return nil, err
	}
	d.nodes, d.addrs, d.goroutines = nodes, append(alice, bob...), before
	return d, nil
}

// demoRemote is the part of the show that harms nothing.
func demoRemote(ctx context.Context, out presenter, urls []string, name string) error {
	d, err := newDemo(urls, urls, name, remoteTimeout)
	if err != nil {
		return err
	}
	defer d.close()
	if err := d.checkName(); err != nil {
		return err
	}
	d.report.where = "on servers of your own"
	return d.play(ctx, out, []act{
		{"lock", "alice takes the lock", d.lock},
		{"refuse", "bob wants the same lock and is refused", d.refuse},
		{"extend", "alice extends her lease", d.extend},
		{"unlock", "alice unlocks", d.unlock},
		{"end", "alice leaves, bob finds nothing of hers on any node, and leaves too", d.leave},
	})
}

// demo is one run: two clients of the same nodes.
type demo struct {
	report      report
	urls        []string
	name        string // of the lock
	nodeTimeout time.Duration
	alice, bob  *client
	lease       *redlock.Lease // alice's, between steps

	// Of embedded nodes only.
	nodes      *faultinject.Cluster
	addrs      []string // all of their ports
	goroutines int      // that ran before all of it
}

// client is a Locker with an owner label that remembers its last round of votes.
type client struct {
	*redlock.Locker
	owner string

	mu   sync.Mutex
	last redlock.Round
}

// newDemo opens the clients, each with the URLs that it has for the nodes.
func newDemo(urls, bobs []string, name string, nodeTimeout time.Duration) (*demo, error) {
	d := &demo{urls: urls, name: name, nodeTimeout: nodeTimeout, report: report{
		Lock: name, Nodes: len(urls), Quorum: len(urls)/2 + 1,
		TTL: millis(ttl), NodeTimeout: millis(nodeTimeout), Warnings: []warning{},
	}}
	var err error
	if d.alice, err = newClient("alice", urls, nodeTimeout); err != nil {
		return nil, err
	}
	if d.bob, err = newClient("bob", bobs, nodeTimeout); err != nil {
		d.alice.Close()
		return nil, err
	}
	return d, nil
}

func newClient(owner string, urls []string, nodeTimeout time.Duration) (*client, error) {
	c := &client{owner: owner}
	var err error
	c.Locker, err = redlock.Open(urls,
		redlock.WithOwner(owner), redlock.WithTTL(ttl),
		redlock.WithNodeTimeout(nodeTimeout), redlock.WithWait(2*nodeTimeout),
		redlock.WithHooks(redlock.Hooks{Round: c.remember}))
	return c, err
}

func (c *client) remember(_ context.Context, r redlock.Round) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = r
}

// round is the last round; an empty one if there was none since the last call.
func (c *client) round() redlock.Round {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.last
	c.last = redlock.Round{}
	return r
}

// attempts is how often the client has tried in its last wait.
func (c *client) attempts() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last.Attempt
}

// checkName gives the library's verdict on the lock's name. In a context that has
// ended nothing is sent.
func (d *demo) checkName() error {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := d.alice.TryLock(ended, d.name); errors.Is(err, redlock.ErrInvalid) {
		return err
	}
	return nil
}

// close ends what a run that was broken off has left open.
func (d *demo) close() {
	d.alice.Close()
	d.bob.Close()
	if d.nodes != nil {
		d.nodes.Close()
	}
}

// act is a step to come.
type act struct {
	name, title string
	run         func(context.Context, *step)
}

// play runs the acts up to the first whose claims do not hold, shows them, and
// returns an error that names that claim.
func (d *demo) play(ctx context.Context, out presenter, acts []act) error {
	r := &d.report
	begin := time.Now()
	out.begin(r)
	for i, a := range acts {
		s := &step{Name: a.name, Title: a.title, OK: true}
		a.run(ctx, s)
		r.Steps = append(r.Steps, s)
		out.step(i+1, s)
		if ctx.Err() != nil {
			r.Failed = "interrupted"
			break
		}
		if !s.OK {
			r.Failed = s.failed()
			break
		}
	}
	if r.Failed == "" && d.nodes == nil {
		d.rollCall(ctx)
	}
	r.OK, r.Took = r.Failed == "", millis(time.Since(begin))
	if err := out.end(r); err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	if !r.OK {
		return errors.New("demo: " + r.Failed)
	}
	return nil
}
