package redlock

import (
	"crypto/tls"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestOpenRefusesBadURLsWithoutShowingAnyPartOfThem(t *testing.T) {
	const secret = "s3cr3t"
	for _, c := range []struct{ url, says string }{
		{"", "does not begin"},
		{"127.0.0.1:6379", "does not begin with redis://"},
		{"http://u:" + secret + "@host:1", "redis:// or rediss://"},
		{"unix:///tmp/redis.sock", "redis:// or rediss://"},
		{"redis://", "no host"},
		{"redis://h:99999", "no host and port"},
		{"redis://:" + secret + "@/0", "no host"},
		{"redis://user:" + secret + "/56@host:6379/0", "percent-encoded"},
		{"redis://user:56/" + secret + "@host:6379/0", "no number"},
		{"redis://user:%zz" + secret + "@host:6379/0", "percent-encoded"},
		{"redis://host:6379/" + secret, "no number"},
		{"redis://host:6379/0?" + secret + "=1", "percent-encoded"},
		{"redis://app:6379#" + secret + "@host", "percent-encoded"},
		{"redis://host:" + secret, "cannot be parsed"},
	} {
		_, err := Open([]string{"redis://127.0.0.1:1", c.url})
		assert.ErrorIs(t, err, ErrInvalid, c.url)
		assert.ErrorContains(t, err, "URL 2", c.url)
		assert.ErrorContains(t, err, c.says, c.url)
		assert.NotContains(t, err.Error(), secret, c.url)
	}
	_, err := Open(nil)
	assert.ErrorContains(t, err, "no nodes")
	_, err = Open([]string{"redis://h:1", "redis://h:1/3"})
	assert.ErrorContains(t, err, "URLs 1 and 2 name the same server")
}

func TestOpenUnderstandsWhatAURLSays(t *testing.T) {
	o, err := parseURL("rediss://ann:p%40ss%2Fword@redis.example:7000/3")
	require.NoError(t, err)
	o = tuned(o, ms(123))
	assert.Equal(t, "redis.example:7000", o.Addr)
	assert.Equal(t, "ann", o.Username)
	assert.Equal(t, "p@ss/word", o.Password)
	assert.Equal(t, 3, o.DB)
	assert.Equal(t, "redis.example", o.TLSConfig.ServerName)
	assert.GreaterOrEqual(t, o.TLSConfig.MinVersion, uint16(tls.VersionTLS12))
	assert.Equal(t, -1, o.MaxRetries)
	assert.True(t, o.ContextTimeoutEnabled)
	assert.Equal(t, ms(123), o.ReadTimeout)

	l, err := Open([]string{"redis://:pass@127.0.0.1:1", "redis://127.0.0.1:2"}, WithNodeTimeout(ms(100)))
	require.NoError(t, err, "Open connects to nothing")
	_, err = l.TryLock(t.Context(), "a")
	assert.ErrorIs(t, err, ErrNoQuorum)
	assert.ErrorContains(t, err, "127.0.0.1:1 failed")
	assert.ErrorContains(t, err, "127.0.0.1:2 failed")
	assert.NotContains(t, err.Error(), "pass@")
	require.NoError(t, l.Close())
}

func FuzzOpenNeverShowsAPassword(f *testing.F) {
	for _, s := range []string{"p@ss", "a/b", "%", "#", "?x=1", "[::1]", "56/ab", "\x00", " "} {
		f.Add("redis://user:", s, "@host:6379/0")
	}
	f.Fuzz(func(t *testing.T, before, password, after string) {
		// A password of ordinary length that is no word of our own messages.
		secret := "Zq7" + password + "Xj9"
		if _, err := parseURL(before + secret + after); err != nil {
			for i := 0; i+6 <= len(secret); i++ {
				if strings.Contains(err.Error(), secret[i:i+6]) {
					t.Fatalf("%q shows %q", err, secret[i:i+6])
				}
			}
		}
	})
}

func FuzzTTLNeverBreaksTheArithmetic(f *testing.F) {
	f.Add(int64(10*time.Second), int64(0), int64(0), int64(0))
	f.Add(int64(-1), int64(1), int64(2), int64(3))
	f.Fuzz(func(t *testing.T, ttl, timeout, drift, lead int64) {
		opts := []Option{WithTTL(time.Duration(ttl))}
		if timeout != 0 {
			opts = append(opts, WithNodeTimeout(time.Duration(timeout)))
		}
		if drift != 0 {
			opts = append(opts, WithDrift(time.Duration(drift)))
		}
		if lead != 0 {
			opts = append(opts, WithLossLead(time.Duration(lead)))
		}
		c, faults := defaults().apply(opts, false)
		if len(faults) > 0 {
			return
		}
		span, bound := c.span(c.ttl), c.voteBound()
		if c.ttl%time.Millisecond != 0 || c.ttl < 0 || c.ttl > maxTTL {
			t.Fatalf("ttl %v", c.ttl)
		}
		if span < minValidity || span > c.ttl-defaultDrift(c.ttl) {
			t.Fatalf("a promise of %v on a ttl of %v", span, c.ttl)
		}
		if bound <= 0 || bound > span || c.lead() <= 0 || c.lead() >= span {
			t.Fatalf("bound %v, lead %v, promise %v", bound, c.lead(), span)
		}
	})
}
