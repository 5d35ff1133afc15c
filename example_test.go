package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/seed58520471/redlock"
)

// embedded starts n servers in this process and returns their URLs. In real life
// these are independent machines.
func embedded(n int) (urls []string, stop func()) {
	var nodes []*miniredis.Miniredis
	for range n {
		m, err := miniredis.Run()
		if err != nil {
			log.Fatal(err)
		}
		nodes = append(nodes, m)
		urls = append(urls, "redis://"+m.Addr())
	}
	return urls, func() {
		for _, m := range nodes {
			m.Close()
		}
	}
}

func Example() {
	urls, stop := embedded(5)
	defer stop()

	locker, err := redlock.Open(urls)
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close()

	ctx := context.Background()
	lease, err := locker.Lock(ctx, "orders/42")
	if err != nil {
		log.Fatal(err)
	}
	defer lease.Unlock(ctx)

	fmt.Println("locked", lease.Name())
	fmt.Println("more than 9 s to work:", lease.Validity() > 9*time.Second)
	// Output:
	// locked orders/42
	// more than 9 s to work: true
}

func ExampleLocker_TryLock() {
	urls, stop := embedded(3)
	defer stop()
	mine, _ := redlock.Open(urls, redlock.WithOwner("host-1"))
	defer mine.Close()
	other, _ := redlock.Open(urls, redlock.WithOwner("host-2"))
	defer other.Close()

	ctx := context.Background()
	lease, err := other.TryLock(ctx, "orders/42")
	if err != nil {
		log.Fatal(err)
	}
	_, err = mine.TryLock(ctx, "orders/42")
	fmt.Println("held:", errors.Is(err, redlock.ErrHeld))
	var verdict *redlock.QuorumError
	if errors.As(err, &verdict) {
		fmt.Println("by", verdict.Round.Owner())
	}

	if err := lease.Unlock(ctx); err != nil {
		log.Fatal(err)
	}
	lease, err = mine.TryLock(ctx, "orders/42")
	fmt.Println("then:", err)
	lease.Unlock(ctx)
	// Output:
	// held: true
	// by host-2
	// then: <nil>
}

func ExampleLocker_Do() {
	urls, stop := embedded(3)
	defer stop()
	locker, err := redlock.Open(urls, redlock.WithWait(5*time.Second))
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close()

	err = locker.Do(context.Background(), "report", func(ctx context.Context) error {
		// ctx ends when the lease does: pass it to everything done here.
		fmt.Println("working under", redlock.FromContext(ctx).Name())
		return ctx.Err()
	})
	fmt.Println(err)
	// Output:
	// working under report
	// <nil>
}

func ExampleWithAutoExtend() {
	urls, stop := embedded(3)
	defer stop()
	locker, _ := redlock.Open(urls, redlock.WithTTL(300*time.Millisecond), redlock.WithAutoExtend())
	defer locker.Close()

	lease, err := locker.Lock(context.Background(), "long")
	if err != nil {
		log.Fatal(err)
	}
	time.Sleep(time.Second)
	fmt.Println("after three times the ttl:", lease.Err())
	locker.ForceRelease(context.Background(), "long") // an operator takes it away
	<-lease.Done()
	var lost *redlock.LostError
	fmt.Println(errors.As(lease.Err(), &lost), lost.Cause)
	// Output:
	// after three times the ttl: <nil>
	// true superseded
}

func ExampleLease_Context() {
	urls, stop := embedded(3)
	defer stop()
	locker, _ := redlock.Open(urls, redlock.WithTTL(100*time.Millisecond))
	defer locker.Close()

	lease, err := locker.Lock(context.Background(), "short")
	if err != nil {
		log.Fatal(err)
	}
	ctx := lease.Context(context.Background())
	<-ctx.Done() // nobody extended it
	fmt.Println(ctx.Err())
	fmt.Println(errors.Is(context.Cause(ctx), redlock.ErrLost))
	// Output:
	// context canceled
	// true
}

func ExampleLease_Extend() {
	urls, stop := embedded(3)
	defer stop()
	locker, _ := redlock.Open(urls, redlock.WithTTL(2*time.Second))
	defer locker.Close()

	ctx := context.Background()
	lease, err := locker.Lock(ctx, "migration")
	if err != nil {
		log.Fatal(err)
	}
	defer lease.Unlock(ctx)
	if err := lease.Extend(ctx, time.Minute); err != nil {
		log.Fatal(err) // ErrLost: stop; ErrNoQuorum: the old end stands
	}
	fmt.Println(lease.Validity() > 55*time.Second)
	// Output: true
}

// A node that has restarted may have forgotten what it granted for up to a ttl, so no
// ttl may be longer than it is kept from voting.
func ExampleWithRestartGuard() {
	locker, err := redlock.Open([]string{"redis://a", "redis://b", "redis://c"},
		redlock.WithTTL(10*time.Second), redlock.WithRestartGuard(30*time.Second))
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close()
	_, err = locker.With(redlock.WithTTL(time.Minute))
	fmt.Println(err)
	// Output:
	// redlock: invalid argument: ttl is 1m0s and the restart guard 30s; want no more than that, for a restarted node then votes again
}

func ExampleWithReentrancy() {
	urls, stop := embedded(3)
	defer stop()
	locker, _ := redlock.Open(urls, redlock.WithReentrancy())
	defer locker.Close()

	// ship locks for itself, whether its caller has the lock or not.
	ship := func(ctx context.Context) error {
		return locker.Do(ctx, "orders/42", func(ctx context.Context) error {
			fmt.Println("shipped under", redlock.FromContext(ctx).Name())
			return ctx.Err()
		})
	}
	ctx := context.Background()
	fmt.Println(ship(ctx))
	fmt.Println(locker.Do(ctx, "orders/42", ship))
	// Output:
	// shipped under orders/42
	// <nil>
	// shipped under orders/42
	// <nil>
}

func ExampleLease_Detach() {
	urls, stop := embedded(3)
	defer stop()
	here, _ := redlock.Open(urls)
	defer here.Close()
	there, _ := redlock.Open(urls) // in another process
	defer there.Close()

	ctx := context.Background()
	lease, err := here.Lock(ctx, "migration")
	if err != nil {
		log.Fatal(err)
	}
	defer lease.Unlock(ctx) // does nothing once it is detached
	if err := lease.Detach(ctx); err != nil {
		log.Fatal(err)
	}
	name, token := lease.Name(), lease.Token() // to be sent over; whoever has them has the lock
	fmt.Println("here:", lease.Err())

	lease, err = there.Attach(ctx, name, token)
	if err != nil {
		log.Fatal(err)
	}
	defer lease.Unlock(ctx)
	fmt.Println("there:", lease.Err())

	_, err = here.Attach(ctx, name, token)
	fmt.Println("once only:", errors.Is(err, redlock.ErrLost))
	// Output:
	// here: redlock: lease "migration": lease released: it was detached
	// there: <nil>
	// once only: true
}

func ExampleNew() {
	urls, stop := embedded(3)
	defer stop()

	// Clients made elsewhere: with their own pools, TLS, credentials and hooks.
	var clients []redis.UniversalClient
	for _, u := range urls {
		o, err := redis.ParseURL(u)
		if err != nil {
			log.Fatal(err)
		}
		c := redis.NewClient(o)
		defer c.Close()
		clients = append(clients, c)
	}
	locker, err := redlock.New(clients, redlock.WithTTL(30*time.Second))
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close()

	// A sibling has other settings and shares everything else.
	quick, err := locker.With(redlock.WithTTL(time.Second), redlock.WithWait(0))
	if err != nil {
		log.Fatal(err)
	}
	lease, err := quick.Lock(context.Background(), "a")
	fmt.Println(lease.Name(), err)
	lease.Unlock(context.Background())
	// Output: a <nil>
}

func ExampleLocker_Inspect() {
	urls, stop := embedded(3)
	defer stop()
	locker, _ := redlock.Open(urls, redlock.WithOwner("host-1"), redlock.WithTTL(time.Minute))
	defer locker.Close()

	ctx := context.Background()
	lease, err := locker.Lock(ctx, "orders/42")
	if err != nil {
		log.Fatal(err)
	}
	in, err := locker.Inspect(ctx, "orders/42")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(in.Verdict, "by", in.Owner, "for long:", in.Left > 55*time.Second)

	lease.Unlock(ctx)
	in, _ = locker.Inspect(ctx, "orders/42")
	fmt.Println("then", in.Verdict)
	// Output:
	// held by host-1 for long: true
	// then free
}

func ExampleLocker_Check() {
	urls, stop := embedded(3)
	defer stop()
	locker, _ := redlock.Open(urls)
	defer locker.Close()

	report, err := locker.Check(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	for _, f := range report.Findings {
		if f.Severity >= redlock.SeverityWarning {
			log.Print(f) // such as "error evicts on 10.0.0.3:6379 (maxmemory_policy:allkeys-lru, …): …"
		}
	}
	fmt.Println("errors:", report.Worst() == redlock.SeverityError)
	fmt.Println("nodes:", len(report.Nodes), "needed:", report.Quorum)
	// Output:
	// errors: false
	// nodes: 3 needed: 2
}

func ExampleLocker_ForceRelease() {
	urls, stop := embedded(3)
	defer stop()
	crashed, _ := redlock.Open(urls, redlock.WithTTL(time.Hour))
	defer crashed.Close()
	locker, _ := redlock.Open(urls)
	defer locker.Close()

	ctx := context.Background()
	orphan, err := crashed.Lock(ctx, "migration") // its process is gone for good
	if err != nil {
		log.Fatal(err)
	}
	if err := locker.ForceRelease(ctx, "migration"); err != nil {
		log.Fatal(err)
	}
	lease, err := locker.TryLock(ctx, "migration")
	fmt.Println("free again:", err)

	// Were it not gone, it would learn it when it extends, and not before.
	fmt.Println("lost:", errors.Is(orphan.Extend(ctx, time.Hour), redlock.ErrLost))
	lease.Unlock(ctx)
	// Output:
	// free again: <nil>
	// lost: true
}

func ExampleLocker_Health() {
	urls, stop := embedded(3)
	defer stop()
	locker, _ := redlock.Open(urls)
	defer locker.Close()

	ready := func() bool { return locker.Health().OK() } // as a readiness probe asks
	fmt.Println("ready:", ready())
	locker.Close()
	fmt.Println("ready:", ready(), "since it is closed:", errors.Is(locker.Health().Err(), redlock.ErrClosed))
	// Output:
	// ready: true
	// ready: false since it is closed: true
}

func ExampleLocker_Stats() {
	urls, stop := embedded(3)
	defer stop()
	locker, _ := redlock.Open(urls)
	defer locker.Close()

	ctx := context.Background()
	lease, err := locker.Lock(ctx, "orders/42")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("held:", locker.Stats().Held)
	lease.Unlock(ctx)
	stats := locker.Stats()
	fmt.Println("held:", stats.Held)
	connected := 0
	for _, node := range stats.Nodes { // all of it is fit for JSON, too
		if node.State == "connected" && node.Latency.Max < time.Second {
			connected++
		}
	}
	fmt.Println("a quorum is connected:", connected >= 2)
	// Output:
	// held: 1
	// held: 0
	// a quorum is connected: true
}
