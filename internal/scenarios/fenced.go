package scenarios

import (
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed58520471/redlock"
	"github.com/seed58520471/redlock/faultinject"
)

// What storms and stories know of fencing tokens.

// fencing is how many of a storm's names have fencing tokens.
type fencing uint8

const (
	fenceNone fencing = iota
	fenceHalf         // every second one, so that plain and fenced locks meet in the lanes
	fenceAll
)

// counterOf is the key of a name's fencing counter, as it is documented.
func counterOf(name string) string { return counterPrefix + "{" + name + "}:" + name }

const (
	counterPrefix = "redlock:fence:"
	counterLives  = 7 * 24 * time.Hour // after its last use
)

// isCounter tells keys that may outlive all locks.
func isCounter(k faultinject.Key) bool { return strings.HasPrefix(k.Name, counterPrefix) }

// counters checks what fenced locks leave behind: counters of fenced names, under
// their documented keys, for a week and not for ever.
func counters(c *faultinject.Cluster, isFenced func(name string) bool) error {
	var errs []error
	for _, n := range c.Nodes() {
		keys, err := n.Keys()
		if err != nil {
			errs = append(errs, err)
		}
		for _, k := range keys {
			_, name, _ := strings.Cut(k.Name, "}:")
			_, err := strconv.ParseUint(k.Value, 10, 64)
			switch {
			case !isCounter(k):
			case k.Name != counterOf(name) || !isFenced(name) || err != nil:
				errs = append(errs, fmt.Errorf("%v: not the counter of a name with fencing tokens", k))
			case k.TTL < counterLives-24*time.Hour: // which is the margin for clocks that are set meanwhile
				errs = append(errs, fmt.Errorf("%v: a counter lives for %v and more", k, counterLives))
			}
		}
	}
	return errors.Join(errs...)
}

// drawFencing draws which names of the storm are fenced, and how far the nodes'
// clocks and counters are away from each other at its beginning.
//
// Tokens have to rise through all that a storm does as long as the counters stay,
// whatever the clocks do, and that is judged in every storm. Where counters are lost
// they have to rise if the clocks are right; only where both is wrong at once nothing
// is promised, see ordered.
func (s *Storm) drawFencing(r *rand.Rand) {
	s.skew = make([]time.Duration, s.Nodes)
	if s.Flavour == "fences" {
		s.fencing = fenceAll
		s.drawFences(r)
		return
	}
	if r.IntN(2) == 0 {
		return
	}
	s.fencing = fenceHalf
	switch r.IntN(3) {
	case 0:
		s.planted = s.Names
	case 1:
		s.yearsOff(r)
	}
	if s.Flavour == "stragglers" {
		for _, name := range s.Names {
			if s.isFenced(name) {
				s.extra = append(s.extra, s.strikes(name, float64(10+r.IntN(30)), faultinject.Delay(s.Unit/100, s.Unit/50)))
			}
		}
	}
}

// Names of storms of fences, and the clients that ask for them. Each process proposes
// numbers above all that it has seen, of whatever name, so those who ask for a name
// whose counters are lost must not have seen the numbers that were planted.
const (
	mislaid = "mislaid" // nodes lose its locks, so that two hold it at once
	lossy   = "lossy"   // nodes lose its counters
	losers  = 2         // so many clients ask for lossy names only
)

// drawFences draws a storm of short holds of a few names, each of which another
// majority grants, with commands that fail, are late, or come twice.
func (s *Storm) drawFences(r *rand.Rand) {
	s.Nodes = []int{3, 3, 3, 3, 3, 3, 5}[r.IntN(7)]
	s.skew = make([]time.Duration, s.Nodes)
	s.Clients, s.Names, s.quiet = []string{"a", "b", "c", "d", "e"}, []string{"name1", "name2", mislaid, lossy}, nil
	s.planted = s.Names[:3]
	s.Climate = faultinject.Climate{
		Nodes: s.Nodes, Clients: s.Clients, Length: s.Unit * time.Duration(s.Nodes+1) / 7, Events: r.IntN(4), Kinds: []string{"EVALSHA"},
		Harm: faultinject.Breakage | faultinject.Slow | faultinject.Silence,
	}
	if s.odd = s.Seed/uint64(len(flavours))%100 == 0; s.odd {
		s.yearsOff(r)
	} else { // as far as nodes accept a client's clock
		for i := range s.skew {
			s.skew[i] = time.Duration(r.Int64N(int64(18*time.Minute))) - 9*time.Minute
		}
	}
	for _, name := range s.Names {
		s.extra = append(s.extra,
			s.strikes(name, float64(28+r.IntN(12)), faultinject.Error("OOM command not allowed when used memory > 'maxmemory'.")),
			s.strikes(name, float64(50+r.IntN(20)), faultinject.Delay(s.Unit/5000, s.Unit/500)),
			s.strikes(name, 2, faultinject.Error("NOSCRIPT No matching script.")),
			s.strikes(name, 2, faultinject.Cut.During()),
			s.strikes(name, 1, faultinject.LoseReply),
		)
	}
}

// strikes lets a fault strike a part of the commands about a name's counter, all
// through the storm: those that acquire, raise, extend and repair.
func (s *Storm) strikes(name string, percent float64, f faultinject.Fault) faultinject.Event {
	return faultinject.Event{
		When:   faultinject.When{For: s.Climate.Length, On: faultinject.On("EVALSHA").Key(counterOf(name)).Percent(percent)},
		Faults: []faultinject.Fault{f},
	}
}

// yearsOff sets each node's clock a year ahead or back, or leaves it. Seen from the
// nodes it is the clients' clocks that are off.
func (s *Storm) yearsOff(r *rand.Rand) {
	for i := range s.skew {
		s.skew[i] = time.Duration(r.IntN(3)-1) * 365 * 24 * time.Hour
	}
}

func (s Storm) fences() bool { return s.Flavour == "fences" }

// isFenced tells whether all users of a name fence it.
func (s Storm) isFenced(name string) bool {
	switch s.fencing {
	case fenceNone:
		return false
	case fenceAll:
		return true
	}
	h := fnv.New32a()
	fmt.Fprint(h, s.Seed, name)
	return h.Sum32()%2 == 0
}

// ordered tells whether the fencing tokens of a name have to rise: either its
// counters are not lost, or clocks are right.
func (s Storm) ordered(name string) bool { return !(s.odd && name == lossy) }

// loses tells the clients that ask for what loses its counters.
func (s Storm) loses(client string) bool {
	return s.fences() && slices.Contains(s.Clients[len(s.Clients)-losers:], client)
}

// peers are the clients that may see the same numbers.
func (s Storm) peers(client string) []string {
	switch {
	case !s.fences():
		return s.Clients
	case s.loses(client):
		return s.Clients[len(s.Clients)-losers:]
	}
	return s.Clients[:len(s.Clients)-losers]
}

// doubtful tells that nodes lose the name's locks, so that nobody who obtained one
// need be the only one.
func (s Storm) doubtful(name string) bool { return s.fences() && name == mislaid }

// plant puts counters on the nodes that differ, and are so far ahead that no clock's
// proposal matters: then tokens rise by the votes alone.
func (r *run) plant() error {
	var errs []error
	for _, name := range r.planted {
		if !r.isFenced(name) {
			continue
		}
		for i, n := range r.cluster.Nodes() {
			errs = append(errs, n.Set(counterOf(name), strconv.FormatUint(1<<52+uint64(i), 10), counterLives))
		}
	}
	return errors.Join(errs...)
}

// thief takes locks of one name and counters of another from nodes.
func (r *run) thief() {
	random := rand.New(rand.NewPCG(r.Seed, 0x7468696566))
	nodes := r.cluster.Nodes()
	for i := 0; r.over.Err() == nil; i++ {
		pause(r.over, time.Duration(random.Int64N(int64(r.Unit)*3/2000/int64(len(nodes)))))
		victim := nodes[random.IntN(len(nodes))]
		if random.IntN(2) == 0 {
			victim = r.laggard(mislaid, victim)
		}
		victim.Do(faultinject.Evict(mislaid))
		if i%16 > 0 {
			continue
		}
		for _, k := range random.Perm(len(nodes))[random.IntN(len(nodes)):] {
			nodes[k].Do(faultinject.Evict(counterOf(lossy)))
		}
	}
}

// stagger lets clients of a storm of fences begin one after the other. The tokens that
// they propose are different as far as their clocks are, and in virtual time all would
// begin in the same microsecond.
func (r *run) stagger(number uint64) {
	if r.fences() {
		pause(r.over, time.Duration(number+1)*100*time.Microsecond)
	}
}

// ask begins an attempt.
func (p *person) ask() {
	p.mu.Lock()
	p.passed = p.highest[p.name]
	p.mu.Unlock()
	p.seen = p.history.Try(p.client, p.name)
}

// laggard is, of the nodes that have the name's lock, the one whose counter is the
// furthest behind: it is being raised as a rule.
func (r *run) laggard(name string, none *faultinject.Node) *faultinject.Node {
	last, least := none, uint64(math.MaxUint64)
	for _, n := range r.cluster.Nodes() {
		if count, err := strconv.ParseUint(n.Get(counterOf(name)), 10, 64); err == nil && count < least && n.Get(name) != "" {
			last, least = n, count
		}
	}
	return last
}

// fence records the lease's fencing token. One that does not rise, changes or is
// another's ends the storm: the history has what is needed to say so. Only attempts
// that overlap while counters are lost may have equal ones, if both were begun in the
// same microsecond; of these the first is recorded.
func (p *person) fence() {
	if !p.isFenced(p.name) || !p.ordered(p.name) {
		return
	}
	n := p.lease.Fence()
	p.mu.Lock()
	p.highest[p.name] = max(p.highest[p.name], n)
	first := p.fenced(p.name, n, p.seen)
	p.mu.Unlock()
	rises, keeps := n > p.passed, p.number == 0 || n == p.number
	p.number = n
	if p.name == lossy && !first && rises && keeps {
		return
	}
	p.seen.Fence(n)
	if !rises || !first || !keeps {
		p.calm()
	}
}

// fenced notes who has a fencing token. Called with mu held.
func (r *run) fenced(name string, n uint64, who *faultinject.Attempt) (first bool) {
	key := fmt.Sprint(n, name)
	if r.numbers[key] == nil {
		r.numbers[key] = who
	}
	return r.numbers[key] == who
}

// impatience is how long a person whose attempt has failed waits at the most.
func (s Storm) impatience() time.Duration {
	if s.fences() {
		return s.Unit / 1000
	}
	return s.Unit / 100
}

// chooseFenced is choose in a storm of fences.
func (p *person) chooseFenced() (err error) {
	p.name = p.Names[min(p.r.IntN(7), 2)]
	if p.loses(p.client) {
		p.name = lossy
	}
	options := []redlock.Option{redlock.WithTTL(p.brief())}
	switch n := p.r.IntN(10); {
	case p.name == mislaid:
		p.life = (*person).comeAndGo
		return nil
	case n == 0:
		p.name, p.life = p.own, (*person).handOver
	case n == 1:
		p.nests, p.life = true, (*person).nestAndGo
		options = append(options, redlock.WithReentrancy())
	case n == 2:
		p.life = (*person).leaveIt
		options[0] = redlock.WithTTL(p.Unit / 20)
	default:
		p.life = (*person).comeAndGo
		return nil
	}
	p.locker, err = p.locker.With(options...)
	return err
}

// comeAndGo holds a lock for a moment.
func (p *person) comeAndGo() error {
	pause(p.over, p.upTo(p.Unit/500))
	p.act()
	return p.giveBack()
}

// nestAndGo asks for the lock that it has, and gives it back.
func (p *person) nestAndGo() error {
	if err := p.nest(); err != nil {
		return err
	}
	return p.comeAndGo()
}

// leaveIt extends, and never comes back.
func (p *person) leaveIt() error {
	p.extend(p.Unit / 20)
	p.act()
	p.fence()
	return nil
}
