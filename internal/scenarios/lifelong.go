package scenarios

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/seed58520471/redlock"
	"github.com/seed58520471/redlock/faultinject"
)

// What people do with a lease that is more than taken, extended and released: it
// renews itself, it is handed over, nodes forget it.

// brief is the ttl of those who hold over several ttls or hand over. What they leave
// on nodes that their last word does not reach is gone before anybody calls it an
// orphan or a stall. In real time that is later than any ttl anyhow.
func (s Storm) brief() time.Duration {
	if exact(s.Unit) {
		return s.Unit / 4
	}
	return s.Unit
}

// drawLife draws what a person does that lives otherwise, and gives it a locker to
// do it with.
func (p *person) drawLife(l *redlock.Locker) (err error) {
	options := []redlock.Option{redlock.WithTTL(p.brief())}
	switch n := p.r.IntN(8); {
	case p.amnesia() && n < 4:
		p.name = p.own // whom it holds to be the holder is nobody's business but its own
		p.life = (*person).isForgotten
		options = append(options, redlock.WithAutoExtend())
	case p.Flavour == "stragglers" && n < 5, n == 7:
		p.life = (*person).leaveInAHurry
		options[0] = redlock.WithTTL(p.Unit)
	case n == 6:
		p.life = (*person).extendTooLate
	case n < 3:
		p.life = (*person).watch
		options = append(options, redlock.WithAutoExtend())
		if p.r.IntN(4) == 0 {
			p.most = p.brief() + p.upTo(p.brief())
			options = append(options, redlock.WithMaxHold(p.most))
		}
		if p.nests = p.r.IntN(2) == 0; p.nests {
			options = append(options, redlock.WithReentrancy())
		}
	default:
		p.life = (*person).handOver
		if exact(p.Unit) && p.r.IntN(2) == 0 { // else the history might hear too late of renewals, see look
			options = append(options, redlock.WithAutoExtend())
		}
	}
	p.locker, err = l.With(options...)
	return err
}

// look records what the lease says of itself, and tells whether it may act. In real
// time a look can come so late that the history has not heard of renewals for a
// ttl; that is not the lease's fault, and ends the holding.
func (p *person) look() (alive bool, err error) {
	ended, held := closed(p.lease.Done()), time.Since(p.since)
	until, why := p.lease.Until(), p.lease.Err()
	switch {
	case why != nil && !closed(p.lease.Done()):
		return false, p.complain("is over, and its Done says nothing: %w", why)
	case why != nil:
		return false, nil
	case ended:
		return false, p.complain("is held although it was done")
	case p.most > 0 && held > p.most:
		return false, p.complain("is held for longer than %v", p.most)
	case !exact(p.Unit) && time.Now().After(p.known):
		return false, nil
	}
	p.known = until
	p.seen.Extend()
	p.seen.Extended(until)
	p.seen.Act()
	return true, nil
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func (p *person) complain(format string, args ...any) error {
	return fmt.Errorf("client %s: the lease of %s "+format, append([]any{p.client, p.name}, args...)...)
}

// watch holds a lease that renews itself over several ttls.
func (p *person) watch() error {
	end := time.Now().Add(p.upTo(3 * p.brief()))
	for time.Now().Before(end) && p.over.Err() == nil {
		if alive, err := p.look(); !alive {
			return errors.Join(err, p.bury())
		}
		switch p.r.IntN(20) {
		case 0:
			if err := p.nest(); err != nil {
				return err
			}
		case 1:
			if p.fresh() { // the history hears of no renewal until it returns
				p.extend(p.brief())
			}
		case 2, 3:
			p.evict(len(p.cluster.Nodes()) / 2)
		}
		p.lookAgain(p.brief() / 20)
	}
	return p.giveBack()
}

// lookAgain lets time pass, but not beyond the lease's end: a renewal that the
// history hears of after the end that it knows is a lease that came back to life.
func (p *person) lookAgain(d time.Duration) {
	t := time.NewTimer(min(d, time.Until(p.known)/2))
	defer t.Stop()
	select {
	case <-t.C:
	case <-p.lease.Done():
	case <-p.over.Done():
	}
}

// bury is what follows a loss: it is final. Half of these leave the rest to the
// library.
func (p *person) bury() error {
	why := p.lease.Err()
	p.seen.Lost(why)
	if why == nil { // looked too late, in real time
		return p.giveBack()
	}
	for range 4 {
		if !errors.Is(p.lease.Err(), redlock.ErrLost) {
			return p.complain("came back to life: %w, and then: %w", why, errors.Join(p.lease.Err()))
		}
		pause(p.over, p.upTo(p.Unit/50))
	}
	if p.r.IntN(2) == 0 {
		if err := p.lease.Unlock(p.over); !errors.Is(err, redlock.ErrLost) {
			return p.complain("was lost, and its unlock says: %w", errors.Join(err))
		}
	}
	return nil
}

func (p *person) giveBack() error {
	p.fence()
	p.seen.Release()
	err := p.lease.Unlock(p.over)
	p.seen.Released(err)
	if err == nil {
		p.retire(p.lease.Token())
	}
	return nil
}

// nest asks for the lock that it has.
func (p *person) nest() error {
	ctx := p.lease.Context(p.over)
	inner, err := p.locker.TryLock(ctx, p.name)
	switch {
	case p.lease.Err() != nil || p.over.Err() != nil: // anything may have come first
		return nil
	case !p.nests && !errors.Is(err, redlock.ErrHeld):
		return p.complain("was asked for by its own holder, who was told: %w", errors.Join(err))
	case !p.nests:
		return nil
	case err != nil:
		return p.complain("cannot be nested: %w", err)
	case inner.Token() != p.lease.Token() || inner.Fence() != p.lease.Fence():
		return p.complain("is not the one nested in it")
	}
	if err := inner.Unlock(p.over); err != nil && p.lease.Err() == nil {
		return p.complain("is held, and the unlock of the nested one says: %w", err)
	}
	if !errors.Is(inner.Err(), redlock.ErrReleased) && p.lease.Err() == nil {
		return p.complain("has a nested one that survives its unlock")
	}
	return nil
}

// holds lists the nodes that keep the lease's token for longer than the holder
// believes in it, by whatever clock, and the others.
func (p *person) holds() (keep, lack []*faultinject.Node) {
	left := time.Until(p.lease.Until())
	for _, n := range p.cluster.Nodes() {
		keys, _ := n.Keys() // none if it is down
		if slices.ContainsFunc(keys, func(k faultinject.Key) bool {
			return k.Name == p.name && k.Value == p.lease.Token() && float64(k.TTL) > 1.009*float64(left)
		}) {
			keep = append(keep, n)
		} else {
			lack = append(lack, n)
		}
	}
	return keep, lack
}

// fresh says that no renewal is under way: the last one is too young.
func (p *person) fresh() bool {
	return exact(p.Unit) && time.Until(p.lease.Until()) > p.brief()*3/4
}

// evict takes the token from up to so many nodes, but never so that fewer than a
// quorum of the others keep it for as long as its holder believes: nothing of the
// promise depends on those that forget.
func (p *person) evict(most int) {
	if !p.fresh() {
		return
	}
	keep, lack := p.holds()
	spare := len(keep) - ((len(keep)+len(lack))/2 + 1)
	p.r.Shuffle(len(keep), func(i, j int) { keep[i], keep[j] = keep[j], keep[i] })
	for _, n := range keep[:max(0, min(spare, most))] {
		n.Do(faultinject.Evict(p.name))
	}
}

// extendTooLate asks for an extension so shortly before the end that the answer may
// come after it.
func (p *person) extendTooLate() error {
	pause(p.over, time.Until(p.lease.Until())-p.upTo(p.Unit/50))
	p.extend(p.brief())
	p.act()
	if p.lease.Err() != nil {
		return p.bury()
	}
	return p.giveBack()
}

// leaveInAHurry extends a lease that some nodes have forgotten, and unlocks it while
// they are being repaired.
func (p *person) leaveInAHurry() error {
	pause(p.over, p.upTo(p.Unit/50)) // for those who answer after the majority
	p.evict(len(p.cluster.Nodes()))
	p.extend(p.Unit)
	if p.r.IntN(4) > 0 {
		pause(p.over, p.upTo(p.Unit/100))
	}
	p.act()
	return p.giveBack()
}

// isForgotten lets so many nodes forget a lease that no quorum can have it any more.
// It has to end, whether or not all of them can say so.
func (p *person) isForgotten() error {
	for end := time.Now().Add(p.brief()); !p.fresh(); {
		if alive, err := p.look(); !alive {
			return errors.Join(err, p.bury())
		}
		if time.Now().After(end) || p.over.Err() != nil {
			return p.giveBack()
		}
		p.lookAgain(p.brief() / 50)
	}
	pause(p.over, p.Unit/100)
	keep, lack := p.holds()
	if len(lack) > 0 || !p.fresh() || p.over.Err() != nil {
		return p.giveBack()
	}
	until := p.lease.Until()
	n := len(keep)
	p.r.Shuffle(n, func(i, j int) { keep[i], keep[j] = keep[j], keep[i] })
	forget := keep[:n-n/2]
	for _, node := range forget {
		node.Do(faultinject.Evict(p.name))
	}
	if p.r.IntN(3) > 0 { // one of them cannot say so
		in, err := p.cluster.Play(faultinject.Plan{Events: []faultinject.Event{{
			When:   faultinject.When{For: p.brief() * 3 / 2},
			Where:  faultinject.Nodes(forget[0].Number()).From(p.client),
			Faults: []faultinject.Fault{faultinject.Hang},
		}}})
		if err != nil {
			return err
		}
		defer in.Stop()
	} else if p.r.IntN(2) == 0 {
		if err := p.extend(p.brief()); err != nil && p.lease.Err() == nil && denied(err) {
			return p.complain("stands, although no quorum has it: %w", err)
		}
	}
	for {
		alive, err := p.look()
		switch {
		case !alive:
			return errors.Join(err, p.bury())
		case time.Now().After(until):
			return p.complain("goes on after %v, although %d of %d nodes had forgotten it before", until, len(forget), n)
		case p.over.Err() != nil:
			return p.giveBack()
		}
		p.lookAgain(p.brief() / 20)
	}
}

// denied tells that an extension was refused by so many nodes that no quorum has
// the lease.
func denied(err error) bool {
	var q *redlock.QuorumError
	return errors.As(err, &q) && q.Round.Count(redlock.Refused) > len(q.Round.Votes)-q.Round.Quorum
}

var errHandedOver = errors.New("handed over")

// handOver detaches the lease and lets others attach it, of whom one may get it.
// Their client's lease begins where its own has ended.
func (p *person) handOver() error {
	if p.r.IntN(2) == 0 {
		p.extend(p.brief())
		p.act()
	}
	p.seen.Lost(errHandedOver) // nothing is released, and what nobody attaches ends by itself
	token := p.lease.Token()
	switch err := p.lease.Detach(p.over); {
	case errors.Is(err, redlock.ErrLost):
		return nil
	case err != nil:
		return p.complain("cannot be detached: %w", err)
	}
	heirs := make([]*person, 1+p.r.IntN(3))
	errs := make([]error, len(heirs)+1)
	var wg sync.WaitGroup
	for i := range heirs {
		heir, err := p.heir()
		if err != nil {
			return err
		}
		wg.Go(func() { errs[i] = heir.inherit(token) })
	}
	wg.Go(func() {
		pause(p.over, p.upTo(p.Unit/100))
		if err := p.lease.Unlock(p.over); !errors.Is(err, redlock.ErrReleased) {
			errs[len(heirs)] = p.complain("was detached, and its unlock says: %w", errors.Join(err))
		}
	})
	wg.Wait()
	return errors.Join(errs...)
}

// heir is a goroutine of any client that goes on with a lock.
func (p *person) heir() (*person, error) {
	peers := p.peers(p.client)
	client := peers[p.r.IntN(len(peers))]
	options := []redlock.Option{redlock.WithTTL(p.brief())}
	if exact(p.Unit) && p.r.IntN(2) == 0 {
		options = append(options, redlock.WithAutoExtend())
	}
	if p.isFenced(p.name) {
		options = append(options, redlock.WithFencing())
	}
	p.mu.Lock()
	l := p.homes[client]
	p.mu.Unlock()
	if l == nil { // it is not there yet
		client, l = p.client, p.locker
	}
	l, err := l.With(options...)
	return &person{run: p.run, client: client, locker: l, name: p.name, r: rand.New(rand.NewPCG(p.r.Uint64(), 0x68656972))}, err
}

func (p *person) inherit(token string) error {
	pause(p.over, p.upTo(p.Unit/200))
	p.ask()
	var err error
	if p.lease, err = p.locker.Attach(p.over, p.name, token); err != nil {
		p.seen.Failed(err)
		if errors.Is(err, redlock.ErrLost) {
			return nil
		}
		return p.classify(err)
	}
	p.won()
	if !p.retire(token) {
		return p.complain("was attached a second time")
	}
	p.act()
	pause(p.over, p.upTo(p.brief()/4))
	p.act()
	if p.r.IntN(4) == 0 {
		return p.handOver()
	}
	return p.giveBack()
}

// retire notes a token with which nobody may get anything any more. It was noted
// before if this is false.
func (r *run) retire(token string) (first bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	first = !slices.Contains(r.retired, token)
	if first {
		r.retired = append(r.retired, token)
	}
	return first
}

// stealWith tries to attach a lock with a token whose time is over.
func (p *person) stealWith() error {
	p.mu.Lock()
	var token string
	if n := len(p.retired); n > 0 {
		token = p.retired[p.r.IntN(n)]
	}
	p.mu.Unlock()
	if token == "" {
		return nil
	}
	lease, err := p.locker.Attach(p.over, p.name, token)
	if err != nil {
		if errors.Is(err, redlock.ErrLost) {
			return nil
		}
		return p.classify(err)
	}
	p.lease = lease
	return p.complain("was attached with a token whose time was over")
}
