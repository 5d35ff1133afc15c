package redlock

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// feedSilence is how long a subscription may be silent before it is asked
	// whether it is still there.
	feedSilence = 2 * time.Second

	// feedLinger is how long a subscription's connection stays open although
	// nobody waits.
	feedLinger = 3 * time.Second

	maxChannels    = 512     // in one SUBSCRIBE
	maxChannelSize = 1 << 16 // bytes of them; one always goes
	minReconnect   = 20 * time.Millisecond
	maxReconnect   = 5 * time.Second
)

// A feed is the subscription of a root Locker to one node: one connection outside
// the client's pool, for however many names are waited for. It is opened when
// somebody waits. What goes over it is written by its own goroutine, in batches,
// so that no waiter waits for the network.
//
// go-redis would repair its connections by itself, without telling when and what
// was missed; and it sends PINGs whose answers it never misses. Both are done here:
// after the first command every call gets a context that has ended, which go-redis
// looks at only before it would dial.
type feed struct {
	root  *root
	index int
	kick  chan struct{}

	// guarded by lines.mu
	running bool
	todo    []errand
	sent    []errand // written and not answered; answers come in order
	wanted  int      // names
	unused  time.Time
	heard   time.Time // the last sign of life
}

// An errand is a change of subscription, or a ping if it is of no line.
type errand struct {
	lines    []*line
	join     bool
	alone    bool // refused in company, so it goes alone
	answered int
	at       time.Time
}

var deadContext = func() context.Context {
	ctx, cancel := context.WithCancel(background)
	cancel()
	return ctx
}()

func newFeed(r *root, index int) *feed {
	return &feed{root: r, index: index, kick: make(chan struct{}, 1)}
}

// want has the feed subscribe to a line's channel, or unsubscribe. Called with
// lines.mu held.
func (f *feed) want(l *line, join bool) {
	if join {
		f.wanted++
	} else if f.wanted--; f.wanted == 0 {
		f.unused = time.Now()
	}
	if !f.running && !join {
		return
	}
	f.todo = append(f.todo, errand{lines: []*line{l}, join: join})
	if !f.running {
		f.running = true
		f.root.workers.Go(func() error { f.run(); return nil })
	}
	select {
	case f.kick <- struct{}{}:
	default:
	}
}

// run keeps the node subscribed to while somebody waits.
func (f *feed) run() {
	pause := minReconnect
	for f.needed() {
		switch linked, ps := f.open(); {
		case ps != nil:
			if f.serve(ps) {
				pause = minReconnect
			}
		case !linked:
			pause = minReconnect
		}
		if !f.lost() {
			continue
		}
		timer := time.NewTimer(pause/2 + time.Duration(rand.Int64N(int64(pause))))
		select {
		case <-timer.C:
		case <-f.root.closing:
			timer.Stop()
		}
		pause = min(2*pause, maxReconnect)
	}
}

// needed tells whether to go on, and if not, that the feed has stopped.
func (f *feed) needed() bool {
	ls := &f.root.lines
	ls.mu.Lock()
	defer ls.mu.Unlock()
	select {
	case <-f.root.closing:
	default:
		if f.wanted > 0 {
			return true
		}
	}
	f.running, f.todo, f.sent = false, nil, nil
	return false
}

// open connects; nil if that fails. The lane goes first: a node that it cannot
// reach need not be tried by two, and go-redis has one lock for what it learns in
// the first handshake.
func (f *feed) open() (linked bool, _ *redis.PubSub) {
	n := f.root.nodes[f.index]
	n.mu.Lock()
	linked = n.linked()
	n.mu.Unlock()
	if !linked {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(n.ctx, n.patient)
	defer cancel()
	ps := n.dialer.client.Subscribe(ctx)
	f.expect()
	if err := ps.Ping(ctx); err != nil {
		ps.Close()
		return true, nil
	}
	return true, ps
}

// expect notes that a ping is on its way.
func (f *feed) expect() {
	ls := &f.root.lines
	ls.mu.Lock()
	defer ls.mu.Unlock()
	f.sent = append(f.sent, errand{at: time.Now()})
}

// serve uses a connection until it breaks or is not needed any more, and tells
// whether it has ever been of use.
func (f *feed) serve(ps *redis.PubSub) (useful bool) {
	done := make(chan struct{})
	f.root.workers.Go(func() error {
		defer close(done)
		for {
			msg, err := ps.ReceiveTimeout(deadContext, 0)
			if !f.take(msg, err) {
				return nil
			}
			useful = true
		}
	})
	defer func() {
		ps.Close()
		<-done
	}()
	timer := time.NewTimer(feedSilence)
	defer timer.Stop()
	for f.write(ps) {
		select {
		case <-f.kick:
		case <-timer.C:
			next := f.check(ps)
			if next <= 0 {
				return
			}
			timer.Reset(next)
		case <-done:
			return
		case <-f.root.closing:
			return
		}
	}
	return
}

// write sends what there is to do.
func (f *feed) write(ps *redis.PubSub) bool {
	for {
		e, channels := f.next()
		var err error
		switch {
		case channels == nil:
			return true
		case e.join:
			err = ps.Subscribe(deadContext, channels...)
		default:
			err = ps.Unsubscribe(deadContext, channels...)
		}
		if err != nil {
			return false
		}
	}
}

// next takes the errands that one command can do.
func (f *feed) next() (e errand, channels []string) {
	ls := &f.root.lines
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if len(f.todo) == 0 {
		return errand{}, nil
	}
	e = errand{join: f.todo[0].join, alone: f.todo[0].alone, at: time.Now()}
	size, k := 0, 0
	for ; k < len(f.todo) && k < maxChannels && size < maxChannelSize; k++ {
		t := f.todo[k]
		if t.join != e.join || k > 0 && (e.alone || t.alone) {
			break
		}
		e.lines = append(e.lines, t.lines[0])
		channels = append(channels, releasedChannel+t.lines[0].name)
		size += len(t.lines[0].name)
	}
	if f.todo = f.todo[k:]; len(f.todo) == 0 {
		f.todo = nil
	}
	f.sent = append(f.sent, e)
	return e, channels
}

// check asks a silent connection for a sign of life, and tells when to look
// again; 0 if it is dead or unused.
func (f *feed) check(ps *redis.PubSub) time.Duration {
	patience := f.root.nodes[f.index].patient
	ls := &f.root.lines
	ls.mu.Lock()
	now := time.Now()
	silent := now.Sub(f.heard)
	overdue := len(f.sent) > 0 && now.Sub(f.sent[0].at) >= patience
	unused := f.wanted == 0 && now.Sub(f.unused) >= feedLinger
	ls.mu.Unlock()
	switch {
	case overdue && silent >= patience, unused:
		return 0
	case silent < feedSilence:
		return feedSilence - silent
	case len(f.sent) == 0:
		f.expect()
		if ps.Ping(deadContext) != nil {
			return 0
		}
	}
	return patience / 4
}

// take takes in what was received. False: the connection is of no use any more.
func (f *feed) take(msg any, err error) bool {
	ls := &f.root.lines
	if m, ok := msg.(*redis.Message); ok && err == nil {
		if name, ok := strings.CutPrefix(m.Channel, releasedChannel); ok {
			ls.heard(f.index, name, m.Payload)
		}
		return true
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	f.heard = time.Now()
	var served redis.Error
	if err != nil && !errors.As(err, &served) || len(f.sent) == 0 {
		return false
	}
	e := &f.sent[0]
	switch m := msg.(type) {
	case *redis.Subscription:
		if e.answered >= len(e.lines) || (m.Kind == "subscribe") != e.join {
			return false
		}
		if e.answered++; e.join {
			f.confirm(e.lines[e.answered-1])
		}
		if e.answered < len(e.lines) {
			return true
		}
	default: // a pong, or an error
		if err != nil && e.join {
			f.deny(*e)
		}
	}
	if f.sent = f.sent[1:]; len(f.sent) == 0 {
		f.sent = nil
	}
	return true
}

// confirm notes that the node will tell of a name's releases from here on. If it
// did before and stopped, one may have been missed.
func (f *feed) confirm(l *line) {
	w := l.watch
	switch w.subs[f.index] {
	case askedAgain:
		w.free(f.index, "", time.Now())
	case asked:
	default:
		return
	}
	w.subs[f.index] = confirmed
	w.confirmed++
	w.tell()
}

// deny notes that the node refuses to be subscribed to. One name that is
// forbidden has the whole command refused, so the others are tried alone.
func (f *feed) deny(e errand) {
	if len(e.lines) > 1 {
		for _, l := range e.lines {
			if f.root.lines.of[l.name] != l { // forgotten meanwhile
				continue
			}
			f.todo = append(f.todo, errand{lines: []*line{l}, join: true, alone: true})
		}
		select {
		case f.kick <- struct{}{}:
		default:
		}
		return
	}
	if w := e.lines[0].watch; w.subs[f.index] == asked || w.subs[f.index] == askedAgain {
		w.subs[f.index] = denied
		w.denied++
		w.tell()
	}
}

// lost notes that the connection is gone: nobody is told of anything until
// there is another. It tells whether there need be.
func (f *feed) lost() bool {
	ls := &f.root.lines
	ls.mu.Lock()
	defer ls.mu.Unlock()
	f.todo, f.sent = nil, nil
	f.heard = time.Time{}
	if f.wanted == 0 {
		return false
	}
	for _, l := range ls.of {
		w := l.watch
		if w == nil || w.asked.IsZero() {
			continue
		}
		switch w.subs[f.index] {
		case confirmed:
			w.subs[f.index] = askedAgain
			if w.confirmed--; w.confirmed == ls.quorum()-1 {
				w.lapses++
				w.tell()
			}
		case denied:
			w.subs[f.index] = asked
			w.denied--
		}
		f.todo = append(f.todo, errand{lines: []*line{l}, join: true})
	}
	return true
}
