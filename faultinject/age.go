package faultinject

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	miniserver "github.com/alicebob/miniredis/v2/server"
)

// age is what an embedded server tells of its start, which miniredis does not: with
// INFO server, and with LASTSAVE, since Redis counts its start as a save. Both go by
// the node's clock, in whole seconds, so a clock that is set afterwards makes it look
// older or younger than it is. Scripts can call them too.
type age struct {
	run   string
	start time.Time
	shown atomic.Pointer[time.Time] // nil: the world's time
}

func (a *age) now() time.Time {
	if t := a.shown.Load(); t != nil {
		return *t
	}
	return time.Now()
}

// show has it go by this time; the zero time is the world's.
func (a *age) show(t time.Time) {
	if t.IsZero() {
		a.shown.Store(nil)
		return
	}
	a.shown.Store(&t)
}

// begin is a new server's start.
func (a *age) begin() {
	run := make([]byte, 20)
	rand.Read(run)
	a.run, a.start = hex.EncodeToString(run), a.now()
}

// register adds the commands to a server. INFO exists there, so the section that is
// missing is added in a hook, which runs inside scripts as well.
func (a *age) register(s *miniserver.Server) error {
	s.SetPreHook(func(c *miniserver.Peer, cmd string, args ...string) bool {
		if cmd != "INFO" || len(args) != 1 || !strings.EqualFold(args[0], "server") {
			return false
		}
		c.WriteBulk(fmt.Sprintf("# Server\r\nredis_version:7.0.15\r\nredis_mode:standalone\r\nrun_id:%s\r\nuptime_in_seconds:%d\r\n",
			a.run, a.now().Unix()-a.start.Unix()))
		return true
	})
	return s.Register("LASTSAVE", func(c *miniserver.Peer, _ string, _ []string) {
		c.WriteInt(int(a.start.Unix()))
	})
}
