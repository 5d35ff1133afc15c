package redlock

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Open makes a Locker over independent Redis primaries, given as
//
//	redis://[user:password@]host:port[/db]
//	rediss://…    the same over TLS
//
// with clients of its own, set up for locking, which Close closes. (Private
// certificate authorities, client certificates and whatever else a URL cannot say
// need clients made by hand, and New.) It connects to nothing yet. Faults in the URLs and options are reported at once, in an
// error that matches ErrInvalid and never shows any part of a URL, since that
// may hold a password.
func Open(urls []string, opts ...Option) (*Locker, error) {
	cfg, faults := defaults().apply(opts, false)
	options, urlFaults := parseURLs(urls)
	if faults = append(urlFaults, faults...); len(faults) > 0 {
		return nil, joinInvalid(faults)
	}
	clients := make([]redis.UniversalClient, len(options))
	owned := make([]*redis.Client, len(options))
	for i, o := range options {
		owned[i] = redis.NewClient(tuned(o, cfg.nodeTimeout))
		clients[i] = owned[i]
	}
	l, err := New(clients, opts...)
	if err != nil {
		for _, c := range owned {
			c.Close()
		}
		return nil, err
	}
	l.root.owned = owned
	return l, nil
}

func parseURLs(urls []string) (options []*redis.Options, faults []error) {
	if len(urls) == 0 {
		return nil, []error{errNoNodes}
	}
	seen := make(map[string]int)
	for i, text := range urls {
		o, err := parseURL(text)
		if err != nil {
			faults = append(faults, fmt.Errorf("URL %d %w", i+1, err))
			continue
		}
		if first, twice := seen[o.Addr]; twice {
			faults = append(faults, fmt.Errorf("URLs %d and %d name the same server, %s; one server must not vote twice", first+1, i+1, o.Addr))
		}
		seen[o.Addr] = i
		options = append(options, o)
	}
	return options, faults
}

// parseURL says in its own words what is wrong: the errors of the parsers quote
// pieces of the URL, and with an unescaped "/" or "@" a piece of the password can
// end up as port, path or host.
func parseURL(text string) (*redis.Options, error) {
	const want = "; want redis[s]://[user:password@]host:port[/db]"
	if !strings.HasPrefix(text, "redis://") && !strings.HasPrefix(text, "rediss://") {
		return nil, errors.New("does not begin with redis:// or rediss://" + want)
	}
	u, err := url.Parse(text)
	if err != nil {
		return nil, errors.New("cannot be parsed; are special characters in the password percent-encoded?")
	}
	if u.RawQuery != "" || u.Fragment != "" {
		return nil, errors.New("has a parameter or fragment, which is not understood; " +
			"are \"?\" and \"#\" in the password percent-encoded?")
	}
	if port, err := strconv.Atoi(u.Port()); u.Hostname() == "" || u.Port() != "" && (err != nil || port < 1 || port > 65535) {
		return nil, errors.New("names no host and port" + want)
	}
	o, err := redis.ParseURL(text)
	if err != nil {
		return nil, errors.New("has a database that is no number" + want)
	}
	return o, nil
}

// tuned sets a client up for lanes. Lanes do their own timeouts and repetitions,
// and need nothing of RESP3, so the handshake is as short as it can be.
func tuned(o *redis.Options, timeout time.Duration) *redis.Options {
	o.Protocol = 2
	o.DisableIdentity = true
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	o.MaxRetries = -1
	o.DialerRetries = 1
	o.DialTimeout = patience(timeout)
	o.ContextTimeoutEnabled = true
	o.ReadTimeout, o.WriteTimeout = timeout, timeout
	o.PoolSize = maxLinks + maxAcking + 1
	o.PipelinePoolSize = -1
	o.Dialer = dialNode(o.TLSConfig)
	return o
}

// dialNode connects so that closing a connection also discards what the kernel
// has not delivered yet (linger 0). Otherwise a SET cut off by a partition can
// arrive seconds later, when the partition heals, long after its release.
func dialNode(config *tls.Config) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		d := net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: keepAlive, Interval: keepAlive / 3, Count: 3}}
		conn, err := d.DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		if tcp, ok := conn.(*net.TCPConn); ok {
			if err := tcp.SetLinger(0); err != nil {
				conn.Close()
				return nil, err
			}
		}
		if config == nil {
			return conn, nil
		}
		secure := tls.Client(conn, config)
		if err := secure.HandshakeContext(ctx); err != nil {
			conn.Close()
			return nil, err
		}
		return secure, nil
	}
}
