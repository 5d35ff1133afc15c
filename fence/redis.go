package fence

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// Redis guards data that are in Redis: it checks and remembers the token, and reads
// or writes, in one script. The server need not be a node of the lock, and usually
// is not.
//
// The highest token of a resource is stored beside the data, as the string
// "redlock:fenced:{tag}:" + resource, where tag is the resource's own hash tag, else
// the resource. It must not be lost while an older holder may still be about: an
// eviction, a FLUSHALL or a failover to a replica that lacks it lets such a holder
// in until a later one has been there. Use noeviction or, with Keep 0, a volatile
// policy. The client needs the rights to EVAL, EVALSHA, GET and SET on that key too.
//
// go-redis never repeats on its own what a Redis sends. An error is one of these:
//
//   - ErrStale (a *StaleError): a later holder was here. Nothing was read or written.
//   - ErrInvalid: an argument is out of bounds. Nothing was sent.
//   - a redis.Error, such as "WRONGTYPE …": the server's refusal. What a script did
//     before it stays; the token may count as seen.
//   - any other, of the network or of ctx: there was no answer. It may have been
//     done, and may yet be. Get and Set can be repeated until there is an answer, see
//     "Equal tokens" at the top of the package; IncrBy would count twice.
type Redis struct {
	// Client is where the data are. A *redis.Ring is refused: while a server is down
	// it goes to another, which has not seen the tokens.
	Client redis.UniversalClient

	// Keep is how long a token is remembered after the resource was last used; 0 is
	// for ever, until somebody deletes the key. Whoever is away for longer than Keep
	// and comes back finds no token and is let in; so it is at least a day, and should
	// exceed the longest pause of any process by far. It is cut to whole milliseconds.
	Keep time.Duration
}

// leastKeep is far longer than leases last and processes are paused.
const leastKeep = 24 * time.Hour

// guardLua comes before each script. Compared as numbers tokens are exact, since they
// are below 2^53; stored is the text that was sent, since Lua prints 14 digits.
const guardLua = `
do
	local memory, token, keep = table.remove(KEYS), table.remove(ARGV), table.remove(ARGV)
	local highest = redis.call('GET', memory)
	if highest and not (tonumber(highest) <= tonumber(token)) then
		return redis.error_reply('STALEFENCE ' .. highest)
	end
	if keep == '0' then redis.call('SET', memory, token) else redis.call('SET', memory, token, 'PX', keep) end
end `

// Script is a Lua script behind a guard. It sees KEYS and ARGV as Redis.Run was given
// them, and runs only if the token is not stale. It is safe for concurrent use.
type Script struct{ text, hash string }

// NewScript wraps a script of yours, which is plain Lua without a "#!lua" line. Lua
// calculates with floating point and prints 14 digits: to store a number take it
// from ARGV as it is, or use INCRBY, and to return one above 2^53 let the server
// print it.
func NewScript(lua string) *Script {
	// On one line, so that line numbers in the server's messages are the script's own.
	text := strings.Join(strings.Fields(guardLua), " ") + " " + lua
	return &Script{text, redis.NewScript(text).Hash()}
}

var (
	getScript = NewScript(`return redis.call('GET', KEYS[1])`)
	setScript = NewScript(`
if ARGV[2] then return redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) end
return redis.call('SET', KEYS[1], ARGV[1])`)
	// The sum is read again as text, since Lua would round it above 2^53.
	incrByScript = NewScript(`redis.call('INCRBY', KEYS[1], ARGV[1]) return redis.call('GET', KEYS[1])`)
)

// Get shows the token, so that no older holder is let in from now on, and reads the
// string that is stored under key. The resource is the key. If nothing is stored
// the error is redis.Nil, and the token counts as seen.
func (g Redis) Get(ctx context.Context, key string, token uint64) (string, error) {
	return g.Run(ctx, getScript, key, token, []string{key}).Text()
}

// Set stores a string under key, for a ttl of whole milliseconds or, with 0, without
// expiry. The resource is the key. The value is what go-redis's own Set takes.
func (g Redis) Set(ctx context.Context, key string, token uint64, value any, ttl time.Duration) error {
	args := []any{value}
	switch ms := ttl.Milliseconds(); {
	case ttl < 0 || ttl > 0 && ms == 0:
		return invalid(key, "ttl is %v; want 0 or at least %v", ttl, time.Millisecond)
	case ttl > 0:
		args = append(args, ms)
	}
	return g.Run(ctx, setScript, key, token, []string{key}, args...).Err()
}

// IncrBy adds to the number that is stored under key, and returns the sum. The
// resource is the key. If there is no answer the sum may or may not contain n, and
// nobody can tell: a number that has to be exact is read with Get and written with
// Set.
func (g Redis) IncrBy(ctx context.Context, key string, token uint64, n int64) (int64, error) {
	return g.Run(ctx, incrByScript, key, token, []string{key}, n).Int64()
}

// Run runs a script if the token is not stale for the resource. On a Redis Cluster
// the keys have to be in the resource's slot; "{resource}:" before a key's name does
// that where the resource has no braces. The result is go-redis's, with a refusal as
// its error.
func (g Redis) Run(ctx context.Context, s *Script, resource string, token uint64, keys []string, args ...any) *redis.Cmd {
	cmd := redis.NewCmd(ctx)
	if err := g.check(resource, token); err != nil {
		cmd.SetErr(err)
		return cmd
	}
	call := make([]any, 0, 6+len(keys)+len(args))
	call = append(call, "evalsha", s.hash, len(keys)+1)
	for _, key := range keys {
		call = append(call, key)
	}
	call = append(call, memoryKey(resource))
	call = append(call, args...)
	call = append(call, g.Keep.Milliseconds(), strconv.FormatUint(token, 10))
	cmd = g.send(ctx, call)
	if redis.HasErrorPrefix(cmd.Err(), "NOSCRIPT") { // it has not run
		call[0], call[1] = "eval", s.text
		cmd = g.send(ctx, call)
	}
	if stale := refusal(cmd.Err(), resource, token); stale != nil {
		cmd.SetErr(stale)
	}
	return cmd
}

// once is a command that go-redis must not send twice: the first may have run.
type once struct{ *redis.Cmd }

// NoRetry switches go-redis's repetitions off.
func (once) NoRetry() bool { return true }

func (g Redis) send(ctx context.Context, call []any) *redis.Cmd {
	cmd := once{redis.NewCmd(ctx, call...)}
	if err := g.Client.Process(ctx, cmd); err != nil {
		cmd.SetErr(err)
	}
	return cmd.Cmd
}

// refusal reads the guard's own error reply.
func refusal(err error, resource string, token uint64) error {
	var served redis.Error
	if !errors.As(err, &served) {
		return nil
	}
	rest, ok := strings.CutPrefix(served.Error(), "STALEFENCE ")
	if !ok {
		return nil
	}
	text, _, _ := strings.Cut(rest, " ")
	highest, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return fmt.Errorf("fence: %s: what is stored as the highest token is %q", quote(resource), rest)
	}
	return &StaleError{resource, token, highest}
}

func (g Redis) check(resource string, token uint64) error {
	if err := check(resource, token); err != nil {
		return err
	}
	switch g.Client.(type) {
	case nil:
		return invalid(resource, "the client is nil")
	case *redis.Ring:
		return invalid(resource, "the client is a *redis.Ring, which leaves out servers that are down")
	case *redis.ClusterClient:
		if _, ok := tag(resource); !ok {
			return invalid(resource, `no key can be in the same slot of a cluster; want a resource without "}", or with a tag in braces`)
		}
	}
	if g.Keep < 0 || g.Keep > 0 && g.Keep < leastKeep {
		return invalid(resource, "tokens are to be kept for %v; want 0, which is for ever, or at least %v", g.Keep, leastKeep)
	}
	return nil
}

// memoryKey is where the highest token of a resource is stored.
func memoryKey(resource string) string {
	tag, _ := tag(resource)
	return "redlock:fenced:{" + tag + "}:" + resource
}

// tag is the part of a key by which a cluster chooses its slot: what is between the
// first "{" and the first "}" after it, unless that is nothing, else all of it. If
// that has a "}" in it, it cannot be put into braces itself; ok says whether it can.
func tag(key string) (tag string, ok bool) {
	if _, rest, found := strings.Cut(key, "{"); found {
		if own, _, found := strings.Cut(rest, "}"); found && own != "" {
			return own, true
		}
	}
	return key, !strings.Contains(key, "}")
}
