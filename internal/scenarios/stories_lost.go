package scenarios

// The stories of this file are those in which a server loses what it was told, or
// the network what it was answered.
func init() {
	register(Scenario{
		Name: "primary-lost-before-replication",
		Story: "A primary has granted the lock and is lost before its replica has heard of that. The " +
			"replica takes its place and knows nothing: one vote of three is lost, and no lock.",
		Nodes: 3,
		Plan:  `at 0s, node 1: restart empty`,
		Cued:  true,
		Play:  oneVoteIsLost,
	}, Scenario{
		Name: "key-evicted",
		Story: "A node that is short of memory evicts the lock's key. One vote of three is lost, and " +
			"no lock.",
		Nodes: 3,
		Plan:  `at 0s, node 1: evict "orders"`,
		Cued:  true,
		Play:  oneVoteIsLost,
	}, Scenario{
		Name: "clock-set-forward",
		Story: "A node's clock is set forward by more than the ttl, and the lock's key is over there. " +
			"One vote of three is lost, and no lock.",
		Nodes:    3,
		Plan:     `at 0s, node 1: clock +{1.5}`,
		Cued:     true,
		Play:     oneVoteIsLost,
		Embedded: true,
	}, Scenario{
		Name: "granted-but-unheard",
		Story: "Two of three nodes grant the lock, and the connections break before the answers. The " +
			"client does not get it, and has to take back what it does not know to have.",
		Nodes: 3,
		Plan:  `for {0.3} on any key "orders" #1, nodes 1,2 from a: cut during`,
		Play:  givesUp,
	}, Scenario{
		Name: "granted-in-silence",
		Story: "Two of three nodes grant the lock, and their answers vanish without a word. The client " +
			"does not get it, and has to take back what it does not know to have.",
		Nodes: 3,
		Plan:  `for {0.3} on any key "orders" #1, nodes 1,2 from a: lose reply`,
		Play:  givesUp,
	})
}

func oneVoteIsLost(w *World) error {
	h, actors, err := w.first("a", "b")
	if err != nil {
		return err
	}
	return together(func() error {
		h.work(w.ttls(0.7))
		h.Unlock()
		return nil
	}, func() error {
		w.At(0.2) // all three have voted by now
		if err := w.start(); err != nil {
			return err
		}
		return actors[1].turn(w.ttls(2), w.ttls(0.2))
	})
}

// givesUp demands that the lock is free soon after somebody has asked in vain.
func givesUp(w *World) error {
	actors, err := w.Actors("a", "b")
	if err != nil {
		return err
	}
	if h, err := actors[0].TryLock(orders, w.TTL); err == nil {
		h.Unlock()
	}
	return actors[1].turn(w.ttls(0.5), w.ttls(0.1))
}
