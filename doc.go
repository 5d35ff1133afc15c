// Package redlock takes locks that hold across data centres: one name, one
// holder, agreed on by a quorum of independent Redis primaries.
//
//	locker, err := redlock.Open([]string{"redis://a:6379", "redis://b:6379", "redis://c:6379"})
//	…
//	err = locker.Do(ctx, "orders/42", func(ctx context.Context) error {
//		return ship(ctx) // this ctx ends when the lock does
//	})
//
// or, with the lease in hand,
//
//	lease, err := locker.Lock(ctx, "orders/42") // TryLock tries once
//	if err != nil {
//		return err
//	}
//	defer lease.Unlock(ctx)
//	return ship(lease.Context(ctx))
//
// # The algorithm
//
// Lock sends one SET NX PX with a fresh random token to all N nodes at once. It
// has the lock as soon as a quorum, ⌊N/2⌋+1, has granted it with time left:
//
//	start          quorum reached                                   until      start + ttl
//	  │◄── elapsed ──►│◄────────────────── validity ──────────────────►│◄─ drift ─►│
//	  │ a ✓   b ✓   c ✓  work here, and only here                       stop        a may expire
//
// Once connected it costs the quorum-th fastest round trip; a minority of nodes
// that hang, are down or slow is not noticeable. When the quorum fails,
// everything is released, also on nodes that never answered.
//
// # Holding and waiting
//
// Do renews the lease while its function runs; Lock does with WithAutoExtend. The
// holder is told of a loss by the local clock, before anybody else can have the
// lock: the lease's Context ends, with a *LostError as its cause. Those who wait
// queue within their process and sleep until nodes tell of the release; see
// Locker.Lock.
//
// # What it promises, and what not
//
// At most one client holds a name at any moment of its validity, provided that
//   - clocks run at rates that differ by less than the drift margin, and the
//     nodes' wall clocks do not step;
//   - no node forgets a vote within a ttl: it fsyncs every write or does not vote
//     for a ttl after a restart (WithRestartGuard), evicts nothing, and is not a
//     failover group whose replica may lack the vote;
//   - all clients name the same nodes;
//   - the holder stops when its context ends, and before anybody calls Close.
//
// No lock with a time limit can stop a holder that is paused and then goes on.
// Where the work cannot tolerate that, the resource has to refuse the late one by
// its fencing token, see WithFencing and package fence, or a consensus store should
// guard it.
//
// # Looking inside
//
// Inspect shows what all nodes have under a name, and ForceRelease frees it for an
// operator who knows that its holder is gone. Check reports what on the nodes can
// break locks, such as eviction or one server under two names, and clients that name
// different nodes. Health and Stats tell what a Locker
// knows of its nodes without asking them. A node that has not answered for
// seconds is not asked for votes but every few hundred milliseconds, so that
// nobody waits for what is known; its row in an error says so.
//
// # What is a node
//
// A node is one primary whose memory is the vote. A *redis.Client of a plain
// server is one. A Sentinel-managed client works, but a promoted replica may lack
// votes, so a failover within a ttl can give a name to two holders; the same goes
// for the shards behind a *redis.ClusterClient, which counts as one node. A
// *redis.Ring is refused. WithReplicaAck makes it rarer that a failover loses a
// vote.
package redlock
