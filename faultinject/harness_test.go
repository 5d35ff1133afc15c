package faultinject

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const ms = time.Millisecond

func init() { redis.SetLogger(noLog{}) } // dials that fail here are no news

type noLog struct{}

func (noLog) Printf(context.Context, string, ...any) {}

// bubble runs a test in virtual time. Goroutines that it leaves behind fail it.
func bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, f)
}

// plain lets a client send each command once, and nothing else besides HELLO.
func plain(o *redis.Options) {
	o.MaxRetries, o.DialerRetries = -1, 1
	o.DisableIdentity = true
	o.ContextTimeoutEnabled = true
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
}

// wire is a connection without a client library: what is written is what is sent.
type wire struct {
	t testing.TB
	net.Conn
	limit time.Time // of all reads, in real time
	read  []byte
}

func connect(t testing.TB, c *Cluster, client string, node int) *wire {
	t.Helper()
	conn, err := c.Client(client).DialContext(t.Context(), "tcp", c.Node(node).addr.String())
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	return &wire{t: t, Conn: conn}
}

func encode(words ...string) []byte {
	return array([]byte(strings.Join(words, " ") + "\r\n"))
}

func (w *wire) send(line string) {
	w.t.Helper()
	_, err := w.Write(encode(line))
	require.NoError(w.t, err)
}

// receive is the next message without its last line end.
func (w *wire) receive() (string, error) {
	for {
		n, err := messageLen(w.read)
		if err != nil {
			return "", err
		}
		if n > 0 {
			m := string(w.read[:n])
			w.read = w.read[n:]
			return strings.TrimSuffix(m, "\r\n"), nil
		}
		b := make([]byte, 4096)
		if n, err = w.Read(b); err != nil {
			return "", err
		}
		w.read = append(w.read, b[:n]...)
	}
}

func (w *wire) expect(want string) {
	w.t.Helper()
	got, err := w.receive()
	require.NoError(w.t, err)
	assert.Equal(w.t, want, got)
}

// do sends a command and expects an answer.
func (w *wire) do(line, want string) {
	w.t.Helper()
	w.send(line)
	w.expect(want)
}

// took is how long f takes.
func took(f func()) time.Duration {
	begin := time.Now()
	f()
	return time.Since(begin)
}

// within runs f with a context that ends after d.
func within(t testing.TB, d time.Duration, f func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	return f(ctx)
}

// quiet asserts that nothing comes for d.
func (w *wire) quiet(d time.Duration) {
	w.t.Helper()
	require.NoError(w.t, w.SetReadDeadline(time.Now().Add(d)))
	m, err := w.receive()
	var timeout net.Error
	require.True(w.t, errors.As(err, &timeout) && timeout.Timeout(), "%q, %v", m, err)
	require.NoError(w.t, w.SetReadDeadline(w.limit))
}

// fakeTB is a test that the test itself may let fail.
type fakeTB struct {
	failed  bool
	log     strings.Builder
	cleanup []func()
}

func (f *fakeTB) Helper()           {}
func (f *fakeTB) Cleanup(do func()) { f.cleanup = append(f.cleanup, do) }
func (f *fakeTB) Failed() bool      { return f.failed }
func (f *fakeTB) Logf(s string, args ...any) {
	f.log.WriteString(fmt.Sprintf(s, args...))
}
func (f *fakeTB) Fatalf(s string, args ...any) {
	f.Logf(s, args...)
	panic(f)
}
func (f *fakeTB) end() {
	for i := len(f.cleanup) - 1; i >= 0; i-- {
		f.cleanup[i]()
	}
}
