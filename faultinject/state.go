package faultinject

import (
	"time"

	"github.com/alicebob/miniredis/v2"
)

const (
	snapshotsEvery = 100 * time.Millisecond
	snapshotsFor   = time.Minute
	snapshotsSize  = 200_000 // keys in all of them
)

// state is a copy of a node's data: all keys with their ttls, but for HyperLogLogs,
// consumer groups of streams, and ttls of single fields.
type state struct {
	empty bool
	at    time.Time // by the node's clock
	items []item
}

// item is a key with what is stored under it.
type item struct {
	db    int
	key   string
	kind  string
	ttl   time.Duration
	value string
	list  []string
	hash  map[string]string
	set   []string
	zset  map[string]float64
	log   []miniredis.StreamEntry
}

// text is the item's value, as a Key has it.
func (it item) text() string {
	switch {
	case it.list != nil:
		return "(list)"
	case it.hash != nil:
		return "(hash)"
	case it.set != nil:
		return "(set)"
	case it.zset != nil:
		return "(zset)"
	case it.log != nil:
		return "(stream)"
	}
	return it.value
}

// copy makes a state of what is stored. The server does nothing else meanwhile.
func (e *embedded) copy(at time.Time) state {
	s := state{at: at}
	for i := range int(e.databases.Load()) {
		db := e.DB(i)
		for _, key := range db.Keys() {
			it := item{db: i, key: key, kind: db.Type(key), ttl: db.TTL(key)}
			switch it.kind {
			case "string":
				it.value, _ = db.Get(key)
			case "list":
				it.list, _ = db.List(key)
			case "hash":
				it.hash = make(map[string]string)
				fields, _ := db.HKeys(key)
				for _, f := range fields {
					it.hash[f] = db.HGet(key, f)
				}
			case "set":
				it.set, _ = db.Members(key)
			case "zset":
				it.zset, _ = db.SortedSet(key)
			case "stream":
				it.log, _ = db.Stream(key)
			default:
				continue
			}
			s.items = append(s.items, it)
		}
	}
	return s
}

// load fills an empty server with a state that is a while old by the node's clock,
// which may have been set back meanwhile.
func (e *embedded) load(s state, after time.Duration) {
	for _, it := range s.items {
		if it.ttl > 0 && it.ttl <= after {
			continue
		}
		e.databases.Store(max(e.databases.Load(), int64(it.db)+1))
		db := e.DB(it.db)
		switch it.kind {
		case "string":
			db.Set(it.key, it.value)
		case "list":
			db.Push(it.key, it.list...)
		case "hash":
			for f, v := range it.hash {
				db.HSet(it.key, f, v)
			}
		case "set":
			db.SetAdd(it.key, it.set...)
		case "zset":
			for m, score := range it.zset {
				db.ZAdd(it.key, score, m)
			}
		case "stream":
			for _, entry := range it.log {
				db.XAdd(it.key, entry.ID, entry.Values)
			}
		}
		if it.ttl > 0 {
			db.SetTTL(it.key, it.ttl-after)
		}
	}
}

// past is what a node has had, in steps of snapshotsEvery.
type past struct {
	copies []snapshot
	size   int
}

type snapshot struct {
	since time.Time // by the world's clock, when something last changed before
	taken time.Time
	state state
}

// add keeps a copy, if the newest one is old enough. It is called before something
// changes, so a copy is what there was since the change before.
func (p *past) add(since, now time.Time, copy func() state) {
	if k := len(p.copies); k > 0 && now.Sub(p.copies[k-1].taken) < snapshotsEvery {
		return
	}
	s := copy()
	p.copies = append(p.copies, snapshot{since, now, s})
	p.size += len(s.items)
	for len(p.copies) > 1 && (p.size > snapshotsSize || now.Sub(p.copies[1].since) > snapshotsFor) {
		p.size -= len(p.copies[0].state.items)
		p.copies[0] = snapshot{}
		p.copies = p.copies[1:]
	}
}

// asOf is the newest copy of what there was at t or before, and nothing at all from
// before the first. The end of the past is what there was since the last change.
func (p *past) asOf(t, last time.Time, end state) state {
	if !last.After(t) {
		return end
	}
	for i := len(p.copies) - 1; i >= 0; i-- {
		if c := p.copies[i]; !c.since.After(t) {
			return c.state
		}
	}
	return state{empty: true}
}
