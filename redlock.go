package redlock

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"reflect"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"
)

// Locker takes locks on one set of nodes. It is safe for concurrent use; a
// process needs one per set of nodes, and With gives it other settings.
type Locker struct {
	root   *root
	cfg    config
	ops    sync.WaitGroup
	closed chan struct{} // a sibling's own end; the root's is root.closing
	ended  chan struct{} // Close is through
	err    error         // what that returned; set before ended is closed
}

// root is what a Locker and its siblings share.
type root struct {
	locker  *Locker
	nodes   []*node
	workers errgroup.Group  // of all lanes
	owned   []*redis.Client // to be closed with the Locker
	id      string          // tells its releases from others', for those who wait
	cluster bool            // a node is a cluster, which wants lock and fencing counter in one slot
	seen    hindsight
	once    atomic.Uint64 // fenced leases that took one round trip
	twice   atomic.Uint64 // those for which counters had to be raised
	lines   lines

	agenda agenda
	teller teller

	mu      sync.Mutex
	ops     sync.WaitGroup // operations under way; added to only under mu, before ending
	ending  bool
	closing chan struct{}
	checks  chan struct{} // has one place, for the Check that is under way
	looks   []*look       // at the nodes' clocks, by an earlier Check
}

// New makes a Locker over independent Redis primaries, one client each. It sends
// nothing. All faults are reported at once, in an error that matches ErrInvalid:
// no clients, a nil one, the same one twice, a *redis.Ring (which spreads keys
// over servers of its own choice and drops those that are down), options out of
// bounds.
//
// The clients stay the caller's: the Locker neither changes nor closes them, and
// overrides their timeouts and retries only for what it sends itself. It borrows
// up to eight connections of a client's pool (twelve with WithReplicaAck), and
// leaves at least one. While somebody waits there is one more beside the pool, which
// tells of releases.
func New(clients []redis.UniversalClient, opts ...Option) (*Locker, error) {
	cfg, faults := defaults().apply(opts, false)
	if faults = append(checkClients(clients), faults...); len(faults) == 0 {
		faults = append(cfg.acks.checkClients(clients), cfg.checkGuarded(clients)...)
	}
	if len(faults) > 0 {
		return nil, joinInvalid(faults)
	}
	r := &root{
		agenda:  agenda{clock: cfg.clock},
		seen:    hindsight{seed: maphash.MakeSeed()},
		closing: make(chan struct{}),
		checks:  make(chan struct{}, 1),
		id:      strconv.FormatUint(rand.Uint64(), 36),
	}
	r.lines = lines{root: r, of: make(map[string]*line)}
	for i, c := range clients {
		_, cluster := c.(*redis.ClusterClient)
		r.cluster = r.cluster || cluster
		r.nodes = append(r.nodes, newNode(c, i, cfg.nodeTimeout, &r.workers))
		r.lines.feeds = append(r.lines.feeds, newFeed(r, i))
	}
	r.allow(cfg.acks)
	r.guard(cfg.guard)
	r.locker = &Locker{root: r, cfg: cfg, closed: r.closing, ended: make(chan struct{})}
	return r.locker, nil
}

func checkClients(clients []redis.UniversalClient) (faults []error) {
	if len(clients) == 0 {
		return []error{errNoNodes}
	}
	seen := make(map[redis.UniversalClient]int)
	for i, c := range clients {
		v := reflect.ValueOf(c)
		if c == nil || v.Kind() == reflect.Pointer && v.IsNil() {
			faults = append(faults, fmt.Errorf("client %d is nil", i+1))
			continue
		}
		if _, ok := c.(*redis.Ring); ok {
			faults = append(faults, fmt.Errorf("client %d is a *redis.Ring, which cannot be a node", i+1))
		}
		if !v.Comparable() {
			continue
		}
		if first, twice := seen[c]; twice {
			faults = append(faults, fmt.Errorf("clients %d and %d are the same; one server must not vote twice", first+1, i+1))
		}
		seen[c] = i
	}
	return faults
}

var errNoNodes = errors.New("no nodes; want at least 1")

// patience is how long connecting may take: DNS, TCP, TLS, HELLO and AUTH are
// several round trips where a command is one.
func patience(timeout time.Duration) time.Duration {
	return min(max(4*timeout, time.Second), 5*time.Second)
}

func newNode(client redis.UniversalClient, index int, timeout time.Duration, group *errgroup.Group) *node {
	n := &node{
		name:    address(client, index),
		dialer:  newDialer(client, timeout),
		patient: patience(timeout),
		group:   group,
		workers: make(map[*worker]struct{}),
		asked:   make(map[string][]*request),
		debts:   debts{of: make(map[string]*debt)},
		gate:    gate{timeout: timeout},
	}
	n.ctx, n.cancel = context.WithCancel(background)
	return n
}

// With returns a sibling: a Locker with other settings on the same nodes, which
// shares connections and everything else with l. Options that concern the nodes
// themselves (WithNodeTimeout, WithRestartGuard) are an error. Closing a sibling ends its own
// leases and waits only.
func (l *Locker) With(opts ...Option) (*Locker, error) {
	cfg, faults := l.cfg.apply(opts, true)
	if len(faults) == 0 {
		faults = cfg.acks.checkClients(l.root.clients())
	}
	if len(faults) > 0 {
		return nil, joinInvalid(faults)
	}
	leave, err := l.enter()
	if err != nil {
		return nil, fmt.Errorf("redlock: with: %w", err)
	}
	l.root.allow(cfg.acks)
	leave()
	return &Locker{root: l.root, cfg: cfg, closed: make(chan struct{}), ended: make(chan struct{})}, nil
}

// Lock obtains the named lock, trying until it has it, ctx ends, or the limits
// set by WithWait or WithMaxAttempts are used up. ctx bounds the waiting, never
// the lease. The lease ends with its ttl unless it is extended, by Extend or by
// the watchdog that WithAutoExtend sets on it.
//
// The error is one of these; test them in this order:
//   - an error of ctx: ctx ended first. It also matches the class of the last
//     round, if one was completed.
//   - ErrClosed: the Locker was closed.
//   - ErrInvalid: the name or ctx cannot be used: a name has 1 byte to 1 MiB and
//     does not begin with "redlock:fence:", which is reserved, as is
//     "redlock:members". Nothing was sent.
//   - ErrHeld without votes: ctx descends from the Context of a lease on this
//     very name, and waiting would be for ever. WithReentrancy makes it a nested
//     lease instead.
//   - ErrLost: with WithReentrancy, the lease from whose Context ctx descends was
//     lost. (ErrReleased: it is being unlocked at this moment.)
//   - ErrHeld, ErrNoQuorum or ErrExpired, in a *QuorumError with the votes of the
//     last round: a limit is used up, or nodes that deny access make more tries
//     pointless.
//
// After any error nothing of this call stays on a node: what may have been
// stored is released, in the background, and waits there for the answers that
// are still missing; what cannot be released ends with its ttl.
//
// Of the calls that wait for a name in one process, one at a time is on the
// network, and the others get their turns in the order in which they came. While
// another has the lock that one sleeps until a node tells of its release, until its
// keys expire, or for a second: other libraries tell nothing. Where nobody has it,
// or nobody knows, it tries again after a random pause, see Backoff. A message is a
// hint only; the lock is had by the votes. Between processes there is no order, but
// as a rule one that has just released leaves others that wait a turn.
// A name under which another type of value is stored counts as held.
func (l *Locker) Lock(ctx context.Context, name string) (*Lease, error) {
	return l.observed(ctx, Op{"lock", name}, l.cfg.maxAttempts, l.cfg.wait)
}

// TryLock is Lock with a single round: it takes one node timeout at the most, with
// WithFencing two.
// It fails with ErrHeld if others have the lock.
func (l *Locker) TryLock(ctx context.Context, name string) (*Lease, error) {
	return l.observed(ctx, Op{"trylock", name}, 1, -1)
}

// observed is lock between its hooks.
func (l *Locker) observed(ctx context.Context, op Op, attempts int, wait time.Duration) (*Lease, error) {
	if ctx == nil {
		return nil, errNilContext
	}
	if err := l.checkName(op.Name); err != nil {
		return nil, err
	}
	if outer := l.entered(ctx, op.Name); outer != nil {
		return l.reenter(ctx, op, outer)
	}
	ctx = l.cfg.start(ctx, op)
	lease, err := l.lock(ctx, op, attempts, wait)
	l.cfg.done(ctx, op, lease, err)
	return lease, err
}

// lock is the wait loop.
func (l *Locker) lock(ctx context.Context, op Op, attempts int, wait time.Duration) (*Lease, error) {
	leave, err := l.enter()
	if err != nil {
		return nil, fmt.Errorf("redlock: %s %s: %w", op.Kind, quote(op.Name), err)
	}
	defer leave()
	if own, ok := ctx.Value(heldKey{l.root, op.Name}).(*Lease); ok && own.Err() == nil {
		return nil, fmt.Errorf("redlock: %s %s: %w: by the lease that this context comes from; WithReentrancy would nest this call in it",
			op.Kind, quote(op.Name), ErrHeld)
	}
	c := contest{Locker: l, op: op, attempts: attempts, limit: wait, begin: time.Now()}
	if attempts == 1 || wait == 0 {
		return c.once(ctx)
	}
	return c.run(ctx)
}

// attempt is round number n, with a lease whose token is fresh. It gives that
// lease, a verdict, or the error that ended the wait. Without a lease everything is
// released again: that is asked for here, in order behind what was sent, and done
// by the lanes. telling asks for the script, whose refusal says how long the key
// will live.
func (l *Locker) attempt(ctx context.Context, op Op, n int, lease *Lease, telling bool) (*Lease, *QuorumError, error) {
	return l.take(ctx, op, n, lease, request{kind: acquire, telling: telling}, "")
}

// take is the round of an attempt or, with the token that may be replaced, of an
// attach. To the round and the lease the two are one; to the lanes nearly so.
func (l *Locker) take(ctx context.Context, op Op, n int, lease *Lease, what request, old string) (*Lease, *QuorumError, error) {
	start := l.cfg.clock.start() // before the first byte
	r := newRound(acquire, op.Kind, lease, start, l.cfg.ttl, l.cfg.voteBound())
	r.old = old
	if l.cfg.fencing {
		r.fence, r.proposal, r.tally.unnumbered = newAgreement(len(lease.claims)), l.root.propose(op.Name, start), true
	}
	by := start.mono.Add(r.bound)
	requests := make([]request, len(lease.claims))
	for i := range requests {
		requests[i] = what
		requests[i].claim, requests[i].round, requests[i].ttl, requests[i].by = &lease.claims[i], r, l.cfg.ttl, by
		lease.claims[i].node.push(&requests[i])
	}
	// A lost round is acted on at once: what was granted is released while the
	// votes that still matter for the error's class are waited for. Others are
	// told only of what may have kept them out: losers that told each other of
	// their few votes would wake each other for ever.
	var undo []request
	rollback := func(all bool) {
		if undo == nil {
			undo = make([]request, len(lease.claims))
		}
		var tell *notice
		if r.mayHold() {
			tell = lease.notice()
		}
		for i := range undo {
			if undo[i].claim == nil && (all || r.answered(i)) {
				undo[i] = request{kind: release, claim: &lease.claims[i], notice: tell}
				lease.claims[i].node.end(&undo[i])
			}
		}
	}
	t, decided := r.wait(ctx.Done(), l.closed, l.root.closing, func() { rollback(false) })
	l.cfg.round(ctx, r, n)
	if decided && t.verdict() == won && lease.hold(ctx, r) {
		return lease, nil, nil
	}
	rollback(true)
	switch {
	case !decided && ctx.Err() != nil:
		return nil, nil, contextErr(ctx)
	case !decided, l.isClosed(), l.root.locker.isClosed():
		return nil, nil, ErrClosed
	}
	verdict := &QuorumError{Round: r.record(n), class: ErrNoQuorum}
	switch {
	case t.verdict() == won:
		verdict.class = ErrExpired
	case t.class() == refused && what.kind == attach:
		verdict.class = ErrLost
	case t.class() == refused:
		verdict.class = ErrHeld
	}
	return nil, verdict, nil
}

func (l *Locker) newLease(name string) *Lease {
	lease := &Lease{
		locker: l, name: name, token: uuid.NewString(), ttl: l.cfg.ttl, acks: l.cfg.acks,
		claims: make([]claim, len(l.root.nodes)), vouches: make([]*vouch, len(l.root.nodes)),
	}
	if l.cfg.owner != "" {
		lease.token += ":" + l.cfg.owner
	}
	for i, n := range l.root.nodes {
		lease.claims[i] = claim{lease: lease, node: n, index: i}
	}
	return lease
}

// Do runs fn while holding the named lock: it locks like Lock, calls fn with the
// lease's Context (FromContext gives the lease), renews the lease as with
// WithAutoExtend, waits for fn, and unlocks, also when fn panics or ends its
// goroutine. fn must stop when its context ends.
//
// The error is Lock's, without fn having run; or fn's, joined with ErrLost if
// the lock was lost meanwhile, ErrClosed if Close took it away, or, nested with
// WithReentrancy, ErrReleased if the outermost lease was unlocked. Test them
// before the context's errors: fn's own error is then usually
// context.Canceled (context.Cause(ctx) in fn says more). An unlock that did not
// reach a quorum is told to Hooks only: the work was done under the lock, and
// the ttl frees it. A lease that fn detached is not unlocked.
func (l *Locker) Do(ctx context.Context, name string, fn func(ctx context.Context) error) (err error) {
	if fn == nil {
		return invalid("the function is nil")
	}
	lease, err := l.Lock(ctx, name)
	if err != nil {
		return err
	}
	if lease.outer == nil { // a nested one ends with the outermost
		lease.watch()
	}
	defer func() {
		unlockErr := lease.Unlock(ctx)
		if errors.Is(unlockErr, ErrLost) || errors.Is(unlockErr, ErrClosed) || unlockErr != nil && lease.outer != nil {
			if err == nil {
				err = unlockErr
			} else {
				err = joined{err, unlockErr}
			}
		}
	}()
	return fn(lease.Context(ctx))
}

// enter counts an operation in, so that Close can wait for it; leave ends it.
func (l *Locker) enter() (leave func(), err error) {
	r := l.root
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ending || l.isClosed() {
		return nil, ErrClosed
	}
	r.ops.Add(1)
	l.ops.Add(1)
	return func() { l.ops.Done(); r.ops.Done() }, nil
}

func (l *Locker) isClosed() bool {
	select {
	case <-l.closed:
		return true
	default:
		return false
	}
}
