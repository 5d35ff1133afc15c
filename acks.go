package redlock

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// maxAcking is how many exchanges with one node may wait for its replicas at a
// time, each on a connection of its own. One WAIT covers all that was written
// before it, so what comes meanwhile shares the next.
const maxAcking = 4

// An ackRule is how many replicas must have acknowledged a write within what time
// for the node's vote to count. It has no use for fewer than one: a nil rule asks
// nobody.
type ackRule struct {
	replicas int
	within   time.Duration
}

// check compares the rule with the node timeout: a vote is not waited for any
// longer, so replicas that took all of it would cost the node its vote unheard.
func (a *ackRule) check(nodeTimeout time.Duration) []error {
	if a == nil || a.within < nodeTimeout {
		return nil
	}
	return []error{fmt.Errorf("the time for replica acknowledgements is %v and the node timeout %v; want less than that", a.within, nodeTimeout)}
}

// checkClients refuses clients that cannot lend a connection for WAIT and one for
// everything else: what a ClusterClient or a wrapper sends next may go over another
// connection, on which WAIT answers for other writes.
func (a *ackRule) checkClients(clients []redis.UniversalClient) (faults []error) {
	if a == nil {
		return nil
	}
	return checkPools(clients, "replica acknowledgements need", 3)
}

// checkPools refuses clients that are no *redis.Client with a pool of so many
// connections; whose need that is begins the reason.
func checkPools(clients []redis.UniversalClient, whose string, least int) (faults []error) {
	for i, c := range clients {
		plain, ok := c.(*redis.Client)
		switch {
		case !ok:
			faults = append(faults, fmt.Errorf("client %d is a %T; %s a *redis.Client", i+1, c, whose))
		case spareOf(plain)+1 < least:
			faults = append(faults, fmt.Errorf("client %d has a pool of %d connections; %s at least %d", i+1, spareOf(plain)+1, whose, least))
		}
	}
	return faults
}

// command is the WAIT that follows the writes of one batch.
func (a *ackRule) command() command {
	return command{redis.NewCmd(background, "wait", a.replicas, millis(a.within))}
}

// read tells what WAIT came to: yes, or why what was written before it must not
// count as replicated.
func (a *ackRule) read(cmd command) (r reply, short error) {
	val, err := cmd.Result()
	if err != nil {
		return readError(err)
	}
	k, ok := val.(int64)
	switch {
	case !ok:
		return refusal, fmt.Errorf("unexpected reply %v to WAIT", val)
	case k < int64(a.replicas):
		return absent, opaque{fmt.Sprintf("%d of %d replicas acknowledged within %v", k, a.replicas, a.within)}
	}
	return yes, nil
}

// errUnproven is the vote of a node that had stored the token when it was sent
// again over another connection, after the first had broken: WAIT answers for
// what its own connection has written, and the second writing wrote nothing.
var errUnproven = opaque{"stored, but the connection on which replicas could be waited for has broken"}

// acks is what a request wants of replicas, nil for nothing. A release wants
// nothing: a replica that lacks it keeps a key that nobody holds, for its ttl.
func (q *request) acks() *ackRule {
	if q.kind == release {
		return nil
	}
	return q.claim.lease.acks
}

// sameAcks tells whether one WAIT serves both: siblings can differ.
func sameAcks(a, b *request) bool {
	x, y := a.acks(), b.acks()
	return x == y || x != nil && y != nil && *x == *y
}

// acknowledged reads the WAIT behind a batch that has one: short is why it was
// not enough.
func acknowledged(batch []*request, cmds []command) (r reply, short error) {
	if len(cmds) == len(batch) {
		return yes, nil
	}
	return batch[0].acks().read(cmds[len(batch)])
}

// fallShort keeps a request that the node has granted from being a vote: finish
// turns it into a failed one.
//
// The key of such an acquire stays there as that of any other: a lost round is
// rolled back, and for a won one it goes with Unlock, loss or Close. To release it
// at once would gain nothing, since the name is held and nobody else may have it,
// and would cost much: the claim would have ended while its lease lives, with one
// more release to be in order with, and Unlock could not tell a node that was given
// back from one that forgot. So the node merely has not promised anything. If an
// extend finds the token there and the replicas in time, it has: then both the node
// and they have the token with its new life, and that is all that a vote means.
func (q *request) fallShort(r reply, short error) {
	if q.acks() == nil {
		return
	}
	q.short = short
	if r == already && short == nil {
		q.short = errUnproven
	}
}

// acking is the part of a lane that waits for replicas. In the lane itself a WAIT
// would stall all that comes behind it. So requests with an ackRule have a queue of
// their own, and a few exchanges, each of which writes what waits and one WAIT in
// one go, on a connection that carries nothing else meanwhile. Releases stay with
// the lane. Neither the claims nor their order know the difference: what is written
// is counted as flying wherever it flies, and a release waits for that.
//
// active + len(idle) ≤ most, and each of the two has one connection, or is about
// to. The node's mutex guards all of it.
type acking struct {
	queue      queue
	most       int    // exchanges at a time; 0: nobody has asked for acknowledgements
	lent       int    // connections that the lane has given up for it
	idle       []rest // connections without work, the one used last at the end
	active     int    // goroutines: in an exchange, on their way to one, or connecting
	connecting int    // those of them that open a connection
	refused    error  // the last failure to connect
	refusedAt  time.Time
	timer      *time.Timer // looks after idle connections, while there are any
}

// rest is a connection that has nothing to do, and since when.
type rest struct {
	link link
	used time.Time
}

// queueOf is where a request waits.
func (n *node) queueOf(q *request) *queue {
	if q.acks() != nil {
		return &n.acking.queue
	}
	return &n.queue
}

// enqueue queues a request. One for the lane itself needs rouse besides.
func (n *node) enqueue(q *request) {
	n.queueOf(q).push(q)
	n.rouseAcking()
}

// connections is how many there may be on which a request could find the server's
// end closed.
func (n *node) connections(q *request) int {
	if q.acks() != nil {
		return n.acking.most
	}
	return len(n.workers)
}

// allow lets every node wait for replicas, if that is asked for: connections of the
// pool are set aside for it, and where the pool is small the lane gives some up.
func (r *root) allow(a *ackRule) {
	if a == nil {
		return
	}
	for _, n := range r.nodes {
		n.allowAcking()
	}
}

func (n *node) allowAcking() {
	n.mu.Lock()
	defer n.mu.Unlock()
	a := &n.acking
	if a.most > 0 {
		return
	}
	a.most = min(maxAcking, n.dialer.spare/2)
	a.lent = max(0, n.dialer.links+a.most-n.dialer.spare)
	for surplus := len(n.workers) - n.mostWorkers(); surplus > 0 && len(n.idle) > 0; surplus-- {
		w := n.idle[0]
		n.idle = n.idle[1:]
		w.wake <- struct{}{}
	}
}

// clients are the nodes' clients, in their order.
func (r *root) clients() (clients []redis.UniversalClient) {
	for _, n := range r.nodes {
		clients = append(clients, n.dialer.client)
	}
	return clients
}

// rouseAcking begins an exchange for what waits, if one more may begin: on an idle
// connection, else on a new one. One connection is made at a time, and none right
// after that has failed while others are at work.
func (n *node) rouseAcking() {
	a := &n.acking
	if n.closed || a.queue.len == 0 || a.active >= a.most {
		return
	}
	var on rest
	switch k := len(a.idle); {
	case k > 0:
		on = a.idle[k-1]
		a.idle = a.idle[:k-1]
	case a.connecting > 0, a.active > 0 && time.Since(a.refusedAt) < n.dialer.timeout:
		return
	default:
		a.connecting++
	}
	a.active++
	n.group.Go(func() error { n.serveAcking(on); return nil })
}

// serveAcking writes what waits until nothing does; then the connection rests. It
// makes one first if it was given none.
func (n *node) serveAcking(on rest) {
	if on.link == nil && !n.connectAcking(&on) {
		return
	}
	var (
		batch []*request
		cmds  []command
		out   answers
	)
	for {
		if batch = n.nextAcking(on, batch[:0]); batch == nil {
			return
		}
		cmds = n.commands(batch, cmds[:0])
		cmds = append(cmds, batch[0].acks().command())
		begin := time.Now()
		n.dialer.exchange(on.link, cmds)
		on.used = time.Now()
		good := n.settle(batch, cmds, on.used.Sub(begin), &out)
		if !good && !n.replaceAcking(&on) {
			out.deliver()
			return
		}
		out.deliver()
		out = out[:0]
	}
}

// nextAcking takes what is to be written on a connection. With nothing left to
// write the connection rests, and batch is nil.
func (n *node) nextAcking(on rest, batch []*request) []*request {
	var out answers
	n.mu.Lock()
	a := &n.acking
	if !n.closed {
		batch = n.take(&a.queue, batch, time.Now(), &out)
		n.rouse() // a release may have waited for what was dropped
	}
	var done link
	switch {
	case n.closed:
		a.active--
		done = on.link
	case len(batch) == 0:
		a.active--
		a.idle = append(a.idle, on)
		if a.timer == nil {
			a.timer = time.AfterFunc(keepAlive, n.inspectAcking)
		}
	default:
		n.rouseAcking() // others may go at the same time
	}
	n.mu.Unlock()
	out.deliver()
	if done != nil {
		done.Close()
	}
	if len(batch) == 0 {
		return nil
	}
	return batch
}

// connectAcking opens a connection, within the node's patience. When that fails
// and no other is left, what waits is answered. False: there is none, and the
// goroutine has been counted out.
func (n *node) connectAcking(on *rest) bool {
	begin := time.Now()
	ctx, cancel := context.WithTimeout(n.ctx, n.patient)
	l, who, err := n.dialer.open(ctx)
	if err != nil && ctx.Err() == context.DeadlineExceeded {
		err = opaque{fmt.Sprintf("not connected within %v", n.patient)}
	}
	cancel()

	var out answers
	n.mu.Lock()
	a := &n.acking
	a.connecting--
	if err == nil {
		n.recognise(who)
		on.link, on.used = l, time.Now()
		n.stats.Connects++
		n.heard(true)
		if !n.closed && len(n.workers) == 0 {
			n.hire() // the release should not have to wait for a connection
		}
	} else {
		a.active--
		a.refused, a.refusedAt = err, time.Now()
		n.stats.ConnectFailures++
		if a.active == a.connecting && len(a.idle) == 0 {
			n.failAll(&a.queue, begin, err, &out)
			n.rouse() // releases that waited for what was answered
		}
		n.rouseAcking()
	}
	n.mu.Unlock()
	out.deliver()
	return err == nil
}

// replaceAcking gives a connection up that has broken or fallen silent, and makes a
// new one if something still waits: what broke it, a restart as a rule, has broken
// the idle ones too.
func (n *node) replaceAcking(on *rest) bool {
	on.link.Close()
	n.mu.Lock()
	a := &n.acking
	again := !n.closed && a.queue.len > 0
	if again {
		a.connecting++
	} else {
		a.active--
	}
	n.mu.Unlock()
	*on = rest{}
	return again && n.connectAcking(on)
}

// inspectAcking looks at the idle connections from time to time. Those that have
// been silent for keepAlive go back to the pool, but for the last one, which is
// proven, so that a lock after an hour still costs one round trip.
func (n *node) inspectAcking() {
	n.mu.Lock()
	a := &n.acking
	a.timer = nil
	var silent []rest
	for len(a.idle) > 0 && time.Since(a.idle[0].used) >= keepAlive {
		silent = append(silent, a.idle[0])
		a.idle = a.idle[1:]
	}
	if k := len(silent) - 1; !n.closed && k >= 0 && len(a.idle) == 0 && a.active == 0 {
		last := silent[k]
		silent = silent[:k]
		a.active++
		n.group.Go(func() error { n.proveAcking(last); return nil })
	}
	if !n.closed && len(a.idle) > 0 {
		a.timer = time.AfterFunc(keepAlive-time.Since(a.idle[0].used), n.inspectAcking)
	}
	n.mu.Unlock()
	hangUpAll(silent)
}

// proveAcking makes sure that a connection carries answers, or that another does,
// and sees to what has come meanwhile.
func (n *node) proveAcking(on rest) {
	if n.dialer.ping(on.link) != nil || n.unproven() {
		on.link.Close()
		on = rest{}
		n.mu.Lock()
		n.acking.connecting++
		n.mu.Unlock()
	}
	on.used = time.Now()
	n.serveAcking(on)
}

// stop ends what can be ended at once, when the lane closes: the caller hangs the
// idle connections up. Exchanges under way end by their timeout.
func (a *acking) stop() (links []rest) {
	if a.timer != nil {
		a.timer.Stop()
	}
	links, a.idle = a.idle, nil
	return links
}

func hangUpAll(links []rest) {
	for _, l := range links {
		l.link.Close()
	}
}

// trouble says why a request may not have been sent.
func (a *acking) trouble() string {
	switch {
	case len(a.idle)+a.active > a.connecting:
		return ""
	case a.refused != nil:
		return "not connected: " + a.refused.Error()
	}
	return "not connected yet"
}
