package redlock

import (
	_ "embed"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// The scripts are plain EVAL scripts on purpose: a "#!lua" header would make a
// server that is out of memory refuse them whole, even the one that deletes.
var (
	//go:embed lua/acquire.lua
	acquireLua string
	//go:embed lua/extend.lua
	extendLua string
	//go:embed lua/release.lua
	releaseLua string
	//go:embed lua/attach.lua
	attachLua string
	//go:embed lua/inspect.lua
	inspectLua string
	//go:embed lua/force.lua
	forceLua string
	//go:embed lua/counter.lua
	counterLua string
	//go:embed lua/ballot.lua
	ballotLua string
	//go:embed lua/raise.lua
	raiseLua string

	sources = [scripts]string{
		acquire: acquireLua, extend: extendLua, release: releaseLua, attach: attachLua,
		raise: counterLua + raiseLua, inspect: inspectLua, force: forceLua,
		ballot: counterLua + ballotLua, heal: counterLua + extendLua,
	}
	hashes = func() (h [scripts]string) {
		for k, text := range sources {
			h[k] = redis.NewScript(text).Hash()
		}
		return h
	}()
)

// command is a reply of any type to a request that go-redis must never send
// twice on its own: executed and repeated behind our back, a SET NX would deny
// our own success and a release would report our own deletion as a loss.
type command struct{ *redis.Cmd }

// NoRetry switches go-redis's transport retries off, for a whole pipeline too.
func (command) NoRetry() bool { return true }

// command writes the request out. Plain locks are one native command, whose
// answer is idempotent by token: nothing or our own token means granted. It
// needs Redis 7.0; older servers get the same as a script.
//
// A script is sent as text when the server is not known to have it, so a first
// use costs no extra round trip and needs no SCRIPT LOAD.
func (q *request) command(native, text bool) command {
	name, token := q.claim.lease.name, q.claim.lease.token
	if q.form != byScript {
		return q.unscripted()
	}
	if native {
		return command{redis.NewCmd(background, "set", name, token, "px", millis(q.ttl), "nx", "get")}
	}
	verb, script := "evalsha", hashes[q.script()]
	if text {
		verb, script = "eval", sources[q.script()]
	}
	switch q.script() {
	case ballot:
		args := []any{verb, script, 1, name}
		if q.fenced() {
			args = []any{verb, script, 2, name, fenceCounter(name)}
		}
		args = append(args, token, millis(q.ttl), q.claim.lease.locker.cfg.leastAge())
		if q.kind.acquires() { // the lease has no token yet, or is just about to get one
			args = append(args, q.round.old, q.round.proposal, "propose")
		} else {
			args = append(args, "", q.claim.lease.fence, "reach")
		}
		return command{redis.NewCmd(background, args...)}
	case raise:
		return command{redis.NewCmd(background, verb, script, 2, name, fenceCounter(name), token, q.number)}
	case heal:
		write := ""
		if q.acks() != nil {
			write = "write"
		}
		return command{redis.NewCmd(background, verb, script, 2, name, fenceCounter(name), token, millis(q.ttl), write, q.claim.lease.fence)}
	case release:
		if q.notice != nil {
			return command{redis.NewCmd(background, verb, script, 1, name, token, q.notice.channel, q.notice.payload)}
		}
		return command{redis.NewCmd(background, verb, script, 1, name, token)}
	case inspect:
		return command{redis.NewCmd(background, verb, script, 1, name, fenceCounter(name))}
	case force:
		return command{redis.NewCmd(background, verb, script, 1, name, releasedChannel+name)}
	case attach:
		return command{redis.NewCmd(background, verb, script, 1, name, token, millis(q.ttl), q.round.old)}
	}
	if q.kind == extend && q.acks() != nil {
		return command{redis.NewCmd(background, verb, script, 1, name, token, millis(q.ttl), "write")}
	}
	return command{redis.NewCmd(background, verb, script, 1, name, token, millis(q.ttl))}
}

// millis is the ttl as the server gets it. Every ttl was cut to whole
// milliseconds before anything was computed from it.
func millis(ttl time.Duration) int64 { return ttl.Milliseconds() }

// A notice is what a release publishes where it deletes the key: it is a hint for
// those who wait, never a permission. The payload is the id of the root Locker that
// released, a colon, and the beginning of the token, so that the messages of several
// nodes can be known for one release, and what a process tells itself be ignored.
type notice struct {
	channel, payload any // strings, made fit for go-redis once for all nodes
}

func (l *Lease) notice() *notice {
	return &notice{releasedChannel + l.name, l.locker.root.id + ":" + tenureOf(l.token)}
}

// tenureOf is how messages refer to a token without showing it.
func tenureOf(token string) string { return token[:min(len(token), 8)] }

// A reply is what became of one written request.
type reply uint8

const (
	yes      reply = iota // the token holds the name, or did until this release
	already               // of an acquire or attach: the token held the name before
	absent                // nothing is stored under the name
	foreign               // something else is stored under the name
	refusal               // the server answered with an error: it did not do it
	abstains              // the server came up too short a while ago to vote
	noScript              // the server does not have the script under its hash
	broken                // the connection ended without an answer; the server may have done it
	timeout               // no answer in time; the server may have done it, or may still
)

// findings are what a reply told besides its kind.
type findings struct {
	other string        // of foreign: the value of the key, where an acquire showed it
	fence uint64        // the name's fencing counter, of requests that see to one
	left  time.Duration // of foreign: how long that will live, where the script said so; maxTTL: for ever
	told  int           // of a release: how many were told of it
}

// read tells what a command came to. err is set for refusal, broken and timeout,
// and where a key of another type was in the way.
func (q *request) read(cmd command) (r reply, found findings, err error) {
	val, err := cmd.Result()
	k, token := q.kind, q.claim.lease.token
	if q.ballots() && (err == nil || errors.Is(err, redis.Nil)) {
		return readBallot(val)
	}
	switch {
	case errors.Is(err, redis.Nil):
		if k.sets() {
			return yes, found, nil
		}
		return absent, found, nil
	case err != nil:
		r, err = readError(err)
		return r, found, err
	case q.form == bySet:
		return q.readSet(val)
	case k.sets():
		if pair, ok := val.([]any); ok && len(pair) == 2 {
			if left, ok := pair[1].(int64); ok {
				found.left = keyLives(left)
			}
			val = pair[0]
		}
		s, ok := val.(string)
		switch {
		case ok && s == token:
			return already, findings{}, nil
		case ok:
			found.other = s
			return foreign, found, nil
		}
	case k == attach:
		switch v := val.(type) {
		case string:
			found.other = v
			return foreign, found, nil
		case int64:
			if v >= 0 && v <= 2 {
				return [...]reply{absent, yes, already}[v], found, nil
			}
		}
	case k == raise:
		if text, ok := val.(string); ok {
			if found.fence, ok = readFence(text); ok {
				return yes, found, nil
			}
		}
		if n, ok := val.(int64); ok && n == -1 {
			return foreign, found, nil
		}
	case k == inspect:
		if list, ok := val.([]any); ok && len(list) == 3 {
			return yes, found, nil
		}
	default:
		n, ok := val.(int64)
		switch {
		case ok && n == 1, ok && n > 1 && k == release:
			found.told = int(n - 1)
			if p := q.publication(); p.Cmd != nil {
				found.told, _ = p.Int()
			}
			return yes, found, nil
		case ok && n == 0:
			return absent, found, nil
		case ok && n == -1:
			return foreign, found, nil
		}
	}
	return refusal, found, fmt.Errorf("unexpected reply %v", val)
}

// readBallot reads what lua/ballot.lua answers.
func readBallot(val any) (r reply, found findings, err error) {
	list, ok := val.([]any)
	if !ok || len(list) == 0 {
		return refusal, found, fmt.Errorf("unexpected reply %v", val)
	}
	var second any
	if len(list) > 1 {
		second = list[1]
	}
	n, told := second.(int64)
	text, counted := second.(string)
	switch state := list[0].(type) {
	case string:
		if told {
			return foreign, findings{other: state, left: keyLives(n)}, nil
		}
	case int64:
		switch {
		case state == 0:
			return absent, found, nil
		case state == -1 && told:
			return abstains, found, errYoung{time.Duration(n) * time.Second}
		case (state == 1 || state == 2) && counted:
			found.fence, counted = readFence(text)
			if counted || text == "" {
				return [...]reply{yes, already}[state-1], found, nil
			}
		}
	}
	return refusal, found, fmt.Errorf("unexpected reply %v", val)
}

// readFence reads a fencing counter.
func readFence(text string) (n uint64, ok bool) {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n > maxFence {
		return 0, false
	}
	return n, n > 0
}

// keyLives is what a PTTL says, at least 1 ms: a key that was just seen lives.
func keyLives(pttl int64) time.Duration {
	if pttl < 0 || pttl > millis(maxTTL) {
		return maxTTL
	}
	return time.Duration(max(1, pttl)) * time.Millisecond
}

func readError(err error) (reply, error) {
	var served redis.Error
	if errors.As(err, &served) {
		switch msg := served.Error(); {
		case strings.HasPrefix(msg, "NOSCRIPT"):
			return noScript, err
		case strings.Contains(msg, "WRONGTYPE"), strings.Contains(msg, "Key should be of string type"): // the latter from DELEX
			return foreign, errWrongType
		}
		return refusal, err
	}
	var network net.Error
	if errors.As(err, &network) && network.Timeout() {
		return timeout, withoutContext(err)
	}
	return broken, withoutContext(err)
}

// incurable tells the error replies that no retry can cure: what is wrong is the
// configuration of the node or of the client, not the moment. (go-redis compares
// without the leading "ERR ".)
func incurable(err error) bool {
	if err == nil { // of most releases; what follows allocates
		return false
	}
	for _, prefix := range [...]string{
		"NOAUTH", "WRONGPASS", "NOPERM", "MOVED", "CROSSSLOT",
		"The user executing the script can't", "ACL failure in script", "unknown command", "Client sent AUTH", "AUTH", "invalid password", "syntax error", "Could not find scripting engine",
		"the restart guard needs", "the fencing counter is not a number",
	} {
		if redis.HasErrorPrefix(err, prefix) {
			return true
		}
	}
	return false
}

// tooOld tells that a server does not know the native command's options.
func tooOld(err error) bool { return redis.HasErrorPrefix(err, "syntax error") }

// shaDenied tells that a server or proxy lets EVALSHA through to nobody, so that
// the text has to be sent each time.
func shaDenied(err error) bool {
	return redis.HasErrorPrefix(err, "unknown command") || redis.HasErrorPrefix(err, "NOPERM") && !nameDenied(err)
}

// nameDenied tells that a server refuses a key to this user, and not a command. (That
// it does not know one, it says with arguments, which can be any words.)
func nameDenied(err error) bool {
	return incurable(err) && !redis.HasErrorPrefix(err, "unknown command") && (strings.Contains(err.Error(), " keys ") || strings.Contains(err.Error(), " a key"))
}

// scriptDenied tells that a server lets nobody acquire by the script that it was
// sent, but may still do it natively.
func (q *request) scriptDenied(err error) bool {
	return q.kind == acquire && !q.native && !q.ballots() && incurable(err) && (q.text || !shaDenied(err))
}

// stale tells that go-redis has given up the connection because of this reply:
// the name may resolve to another server by now.
func stale(err error) bool {
	return redis.HasErrorPrefix(err, "READONLY") || redis.HasErrorPrefix(err, "MOVED")
}
