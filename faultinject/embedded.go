package faultinject

import (
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/alicebob/miniredis/v2"
	miniserver "github.com/alicebob/miniredis/v2/server"
)

// embedded is a server in this process: miniredis, which has Redis's commands and
// scripts. It talks over connections in memory, so that it also runs on virtual
// time.
type embedded struct {
	*miniredis.Miniredis
	conns     *miniserver.Server
	age       age
	databases atomic.Int64 // how many of them were chosen, from 0
	closing   func(func())
}

// embeddedEngine makes one after the other for a node. Each is new: a Redis that
// restarts has lost its scripts too.
type embeddedEngine struct {
	setup   func(*miniredis.Miniredis)
	closing func(func()) // runs what may take a moment
}

func (g embeddedEngine) close() {}

func (g embeddedEngine) start(from state, shown time.Time, after time.Duration) (server, bool, error) {
	e := &embedded{Miniredis: miniredis.NewMiniRedis(), closing: g.closing}
	e.databases.Store(1)
	c, err := e.Dial() // starts it
	if err != nil {
		return nil, false, err
	}
	c.Close()
	e.conns = e.Server()
	e.SetTime(shown) // the zero time is the world's
	e.age.show(shown)
	e.age.begin()
	if err := e.age.register(e.conns); err != nil {
		return nil, false, err
	}
	e.ClockTTL(true)
	if g.setup != nil {
		g.setup(e.Miniredis)
	}
	e.load(from, after)
	return e, true, nil
}

func (e *embedded) serve(l *link) error {
	e.closing(l.far.post)
	e.conns.ServeConn(&l.far)
	return nil
}

func (e *embedded) kill(at time.Time) (kept state) {
	kept = e.copy(at)
	e.closing(e.Close) // it waits for the command that may have brought us here
	return kept
}

func (e *embedded) freeze(bool) error { return nil }

func (e *embedded) flush() error { e.FlushAll(); return nil }

func (e *embedded) evict(key string) error {
	for i := range int(e.databases.Load()) {
		e.DB(i).Del(key)
	}
	return nil
}

func (e *embedded) set(name, value string, ttl time.Duration) error {
	e.Del(name)
	err := e.Set(name, value)
	if err == nil && ttl > 0 {
		e.SetTTL(name, ttl)
	}
	return err
}

// sees keeps count of the databases in use.
func (e *embedded) sees(c command) {
	if c.kind != "SELECT" || len(c.args) == 0 {
		return
	}
	if i, err := strconv.Atoi(string(c.args[0])); err == nil && i >= 0 && i < 16 {
		e.databases.Store(max(e.databases.Load(), int64(i)+1))
	}
}

// setTime sets the clock. miniredis counts what is left of a ttl: time that
// passes takes from it, and so does a step forward. A step back has to be given to
// each key, which in Redis expires at a time of day.
func (e *embedded) setTime(t time.Time, step time.Duration) error {
	e.SetTime(t)
	e.age.show(t)
	e.DB(0) // lets it look at its clock now: it would forget what has passed until a step back
	if step < 0 {
		for i := range int(e.databases.Load()) {
			db := e.DB(i)
			for _, k := range db.Keys() {
				if ttl := db.TTL(k); ttl > 0 {
					db.SetTTL(k, ttl-step)
				}
			}
		}
	}
	return nil
}

// look is the string under a name, and what is left of its ttl.
func (e *embedded) look(name string) (value string, ttl time.Duration) {
	for i := range int(e.databases.Load()) {
		db := e.DB(i)
		if v, err := db.Get(name); err == nil {
			return v, db.TTL(name)
		}
	}
	return "", 0
}

func (e *embedded) keys() (all []Key, err error) {
	for i := range int(e.databases.Load()) {
		db := e.DB(i)
		for _, name := range db.Keys() {
			value, err := db.Get(name)
			if err != nil {
				value = fmt.Sprintf("(%s)", db.Type(name))
			}
			all = append(all, Key{Name: name, Value: value, TTL: db.TTL(name)})
		}
	}
	return all, nil
}
