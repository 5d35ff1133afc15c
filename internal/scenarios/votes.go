package scenarios

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

func init() {
	for _, n := range []struct {
		name  string
		nodes int
	}{{"even", 4}, {"odd", 5}} {
		register(Scenario{
			Name: "split-votes-" + n.name,
			Story: fmt.Sprintf("Six clients ask %d nodes for the same lock at once, each another node first, so that "+
				"none has a majority. They must not go on so for ever: all get it, one after the other.", n.nodes),
			Nodes: n.nodes,
			Play:  splitVotes,
		})
	}
}

// splitVotes gives every client a nearest node of its own, lets all of them wait
// for the lock at once, and demands that each gets it soon.
func splitVotes(w *World) error {
	actors, err := w.Actors("a", "b", "c", "d", "e", "f")
	if err != nil {
		return err
	}
	n := len(w.Cluster.Nodes())
	for i, a := range actors {
		for k := range n {
			far := w.TTL / 2000 * time.Duration((k-i+2*n)%n)
			w.Cluster.Client(a.Name).SetLine(k+1, far, far)
		}
		if err := a.warmUp(); err != nil {
			return err
		}
	}
	var wg sync.WaitGroup
	errs := make([]error, len(actors))
	begin := time.Now()
	first := time.Duration(-1)
	var mu sync.Mutex
	for i, a := range actors {
		wg.Go(func() {
			h, err := a.Wait(orders, w.TTL, 2*w.TTL)
			if err != nil {
				errs[i] = fmt.Errorf("client %s: everybody has had the lock, but: %w", a.Name, err)
				return
			}
			mu.Lock()
			if first < 0 {
				first = time.Since(begin)
			}
			mu.Unlock()
			h.Act()
			w.Sleep(w.TTL / 100)
			errs[i] = h.letGo()
		})
	}
	wg.Wait()
	if first > w.TTL/2 {
		errs = append(errs, fmt.Errorf("nobody had the lock for %v", first))
	}
	return errors.Join(append(errs, w.clean())...)
}
