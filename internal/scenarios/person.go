package scenarios

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/seed58520471/redlock"
	"github.com/seed58520471/redlock/faultinject"
)

// person is a client on its way through one lock.
type person struct {
	*run
	client string
	locker *redlock.Locker
	r      *rand.Rand
	fate   int // from 0 to 7: what it does with the lock
	name   string
	own    string // a name that nobody else asks for
	seen   *faultinject.Attempt
	passed uint64 // the highest fencing token of its name when it asked
	number uint64 // its own, as it was first seen
	lease  *redlock.Lease

	life  func(*person) error // what it does instead; nil: what its fate says
	nests bool                // its locker nests
	most  time.Duration       // for which it may hold; 0: for ever
	since time.Time           // it has held
	known time.Time           // until when, by its last look
}

// leaveBehind is the highest fate of those who hold to the end and may not come
// back.
const leaveBehind = 1

// choose draws the lock that it wants, and what it will do with it.
func (p *person) choose(long *redlock.Locker) error {
	p.fate = p.r.IntN(8)
	p.name = p.Names[p.r.IntN(len(p.Names))]
	switch {
	case p.fences():
		return p.chooseFenced()
	case p.edge():
		// The one that hears late has a lock for itself, but for the hunter.
		p.name = p.Names[min(slices.Index(p.Clients, p.client), 1)]
		if p.fate %= 3; p.name == p.Names[0] {
			p.fate %= 2
		}
		return nil
	case p.r.IntN(3) > 0:
		p.name = p.quiet[p.r.IntN(len(p.quiet))]
		p.fate = max(p.fate, leaveBehind+1)
	}
	if p.r.IntN(p.others) == 0 {
		return p.drawLife(p.locker)
	}
	if p.fate > leaveBehind && p.r.IntN(2) == 0 {
		p.locker = long
	}
	return nil
}

// live tries to get a lock, does something with it, and lets it go or not. Its
// error is something that the library must not do.
func (p *person) live() error {
	if p.isFenced(p.name) {
		l, err := p.locker.With(redlock.WithFencing())
		if err != nil {
			return err
		}
		p.locker = l
	}
	if p.life != nil && p.r.IntN(8) == 0 {
		return p.stealWith()
	}
	p.ask()
	ctx, cancel := context.WithCancel(p.over)
	defer cancel()
	if p.r.IntN(4) == 0 { // some give up in the middle of an attempt
		t := time.AfterFunc(p.upTo(p.Unit/50), cancel)
		defer t.Stop()
	}
	var err error
	if p.r.IntN(3) == 0 {
		p.lease, err = p.locker.TryLock(ctx, p.name)
	} else {
		waiting, stop := context.WithTimeout(ctx, p.upTo(p.Unit/5))
		p.lease, err = p.locker.Lock(waiting, p.name)
		stop()
	}
	if err != nil {
		p.seen.Failed(err)
		pause(p.over, p.upTo(p.impatience()))
		return p.classify(err)
	}
	p.won()
	p.act()
	switch {
	case p.life != nil:
		return p.life(p)
	case p.fate <= leaveBehind:
		p.stayToTheEnd()
		return nil
	case p.fate == leaveBehind+1 && p.r.IntN(4) > 0:
		return p.askForLess()
	case p.fate <= 4:
		p.extend(p.Unit)
	}
	pause(p.over, p.upTo(p.Unit/200))
	p.act()
	p.unlock(ctx, cancel)
	return nil
}

func (p *person) won() {
	p.since, p.known = time.Now(), p.lease.Until()
	until := p.known
	if p.doubtful(p.name) {
		until = p.since
	}
	p.seen.Won(p.lease.Token(), until)
	p.fence()
}

func (p *person) upTo(d time.Duration) time.Duration { return time.Duration(p.r.Int64N(int64(d))) }

// classify says whether an error of Lock is one that it may have.
func (p *person) classify(err error) error {
	for _, class := range []error{
		redlock.ErrHeld, redlock.ErrNoQuorum, redlock.ErrExpired, context.Canceled, context.DeadlineExceeded,
	} {
		if errors.Is(err, class) {
			return nil
		}
	}
	return fmt.Errorf("client %s: an error of no class: %w", p.client, err)
}

// act touches what the lock protects, as careful holders do: after a look.
func (p *person) act() {
	if p.lease.Err() == nil && !p.doubtful(p.name) {
		p.seen.Act()
	}
}

func (p *person) extend(ttl time.Duration) error {
	p.seen.Extend()
	err := p.lease.Extend(p.over, ttl)
	if err == nil {
		p.seen.Extended(p.lease.Until())
	}
	return err
}

// stayToTheEnd holds until nothing is left, and tries to go on then, or so shortly
// before that the answer comes after. Half of these never come back.
func (p *person) stayToTheEnd() {
	p.hunt(p.name, p.lease.Until())
	rest := p.upTo(p.Unit / 150)
	if p.client == p.Clients[0] && p.r.IntN(2) == 0 { // in edge, the one that hears late
		rest = -p.upTo(p.Unit / 40)
	}
	pause(p.over, time.Until(p.lease.Until())+rest)
	p.extend(p.Unit)
	p.act()
	if p.r.IntN(2) == 0 {
		p.seen.Release()
		p.seen.Released(p.lease.Unlock(p.over))
	}
}

// askForLess extends by less than there is, which must not take anything away.
func (p *person) askForLess() error {
	before := p.lease.Until()
	if p.extend(p.Unit/20) == nil {
		p.hunt(p.name, time.Now().Add(p.Unit/25))
	}
	// Until follows the slowest of the clocks, and in real time the wall clock is slewed
	// against the other ones: by up to 500 ppm of a life of at most six ttls.
	if now := p.lease.Until(); before.Sub(now) > p.Unit/300 {
		return fmt.Errorf("client %s: an extension has moved the end of %s back from %v to %v", p.client, p.name, before, now)
	}
	pause(p.over, p.Unit/15)
	p.act()
	p.seen.Release()
	p.seen.Released(p.lease.Unlock(p.over))
	return nil
}

// unlock unlocks, sometimes as a handler does whose caller has hung up.
func (p *person) unlock(ctx context.Context, cancel context.CancelFunc) {
	if p.r.IntN(3) == 0 {
		cancel()
	}
	p.fence()
	p.seen.Release()
	err := p.lease.Unlock(ctx)
	p.seen.Released(err)
	if err == nil {
		p.retire(p.lease.Token())
	}
}
