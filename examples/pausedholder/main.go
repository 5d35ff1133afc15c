// Command pausedholder pauses the holder of a lock for longer than its lease lasts. When
// it wakes it does what it had decided on, and every guard refuses it. A resource without
// a guard takes what it writes.
//
//	go run ./pausedholder
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"github.com/seed58520471/redlock"
	"github.com/seed58520471/redlock/faultinject"
	"github.com/seed58520471/redlock/fence"
)

const (
	report = "report" // the lock's name, and the resource's
	ttl    = 2 * time.Second
)

func main() {
	dir, err := os.MkdirTemp("", "pausedholder")
	if err != nil {
		log.Fatal(err)
	}
	err = run(context.Background(), os.Stdout, dir)
	os.RemoveAll(dir)
	if err != nil {
		log.Fatal(err)
	}
}

// run tells the story, on embedded servers. The error says what did not go as told.
func run(ctx context.Context, out io.Writer, dir string) error {
	nodes, err := faultinject.New(3)
	if err != nil {
		return err
	}
	defer nodes.Close()
	resources, done, err := open(dir)
	if err != nil {
		return err
	}
	defer done()
	alice, err := newHolder(nodes, "alice")
	if err != nil {
		return err
	}
	defer alice.locker.Close()
	bob, err := newHolder(nodes, "bob")
	if err != nil {
		return err
	}
	defer bob.locker.Close()

	if err := alice.lock(ctx, out); err != nil {
		return err
	}
	fmt.Fprintln(out, "She writes:")
	if err := alice.write(ctx, out, resources, "by alice", none); err != nil {
		return err
	}
	fmt.Fprint(out, "She looks at her lease, which is good, decides to write again, and is paused.\n\n")
	if err := alice.lease.Err(); err != nil {
		return err
	}
	wake, woken := make(chan struct{}), make(chan error)
	go func() {
		<-wake // a collection of garbage, a virtual machine that is moved, a laptop that is shut
		woken <- alice.write(ctx, out, resources, "by alice, too late", guards)
	}()

	if err := bob.lock(ctx, out); err != nil {
		return err
	}
	fmt.Fprintln(out, "He writes:")
	if err := bob.write(ctx, out, resources, "by bob", none); err != nil {
		return err
	}
	fmt.Fprintln(out, "\nalice wakes in the middle of her write, which goes out:")
	close(wake)
	if err := <-woken; err != nil {
		return err
	}
	fmt.Fprintf(out, "Only now she looks again: %v\n\nIn the end there is:\n", alice.lease.Err())
	if !errors.Is(alice.lease.Err(), redlock.ErrLost) {
		return errors.New("alice believes to have the lock")
	}
	return inspect(ctx, out, resources)
}

// holder is a process that may hold the lock.
type holder struct {
	name   string
	locker *redlock.Locker
	lease  *redlock.Lease
}

func newHolder(nodes *faultinject.Cluster, name string) (*holder, error) {
	l, err := redlock.New(nodes.Client(name).Redis(), redlock.WithOwner(name), redlock.WithTTL(ttl), redlock.WithFencing())
	return &holder{name: name, locker: l}, err
}

func (h *holder) lock(ctx context.Context, out io.Writer) (err error) {
	begin := time.Now()
	if h.lease, err = h.locker.Lock(ctx, report); err != nil {
		return err
	}
	fmt.Fprintf(out, "%s has the lock after %v, with the fencing token %d.\n",
		h.name, time.Since(begin).Round(time.Millisecond), h.lease.Fence())
	return nil
}

// none and guards say which of the resources are to refuse a write.
func none(resource) bool     { return false }
func guards(r resource) bool { return r.guarded }

// write writes to all resources, and checks that exactly those refuse which should.
func (h *holder) write(ctx context.Context, out io.Writer, resources []resource, text string, refuses func(resource) bool) error {
	for _, r := range resources {
		err := r.write(ctx, h.lease.Fence(), text)
		if errors.Is(err, fence.ErrStale) != refuses(r) || err != nil && !refuses(r) {
			return fmt.Errorf("%s, written to by %s: %w", r.name, h.name, err)
		}
		verdict := "done"
		if err != nil {
			verdict = "REFUSED  " + err.Error()
		}
		fmt.Fprintf(out, "  %-16s %s\n", r.name, verdict)
	}
	return nil
}

// inspect shows what the resources have, and checks it.
func inspect(ctx context.Context, out io.Writer, resources []resource) error {
	for _, r := range resources {
		text, err := r.read(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", r.name, err)
		}
		fmt.Fprintf(out, "  %-16s %s\n", r.name, text)
		want := "by bob"
		if !r.guarded {
			want = "by alice, too late"
		}
		if text != want {
			return fmt.Errorf("%s has %q; want %q", r.name, text, want)
		}
	}
	return nil
}
