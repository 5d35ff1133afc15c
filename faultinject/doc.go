// Package faultinject runs a set of independent Redis nodes behind a network, and
// breaks both while your code uses them: exactly there, exactly then, and as often
// as you like.
//
//	func TestNobodyIsLeftOutWhenTheReplyIsLost(t *testing.T) {
//		cluster := faultinject.Start(t, 3)
//		service := NewService(cluster.Clients()) // yours
//		struck := cluster.Inject("on SET #1, node 3: cut during")
//		require.NoError(t, service.Reserve("seat 7"))
//		require.NoError(t, struck.Check()) // it did happen
//		require.NoError(t, cluster.KeysExpire(time.Minute)) // no seat is blocked for ever
//	}
//
// Nodes are Redis servers embedded in the process, or with [Servers] processes of
// redis-server. Clients are go-redis clients ([Client.Redis]), any library that
// takes a dialer ([Client.DialContext]), or anything that connects to a port
// ([Client.Addrs]). The package knows nothing of locks but what [History] is told.
//
// # Two worlds
//
// The same test runs in real time, and inside a [testing/synctest] bubble in
// virtual time, where an hour of renewals takes milliseconds, every delay is exact,
// and goroutines that stay behind end the test. Addrs and
// Servers are refused in a bubble: sockets and processes know no virtual time.
//
// # Saying what goes wrong
//
// An [Event] is when, where and what; its text is a line of a [Plan], which
// [Cluster.Inject] takes:
//
//	at 1s for 300ms, nodes 1,3 from a: hang
//	on SET key "orders/42" #2, node 2: kill during for 1s
//	at 0s for 5s on EVALSHA 10%, all: delay 20ms+5ms and lose reply
//
// When: at a time after the start ("at 0s" is at once), for a time, on commands: of
// a kind or any, with a key, the n-th (#3, #3-5, #3-), or a random part. Each node
// counts for itself, as commands arrive. Where, which is never left out: all, node 2,
// nodes 1,3-5; from some clients. What:
//
//	delay 20ms+5ms       messages take longer, by 20 ms and up to 5 ms more
//	hang                 everything vanishes, dials wait
//	partition            everything waits, and arrives when it is over
//	cut                  connections are reset; before, during or after a command
//	refuse               dials fail
//	lose request         a command never arrives, its connection falls silent
//	lose reply           it is executed, and nobody hears of it
//	error "OOM …"        it is answered with an error instead
//	forget 30s           connections silent for so long stay silent, as with firewalls
//	freeze, thaw         a node stands still, as under SIGSTOP, and goes on
//	kill                 a node dies; before, during or after a command
//	restart              it comes up with its data; restart empty: without; restart
//	                     as of 2s: with those of two seconds ago
//	flushall, evict "k"  it forgets everything, or a key
//	clock +1h, rate 1.01 its clock is set, or runs fast
//	lose messages        what is published does not arrive; delay messages 1s: late;
//	                     hang messages: the subscriber's connection dies in silence
//	pause                a client's process stands still, with client a as the place
//
// Events of the network add up. What is done to a node is done once: of two events
// that kill, freeze or speed up the same one, or pause the same client, at the same
// time, the first to end ends it.
//
// "hang", "partition" and "delay" take "requests" or "replies" for one direction;
// "kill during for 1s" restarts the node a second later. A plan is a function of
// its text and its seed, and so is every choice in it, by node and by how many
// commands came before. What goroutines do meanwhile is not: the same plan can
// meet another interleaving, so what counts as evidence is the History.
//
// [Climate.Draw] draws random plans; [Explore] runs many, and shrinks the first that
// fails to a small one.
//
// # Saying what must hold
//
// Checkers return errors, so that they serve tests, fuzzers and programs alike:
// [Exclusive], [Tokens], [FencesRise], [Orphans], [Progress] and [LateActs] look at a
// History; [Cluster.NoKeys], [Cluster.KeysExpire], [Cluster.NoConnections] and
// [Goroutines] at what is left; [Injection.Check] says whether the faults struck at
// all, without which a test of faults proves nothing. A History draws itself, as
// text for logs (String) and as a picture (WriteSVG).
package faultinject
