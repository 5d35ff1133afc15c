package redisproc

import (
	"math/rand/v2"
	"net"
	"strconv"
)

// FreePort returns a port of the loopback that nobody listened on just now. It is
// below those that systems give to outgoing connections: one of these could take
// the port before the server binds it, or while the server is down.
func FreePort() (port string, err error) {
	const from, to = 15000, 30000
	for range 100 {
		port = strconv.Itoa(from + rand.IntN(to-from))
		var l net.Listener
		if l, err = net.Listen("tcp", net.JoinHostPort("127.0.0.1", port)); err == nil {
			return port, l.Close()
		}
	}
	return "", err
}
