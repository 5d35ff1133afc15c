package faultinject

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"go.uber.org/goleak"
)

// KeysExpire is an error that names every key which will outlive the last command
// that its node has executed by more than maxTTL, or for ever. No lock may leave
// one: whatever its owner does, a ttl after the last message it is gone. Keys for
// which one of but is true are none of a lock, and may stay.
func (c *Cluster) KeysExpire(maxTTL time.Duration, but ...func(Key) bool) error {
	var errs []error
	for _, n := range c.nodes {
		keys, err := n.Keys()
		if err != nil {
			errs = append(errs, err)
		}
		n.mu.Lock()
		last := n.last
		n.mu.Unlock()
		for _, k := range keys {
			if excepted(k, but) {
				continue
			}
			if end := time.Now().Add(k.TTL); k.TTL == 0 || end.Sub(last) > maxTTL {
				errs = append(errs, fmt.Errorf("faultinject: %v: longer than %v after the last command", k, maxTTL))
			}
		}
	}
	return errors.Join(errs...)
}

func excepted(k Key, but []func(Key) bool) bool {
	return slices.ContainsFunc(but, func(stays func(Key) bool) bool { return stays(k) })
}

// NoKeys is an error that names every key that is stored on a node that is up, but
// those for which one of but is true.
func (c *Cluster) NoKeys(but ...func(Key) bool) error {
	var errs []error
	for _, n := range c.nodes {
		keys, err := n.Keys()
		if err != nil {
			errs = append(errs, err)
		}
		for _, k := range keys {
			if !excepted(k, but) {
				errs = append(errs, fmt.Errorf("faultinject: %v", k))
			}
		}
	}
	return errors.Join(errs...)
}

// NoConnections is an error that names every client which has a connection to a
// node.
func (c *Cluster) NoConnections() error {
	count := make(map[string]int)
	for _, n := range c.nodes {
		if l := n.alive(); l != nil {
			l.each(func(k *link) {
				count[fmt.Sprintf("client %s to node %d", k.path.client.name, n.number)]++
			})
		}
	}
	var errs []error
	for what, k := range count {
		errs = append(errs, fmt.Errorf("faultinject: open connections of %s: %d", what, k))
	}
	return errors.Join(errs...)
}

// stragglers is how long goroutines may take to end: a go-redis client whose dials
// have failed sleeps for a second between two looks at whether it is closed.
const stragglers = 2 * time.Second

// Goroutines returns a check for goroutines that have begun since, and have not
// ended when it is called; it gives them up to two seconds. It is for real time: a
// synctest bubble checks by itself.
func Goroutines() (check func() error) {
	before := goleak.IgnoreCurrent()
	return func() (err error) {
		for begin := time.Now(); ; {
			if err = goleak.Find(before); err == nil || time.Since(begin) > stragglers {
				return err
			}
		}
	}
}
