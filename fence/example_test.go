package fence_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/seed58520471/redlock/fence"
)

// A process that owns a file lets nobody write to it whose lock has passed on.
func ExampleMemory() {
	var guard fence.Memory
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "report")

	save := func(token uint64, text string) error { // token is a lease's Fence
		return guard.Do(context.Background(), "report", token, func() error {
			return os.WriteFile(file, []byte(text), 0o600)
		})
	}
	fmt.Println(save(34, "by the later holder"))
	fmt.Println(save(33, "by the earlier one, who was paused"))
	text, _ := os.ReadFile(file)
	fmt.Printf("%s\n", text)
	// Output:
	// <nil>
	// fence: "report": stale fencing token: it is 33, and 34 was here
	// by the later holder
}

// Read, compute, write: the token is shown when the value is read, so that nobody
// older can write in between.
func ExampleRedis() {
	server, err := miniredis.Run()
	if err != nil {
		panic(err)
	}
	defer server.Close()
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer client.Close()
	guard, ctx := fence.Redis{Client: client}, context.Background()

	add := func(token uint64, word string) error {
		text, err := guard.Get(ctx, "story", token)
		if err != nil && !errors.Is(err, redis.Nil) {
			return err
		}
		return guard.Set(ctx, "story", token, text+word, 0)
	}
	fmt.Println(add(33, "once "))
	fmt.Println(add(34, "upon "))
	fmt.Println(add(33, "twice "))
	fmt.Println(client.Get(ctx, "story").Val())
	// Output:
	// <nil>
	// <nil>
	// fence: "story": stale fencing token: it is 33, and 34 was here
	// once upon
}

// A script of one's own runs only if the token is not stale.
func ExampleRedis_Run() {
	server, err := miniredis.Run()
	if err != nil {
		panic(err)
	}
	defer server.Close()
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer client.Close()
	guard, ctx := fence.Redis{Client: client}, context.Background()

	move := fence.NewScript(`
		redis.call('DECRBY', KEYS[1], ARGV[1])
		return redis.call('INCRBY', KEYS[2], ARGV[1])`)
	accounts := []string{"{accounts}:7", "{accounts}:8"}
	fmt.Println(guard.Run(ctx, move, "accounts", 34, accounts, 5).Int())
	fmt.Println(guard.Run(ctx, move, "accounts", 33, accounts, 5).Int())
	// Output:
	// 5 <nil>
	// 0 fence: "accounts": stale fencing token: it is 33, and 34 was here
}

// An HTTP server checks the token that comes with a request.
func ExampleHandler() {
	var guard fence.Memory
	orders := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "shipped") })
	byPath := func(r *http.Request) string { return r.URL.Path }
	server := httptest.NewServer(fence.Handler(&guard, byPath, orders))
	defer server.Close()

	ship := func(token uint64) error {
		request, err := http.NewRequest(http.MethodPost, server.URL+"/orders/42", nil)
		if err != nil {
			return err
		}
		if err := fence.SetHeader(request.Header, token); err != nil {
			return err
		}
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		fmt.Println(answer.Status)
		return fence.Refusal(answer)
	}
	fmt.Println(ship(34))
	fmt.Println(ship(33))
	// Output:
	// 200 OK
	// <nil>
	// 412 Precondition Failed
	// fence: "/orders/42": stale fencing token: it is 33, and 34 was here
}
