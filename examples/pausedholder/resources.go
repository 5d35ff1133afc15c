package main

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"sync/atomic"

	_ "github.com/ncruces/go-sqlite3/driver" // SQLite without cgo
	"github.com/redis/go-redis/v9"

	"github.com/seed58520471/redlock/faultinject"
	"github.com/seed58520471/redlock/fence"
)

// resource is something that the lock protects: a text.
type resource struct {
	name    string
	guarded bool
	write   func(ctx context.Context, token uint64, text string) error
	read    func(ctx context.Context) (string, error)
}

// open opens one resource of each kind, and one without a guard.
func open(dir string) (resources []resource, done func(), err error) {
	var closers []io.Closer
	done = func() {
		for _, c := range closers {
			c.Close()
		}
	}
	data, err := faultinject.New(1) // a server of its own, which is no node of the lock
	if err != nil {
		return nil, nil, err
	}
	closers = append(closers, data)
	table, db, err := inSQL(dir)
	if err != nil {
		done()
		return nil, nil, err
	}
	closers = append(closers, db)
	served, server, err := overHTTP()
	if err != nil {
		done()
		return nil, nil, err
	}
	closers = append(closers, server)
	client := data.Clients()[0]
	return []resource{inMemory(), inRedis(client), table, served, withoutGuard(client)}, done, nil
}

// inMemory is a variable of this process.
func inMemory() resource {
	var guard fence.Memory
	var stored string
	return resource{"memory", true,
		func(ctx context.Context, token uint64, text string) error {
			return guard.Do(ctx, report, token, func() error { stored = text; return nil })
		},
		func(context.Context) (string, error) { return stored, nil },
	}
}

// inRedis is a key.
func inRedis(client redis.UniversalClient) resource {
	guard := fence.Redis{Client: client}
	return resource{"redis", true,
		func(ctx context.Context, token uint64, text string) error {
			return guard.Set(ctx, report, token, text, 0)
		},
		func(ctx context.Context) (string, error) { return client.Get(ctx, report).Result() },
	}
}

// withoutGuard is a key, too.
func withoutGuard(client redis.UniversalClient) resource {
	const key = "report, unguarded"
	return resource{"without a guard", false,
		func(ctx context.Context, _ uint64, text string) error { return client.Set(ctx, key, text, 0).Err() },
		func(ctx context.Context) (string, error) { return client.Get(ctx, key).Result() },
	}
}

// inSQL is a row.
func inSQL(dir string) (resource, *sql.DB, error) {
	name := url.URL{Scheme: "file", OmitHost: true, Path: filepath.ToSlash(filepath.Join(dir, "reports.db"))}
	db, err := sql.Open("sqlite3", name.String())
	if err != nil {
		return resource{}, nil, err
	}
	if _, err := db.Exec(`
		CREATE TABLE reports (id INTEGER NOT NULL PRIMARY KEY, text TEXT NOT NULL, fence BIGINT NOT NULL DEFAULT 0);
		INSERT INTO reports (id, text) VALUES (1, '')`); err != nil {
		db.Close()
		return resource{}, nil, err
	}
	return resource{"sql", true,
		func(ctx context.Context, token uint64, text string) error {
			return fence.Update(ctx, db, report, token,
				fence.SQL(`UPDATE reports SET text = ?, fence = ? WHERE id = 1 AND fence <= ?`, text, token, token),
				fence.SQL(`SELECT fence FROM reports WHERE id = 1`))
		},
		func(ctx context.Context) (text string, err error) {
			err = db.QueryRowContext(ctx, `SELECT text FROM reports WHERE id = 1`).Scan(&text)
			return text, err
		},
	}, db, nil
}

// overHTTP is behind a server.
func overHTTP() (resource, io.Closer, error) {
	var guard fence.Memory
	var stored atomic.Value
	save := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<10))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		stored.Store(string(text))
	})
	byPath := func(r *http.Request) string { return strings.TrimPrefix(r.URL.Path, "/") }
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return resource{}, nil, err
	}
	server := &http.Server{Handler: fence.Handler(&guard, byPath, save)}
	go server.Serve(listener)
	address := "http://" + listener.Addr().String() + "/" + report
	return resource{"http", true,
		func(ctx context.Context, token uint64, text string) error { return put(ctx, address, token, text) },
		func(context.Context) (string, error) { text, _ := stored.Load().(string); return text, nil },
	}, server, nil
}

// put is what a client of such a server does.
func put(ctx context.Context, address string, token uint64, text string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPut, address, strings.NewReader(text))
	if err != nil {
		return err
	}
	if err := fence.SetHeader(request.Header, token); err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if err := fence.Refusal(answer); err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("the server says %s", answer.Status)
	}
	return nil
}
