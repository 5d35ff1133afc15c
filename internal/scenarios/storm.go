package scenarios

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/seed58520471/redlock"
	"github.com/seed58520471/redlock/faultinject"
)

// Storm is a random run: clients that take, hold, extend, lose and abandon locks
// of a few names, on nodes to which a random plan happens that no node forgets
// in. All of it is a function of the seed, but for the interleaving of goroutines.
type Storm struct {
	Seed    uint64
	Flavour string
	Nodes   int
	Line    string // the name of its round-trip profile
	Clients []string
	Names   []string
	Unit    time.Duration // the ttl; all other times follow from it
	Climate faultinject.Climate

	others int                // one in so many people does other things than take, extend and release
	quiet  []string           // names that are hardly contended
	lines  [][2]time.Duration // by client and node
	extra  []faultinject.Event

	fencing fencing
	planted []string        // of the fenced names: those with counters beyond all clocks
	skew    []time.Duration // by node: how wrong its clock is
	odd     bool            // counters are lost where clocks are wrong
}

// Virtual and Real are the ttls of storms. Virtual is the library's default, and
// with it a storm runs on all defaults.
const (
	Virtual = 10 * time.Second
	Real    = time.Second
)

// flavours are what storms have more of than others; those of consecutive seeds
// differ.
var flavours = []string{
	"edge",       // clocks and lines at the edge of what is promised, holders who stay to the end
	"split",      // each half of the clients is cut off from one half of the nodes
	"breakage",   // lost and refused requests and replies
	"stragglers", // votes that are late, while what follows them is not
	"amnesia",    // nodes that forget one name, and leases that live through that or must not
	"fences",     // fencing tokens that changing majorities agree on, with failures in between
}

// profiles are round-trip times that nodes have, drawn per node. They are those of a
// storm with the Virtual ttl, and shorter with a shorter one: where a round trip
// takes longer than a node may, nobody gets a lock, and nothing is tested.
var profiles = []struct {
	name string
	rtts []time.Duration
}{
	{"one building", []time.Duration{200 * time.Microsecond, 500 * time.Microsecond, time.Millisecond}},
	{"three zones", []time.Duration{time.Millisecond, 2 * time.Millisecond, 3 * time.Millisecond}},
	{"three regions", []time.Duration{time.Millisecond, 20 * time.Millisecond, 40 * time.Millisecond}},
	{"continents", []time.Duration{2 * time.Millisecond, 40 * time.Millisecond, 80 * time.Millisecond, 120 * time.Millisecond}},
}

// DrawStorm draws a storm with the given ttl.
func DrawStorm(seed uint64, unit time.Duration) Storm {
	r := rand.New(rand.NewPCG(seed, 0x73746f726d))
	s := Storm{Seed: seed, Unit: unit, Nodes: []int{3, 4, 5, 7}[r.IntN(4)]}
	for i := range 4 + r.IntN(3) {
		s.Clients = append(s.Clients, string(rune('a'+i)))
	}
	for i := range 2 + r.IntN(2) {
		s.Names = append(s.Names, fmt.Sprintf("name%d", i+1))
	}
	for i := range 3 * len(s.Clients) {
		s.quiet = append(s.quiet, fmt.Sprintf("quiet%d", i+1))
	}
	s.Climate = faultinject.Climate{
		Nodes: s.Nodes, Clients: s.Clients, Length: 3 * unit / 2, Events: 4 + r.IntN(12), Harm: faultinject.Faithful,
	}
	s.others = 4
	profile := profiles[r.IntN(len(profiles))]
	switch s.Flavour = flavours[seed%uint64(len(flavours))]; s.Flavour {
	case "edge":
		s.Clients, s.Names = s.Clients[:3], s.Names[:2]
		s.Climate.Clients, s.Climate.Events, s.Climate.Length = s.Clients, r.IntN(4), 3*unit
		profile = profiles[r.IntN(2)]
	case "split":
		s.Nodes = []int{4, 4, 6}[r.IntN(3)]
		s.Climate.Nodes, s.Climate.Harm = s.Nodes, faultinject.Silence|faultinject.Slow
		half := len(s.Clients) / 2
		s.extra = split(s.Nodes, s.Clients[:half], s.Clients[half:], time.Duration(r.Int64N(int64(unit))), unit/2)
	case "breakage":
		s.Climate.Harm, s.Climate.Events = faultinject.Breakage|faultinject.Slow, 8+r.IntN(12)
	case "amnesia":
		s.Climate.Events, s.others = 0, 1 // what happens, people do
	case "stragglers":
		s.Climate.Events, s.others = r.IntN(5), 2
		profile = profiles[2+r.IntN(2)] // a lane overlaps what it sends on long lines only
		s.extra = []faultinject.Event{{
			When:   faultinject.When{For: s.Climate.Length, On: faultinject.On("SET").Percent(float64(10 + r.IntN(30)))},
			Faults: []faultinject.Fault{faultinject.Delay(unit/100, unit/50)},
		}}
	}
	s.drawFencing(rand.New(rand.NewPCG(seed, 0x66656e6365)))
	if s.fences() {
		profile = profiles[r.IntN(2)]
	}
	s.Line = profile.name
	for range s.Clients {
		for range s.Nodes {
			rtt := time.Duration(float64(profile.rtts[r.IntN(len(profile.rtts))]) * float64(unit) / float64(Virtual))
			s.lines = append(s.lines, [2]time.Duration{rtt / 2, rtt / 2})
		}
	}
	if s.edge() { // one client hears late, by more than the drift margin, and in time for its vote
		for i := range s.Nodes {
			s.lines[i][1] += unit / 40
		}
	}
	return s
}

func (s Storm) edge() bool    { return s.Flavour == "edge" }
func (s Storm) amnesia() bool { return s.Flavour == "amnesia" }

// split cuts some clients off from the first half of an even number of nodes, and
// others from the second.
func split(nodes int, some, others []string, at, last time.Duration) (events []faultinject.Event) {
	when := faultinject.When{At: at.Truncate(time.Millisecond), For: last}
	var first, second []int
	for n := 1; n <= nodes/2; n++ {
		first, second = append(first, n), append(second, n+nodes/2)
	}
	fault := []faultinject.Fault{faultinject.Partition}
	return []faultinject.Event{
		{When: when, Where: faultinject.Nodes(first...).From(some...), Faults: fault},
		{When: when, Where: faultinject.Nodes(second...).From(others...), Faults: fault},
	}
}

// Plan draws what happens to the nodes and the network.
func (s Storm) Plan() (faultinject.Plan, error) {
	p, err := s.Climate.Draw(s.Seed)
	p.Events = append(p.Events, s.extra...)
	return p, err
}

// String names the storm.
func (s Storm) String() string {
	return fmt.Sprintf("storm %d (%s): %d nodes, %s, %d clients, %d names, ttl %v",
		s.Seed, s.Flavour, s.Nodes, s.Line, len(s.Clients), len(s.Names)+len(s.quiet), s.Unit)
}

// run is a storm under way.
type run struct {
	Storm
	cluster *faultinject.Cluster
	history *faultinject.History
	over    context.Context
	calm    context.CancelFunc // ends the storm before that

	mu      sync.Mutex
	lockers []*redlock.Locker
	homes   map[string]*redlock.Locker      // of the clients
	retired []string                        // tokens that are over for good
	hunts   map[string]time.Time            // names whose holder does not unlock, and until when that matters
	highest map[string]uint64               // by name, the highest fencing token so far
	numbers map[string]*faultinject.Attempt // by fencing token and name, whose it is
}

// Tally is what a storm, or several, came to.
type Tally struct {
	Storms, Attempts, Acquisitions, Faults int
}

// Add adds another tally.
func (t *Tally) Add(u Tally) {
	t.Storms += u.Storms
	t.Attempts += u.Attempts
	t.Acquisitions += u.Acquisitions
	t.Faults += u.Faults
}

// Run runs the storm under a plan, and checks all that must hold. The error says
// what did not, or that the plan could not be played; without a cluster there is no
// history.
func (s Storm) Run(ctx context.Context, plan faultinject.Plan) (t Tally, h *faultinject.History, err error) {
	c, err := faultinject.New(s.Nodes)
	if err != nil {
		return t, nil, err
	}
	defer c.Close()
	for i, name := range s.Clients {
		for n := range s.Nodes {
			line := s.lines[i*s.Nodes+n]
			c.Client(name).SetLine(n+1, line[0], line[1])
		}
	}
	r := &run{Storm: s, cluster: c, history: c.History(), hunts: make(map[string]time.Time), homes: make(map[string]*redlock.Locker), highest: make(map[string]uint64), numbers: make(map[string]*faultinject.Attempt)}
	s.bendClocks(c)
	if err := r.plant(); err != nil {
		return t, r.history, err
	}
	in, err := c.Play(plan)
	if err != nil {
		return t, r.history, err
	}
	r.over, r.calm = context.WithTimeout(ctx, s.Climate.Length+s.Unit/10)
	defer r.calm()
	err = r.people(ctx)
	in.Stop()
	if err == nil {
		err = r.aftermath(ctx)
	}
	for _, l := range r.lockers {
		l.Close()
	}
	sum := r.history.Summary()
	return Tally{1, sum.Attempts, sum.Acquisitions, in.Fired()}, r.history, err
}

// bendClocks lets the nodes' clocks run as fast or as slow as the drift margin
// covers, and with fencing tokens be wrong.
func (s Storm) bendClocks(c *faultinject.Cluster) {
	random := rand.New(rand.NewPCG(s.Seed, 0x636c6f636b))
	for i, n := range c.Nodes() {
		rate := 1.0085
		if !s.edge() {
			rate = 1 + (random.Float64()-0.5)*0.016
		}
		if s.skew[i] != 0 {
			n.Do(faultinject.ClockStep(s.skew[i]))
		}
		n.Do(faultinject.ClockRate(rate))
	}
}

// people runs all clients until the storm is over and they have gone home.
func (r *run) people(ctx context.Context) error {
	var wg sync.WaitGroup
	errs := make([]error, len(r.Clients)+1)
	for i, name := range r.Clients {
		wg.Go(func() { errs[i] = r.client(name, uint64(i)) })
	}
	if r.fences() {
		wg.Go(r.thief)
	} else {
		wg.Go(func() { errs[len(r.Clients)] = r.hunter(ctx) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (r *run) locker(name string) (*redlock.Locker, error) {
	l, err := redlock.New(r.cluster.Client(name).Redis(clientOptions), redlock.WithTTL(r.Unit))
	if err == nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.lockers = append(r.lockers, l)
		r.homes[name] = l
	}
	return l, err
}

// client is a process with several goroutines that take lock after lock. The
// locker stays open: what it owes is settled in the aftermath.
func (r *run) client(name string, number uint64) error {
	l, err := r.locker(name)
	if err != nil {
		return err
	}
	ttl := 6 * r.Unit // what is left behind of it is seen for long
	if !exact(r.Unit) {
		ttl = 2 * settled(r.Unit)
	}
	long, err := l.With(redlock.WithTTL(ttl))
	if err != nil {
		return err
	}
	const goroutines = 3
	errs := make([]error, goroutines)
	var wg sync.WaitGroup
	for i := range goroutines {
		random := rand.New(rand.NewPCG(r.Seed, number*goroutines+uint64(i)))
		wg.Go(func() {
			r.stagger(number*goroutines + uint64(i))
			for errs[i] == nil && r.over.Err() == nil {
				p := person{run: r, client: name, locker: l, r: random, own: fmt.Sprintf("own-%s%d", name, i+1)}
				if errs[i] = p.choose(long); errs[i] == nil {
					errs[i] = p.live()
				}
				if errs[i] != nil {
					r.calm() // enough was seen
				}
			}
		})
		if r.edge() {
			break
		}
	}
	wg.Wait()
	return errors.Join(errs...)
}

// hunter polls names whose holders stay to the end, or have asked for less time
// than they have: if anybody can get such a lock too early, the hunter does.
func (r *run) hunter(ctx context.Context) error {
	l, err := r.locker("hunter")
	if err != nil {
		return err
	}
	numbered, err := l.With(redlock.WithFencing())
	if err != nil {
		return err
	}
	for r.over.Err() == nil {
		prey := r.prey()
		for _, name := range prey {
			a := r.history.Try("hunter", name)
			asking := l
			if r.isFenced(name) {
				asking = numbered
			}
			lease, err := asking.TryLock(r.over, name)
			if err != nil {
				a.Failed(err)
				continue
			}
			a.Won(lease.Token(), lease.Until())
			if r.isFenced(name) {
				a.Fence(lease.Fence())
			}
			pause(ctx, r.Unit/5000)
			a.Release()
			a.Released(lease.Unlock(r.over))
		}
		pause(r.over, max(r.Unit/2000, 5*time.Millisecond)) // in real time others need the machine too
		if len(prey) == 0 {
			pause(r.over, r.Unit/100)
		}
	}
	return nil
}

// prey is what is worth polling now.
func (r *run) prey() (names []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	for _, name := range r.Names {
		if d := r.hunts[name].Sub(now); d > -r.Unit/50 && d < r.Unit/20 {
			names = append(names, name)
		}
	}
	return names
}

func (r *run) hunt(name string, until time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hunts[name] = until
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// stall is how long a free name may be asked for in vain while a majority is well.
// Who leaves a lock behind believes in it to its end, so no ttl is part of that: it
// is the pauses between two releases of what a node owes. It has to be well below
// the length of a storm, or else nothing is checked; with a ttl of Real it is not,
// since a busy machine holds up anything for as long.
func (s Storm) stall() time.Duration { return settled(s.Unit) }

// orphaned is how long a node may keep what its owner has let go.
func (s Storm) orphaned() time.Duration {
	if exact(s.Unit) {
		return s.Unit/5 + time.Second
	}
	return settled(s.Unit) - s.Unit/10
}

// aftermath waits until all must be clean, and checks everything.
func (r *run) aftermath(ctx context.Context) error {
	settle(ctx, r.cluster, r.Unit)
	r.history.Health(r.Nodes, r.Nodes) // so long it was watched
	return errors.Join(
		faultinject.Exclusive(r.history),
		faultinject.Tokens(r.history),
		faultinject.LateActs(r.history),
		faultinject.Orphans(r.history, r.orphaned()),
		faultinject.Progress(r.history, r.stall()),
		faultinject.FencesRise(r.history),
		counters(r.cluster, r.isFenced),
		r.leftovers(ctx),
	)
}

// leftovers are keys that will outlive the locks of this storm. In real time they have
// until then to go: what the machine held up can still arrive, and be released.
func (r *run) leftovers(ctx context.Context) error {
	for begin := time.Now(); ; pause(ctx, r.Unit/50) {
		err := r.cluster.KeysExpire(r.Unit+2*time.Second, isCounter)
		if err == nil || exact(r.Unit) || time.Since(begin) >= settled(r.Unit) || ctx.Err() != nil {
			return err
		}
	}
}
