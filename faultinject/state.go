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

// state is a copy of a node's data.
type state struct {
	empty bool
	asOf  time.Duration // how old it is wanted; for servers that keep their data themselves
	at    time.Time     // by the node's clock
	items []item
}

// item is a key with what is stored under it.
type item struct {
	db    int
	key   string
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
			it := item{db: i, key: key, ttl: db.TTL(key)}
			switch db.Type(key) {
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

// load fills an empty server with a state that is a while old.
func (e *embedded) load(s state, after time.Duration) {
	for _, it := range s.items {
		if it.ttl > 0 && it.ttl <= after {
			continue
		}
		e.databases.Store(max(e.databases.Load(), int64(it.db)+1))
		db := e.DB(it.db)
		switch {
		case it.list != nil:
			db.Push(it.key, it.list...)
		case it.hash != nil:
			for f, v := range it.hash {
				db.HSet(it.key, f, v)
			}
		case it.set != nil:
			db.SetAdd(it.key, it.set...)
		case it.zset != nil:
			for m, score := range it.zset {
				db.ZAdd(it.key, score, m)
			}
		case it.log != nil:
			for _, entry := range it.log {
				db.XAdd(it.key, entry.ID, entry.Values)
			}
		default:
			db.Set(it.key, it.value)
		}
		if it.ttl > 0 {
			db.SetTTL(it.key, it.ttl-max(after, 0))
		}
	}
}

// past is what a node has had, in steps of snapshotsEvery.
type past struct {
	copies []snapshot
	size   int
}

type snapshot struct {
	taken time.Time // by the world's clock
	state state
}

// add keeps a copy, if the newest one is old enough. It is called before a
// command, so a copy is what there was since the command before.
func (p *past) add(now time.Time, copy func() state) {
	if k := len(p.copies); k > 0 && now.Sub(p.copies[k-1].taken) < snapshotsEvery {
		return
	}
	s := copy()
	p.copies = append(p.copies, snapshot{now, s})
	p.size += len(s.items)
	for len(p.copies) > 1 && (p.size > snapshotsSize || now.Sub(p.copies[0].taken) > snapshotsFor+snapshotsEvery) {
		p.size -= len(p.copies[0].state.items)
		p.copies[0] = snapshot{}
		p.copies = p.copies[1:]
	}
}

// asOf is the newest copy that was made at t or before, and nothing at all from
// before the first.
func (p *past) asOf(t time.Time) state {
	for i := len(p.copies) - 1; i >= 0; i-- {
		if c := p.copies[i]; !c.taken.After(t) {
			return c.state
		}
	}
	return state{empty: true}
}
