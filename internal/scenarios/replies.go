package scenarios

import (
	"errors"
	"fmt"
)

// Replies get lost, or say that a node is in no state to serve.

func init() {
	register(Scenario{
		Name: "replies-lost-everywhere",
		Story: "A fifth of all replies vanishes, and the connections with them. Clients neither deny their own " +
			"success for long, nor leave what they do not know of.",
		Nodes: 5,
		Plan: `
			at 0s for {1.4} on SET 20%, all: lose reply
			at 0s for {1.4} on EVALSHA 20%, all: lose reply`,
		Play: workThrough,
	}, Scenario{
		Name:  "connections-cut-everywhere",
		Story: "Connections break all the time, before, in and after commands.",
		Nodes: 5,
		Plan: `
			at 0s for {1.4} on SET 10%, all: cut before
			at 0s for {1.4} on SET 10%, all: cut during
			at 0s for {1.4} on any 5%, all: cut after
			at 0s for {1.4} on EVALSHA 10%, all: cut during`,
		Play: workThrough,
	}, Scenario{
		Name: "acquire-replies-cut",
		Story: "All nodes execute the SET, and the connections break before they answer. Who asks again must not be " +
			"refused by its own success.",
		Nodes: 3,
		Play: func(w *World) error {
			a, b, err := w.pair()
			if err != nil {
				return err
			}
			if err := a.warmUp(); err != nil {
				return err
			}
			if _, err := w.Inject(`on SET key "orders" #1, all: cut during`); err != nil {
				return err
			}
			h, err := a.Lock(orders, w.TTL, w.TTL/2)
			if err != nil {
				return fmt.Errorf("nobody else wants the lock, but: %w", err)
			}
			h.Act()
			return errors.Join(h.letGo(), b.findsFree())
		},
	}, Scenario{
		Name: "unlock-replies-cut",
		Story: "All nodes execute the unlock, and the connections break before they answer. The lock is free, and " +
			"the answer of who asks again is no loss.",
		Nodes: 3,
		Play: func(w *World) error {
			a, b, err := w.pair()
			if err != nil {
				return err
			}
			if err := a.warmUp(); err != nil {
				return err
			}
			h, err := a.get()
			if err != nil {
				return err
			}
			h.Act()
			if _, err := w.Inject(`on EVALSHA key "orders" #1, all: cut during`); err != nil {
				return err
			}
			return errors.Join(h.letGo(), b.findsFree())
		},
	})
	for _, s := range []struct {
		name, story, error string
		kinds              []string
		nodes              string
		late               bool // it begins under a lease
	}{
		{"oom", "are out of memory and store nothing new", "OOM command not allowed when used memory > 'maxmemory'.",
			[]string{"SET"}, "nodes 2,4", false},
		{"loading", "are reading their data and serve nobody", "LOADING Redis is loading the dataset in memory",
			[]string{"SET", "EVALSHA"}, "nodes 2,4", false},
		{"readonly", "have become replicas", "READONLY You can't write against a read only replica.",
			[]string{"SET", "EVALSHA"}, "nodes 2,4", true},
		{"misconf", "cannot write their snapshots, and refuse all writes, also those that delete",
			"MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
			[]string{"SET", "EVALSHA"}, "nodes 2,4", true},
		{"noauth", "do not know the client any more", "NOAUTH Authentication required.",
			[]string{"SET", "EVALSHA"}, "nodes 2,4", false},
	} {
		register(refusing("errors-"+s.name, "Two of five nodes "+s.story+". The others are enough.",
			s.error, s.kinds, s.nodes, s.late))
	}
	register(refusing("errors-noscript",
		"All nodes forget all scripts again and again. Each time they are sent anew, within the same operation.",
		"NOSCRIPT No matching script. Please use EVAL.", []string{"EVALSHA"}, "all", true))
}

// refusing is the story of nodes that answer some kinds of commands with an error
// while a besieged lock is taken, kept and released.
func refusing(name, story, reply string, kinds []string, nodes string, late bool) Scenario {
	var lines string
	for _, k := range kinds {
		lines += fmt.Sprintf("at 0s for {0.9} on %s, %s: error %q\n", k, nodes, reply)
	}
	return Scenario{Name: name, Story: story, Nodes: 5, Play: func(w *World) error {
		a, b, err := w.pair()
		if err != nil {
			return err
		}
		if err := a.warmUp(); err != nil {
			return err
		}
		if !late {
			if _, err := w.Inject(lines); err != nil {
				return err
			}
		}
		take := a.get
		if late {
			take = func() (*Held, error) { return a.getAll(w.TTL) }
		}
		h, err := take()
		if err != nil {
			return err
		}
		if late {
			if _, err := w.Inject(lines); err != nil {
				return err
			}
		}
		lift := b.besiege()
		defer lift()
		if err := h.keep(w.TTL * 3 / 5); err != nil {
			return err
		}
		if err := lift(); err != nil {
			return err
		}
		if err := h.letGo(); err != nil {
			return err
		}
		g, err := b.get() // of those who serve
		if err != nil {
			return err
		}
		if err := g.letGo(); err != nil {
			return err
		}
		w.Sleep(w.TTL * 2 / 5) // all serve again
		return a.findsFree()
	}}
}
