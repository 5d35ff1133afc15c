package faultinject

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var wholeMessages = []string{
	"+OK\r\n", "-ERR no\r\n", ":42\r\n", ",1.5\r\n", "#t\r\n", "_\r\n", "(12345678901234567890\r\n",
	"$5\r\nhello\r\n", "$0\r\n\r\n", "$-1\r\n", "=7\r\ntxt:abc\r\n", "!5\r\nERR x\r\n",
	"*0\r\n", "*-1\r\n", "*2\r\n$3\r\nGET\r\n$1\r\nk\r\n", "*2\r\n*1\r\n:1\r\n*2\r\n+a\r\n$1\r\nb\r\n",
	"%2\r\n+a\r\n:1\r\n+b\r\n*1\r\n:2\r\n", "~2\r\n:1\r\n:2\r\n", ">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n",
	"|1\r\n+ttl\r\n:3\r\n$1\r\nv\r\n", "*1\r\n|1\r\n+a\r\n:1\r\n:7\r\n",
	"$4\r\na\r\nb\r\n", "PING\r\n", "PING\n", "SET k v\r\n", "\r\n",
}

func TestAMessageHasALengthOnceItIsWhole(t *testing.T) {
	for _, m := range wholeMessages {
		t.Run(fmt.Sprintf("%q", m), func(t *testing.T) {
			for cut := range len(m) {
				n, err := messageLen([]byte(m[:cut]))
				require.NoError(t, err)
				assert.Zero(t, n, "after %d bytes", cut)
			}
			for _, more := range []string{"", "+OK\r\n", "$"} {
				n, err := messageLen([]byte(m + more))
				require.NoError(t, err)
				assert.Equal(t, len(m), n)
			}
		})
	}
}

func TestWhatIsNotRESPHasNoLength(t *testing.T) {
	for _, m := range []string{"$x\r\n", "*-2\r\n", "$\r\n", "*1\r\n$abc\r\n", "%99999999999999999999\r\n", "$536870913\r\n", "|\r\n"} {
		_, err := messageLen([]byte(m))
		assert.ErrorIs(t, err, errNotRESP, "%q", m)
	}
}

func FuzzMessageLenNeverMisleads(f *testing.F) {
	for _, m := range wholeMessages {
		f.Add([]byte(m), 3)
	}
	f.Add([]byte("*1000000\r\n*1000000\r\n$-1\r\n|3\r\n"), 5)
	f.Fuzz(func(t *testing.T, b []byte, cut int) {
		n, err := messageLen(b)
		require.True(t, n >= 0 && n <= len(b))
		if n > 0 {
			require.NoError(t, err)
			for k := range n { // no prefix is taken for something else
				m, err := messageLen(b[:k])
				require.NoError(t, err)
				require.Zero(t, m)
			}
		}
		whole, wholeErr := messagesOf(b)
		cut = max(0, min(cut, len(b)))
		pieces, piecesErr := messagesOf(b[:cut], b[cut:])
		require.Equal(t, wholeErr == nil, piecesErr == nil)
		require.Equal(t, whole, pieces)
		words(b)
		parseCommand(b)
		pushed(b)
	})
}

// messagesOf is what a stream is cut into that arrives in pieces.
func messagesOf(pieces ...[]byte) (all []string, err error) {
	var rest []byte
	for _, p := range pieces {
		rest, err = eachMessage(append(rest, p...), func(m []byte) error {
			all = append(all, string(m))
			return nil
		})
		if err != nil {
			return all, err
		}
	}
	return all, nil
}

func TestAStreamCutAnywhereGivesTheSameMessages(t *testing.T) {
	stream := []byte(strings.Join(wholeMessages, ""))
	for cut := range len(stream) + 1 {
		all, err := messagesOf(stream[:cut], stream[cut:])
		require.NoError(t, err)
		require.Equal(t, wholeMessages, all, "cut at %d", cut)
	}
	var bytewise [][]byte
	for i := range stream {
		bytewise = append(bytewise, stream[i:i+1])
	}
	all, err := messagesOf(bytewise...)
	require.NoError(t, err)
	require.Equal(t, wholeMessages, all)
}

func TestMessagesDoNotShareMemoryWithWhatComesAfterThem(t *testing.T) {
	var all [][]byte
	rest, err := eachMessage([]byte("+a\r\n+b"), func(m []byte) error { all = append(all, m); return nil })
	require.NoError(t, err)
	_ = append(all[0], "overwritten"...)
	assert.Equal(t, "+b", string(rest))
}

func TestCommandsAreReadWithTheirArguments(t *testing.T) {
	for _, tc := range []struct {
		message, kind string
		args          []string
		ok            bool
	}{
		{"*2\r\n$3\r\nget\r\n$1\r\nk\r\n", "GET", []string{"k"}, true},
		{"*3\r\n$3\r\nSET\r\n$0\r\n\r\n$4\r\na\r\nb\r\n", "SET", []string{"", "a\r\nb"}, true},
		{"set  k v\r\n", "SET", []string{"k", "v"}, true},
		{"\r\n", "", nil, true},
		{"*0\r\n", "", nil, true},
		{"*-1\r\n", "", nil, true},
		{"*1\r\n:1\r\n", "", nil, false},
		{"*2\r\n$3\r\nGET\r\n$-1\r\n", "", nil, false},
		{"*2\r\n$3\r\nGET\r\n*1\r\n$1\r\nk\r\n", "", nil, false},
	} {
		c, ok := parseCommand([]byte(tc.message))
		assert.Equal(t, tc.ok, ok, "%q", tc.message)
		assert.Equal(t, tc.kind, c.kind, "%q", tc.message)
		var args []string
		for _, a := range c.args {
			args = append(args, string(a))
		}
		assert.Equal(t, tc.args, args, "%q", tc.message)
	}
	c, _ := parseCommand([]byte("set k v\r\n"))
	assert.True(t, c.mentions("k") && c.mentions("v") && !c.mentions("set") && !c.mentions(""))
	assert.Equal(t, "SET k v", c.String())
}

func TestAnInlineCommandIsTheSameAsAnArray(t *testing.T) {
	assert.Equal(t, "*3\r\n$3\r\nset\r\n$1\r\nk\r\n$2\r\nvv\r\n", string(array([]byte("set k  vv\r\n"))))
	whole := []byte("*1\r\n$4\r\nPING\r\n")
	assert.True(t, bytes.Equal(whole, array(whole)))
}

func TestMessagesToSubscribersAreToldFromReplies(t *testing.T) {
	for _, tc := range []struct {
		message                 string
		published, confirmation bool
	}{
		{">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n", true, false},
		{"*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n", true, false},
		{"*4\r\n$8\r\npmessage\r\n$1\r\n*\r\n$1\r\nc\r\n$1\r\nm\r\n", true, false},
		{">3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n", false, true},
		{"*3\r\n$11\r\nunsubscribe\r\n$-1\r\n:0\r\n", false, true},
		{">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n", false, false},
		{"*2\r\n$4\r\npong\r\n$0\r\n\r\n", false, false},
		{"+message\r\n", false, false},
		{"*0\r\n", false, false},
	} {
		published, confirmation := pushed([]byte(tc.message))
		assert.Equal(t, tc.published, published, "%q", tc.message)
		assert.Equal(t, tc.confirmation, confirmation, "%q", tc.message)
	}
}

func TestCommandsThatWaitForOthersAreKnown(t *testing.T) {
	for line, want := range map[string]bool{
		"BLPOP a 0": true, "BRPOPLPUSH a b 0": true, "BZPOPMIN a 0": true, "BLMOVE a b LEFT LEFT 0": true,
		"WAIT 1 0": true, "WAITAOF 1 0 0": true, "XREAD BLOCK 5 STREAMS a 0": true, "XREAD STREAMS a 0": false,
		"BITCOUNT a": false, "BGSAVE": false, "GET a": false, "LPOP a": false,
	} {
		c, _ := parseCommand([]byte(line + "\r\n"))
		assert.Equal(t, want, c.blocks(), line)
	}
}

func TestASubscriptionHasAConfirmationForEachChannel(t *testing.T) {
	for line, want := range map[string]int{
		"SUBSCRIBE a b c": 3, "PUNSUBSCRIBE": 1, "SSUBSCRIBE a": 1, "PUBLISH a b": 0,
	} {
		c, _ := parseCommand([]byte(line + "\r\n"))
		assert.Equal(t, want, c.confirms(), line)
	}
}
