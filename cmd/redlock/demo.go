package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/seed58520471/redlock"
	"github.com/urfave/cli/v3"
)

const (
	embeddedNodes = 5

	// ttl is the library's default. It is long compared with the demo: a key that
	// disappears meanwhile was released, and did not expire.
	ttl = 10 * time.Second

	// Embedded nodes get the default node timeout. Real ones may be far away, and
	// the first contact costs several round trips.
	embeddedTimeout = ttl / 20
	remoteTimeout   = 2 * time.Second

	// margin is what a busy machine may add to any bound on time that is checked.
	margin = 250 * time.Millisecond
)

func demoCommand() *cli.Command {
	return &cli.Command{
		Name:      "demo",
		Usage:     "lock, refuse, kill nodes, recover: see it happen, and have it checked",
		UsageText: "redlock demo [--json] [--nodes URL,URL,URL]",
		Description: "Starts five embedded Redis nodes on loopback ports and two clients, alice and bob.\n" +
			"alice takes a lock and bob is refused. Then nodes are killed in the middle of an\n" +
			"acquire: with three of five the lock still holds, with two nobody gets it, and when\n" +
			"the nodes come back all is well again, and no key is left anywhere.\n\n" +
			"Every claim is checked. The exit code is 0 if all were true, and 1 if one was not.\n\n" +
			"With --nodes it uses your servers instead, and kills nothing: lock, refuse, extend,\n" +
			"unlock, on one random name that is released again. Passwords are never shown.\n\n" +
			"Examples:\n" +
			"   redlock demo\n" +
			"   redlock demo --json | jq '.steps[] | {step, ok, granted}'\n" +
			"   redlock demo --nodes redis://10.0.0.1:6379,redis://10.0.0.2:6379,redis://10.0.0.3:6379\n" +
			"   redlock demo --nodes \"rediss://app:$PASSWORD@eu:6379,rediss://app:$PASSWORD@us:6379\"\n\n" +
			"How to read the votes: a round is decided as soon as enough nodes have granted, so\n" +
			"the slower ones are 'pending'; their votes still count when they come. 'refused' says\n" +
			"that another owner has the name on that node, 'failed' that it gave no useful answer.",
		Flags: []cli.Flag{
			&cli.StringSliceFlag{
				Name:  "nodes",
				Usage: "use these servers, `URL,URL,…`, each redis[s]://[user:password@]host:port[/db]",
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
			if cmd.IsSet("nodes") {
				return demoRemote(ctx, out, cmd.StringSlice("nodes"))
			}
			return demoEmbedded(ctx, out)
		},
	}
}

// demoEmbedded is the whole show.
func demoEmbedded(ctx context.Context, out presenter) (err error) {
	before := runtime.NumGoroutine()
	nodes, err := startCluster(embeddedNodes)
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	defer nodes.stop()
	d, err := newDemo(nodes.urls(), "orders/42", embeddedTimeout)
	if err != nil {
		return err
	}
	defer d.close()
	d.nodes, d.goroutines = nodes, before
	d.report.where = "embedded here, on loopback ports"
	return d.play(ctx, out, []act{
		{"lock", "alice locks", d.lock},
		{"refuse", "bob wants the same lock and is refused", d.refuse},
		{"extend", "alice extends her lease", d.extend},
		{"unlock", "alice unlocks", d.unlock},
		{"two-die", "two nodes are killed while alice locks again; she wins", d.twoDie},
		{"third-dies", "a third is killed while alice tries again; nobody can win now", d.thirdDies},
		{"return", "the nodes come back with their data, and alice wins", d.comeBack},
		{"end", "all is stopped, and nothing is left", d.end},
	})
}

// demoRemote is the part of the show that harms nothing.
func demoRemote(ctx context.Context, out presenter, urls []string) error {
	d, err := newDemo(urls, "redlock-demo/"+uuid.NewString(), remoteTimeout)
	if err != nil {
		return err
	}
	defer d.close()
	d.report.where = "given with --nodes"
	return d.play(ctx, out, []act{
		{"lock", "alice locks", d.lock},
		{"refuse", "bob wants the same lock and is refused", d.refuse},
		{"extend", "alice extends her lease", d.extend},
		{"unlock", "alice unlocks", d.unlock},
		{"end", "alice leaves; bob finds nothing of hers on any node, and leaves too", d.leave},
	})
}

// demo is one run: two clients of the same nodes.
type demo struct {
	report      report
	name        string // of the lock
	nodeTimeout time.Duration
	alice, bob  *client
	lease       *redlock.Lease // alice's, between steps

	// Of embedded nodes only.
	nodes      cluster
	goroutines int // that ran before all of it
}

// client is a Locker with an owner label that remembers its last round of votes.
type client struct {
	*redlock.Locker
	owner string

	mu   sync.Mutex
	last redlock.Round
}

func newDemo(urls []string, name string, nodeTimeout time.Duration) (*demo, error) {
	d := &demo{name: name, nodeTimeout: nodeTimeout, report: report{
		Lock: name, Nodes: len(urls), Quorum: len(urls)/2 + 1,
		TTL: millis(ttl), NodeTimeout: millis(nodeTimeout),
	}}
	var err error
	if d.alice, err = newClient("alice", urls, nodeTimeout); err != nil {
		return nil, err
	}
	if d.bob, err = newClient("bob", urls, nodeTimeout); err != nil {
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

// close ends what a run that was broken off has left open.
func (d *demo) close() {
	d.alice.Close()
	d.bob.Close()
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
	r.OK, r.Took = r.Failed == "", millis(time.Since(begin))
	if err := out.end(r); err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	if !r.OK {
		return errors.New("demo: " + r.Failed)
	}
	return nil
}
