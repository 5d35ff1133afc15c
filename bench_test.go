package redlock

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
)

func BenchmarkVerdict(b *testing.B) {
	for b.Loop() {
		t := tally{nodes: 5}
		for range 3 {
			t.add(Granted)
			if t.verdict() == won || t.class() != unsettled {
				break
			}
		}
	}
}

func BenchmarkValidity(b *testing.B) {
	var clock systemClock
	vouches := make([]*vouch, 5)
	for i := range vouches {
		vouches[i] = &vouch{clock.start(), 10 * time.Second}
	}
	for b.Loop() {
		validity(vouches, 3, clock.look())
	}
}

func BenchmarkToken(b *testing.B) {
	for b.Loop() {
		_ = uuid.NewString()
	}
}

// BenchmarkLockUnlock is what a lock costs this side of the wire: the servers are
// stubs over loopback that grant everything.
func BenchmarkLockUnlock(b *testing.B) {
	for _, nodes := range []int{3, 5} {
		for _, callers := range []int{1, 64} {
			b.Run(fmt.Sprintf("nodes=%d/callers=%d", nodes, callers), func(b *testing.B) {
				l := stubLocker(b, nodes)
				var names atomic.Int64
				b.ReportAllocs()
				b.SetParallelism(max(1, callers/2))
				pair := func() {
					name := strconv.Itoa(int(names.Add(1)))
					lease, err := l.Lock(context.Background(), name)
					if err != nil {
						b.Error(err)
						return
					}
					if err := lease.Unlock(context.Background()); err != nil {
						b.Error(err)
					}
				}
				pair()
				if callers == 1 {
					for b.Loop() {
						pair()
					}
					return
				}
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						pair()
					}
				})
			})
		}
	}
}

// stubLocker has nodes that answer nil to SET, 1 to a script and OK to the rest.
func stubLocker(b *testing.B, nodes int) *Locker {
	b.Helper()
	clients := make([]redis.UniversalClient, nodes)
	for i := range clients {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { ln.Close() })
		go func() {
			for {
				conn, err := ln.Accept()
				if err != nil {
					return
				}
				go answerAll(conn)
			}
		}()
		clients[i] = redis.NewClient(tuned(&redis.Options{Addr: ln.Addr().String()}, time.Second))
	}
	l, err := New(clients, WithMaxAttempts(3))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		l.Close()
		for _, c := range clients {
			c.Close()
		}
	})
	return l
}

func answerAll(conn net.Conn) {
	defer conn.Close()
	r, w := bufio.NewReader(conn), bufio.NewWriter(conn)
	number := func() (n int) {
		line, _ := r.ReadSlice('\n')
		if len(line) > 3 {
			n, _ = strconv.Atoi(string(line[1 : len(line)-2]))
		}
		return n
	}
	for {
		var verb [4]byte
		args := number()
		if args == 0 {
			return
		}
		for i := range args {
			size := number()
			if i == 0 {
				io.ReadFull(r, verb[:min(4, size)])
				size -= min(4, size)
			}
			r.Discard(size + 2)
		}
		switch string(verb[:]) {
		case "set\x00":
			w.WriteString("$-1\r\n")
		case "eval":
			w.WriteString(":1\r\n")
		case "hell":
			w.WriteString("-ERR unknown command\r\n") // a server without HELLO
		default:
			w.WriteString("+OK\r\n")
		}
		if r.Buffered() == 0 {
			w.Flush()
		}
	}
}

// BenchmarkRenew is what the watchdog costs this side of the wire: one operation
// renews all the leases that are held, on stubs that grant everything.
func BenchmarkRenew(b *testing.B) {
	for _, nodes := range []int{3, 5} {
		for _, held := range []int{100, 10_000} {
			b.Run(fmt.Sprintf("nodes=%d/held=%d", nodes, held), func(b *testing.B) {
				root := stubLocker(b, nodes)
				l, err := root.With(WithAutoExtend(), WithTTL(time.Hour)) // by itself, none is due
				if err != nil {
					b.Fatal(err)
				}
				leases := make([]*Lease, held)
				before := heapInUse()
				for i := range leases {
					if leases[i], err = l.TryLock(background, strconv.Itoa(i)); err != nil {
						b.Fatal(err)
					}
				}
				renewAll(b, leases, 2*held) // the nodes know the script from now on
				lease := float64(heapInUse()-before) / float64(held)
				begin := l.Stats()
				b.ReportAllocs()
				granted := 2 * held
				for b.Loop() {
					granted += held
					renewAll(b, leases, granted)
				}
				end := l.Stats()
				renewals := float64(b.N * held)
				var requests, exchanges float64
				for i := range end.Nodes {
					requests += float64(end.Nodes[i].Requests - begin.Nodes[i].Requests)
					exchanges += float64(end.Nodes[i].Exchanges - begin.Nodes[i].Exchanges)
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/renewals, "ns/renewal")
				if held > 1000 { // else it is mostly the lanes' own
					b.ReportMetric(lease, "B/lease")
				}
				b.ReportMetric(requests/renewals, "commands/renewal")
				b.ReportMetric(exchanges/renewals, "exchanges/renewal")
			})
		}
	}
}

// renewAll makes the leases due, and returns when every node has answered for all
// of them, and granted so many requests since it began.
func renewAll(b *testing.B, leases []*Lease, granted int) {
	now := leases[0].locker.cfg.clock.look()
	for _, l := range leases {
		l.mu.Lock()
		l.renewal.at = now.mono
		l.plan(now, l.lookAt(now))
		l.mu.Unlock()
	}
	until := time.Now().Add(10 * time.Second)
	eventually := func(done func() bool) {
		for !done() {
			if time.Now().After(until) {
				b.Fatal("not renewed")
			}
			time.Sleep(20 * time.Microsecond)
		}
	}
	for _, n := range leases[0].locker.root.nodes {
		eventually(func() bool { return n.snapshot().Granted >= uint64(granted) })
	}
	for _, l := range leases {
		eventually(func() bool {
			l.mu.Lock()
			defer l.mu.Unlock()
			return l.renewal.round == nil && l.renewal.last == nil
		})
	}
}

func heapInUse() uint64 {
	runtime.GC()
	runtime.GC() // pools are emptied by the second
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
