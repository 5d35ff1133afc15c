package redlock

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Close ends the Locker. Waits end with ErrClosed, leases end with that cause
// and are released within one node timeout, releases that nodes still owe are
// tried once more, and all goroutines end; clients are closed only if Open made
// them. Calling Close is the caller's word that the holders have stopped: it is
// the one case in which keys are released before the lease is over without the
// holder having returned.
//
// The error says which nodes did not answer to all releases; what may be left
// there ends with its ttl, as does a key whose release the node has refused for
// good (NOPERM), which is no error here: Unlock told of it, and Stats counts it
// as Forgiven. Close waits for hooks that are being told of losses, for a few
// node timeouts and a second at the most. On a sibling made by With, Close ends
// only the sibling's own waits and leases. A second Close returns what the first
// did.
func (l *Locker) Close() error {
	if l != l.root.locker {
		return l.closeSibling()
	}
	r := l.root
	r.mu.Lock()
	if r.ending {
		r.mu.Unlock()
		<-l.ended
		return l.err
	}
	r.ending = true
	close(r.closing)
	r.mu.Unlock()

	for _, lease := range r.agenda.take(nil) {
		lease.end(ErrClosed)
		lease.release(nil)
	}
	r.ops.Wait() // they all end now: waits by the closing, votes by their bound
	r.agenda.end()
	l.err = r.shut()
	close(l.ended)
	return l.err
}

// shut drains and ends the lanes.
func (r *root) shut() error {
	var faults []error
	patience := r.nodes[0].dialer.timeout // the same for all
	timer := time.NewTimer(patience)
	defer timer.Stop()
	drained := make([]<-chan struct{}, len(r.nodes))
	for i, n := range r.nodes {
		drained[i] = n.drain()
	}
	late := false
	for i, n := range r.nodes {
		select {
		case <-drained[i]:
			continue
		default:
		}
		if !late {
			select {
			case <-drained[i]:
				continue
			case <-timer.C:
				late = true
			}
		}
		faults = append(faults, fmt.Errorf("%s did not confirm all releases within %v", n.name, patience))
		drained[i] = nil
	}
	for i, n := range r.nodes {
		if k := n.close(); k > 0 && drained[i] != nil {
			faults = append(faults, fmt.Errorf("%s did not confirm %s", n.name, releases(k)))
		}
	}
	ended := make(chan struct{})
	go func() {
		r.workers.Wait()
		close(ended)
	}()
	// Writing and reading may take the timeout each; a client that ignores
	// deadlines is not waited for.
	ctx, cancel := context.WithTimeout(context.Background(), 3*patience+time.Second)
	defer cancel()
	if !inTime(ctx, ended) {
		faults = append(faults, errors.New("a client has not returned from its last command"))
	}
	if !inTime(ctx, r.teller.told()) {
		faults = append(faults, errors.New("a hook has not returned"))
	}
	for _, c := range r.owned {
		c.Close()
	}
	if len(faults) > 0 {
		return fmt.Errorf("redlock: close: %w", joined(faults))
	}
	return nil
}

func releases(k int) string {
	if k == 1 {
		return "a release"
	}
	return fmt.Sprintf("%d releases", k)
}

// inTime waits for c to be closed until ctx ends.
func inTime(ctx context.Context, c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	case <-ctx.Done():
	}
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func (l *Locker) closeSibling() error {
	r := l.root
	r.mu.Lock()
	switch {
	case l.isClosed():
		r.mu.Unlock()
		<-l.ended
		return l.err
	case r.ending: // the root's Close sees to everything
		r.mu.Unlock()
		return nil
	}
	close(l.closed)
	r.ops.Add(1)
	r.mu.Unlock()
	defer r.ops.Done()
	defer close(l.ended)

	leases := r.agenda.take(l)
	rounds := make([]*round, len(leases))
	for i, lease := range leases {
		lease.end(ErrClosed)
		rounds[i] = newRound(release, "close", lease, l.cfg.clock.start(), 0, l.cfg.nodeTimeout)
		lease.release(rounds[i])
	}
	var faults []error
	for _, round := range rounds {
		if t, _ := round.wait(nil, nil, nil, nil); t.verdict() != won && !round.freed() {
			faults = append(faults, &QuorumError{Round: round.record(0), class: ErrNoQuorum})
		}
	}
	l.ops.Wait()
	if len(faults) > 0 {
		l.err = fmt.Errorf("redlock: close: %w", joined(faults))
	}
	return l.err
}

// remember enters a lease that was obtained, to be looked at again at due; false
// when the Locker is closing.
func (r *root) remember(l *Lease, due time.Time, early time.Duration) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ending || l.locker.isClosed() {
		return false
	}
	r.agenda.add(l, due, early)
	return true
}

// end ends a lease because its Locker closes.
func (l *Lease) end(why error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.finish(leaseError{"lease", l.name, why, ""}, l.until())
}

// checkDrained tells Close when nothing is left to send.
func (n *node) checkDrained() {
	if n.closing && n.drained != nil && n.outstanding == 0 && len(n.debts.of) == 0 {
		close(n.drained)
		n.drained = nil
	}
}

// drain stops taking requests, calls in what is owed, and returns a channel that
// is closed when nothing is left to send.
func (n *node) drain() <-chan struct{} {
	var out answers
	n.mu.Lock()
	n.closing = true
	for q := n.queue.head; q != nil; {
		next := q.next
		if q.kind != release {
			n.queue.drop(q)
			n.finish(q, Vote{Outcome: Failed, Err: ErrClosed}, &out)
		}
		q = next
	}
	n.drained = make(chan struct{})
	drained := n.drained
	n.callIn(time.Now())
	n.checkDrained()
	n.mu.Unlock()
	out.deliver()
	return drained
}

// close ends the lane; what could not be sent by now is left to the ttl. It tells
// how many releases the node has not answered since drain.
func (n *node) close() (unconfirmed int) {
	var out answers
	n.mu.Lock()
	n.closing, n.closed = true, true
	n.failAll(&n.queue, time.Now(), ErrClosed, &out)
	n.failAll(&n.acking.queue, time.Now(), ErrClosed, &out)
	n.debts.stop()
	links := n.acking.stop()
	for _, w := range n.idle {
		w.wake <- struct{}{}
	}
	n.idle = nil
	unconfirmed = n.unconfirmed
	n.mu.Unlock()
	n.cancel()
	hangUpAll(links)
	out.deliver()
	return unconfirmed
}
