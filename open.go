package redlock

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Open makes a Locker over independent Redis primaries, given as
//
//	redis://[user:password@]host:port[/db]
//	rediss://…    the same over TLS
//
// with clients of its own, set up for locking, which Close closes. It connects
// to nothing yet. Faults in the URLs and options are reported at once, in an
// error that matches ErrInvalid and never shows any part of a URL, since that
// may hold a password.
func Open(urls []string, opts ...Option) (*Locker, error) {
	cfg, err := defaults().apply(opts, false)
	options, urlErr := parseURLs(urls)
	if err := errors.Join(urlErr, err); err != nil {
		return nil, err
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

func parseURLs(urls []string) ([]*redis.Options, error) {
	if len(urls) == 0 {
		return nil, invalid("no nodes; want at least 1")
	}
	var faults []error
	options := make([]*redis.Options, 0, len(urls))
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
	if len(faults) > 0 {
		return nil, joinInvalid(faults)
	}
	return options, nil
}

// parseURL says in its own words what is wrong: the errors of the parsers quote
// pieces of the URL, and with an unescaped "/" or "@" a piece of the password can
// end up as port, path or host.
func parseURL(text string) (*redis.Options, error) {
	u, err := url.Parse(text)
	if err != nil {
		return nil, errors.New("cannot be parsed; are special characters in the password percent-encoded?")
	}
	if u.Scheme != "redis" && u.Scheme != "rediss" {
		return nil, errors.New("has another scheme; want redis:// or rediss://")
	}
	if u.Fragment != "" || u.RawFragment != "" {
		return nil, errors.New("has a fragment; is a \"#\" in the password percent-encoded?")
	}
	if u.Hostname() == "" {
		return nil, errors.New("names no host; want redis[s]://[user:password@]host:port[/db]")
	}
	o, err := redis.ParseURL(text)
	if err != nil {
		return nil, errors.New("has a database or parameter that cannot be used; want redis[s]://[user:password@]host:port[/db]")
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
	o.ContextTimeoutEnabled = true
	o.ReadTimeout, o.WriteTimeout = timeout, timeout
	o.PoolSize = maxLinks + 1
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
