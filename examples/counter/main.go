// Command counter counts under a fenced lock, exactly, while the lock's nodes are
// killed and cut off and its holders are paused for longer than their leases last; and
// it measures what that costs against INCR.
//
//	go run ./counter
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"github.com/seed58520471/redlock/faultinject"
)

func main() {
	seed := flag.Uint64("seed", uint64(time.Now().UnixNano())%1_000_000, "of the storm")
	flag.Parse()
	redis.SetLogger(&logging.VoidLogger{}) // it would tell of every dial that fails
	ctx := context.Background()
	if err := errors.Join(weather(ctx, os.Stdout, *seed), bill(ctx, os.Stdout, 500*time.Millisecond)); err != nil {
		log.Fatal(err)
	}
}

// weather plays one storm in real time, with embedded servers.
func weather(ctx context.Context, out io.Writer, seed uint64) error {
	nodes, data, err := servers()
	if err != nil {
		return err
	}
	defer nodes.Close()
	defer data.Close()
	s := storm{seed: seed, ttl: 300 * time.Millisecond, clients: 4, each: 8, store: behindGuard}
	fmt.Fprintf(out, "A storm over %d nodes of a lock, the server of the data and %d clients, seed %d:\n",
		len(nodes.Nodes()), s.clients, seed)
	result, err := s.run(ctx, nodes, data)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%v\n", result)
	if err := result.check(); err != nil {
		return fmt.Errorf("seed %d: %w", seed, err)
	}
	fmt.Fprintf(out, "None is lost, and none counted twice.\n\n")
	return nil
}

// bill measures in good weather, on redis-server processes if there are any.
func bill(ctx context.Context, out io.Writer, each time.Duration) error {
	kind := "redis-server processes"
	nodes, data, err := servers(faultinject.Servers())
	if errors.Is(err, faultinject.ErrNoServer) {
		kind = "embedded servers, whose scripts are slow"
		nodes, data, err = servers()
	}
	if err != nil {
		return err
	}
	defer nodes.Close()
	defer data.Close()
	fmt.Fprintf(out, "In good weather, on %s of this machine:\n", kind)
	return cost{nodes, data, each}.print(ctx, out)
}

// servers are the lock's nodes and the data's server.
func servers(options ...faultinject.Option) (nodes, data *faultinject.Cluster, err error) {
	if nodes, err = faultinject.New(5, options...); err != nil {
		return nil, nil, err
	}
	if data, err = faultinject.New(1, options...); err != nil {
		nodes.Close()
		return nil, nil, err
	}
	return nodes, data, nil
}
