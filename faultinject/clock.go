package faultinject

import "time"

// clock is a node's. It is right until it is bent.
type clock struct {
	bent  bool
	since time.Time // when it was set
	shown time.Time // what it showed then
	rate  float64
}

func (c *clock) now() time.Time {
	now := time.Now()
	if !c.bent {
		return now
	}
	return c.shown.Add(time.Duration(float64(now.Sub(c.since)) * c.rate))
}

// set changes what it shows, or how fast it goes on.
func (c *clock) set(shown time.Time, rate float64) {
	*c = clock{bent: true, since: time.Now(), shown: shown, rate: rate}
}

// tick shows a server the time, if that is not the world's. The node's mutex is held.
func (n *Node) tick(s server) {
	if n.clock.bent {
		s.setTime(n.clock.now(), 0)
	}
}

// setClock bends the node's clock; s is nil while the node is down.
func (n *Node) setClock(f Fault, s server) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	rate := n.clock.rate
	if !n.clock.bent {
		rate = 1
	}
	var step time.Duration
	shown := n.clock.now()
	if f.verb == clockStep {
		step = f.time
	} else {
		rate = f.rate
	}
	if s != nil {
		if err := s.setTime(shown, 0); err != nil {
			return err
		}
		if err := s.setTime(shown.Add(step), step); err != nil {
			return err
		}
	}
	n.clock.set(shown.Add(step), rate)
	return nil
}
