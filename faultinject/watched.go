package faultinject

import (
	"maps"
	"sync"
	"sync/atomic"
)

// watched is the set of names that clients have tried. Nodes ask for it at every
// command, and it hardly ever grows; so it is replaced and never changed.
type watched struct {
	mu  sync.Mutex
	set atomic.Pointer[map[string]struct{}]
}

func (w *watched) add(name string) {
	if _, known := w.names()[name]; known {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	next := maps.Clone(w.names())
	if next == nil {
		next = make(map[string]struct{})
	}
	next[name] = struct{}{}
	w.set.Store(&next)
}

func (w *watched) names() map[string]struct{} {
	if p := w.set.Load(); p != nil {
		return *p
	}
	return nil
}
