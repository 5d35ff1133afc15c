package redlock

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// background is the context of everything a lane sends: what it sends outlives
// the call that asked for it.
var background = context.Background()

// A link is one connection's worth of a client: commands written to it one
// after the other arrive in that order.
type link interface {
	Process(ctx context.Context, cmd redis.Cmder) error
	Pipeline() redis.Pipeliner
	Close() error
}

// borrowed is the link of a client that cannot hand out single connections: the
// client itself, which must survive us.
type borrowed struct{ redis.UniversalClient }

func (borrowed) Close() error { return nil }

// A dialer opens links to one node.
type dialer struct {
	client  redis.UniversalClient
	links   int           // most links at a time
	spare   int           // connections of the pool that are not left to other users
	timeout time.Duration // for one exchange on a link
	guarded bool          // a link begins with INFO server, for the restart guard
	sticky  bool          // links are single connections, which keep to the timeout by themselves

	patient redis.UniversalClient // the client with the time that connecting has, for Check

	settled *atomic.Pointer[redis.Client] // the copy of client that lends; see lend
}

const (
	// maxLinks batches in flight keep one caller in eight from waiting for
	// another's round trip on a long line; one is used on a short one.
	maxLinks = 8

	// spareLinks replace links that are stuck in a client that ignores
	// deadlines.
	spareLinks = 4
)

// newDialer prepares a user's client for a lane without changing the client.
//
// A *redis.Client (Sentinel-managed ones too) lends single connections of its
// pool, with our own timeout on them; it always keeps one for other users, so a
// pool of one is only borrowed, command by command. So is a ClusterClient,
// whose connections belong to many servers.
func newDialer(client redis.UniversalClient, timeout time.Duration) dialer {
	d := dialer{client: client, patient: client, links: maxLinks, timeout: timeout, settled: new(atomic.Pointer[redis.Client])}
	c, ok := client.(*redis.Client)
	if !ok {
		return d
	}
	d.client, d.patient = c.WithTimeout(timeout), c.WithTimeout(patience(timeout)) // now: go-redis cannot copy a client that is connecting
	d.spare = spareOf(c)
	if d.spare < 1 {
		d.links = 1
		return d
	}
	d.links, d.sticky = min(maxLinks, d.spare), true
	return d
}

// spareOf is how many connections of its pool a client can lend: all but one.
func spareOf(c *redis.Client) int {
	spare := c.Options().PoolSize - 1
	if most := c.Options().MaxActiveConns; most > 0 {
		spare = min(spare, most-1)
	}
	return spare
}

// lend begins a link. The client it is of, if it is a single connection, goes to
// settle once the link has answered.
//
// A server that refuses go-redis's maintenance notifications makes it change the
// options that all connections of a client share, and the mutex for that is each
// single connection's own. So each is lent by a copy of the client, with its own
// options, until these will not change any more.
func (d dialer) lend() (link, *redis.Client) {
	c, ok := d.client.(*redis.Client)
	if !ok || !d.sticky {
		return borrowed{d.client}, nil
	}
	if settled := d.settled.Load(); settled != nil {
		return settled.Conn(), settled
	}
	c = c.WithTimeout(d.timeout)
	return c.Conn(), c
}

// settle keeps a client for all further links if its options are final, which also
// saves them the refused handshake.
func (d dialer) settle(c *redis.Client) {
	if c == nil {
		return
	}
	if m := c.Options().MaintNotificationsConfig; m == nil || m.Mode != maintnotifications.ModeAuto {
		d.settled.CompareAndSwap(nil, c)
	}
}

// open connects. It returns once a PING was answered, with whatever reply: a
// user may lack the permission to PING and still lock, and a server that is
// loading says so to the votes themselves.
//
// With the restart guard it is INFO server instead, which proves as much and tells
// which server answers.
func (d dialer) open(ctx context.Context) (link, identity, error) {
	for tries := 1; ; tries++ {
		begin := time.Now()
		l, lender := d.lend()
		first := redis.NewCmd(ctx, "ping")
		if d.guarded {
			first = redis.NewCmd(ctx, "info", "server")
		}
		err := l.Process(ctx, command{first})
		r, err := readError(err)
		if err == nil || r != broken && r != timeout {
			d.settle(lender)
			var who identity
			if d.guarded {
				who, err = identify(first)
			}
			if !d.guarded || err == nil {
				return l, who, nil
			}
		}
		l.Close()
		// If it was an answer that did not come, the pool may have lent a
		// connection that died while it was idle; behind it are others.
		if r != timeout || !d.sticky || ctx.Err() != nil || tries >= maxLinks || time.Since(begin) < d.timeout {
			return nil, identity{}, err
		}
	}
}

// ping proves that a link still carries answers.
func (d dialer) ping(l link) error {
	ctx, cancel := context.WithTimeout(background, d.timeout)
	defer cancel()
	err := l.Process(ctx, command{redis.NewCmd(ctx, "ping")})
	if r, err := readError(err); err != nil && (r == broken || r == timeout) {
		return err
	}
	return nil
}

// exchange writes the commands in one go and reads their answers into them.
func (d dialer) exchange(l link, cmds []command) {
	ctx := background
	if !d.sticky {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, d.timeout)
		defer cancel()
	}
	if len(cmds) == 1 {
		l.Process(ctx, cmds[0])
		return
	}
	p := l.Pipeline()
	for _, c := range cmds {
		p.Process(ctx, c)
	}
	p.Exec(ctx)
}

// address names a client in votes and messages.
func address(client redis.UniversalClient, index int) string {
	switch c := client.(type) {
	case *redis.Client:
		return c.Options().Addr
	case *redis.ClusterClient:
		return "cluster " + strings.Join(c.Options().Addrs, ",")
	}
	return fmt.Sprintf("node %d", index+1)
}

type opened struct {
	link link
	who  identity
	err  error
}

// open waits for a connection, but not longer than the node's patience. The dial
// goes on; the next call begins another, or waits for the same one when too many
// are under way, since go-redis keeps a place in the pool for each.
func (w *worker) open() (link, identity, error) {
	n := w.n
	if w.opening == nil {
		c := make(chan opened, 1)
		w.opening = c
		go func() {
			l, who, err := n.dialer.open(n.ctx)
			c <- opened{l, who, err}
		}()
	}
	timer := time.NewTimer(n.patient)
	defer timer.Stop()
	select {
	case o := <-w.opening:
		w.opening = nil
		return o.link, o.who, o.err
	case <-timer.C:
		if n.leave(w.opening) {
			w.opening = nil
		}
		return nil, identity{}, opaque{fmt.Sprintf("not connected within %v", n.patient)}
	}
}

// leave lets a dial go on by itself; the pool gets what comes of it.
func (n *node) leave(dial chan opened) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.left >= min(maxLeft, n.mostWorkers()-1) {
		return false
	}
	n.left++
	n.group.Go(func() error {
		if o := <-dial; o.link != nil {
			o.link.Close()
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		n.left--
		return nil
	})
	return true
}
