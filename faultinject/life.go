package faultinject

import "sync"

// life is one run of a server, from its start until it is killed.
type life struct {
	server server
	serial bool          // commands are executed here, one at a time, as Redis does
	gone   chan struct{} // closed at the end
	buried chan struct{} // closed when the node can have another life

	serving sync.RWMutex // held for reading while a connection is made

	mu     sync.Mutex
	over   bool
	frozen bool
	busy   bool        // a command, or an administrator, has the node for itself
	queue  []chan bool // commands that have arrived, in order
	admins []chan bool // who goes first, and also while the node is frozen
	links  map[*link]struct{}
}

func newLife(s server, serial bool) *life {
	return &life{
		server: s, serial: serial, gone: make(chan struct{}), buried: make(chan struct{}),
		links: make(map[*link]struct{}),
	}
}

// enter waits until the node has nothing else to do. It is false when the life
// is over.
func (l *life) enter() bool {
	l.mu.Lock()
	if l.over || !l.busy && !l.frozen && len(l.queue) == 0 {
		l.busy = !l.over
		defer l.mu.Unlock()
		return !l.over
	}
	turn := make(chan bool, 1)
	l.queue = append(l.queue, turn)
	l.mu.Unlock()
	return <-turn
}

// freeze lets a command that has the node stop it, tells so, and waits until it goes
// on. The command comes first then: what had arrived while it was looked at came
// later.
func (l *life) freeze(tell func()) bool {
	l.mu.Lock()
	if l.over {
		l.mu.Unlock()
		return false
	}
	turn := make(chan bool, 1)
	l.queue = append([]chan bool{turn}, l.queue...)
	l.frozen, l.busy = true, false
	l.grant()
	l.mu.Unlock()
	tell()
	return <-turn
}

// enterFirst does the same as enter for an administrator.
func (l *life) enterFirst() bool {
	l.mu.Lock()
	if l.over || !l.busy {
		l.busy = !l.over
		defer l.mu.Unlock()
		return !l.over
	}
	turn := make(chan bool, 1)
	l.admins = append(l.admins, turn)
	l.mu.Unlock()
	return <-turn
}

// leave lets the next one in.
func (l *life) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.busy = false
	l.grant()
}

// grant gives the node to whoever is next. The mutex is held.
func (l *life) grant() {
	line := &l.queue
	switch {
	case l.busy || l.over:
		return
	case len(l.admins) > 0:
		line = &l.admins
	case l.frozen || len(l.queue) == 0:
		return
	}
	l.busy = true
	(*line)[0] <- true
	*line = (*line)[1:]
}

func (l *life) setFrozen(frozen bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.frozen = frozen
	l.grant()
}

func (l *life) isFrozen() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.frozen
}

// end sends everybody away, and returns the connections that there were. It does
// so once. No connection is being made when it returns.
func (l *life) end() (links []*link, once bool) {
	l.mu.Lock()
	if l.over {
		l.mu.Unlock()
		return nil, false
	}
	l.over = true
	close(l.gone)
	for _, turn := range append(l.admins, l.queue...) {
		turn <- false
	}
	for link := range l.links {
		links = append(links, link)
	}
	l.links, l.queue, l.admins = nil, nil, nil
	l.mu.Unlock()
	l.serving.Lock()
	defer l.serving.Unlock()
	return links, true
}

func (l *life) ended() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.over
}

// add takes a new connection and lets the server have it, unless the life is over.
func (l *life) add(k *link) bool {
	l.serving.RLock()
	defer l.serving.RUnlock()
	l.mu.Lock()
	if l.over {
		l.mu.Unlock()
		return false
	}
	l.links[k] = struct{}{}
	l.mu.Unlock()
	if err := l.server.serve(k); err != nil {
		l.remove(k)
		return false
	}
	return true
}

func (l *life) remove(k *link) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.links, k)
}

// each calls do for every connection there is.
func (l *life) each(do func(*link)) {
	l.mu.Lock()
	links := make([]*link, 0, len(l.links))
	for k := range l.links {
		links = append(links, k)
	}
	l.mu.Unlock()
	for _, k := range links {
		do(k)
	}
}
