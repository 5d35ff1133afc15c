package scenarios

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed58520471/redlock/internal/redisproc"
)

// What only real servers can show: persistence, signals, memory, replication.

func init() {
	register(Scenario{
		Name: "servers-killed-with-a-log",
		Story: "A majority of servers that log every write is killed with SIGKILL right after its votes. " +
			"The votes survive: nobody else gets the lock.",
		Nodes:   3,
		Servers: []string{"--appendonly", "yes", "--appendfsync", "always"},
		Play:    killWithLog,
	}, Scenario{
		Name: "servers-killed-without-a-log",
		Story: "A server without persistence is killed with SIGKILL when it has voted, and its vote dies with it. " +
			"Two of three still have theirs.",
		Nodes:   3,
		Servers: []string{},
		Play:    killWithoutLog,
	}, Scenario{
		Name: "servers-restart-one-by-one",
		Story: "All servers are killed and restarted with their logs, one after the other, under a lease that is " +
			"extended all the time.",
		Nodes:   5,
		Servers: []string{"--appendonly", "yes", "--appendfsync", "always"},
		Plan:    rolling,
		Play:    keepThrough,
	}, Scenario{
		Name: "servers-restart-at-once",
		Story: "All servers are killed and restarted with their logs at the same time, under a lease: it goes on, " +
			"and nobody has got in.",
		Nodes:   3,
		Servers: []string{"--appendonly", "yes", "--appendfsync", "always"},
		Plan:    `at {0.3} for {0.2}, all: kill`,
		Play:    keepThrough,
	}, Scenario{
		Name: "servers-stopped",
		Story: "Two of five servers are stopped with SIGSTOP, and go on later with all that the kernel has kept " +
			"for them.",
		Nodes:   5,
		Servers: []string{},
		Plan:    `at {0.3} for {0.7}, nodes 2,4: freeze`,
		Play:    keepThrough,
	}, Scenario{
		Name: "servers-out-of-memory",
		Story: "First one server and then all are over their maxmemory. The lock cannot be taken from a majority " +
			"without memory; it can be extended and released.",
		Nodes:   3,
		Servers: []string{},
		Play:    outOfMemory,
	}, Scenario{
		Name: "servers-fail-over",
		Story: "One node is a pair, whose replica is promoted and does not have the lock; the old primary becomes " +
			"its replica and loses its vote, and is promoted again. One lost vote of three is no harm.",
		Nodes:   3,
		Servers: []string{"--repl-diskless-sync-delay", "0"},
		Play:    failOver,
	})
}

func killWithLog(w *World) error {
	return killAfterVotes(w, `on SET key "orders" #1, nodes 2,3: kill after for {0.1}`, true)
}

func killWithoutLog(w *World) error {
	return killAfterVotes(w, `on SET key "orders" #1, node 3: kill during for {0.1}`, false)
}

// killAfterVotes takes a lock while nodes are killed over it, and looks whether
// node 3 has kept its vote.
func killAfterVotes(w *World, strike string, keeps bool) error {
	a, b, err := w.pair()
	if err != nil {
		return err
	}
	if err := a.warmUp(); err != nil {
		return err
	}
	if _, err := w.Inject(strike); err != nil {
		return err
	}
	h, err := a.Lock(orders, 2*w.TTL, w.patience())
	if err != nil {
		return fmt.Errorf("a majority has granted the lock, but: %w", err)
	}
	lift := b.besiege()
	defer lift()
	w.Sleep(w.TTL / 5) // it was answered before the killing was through
	node := w.Cluster.Node(3)
	if err := w.until(fmt.Sprintf("node 3 is up again, with its vote: %v", keeps), func() bool {
		return node.Up() && (node.Get(orders) == h.Token()) == keeps
	}); err != nil {
		return err
	}
	w.Sleep(w.TTL * 3 / 10)
	if err := h.insist(); err != nil {
		return fmt.Errorf("a majority has the lock, but: %w", err)
	}
	h.Act()
	if err := lift(); err != nil {
		return err
	}
	return errors.Join(h.letGo(), b.findsFree())
}

func outOfMemory(w *World) error {
	a, b, err := w.pair()
	if err != nil {
		return err
	}
	if err := errors.Join(a.warmUp(), b.warmUp()); err != nil {
		return err
	}
	servers := w.Cluster.Client("admin").Redis()
	limit := func(bytes string, servers ...redis.UniversalClient) error {
		for _, s := range servers {
			if err := s.ConfigSet(w.ctx, "maxmemory", bytes).Err(); err != nil {
				return err
			}
		}
		return nil
	}
	if err := limit("1", servers[2]); err != nil {
		return err
	}
	h, err := a.get()
	if err != nil {
		return err
	}
	if w.Cluster.Node(3).Get(orders) != "" {
		return errors.New("node 3 has stored the lock without memory")
	}
	if err := limit("1", servers...); err != nil {
		return err
	}
	lift := b.besiege()
	defer lift()
	for range 5 {
		if err := h.insist(); err != nil {
			return fmt.Errorf("an extension needs no memory, but: %w", err)
		}
		h.Act()
		w.Sleep(w.TTL / 10)
	}
	if err := errors.Join(lift(), h.letGo()); err != nil {
		return err
	}
	if _, err := b.TryLock(orders, w.TTL); err == nil {
		return errors.New("client b got a lock from servers without memory")
	}
	return errors.Join(limit("0", servers...), b.findsFree())
}

func failOver(w *World) error {
	a, b, err := w.pair()
	if err != nil {
		return err
	}
	node := w.Cluster.Client("admin").Redis()[2]
	port, err := node.ConfigGet(w.ctx, "port").Result()
	if err != nil {
		return err
	}
	partner, err := redisproc.Launch("", "--repl-diskless-sync-delay", "0", "--replicaof", "127.0.0.1", port["port"])
	if err != nil {
		return err
	}
	defer partner.Close()
	replica := redis.NewClient(&redis.Options{Addr: partner.Addr})
	defer replica.Close()
	if err := w.until("the replica has its primary's data", synced(w.ctx, replica)); err != nil {
		return err
	}
	if err := errors.Join(a.warmUp(), replica.ReplicaOf(w.ctx, "NO", "ONE").Err()); err != nil {
		return err
	}
	h, err := a.getAll(3 * w.TTL) // from the old primary too
	if err != nil {
		return err
	}
	lift := b.besiege()
	defer lift()
	host, own, _ := net.SplitHostPort(partner.Addr)
	if err := node.ReplicaOf(w.ctx, host, own).Err(); err != nil {
		return err
	}
	if err := w.until("the old primary has the new one's data", synced(w.ctx, node)); err != nil {
		return err
	}
	if w.Cluster.Node(3).Get(orders) != "" {
		return errors.New("node 3 has kept its vote")
	}
	if err := h.keep(w.TTL / 4); err != nil {
		return err
	}
	if err := node.ReplicaOf(w.ctx, "NO", "ONE").Err(); err != nil {
		return err
	}
	if err := h.keep(w.TTL / 4); err != nil {
		return err
	}
	if err := lift(); err != nil {
		return err
	}
	return errors.Join(h.letGo(), b.findsFree())
}

func synced(ctx context.Context, c redis.UniversalClient) func() bool {
	return func() bool {
		info, err := c.Info(ctx, "replication").Result()
		return err == nil && strings.Contains(info, "master_link_status:up")
	}
}

// until waits until something is so.
func (w *World) until(what string, is func() bool) error {
	for end := time.Now().Add(2 * w.TTL); !is(); w.Sleep(w.TTL / 100) {
		if time.Now().After(end) {
			return fmt.Errorf("not within %v: %s", 2*w.TTL, what)
		}
	}
	return nil
}
