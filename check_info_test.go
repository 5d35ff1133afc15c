package redlock

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestInfoIsReadFieldByField(t *testing.T) {
	i := make(info)
	i.parse("# Server\r\nredis_version:7.2.4\r\nvalkey_version:8.1.0\r\nexecutable:/usr/bin:x\r\n\r\nempty:\r\nno field\r\n:nothing\r\nused:-5\r\n")
	i.parse("redis_version:1.0\nconnected_slaves:2")
	assert.Equal(t, info{
		"redis_version": "7.2.4", "valkey_version": "8.1.0", "executable": "/usr/bin:x", "empty": "", "used": "-5", "connected_slaves": "2",
	}, i)
	assert.Equal(t, 7002, i.version())
	assert.Equal(t, "valkey 8.1.0", i.product())
	assert.Equal(t, "connected_slaves:2", i.shows("connected_slaves"))
	for field, want := range map[string]int64{"connected_slaves": 2, "used": -1, "empty": -1, "no field": -1} {
		n, ok := i.number(field)
		assert.Equal(t, want >= 0, ok, field)
		assert.Equal(t, max(want, 0), max(n, 0), field)
	}
	var none info
	assert.Zero(t, none.version())
	assert.Empty(t, none.product())
}

func TestVersionsCompareAsNumbers(t *testing.T) {
	for text, want := range map[string]int{
		"": 0, "x": 0, "-1.0": 0, "7": 7000, "7.x": 7000, "6.2.14": 6002, "10.0.1": 10000, "255.255.255": 255255, "99999999999.1": 0, "7.99999": 7999,
	} {
		assert.Equal(t, want, info{"redis_version": text}.version(), text)
	}
}

func TestClusterIDsAreTheFirstWords(t *testing.T) {
	assert.Equal(t, []string{"a1", "b2"}, clusterIDs("a1 127.0.0.1:1@2 myself,master - 0 0 1 connected 0-16383\nb2 x\n"))
	assert.Empty(t, clusterIDs("\n \nx"))
}

func FuzzInfo(f *testing.F) {
	f.Add("# Server\r\nredis_version:7.2.4\r\nuptime_in_seconds:5\r\n")
	f.Add("a:b\n\n:\n#:c\na:d")
	f.Fuzz(func(t *testing.T, text string) {
		i := make(info)
		i.parse(text)
		for field, value := range i {
			if field == "" || strings.ContainsAny(field, "\n:") || field[0] == '#' || strings.Contains(value, "\n") {
				t.Errorf("%q: %q", field, value)
			}
			if !strings.Contains(text, i.shows(field)) {
				t.Errorf("%q is not in the text", i.shows(field))
			}
			if n, ok := i.number(field); ok && n < 0 {
				t.Errorf("%d is negative", n)
			}
		}
		if v := i.version(); v < 0 {
			t.Errorf("version %d", v)
		}
		clusterIDs(text)
	})
}

// What nodes and other clients store is read before anybody trusts it.
func FuzzMembers(f *testing.F) {
	f.Add(`{"nodes":["a:1"],"ids":["x"],"guard_ms":0,"fencing":false}`, "1796035000")
	f.Add(`{"nodes":["\u0000"],"ids":[""],"guard_ms":-9223372036854775808}`, "-9223372036854775808")
	f.Fuzz(func(t *testing.T, field, at string) {
		v, err := readMembers([]any{"id1", "1796035000", []any{"id", "id1", field, at}})
		if err != nil {
			t.Fatal(err)
		}
		cfg, rs := wellConfig(), wellNodes(3)
		rs[0].members = v
		for _, finding := range judge(&cfg, rs) {
			if strings.ContainsAny(finding.String(), "\n\r\x00\x1b") {
				t.Errorf("%q", finding)
			}
		}
	})
}
