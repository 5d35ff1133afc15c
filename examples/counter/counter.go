package main

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed58520471/redlock"
	"github.com/seed58520471/redlock/fence"
)

// A counter counts exactly, whatever happens to its clients and to the lock's nodes:
// it reads a record, computes, and writes it, under a fenced lock. (A number that
// needs no more than adding needs no lock: INCR does it. This stands for everything
// that a server cannot compute by itself.)
//
// Three things make it exact:
//
//   - The guard refuses a write whose holder has lost the lock. It is shown the token
//     when the record is read, so that from then on no older holder can write.
//   - The record has a share for each client, and an increment writes what the
//     client's share is to be. So doing it twice is doing it once.
//   - A write without an answer may have been done, or may still be. It is not
//     guessed at: the client takes the lock anew, and reads whether its share is there.
//     The higher token shuts the late one out.
//
// A counter is for one goroutine.
type counter struct {
	locker *redlock.Locker // fenced
	store  store
	name   string // of the lock, and of the record
	me     string // whose share is counted up; no other client has this name
	share  int64  // what the share is to be after the increment under way; 0: it has not been read yet
	paused func() // what may happen to any process at any time; for storms
	tally  *tally
}

// store is where the record is.
type store interface {
	get(ctx context.Context, key string, token uint64) (string, error) // redis.Nil if there is none
	set(ctx context.Context, key string, token uint64, value string) error
}

// guarded is the data's server behind a guard.
type guarded struct{ fence.Redis }

func (g guarded) get(ctx context.Context, key string, token uint64) (string, error) {
	return g.Get(ctx, key, token)
}

func (g guarded) set(ctx context.Context, key string, token uint64, value string) error {
	return g.Set(ctx, key, token, value, 0)
}

// increment adds one, and returns the sum as it was then. It goes on until it knows
// that it has: an error is ctx's or redlock.ErrClosed, and leaves the increment open.
// The next call then finishes that one, and adds no other.
func (c *counter) increment(ctx context.Context) (int64, error) {
	for {
		sum, err := c.try(ctx)
		switch {
		case err == nil:
			return sum, nil
		case ctx.Err() != nil, errors.Is(err, redlock.ErrClosed), errors.Is(err, fence.ErrInvalid):
			return 0, err
		case errors.Is(err, fence.ErrStale):
			c.tally.refused.Add(1)
		default:
			c.tally.unanswered.Add(1)
			time.Sleep(10 * time.Millisecond) // the data's server is not well
		}
	}
}

// try makes the increment under one lease. It does not look at the lease while it
// works, as if it could be paused right after any look: the guard has the last word.
// A service passes lease.Context(ctx) on, and so finds out sooner, as a rule.
func (c *counter) try(ctx context.Context) (int64, error) {
	lease, err := c.locker.Lock(ctx, c.name)
	if err != nil {
		return 0, err
	}
	defer lease.Unlock(ctx)
	c.paused()
	record, err := c.read(ctx, lease.Fence())
	if err != nil {
		return 0, err
	}
	if c.share == 0 {
		c.share = record[c.me] + 1
	}
	if record[c.me] < c.share { // else an earlier try was done after all
		record[c.me] = c.share
		c.paused()
		if err := c.write(ctx, lease.Fence(), record); err != nil {
			return 0, err
		}
	}
	c.share++
	return record.sum(), nil
}

// record is how much each client has counted.
type record map[string]int64

func (r record) sum() (sum int64) {
	for _, share := range r {
		sum += share
	}
	return sum
}

func parse(text string) (record, error) {
	r := make(record)
	if text == "" {
		return r, nil
	}
	return r, json.Unmarshal([]byte(text), &r)
}

func (c *counter) read(ctx context.Context, token uint64) (record, error) {
	text, err := c.store.get(ctx, c.name, token)
	if err != nil && !errors.Is(err, redis.Nil) {
		return nil, err
	}
	return parse(text)
}

func (c *counter) write(ctx context.Context, token uint64, r record) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return c.store.set(ctx, c.name, token, string(text))
}
