package faultinject

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/seed58520471/redlock/internal/redisproc"
)

// ErrNoServer says that redis-server is not in PATH, see [Servers].
var ErrNoServer = redisproc.ErrNoServer

// adminTimeout bounds what is asked of a real server directly.
const adminTimeout = time.Second

var errEmbeddedOnly = errors.New("only an embedded node can do that")

// processEngine starts the same redis-server over and over.
type processEngine struct {
	args       []string
	background func(func())
	p          *redisproc.Process
	admin      *redis.Client
}

func (g *processEngine) start(from state, _ time.Duration, _ time.Time) (server, bool, error) {
	switch {
	case g.p == nil:
		p, err := redisproc.Launch("", g.args...)
		if err != nil {
			return nil, false, err
		}
		g.p = p
		g.admin = redis.NewClient(&redis.Options{
			Addr: p.Addr, ContextTimeoutEnabled: true, MaxRetries: -1, DialTimeout: adminTimeout,
			ReadTimeout: adminTimeout, WriteTimeout: adminTimeout,
		})
		return process{g}, false, nil
	case from.asOf > 0:
		return nil, false, fmt.Errorf("restart as of %v: %w", from.asOf, errEmbeddedOnly)
	case from.empty:
		if err := g.p.Wipe(); err != nil {
			return nil, false, err
		}
	}
	return process{g}, false, g.p.Start()
}

func (g *processEngine) close() {
	if g.p != nil {
		g.admin.Close()
		g.p.Close()
	}
}

// process is a redis-server process while it runs.
type process struct{ *processEngine }

func (s process) serve(l *link) error {
	c, err := net.DialTimeout("tcp", s.p.Addr, adminTimeout)
	if err != nil {
		return err
	}
	s.background(func() {
		io.Copy(c, &l.far)
		c.Close()
	})
	s.background(func() {
		io.Copy(&l.far, c)
		l.far.Close()
		c.Close()
	})
	return nil
}

func (s process) kill(time.Time) state {
	s.p.Kill()
	return state{}
}

func (s process) freeze(frozen bool) error {
	if frozen {
		return s.p.Stop()
	}
	return s.p.Cont()
}

func (s process) setTime(time.Time, time.Duration) error { return errEmbeddedOnly }

func (s process) flush() error {
	ctx, cancel := context.WithTimeout(context.Background(), adminTimeout)
	defer cancel()
	return s.admin.FlushAll(ctx).Err()
}

func (s process) evict(key string) error {
	ctx, cancel := context.WithTimeout(context.Background(), adminTimeout)
	defer cancel()
	return s.admin.Del(ctx, key).Err()
}

func (s process) keys() (all []Key, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), adminTimeout)
	defer cancel()
	names, err := s.admin.Keys(ctx, "*").Result()
	for _, name := range names {
		k := Key{Name: name}
		switch kind, err := s.admin.Type(ctx, name).Result(); {
		case err != nil:
			return all, err
		case kind == "none": // expired meanwhile
			continue
		case kind == "string":
			k.Value, err = s.admin.Get(ctx, name).Result()
			if errors.Is(err, redis.Nil) {
				continue
			}
		default:
			k.Value = "(" + kind + ")"
		}
		ttl, err := s.admin.PTTL(ctx, name).Result()
		if err != nil {
			return all, err
		}
		k.TTL = max(ttl, 0)
		all = append(all, k)
	}
	return all, err
}
