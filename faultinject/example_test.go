package faultinject_test

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed58520471/redlock/faultinject"
)

// A service of somebody's: it reserves seats, with go-redis as it comes.
func reserve(client redis.UniversalClient, seat, guest string) (bool, error) {
	return client.SetNX(context.Background(), seat, guest, time.Minute).Result()
}

// The reply to a reservation is lost. go-redis sends the command again, as it does
// by default, and the guest hears that the seat is taken: by himself.
func Example() {
	cluster, err := faultinject.New(1)
	if err != nil {
		panic(err)
	}
	defer cluster.Close()
	struck := cluster.Inject("on SET #1, node 1: cut during")

	reserved, err := reserve(cluster.Clients()[0], "seat 7", "ann")
	fmt.Println("ann has it:", reserved, err)
	fmt.Println("stored:", cluster.Node(1).Get("seat 7"))
	fmt.Println("struck:", struck.Fired(), struck.Check())
	// Output:
	// ann has it: false <nil>
	// stored: ann
	// struck: 1 <nil>
}

// A plan is text. It comes back with what is wrong in it, or as it was.
func ExampleParsePlan() {
	plan, err := faultinject.ParsePlan(`
		seed 7
		at 1s for 300ms, nodes 1,3 from a: partition
		on SET #2, node 2: kill during for 1s   # with its data
	`)
	fmt.Printf("%v%v\n", plan, err)
	_, err = faultinject.ParsePlan("at 1s, node 2: explode")
	fmt.Println(err != nil)
	// Output:
	// seed 7
	// at 1s for 300ms, nodes 1,3 from a: partition
	// on SET #2, node 2: kill during for 1s
	// <nil>
	// true
}

// A history says whether two clients ever believed to hold the same lock.
func ExampleExclusive() {
	h := faultinject.NewHistory()
	a := h.Try("a", "orders")
	a.Won("token of a", time.Now().Add(time.Hour))
	b := h.Try("b", "orders")
	b.Won("token of b", time.Now().Add(time.Hour))
	time.Sleep(time.Millisecond)
	a.Release()
	b.Release()
	fmt.Println(faultinject.Exclusive(h) != nil)
	// Output: true
}
