// Package fence lets a resource refuse a holder whose lock has passed to
// somebody else.
//
// A holder can be paused, by its machine or by the network, between its last look
// at the lease and the write that it had decided on. No lock with a time limit
// prevents that; only what is written to can. A fenced lock (redlock.WithFencing, or
// any other whose numbers rise) therefore comes with a fencing token, Lease.Fence,
// that is higher for each later holder, and the resource refuses one that is lower than
// the highest that it has seen:
//
//	holder 1   locks, gets 33        paused ░░░░░░░░░░░░░░░░░░░░  writes with 33 ✗ ErrStale
//	holder 2                          locks, gets 34 ── writes with 34 ✓
//	resource   highest seen:                              34           34
//
// Here are four guards for the resource's side:
//
//   - Memory, for a process that owns the resource: a function runs while it has
//     the resource's turn.
//   - Redis, for data in Redis: one script that checks and writes.
//   - Table and Update, for data behind database/sql: a row that a transaction
//     enters first, or a condition in the very statement that writes.
//   - Handler, for HTTP servers, on top of Memory.
//
// They have the rules in common. A lower token than the highest seen is refused with
// a *StaleError, which matches ErrStale; an equal one is let in, since one holder may
// write often, and a higher one is let in and remembered. The check and the write
// are one step, so that no pause fits between them. A token that no lock gave out,
// 0 above all, is refused with ErrInvalid.
//
// # Show the token before you read
//
// A guard knows only the tokens that it was shown. A holder that reads without
// its token, computes, and writes with it, leaves a gap: an older holder's write can
// arrive after that read, while nobody has shown the guard a higher token, and is
// then overwritten although it was confirmed. So the first thing that a holder does
// at the resource is to show its token: Redis.Get does so while it reads,
// Table.Enter comes first in the transaction, and what Memory.Do runs may read and
// write.
//
// # Equal tokens
//
// Within one tenure of the lock the guards order nothing: a write that got no answer
// can still arrive, even after later writes of the same holder. To repeat it is
// harmless. Before the holder writes something else it takes the lock anew, and shows
// the new token: that shuts the late one out.
package fence
