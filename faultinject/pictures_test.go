package faultinject

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// pictureNodes pretends to be the nodes of a cluster: it stores a token on some of
// them, and takes it off again.
type pictureNodes struct {
	h *History
	n int
}

func (p pictureNodes) store(name, token string, until time.Time, but ...int) {
	for n := 1; n <= p.n; n++ {
		if !slices.Contains(but, n) {
			p.h.Stored(n, name, token, until)
		}
	}
}

var errPicture = errors.New("held by another")

// pictureClean is a history of 3 clients on 5 nodes: node 2 is killed, client b is
// cut off the network, and everything goes as it should.
func pictureClean(h *History) {
	nodes := pictureNodes{h, 5}
	at := func(d time.Duration) { time.Sleep(d - time.Since(h.Start())) }
	ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
	ttl := func(n int) time.Time { return h.Start().Add(ms(n)) }
	h.Health(5, 5)

	a := h.Try("a", "account")
	at(ms(20))
	nodes.store("account", "token-a1", ttl(2000))
	a.Won("token-a1", ttl(2000))
	a.Fence(1)
	at(ms(60))
	b := h.Try("b", "account")
	at(ms(200))
	a.Act()
	at(ms(400))
	c := h.Try("c", "account")
	at(ms(450))
	h.Strike("node 2", ttl(450), ttl(1900), "kill during SET #3")
	h.Health(4, 5)
	h.Stored(2, "account", "", time.Time{})
	at(ms(600))
	a.Act()
	c.Failed(errPicture)
	at(ms(800))
	a.Release()
	at(ms(815))
	nodes.store("account", "", time.Time{}, 2)
	a.Released(nil)
	at(ms(900))
	nodes.store("account", "token-b1", ttl(2900), 2)
	at(ms(910))
	b.Won("token-b1", ttl(2900))
	b.Fence(2)
	at(ms(1100))
	b.Act()
	c = h.Try("c", "account")
	at(ms(1500))
	h.Strike("client b", ttl(1500), ttl(3300), "partition: hears nobody")
	b.Extend()
	at(ms(1900))
	h.Health(5, 5)
	at(ms(2400))
	b.Act()
	at(ms(2900))
	b.Lost(errPicture)
	at(ms(2960))
	nodes.store("account", "token-c1", ttl(4960))
	at(ms(2975))
	c.Won("token-c1", ttl(4960))
	c.Fence(3)
	a = h.Try("a", "account")
	at(ms(3300))
	c.Act()
	at(ms(3400))
	h.Strike("network", ttl(3400), time.Time{}, "drop a reply")
	at(ms(3800))
	c.Extend()
	nodes.store("account", "token-c1", ttl(5800))
	at(ms(3820))
	c.Extended(ttl(5800))
	at(ms(4300))
	c.Release()
	at(ms(4310))
	nodes.store("account", "", time.Time{})
	c.Released(nil)
	at(ms(4400))
	h.Stored(1, "account", "token-a2", ttl(6400))
	at(ms(4500))
	a.Failed(errPicture)
	at(ms(4800))
	h.Stored(1, "account", "", time.Time{})
	at(ms(5000))
	h.Health(5, 5)
}

// pictureTwoHolders is what happens when a majority of the nodes forgets: two
// clients hold one lock.
func pictureTwoHolders(h *History) {
	nodes := pictureNodes{h, 3}
	at := func(d time.Duration) { time.Sleep(d - time.Since(h.Start())) }
	ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
	ttl := func(n int) time.Time { return h.Start().Add(ms(n)) }

	a := h.Try("worker-1", `orders <&> "new"`)
	at(ms(10))
	nodes.store(`orders <&> "new"`, "token-1-long-enough", ttl(1000), 3)
	a.Won("token-1-long-enough", ttl(1000))
	at(ms(100))
	b := h.Try("worker-2", `orders <&> "new"`)
	at(ms(300))
	h.Strike("node 2", ttl(300), time.Time{}, "restart without its data")
	h.Stored(2, `orders <&> "new"`, "", time.Time{})
	at(ms(400))
	nodes.store(`orders <&> "new"`, "token-2-long-enough", ttl(1400), 1)
	at(ms(410))
	b.Won("token-2-long-enough", ttl(1400))
	at(ms(500))
	b.Act()
	at(ms(700))
	a.Act()
	at(ms(800))
	b.Release()
	at(ms(805))
	nodes.store(`orders <&> "new"`, "", time.Time{}, 1)
	b.Released(nil)
	at(ms(1150))
	a.Act()
	at(ms(1200))
}

// pictureMany is 200 attempts of four clients.
func pictureMany(h *History) { pictureRandom(h, 4, 50, 3, "job") }

// pictureHuge is 10,000 attempts on nine names.
func pictureHuge(h *History) {
	var all sync.WaitGroup
	for i := range 9 {
		all.Go(func() { pictureRandom(h, 11, 101, 5, fmt.Sprintf("name-%d", i+1)) })
	}
	all.Wait()
}

// pictureRandom lets clients take turns for a lock, as strictly as a mutex does.
func pictureRandom(h *History, clients, attempts, nodes int, name string) {
	var mu sync.Mutex
	var all sync.WaitGroup
	fence := uint64(0)
	for i := range clients {
		r := rand.New(rand.NewPCG(uint64(i), 1))
		pause := func(most int) { time.Sleep(time.Duration(1000+r.IntN(most*1000)) * time.Microsecond) }
		all.Go(func() {
			for k := range attempts {
				pause(40)
				a := h.Try(fmt.Sprintf("client-%d", i+1), name)
				pause(3)
				if !mu.TryLock() {
					h.Stored(1+i%nodes, name, "nobody", time.Now().Add(time.Millisecond))
					pause(10)
					a.Failed(errPicture)
					continue
				}
				until := time.Now().Add(time.Second)
				token := fmt.Sprintf("%s-%d-%d", name, i, k)
				pictureNodes{h, nodes}.store(name, token, until, 1+r.IntN(nodes))
				a.Won(token, until)
				fence++
				a.Fence(fence)
				pause(20)
				a.Act()
				if r.IntN(10) == 0 {
					h.Strike(fmt.Sprintf("node %d", 1+r.IntN(nodes)), time.Now(), time.Now().Add(15*time.Millisecond), "slow")
				}
				a.Release()
				pictureNodes{h, nodes}.store(name, "", time.Time{})
				a.Released(nil)
				mu.Unlock()
			}
		})
	}
	all.Wait()
}
