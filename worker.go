package redlock

import (
	"time"
)

// A worker is one connection of a lane and the goroutine that uses it.
type worker struct {
	n     *node
	link  link
	wake  chan struct{}
	since time.Time // start of the exchange or ping it is in; guarded by n.mu

	opening chan opened // a dial that goes on although waiting for it was given up

	used  time.Time   // end of the last exchange
	quiet *time.Timer // runs out when the connection has been silent for keepAlive, or before

	// reused from batch to batch
	batch []*request
	cmds  []command
	out   answers
}

// rouse gives what waits to a worker, if one more may start: to an idle one,
// best with a connection, else to a new one. Nothing is needed while a worker is
// on its way from one thing to the next or to its connection, since it looks at
// the queue when it is there. Called with n.mu held.
func (n *node) rouse() {
	between := len(n.workers) - len(n.idle) - n.active - n.connecting
	if n.closed || n.queue.len == 0 || between > 0 || !n.mayStart() {
		return
	}
	if k := len(n.idle); k > 0 {
		for i := k - 1; i >= 0; i-- {
			if n.idle[i].link != nil {
				n.idle[i], n.idle[k-1] = n.idle[k-1], n.idle[i]
				break
			}
		}
		w := n.idle[k-1]
		if w.link == nil && !n.mayDial() {
			return
		}
		n.idle = n.idle[:k-1]
		w.wake <- struct{}{}
		return
	}
	// One connection at a time is made, except on a long line, where those who
	// wait may well get one each.
	if n.connecting > 0 && (n.trip <= longTrip || n.connecting >= n.queue.len) {
		return
	}
	if len(n.workers)-n.stuck() < n.mostWorkers() && n.mayDial() {
		n.hire()
	}
}

func (n *node) hire() {
	w := &worker{n: n, wake: make(chan struct{}, 1)}
	n.workers[w] = struct{}{}
	n.connecting++
	n.group.Go(func() error { w.run(); return nil })
}

// mostWorkers is how many connections are the lane's.
func (n *node) mostWorkers() int { return n.dialer.links - n.acking.lent }

// mayDial says whether a connection may be opened: not right after that has
// failed while there is another, which sees to the queue as soon as it is free;
// and while there is none, one at a time. A server that is too busy to answer in
// time would be kept so by eight handshakes in place of one.
func (n *node) mayDial() bool {
	if !n.linked() {
		return n.connecting == 0
	}
	return time.Since(n.refusedAt) >= n.dialer.timeout
}

// mayStart says whether another exchange may begin: one at a time on a short
// line, where waiting makes larger batches and loses nothing; several on a long
// one. Exchanges that are stuck do not count.
func (n *node) mayStart() bool {
	return n.trip > longTrip || n.active-n.stuck() <= 0
}

// stuck counts the workers held up in a client that ignores our timeout, up to
// the number that we are ready to replace. A single connection cannot be: writing
// and reading have the timeout each.
func (n *node) stuck() (k int) {
	if n.dialer.sticky || n.active == 0 {
		return 0
	}
	now := time.Now()
	for w := range n.workers {
		if !w.since.IsZero() && now.Sub(w.since) > n.dialer.timeout && k < spareLinks {
			k++
		}
	}
	return k
}

func (w *worker) run() {
	n := w.n
	w.quiet = time.NewTimer(keepAlive)
	defer w.quit()
	if !w.connect() {
		return
	}
	for {
		batch, more := w.next()
		if !more {
			return
		}
		if batch == nil { // silent for long, or woken without a connection
			if !w.prove() {
				return
			}
			continue
		}
		cmds := n.commands(batch, w.cmds[:0])
		begin := time.Now()
		stop := n.guard()
		all := publications(batch, cmds)
		n.dialer.exchange(w.link, all)
		stop()
		w.used = time.Now()
		if !n.settle(batch, cmds, w.used.Sub(begin), &w.out) || unheard(all[len(cmds):]) || n.unproven() {
			w.hangUp()
		}
		w.out.deliver()
		w.cmds = all
		clear(w.cmds)
		clear(w.batch)
		clear(w.out)
		w.out = w.out[:0]
	}
}

// commands are what a batch looks like on the wire, by what is known of the server.
func (n *node) commands(batch []*request, cmds []command) []command {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, q := range batch {
		q.native = q.kind.sets() && !n.server.old && (!q.telling || n.server.plain) && !q.ballots() || q.form != byScript
		q.text = !q.native && (n.server.noSHA || !n.server.scripts[q.script()])
		cmds = append(cmds, q.command(q.native, q.text))
		n.tellOf(q)
	}
	return cmds
}

// next waits for something to write and takes it. A nil batch asks the worker to
// prove or make its connection first; false ends it.
func (w *worker) next() (batch []*request, more bool) {
	n := w.n
	for {
		var out answers
		n.mu.Lock()
		if !w.since.IsZero() { // until here it was in an exchange
			w.since = time.Time{}
			n.active--
		}
		if n.acking.lent > 0 && len(n.workers) > n.mostWorkers() {
			delete(n.workers, w) // its connection is lent
			n.rouse()
			n.mu.Unlock()
			return nil, false
		}
		if n.closed {
			n.mu.Unlock()
			return nil, false
		}
		if n.queue.len > 0 && n.mayStart() && (w.link != nil || n.mayDial()) {
			if w.link == nil {
				n.connecting++
				n.rouse() // an idle worker may have a connection
				n.mu.Unlock()
				return nil, true
			}
			w.batch = n.take(&n.queue, w.batch[:0], time.Now(), &out)
			if len(w.batch) > 0 {
				n.active++
				w.since = time.Now()
				n.rouse()
			}
			n.mu.Unlock()
			out.deliver()
			if len(w.batch) > 0 {
				return w.batch, true
			}
			continue
		}
		n.idle = append(n.idle, w)
		n.rouse()
		n.mu.Unlock()

		if w.doze() && w.unlist() {
			return nil, true
		}
	}
}

// doze waits on the idle list until it is woken, or until the connection has
// been silent (or gone) for keepAlive; true says the latter. The timer is not
// touched by the exchanges, it looks at their time when it runs out.
func (w *worker) doze() (silent bool) {
	for {
		select {
		case <-w.wake:
			return false
		case <-w.quiet.C:
			rest := keepAlive - time.Since(w.used)
			w.quiet.Reset(max(rest, keepAlive/8))
			if rest <= 0 {
				return true
			}
		}
	}
}

// unlist takes an idle worker off the list and makes it busy with itself. False
// says that somebody took it off before, to wake it; the waking is used up.
func (w *worker) unlist() bool {
	n := w.n
	n.mu.Lock()
	defer n.mu.Unlock()
	for i, o := range n.idle {
		if o == w {
			n.idle = append(n.idle[:i], n.idle[i+1:]...)
			if w.link == nil {
				n.connecting++
			} else {
				n.active++
				w.since = time.Now()
			}
			return true
		}
	}
	<-w.wake // sent under the mutex that we hold
	return false
}

// guard lets the lane look for a replacement when an exchange has taken too long.
// Only a client that ignores deadlines lets that happen.
func (n *node) guard() (stop func()) {
	if n.dialer.sticky {
		return func() {}
	}
	t := time.AfterFunc(n.dialer.timeout+time.Millisecond, func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.rouse()
	})
	return func() { t.Stop() }
}

// prove makes sure that the worker has a connection that carries answers. It
// counts as active while it asks, as connecting while it connects.
func (w *worker) prove() bool {
	n := w.n
	if w.link == nil {
		return w.connect()
	}
	begin := time.Now()
	stop := n.guard()
	err := n.dialer.ping(w.link)
	stop()
	if err != nil || n.unproven() {
		w.hangUp()
		n.mu.Lock()
		n.active--
		w.since = time.Time{}
		n.connecting++
		n.mu.Unlock()
		return w.connect()
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	w.used = time.Now()
	n.heard(true)
	n.latency.add(w.used.Sub(begin))
	n.trip = w.used.Sub(begin) // nothing else was under way, so it is a clean sample
	return !n.closed
}

// connect opens the worker's connection. It goes on when the votes that waited
// for it have long timed out, so that the next attempt finds it ready. When it
// fails, what waits is answered, unless another worker has a connection. False
// ends the worker.
func (w *worker) connect() bool {
	n := w.n
	begin := time.Now()
	l, who, err := w.open()

	var out answers
	n.mu.Lock()
	n.connecting--
	if err == nil {
		if !n.linked() {
			n.server, n.trip = knowledge{}, 0
		}
		n.recognise(who)
		w.link, w.used = l, time.Now()
		n.refused = nil
		n.stats.Connects++
		n.heard(true)
	} else {
		w.used = time.Now()
		n.refused, n.refusedAt = err, time.Now()
		n.stats.ConnectFailures++
		if !n.linked() {
			n.failAll(&n.queue, begin, err, &out)
			n.heard(false)
		}
	}
	closed := n.closed
	n.mu.Unlock()
	out.deliver()
	return !closed
}

// linked tells whether any worker has a connection. Called with n.mu held; a
// worker's link changes only under it.
func (n *node) linked() bool {
	for w := range n.workers {
		if w.link != nil {
			return true
		}
	}
	return false
}

// trouble says why a request may not have been sent: there is no connection.
func (n *node) trouble(acks bool) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case acks:
		return n.acking.trouble()
	case n.linked():
		return ""
	case n.refused != nil:
		return "not connected: " + n.refused.Error()
	}
	return "not connected yet"
}

// hangUp gives the connection back; the client closes it if it is broken.
func (w *worker) hangUp() {
	n := w.n
	n.mu.Lock()
	l := w.link
	w.link = nil
	n.mu.Unlock()
	if l != nil {
		l.Close()
	}
}

func (w *worker) quit() {
	w.quiet.Stop()
	w.hangUp()
	if w.opening != nil { // n.ctx has ended, so it does too
		if o := <-w.opening; o.link != nil {
			o.link.Close()
		}
	}
	w.n.mu.Lock()
	delete(w.n.workers, w)
	w.n.mu.Unlock()
}
