package faultinject

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// The network works on whole messages: a request that is lost, or answered with
// an error, must leave the stream in step. So both directions are cut into RESP
// values here, and nowhere is one interpreted further than that needs.

// maxMessage bounds a value that is not complete yet. It is the server's own
// limit for a bulk string.
const maxMessage = 512 << 20

var errNotRESP = errors.New("faultinject: the stream is not RESP")

// messageLen is the length of the first complete RESP value in b, and 0 while it
// is not complete. A line that begins with no type byte of the protocol is an
// inline command, which only requests have.
func messageLen(b []byte) (int, error) {
	if len(b) > maxMessage {
		return 0, fmt.Errorf("%w: a value is longer than %d bytes", errNotRESP, maxMessage)
	}
	at := 0
	for missing := 1; missing > 0; missing-- {
		end := bytes.IndexByte(b[at:], '\n')
		if end < 0 {
			return 0, nil
		}
		head := b[at : at+end]
		at += end + 1
		switch head0(head) {
		case '$', '=', '!':
			n, err := length(head)
			if err != nil {
				return 0, err
			}
			if n < 0 { // null
				break
			}
			if at += n + 2; at > len(b) {
				return 0, nil
			}
		case '*', '~', '>':
			n, err := length(head)
			if err != nil {
				return 0, err
			}
			missing += max(n, 0)
		case '%':
			n, err := length(head)
			if err != nil {
				return 0, err
			}
			missing += 2 * max(n, 0)
		case '|': // attributes, and then the value that they belong to
			n, err := length(head)
			if err != nil {
				return 0, err
			}
			missing += 2*max(n, 0) + 1
		}
	}
	return at, nil
}

func head0(head []byte) byte {
	if len(head) == 0 {
		return 0
	}
	return head[0]
}

// length is the number in the first line of a bulk string or an aggregate.
func length(head []byte) (int, error) {
	n, err := strconv.Atoi(string(bytes.TrimSuffix(head[1:], []byte("\r"))))
	if err != nil || n < -1 || n > maxMessage {
		return 0, fmt.Errorf("%w: a length of %q", errNotRESP, head[1:])
	}
	return n, nil
}

// words are the strings of a flat array, or of an inline command, up to the first
// element that is none. They share the memory of the message.
func words(message []byte) (all [][]byte, flat bool) {
	if head0(message) != '*' && head0(message) != '>' {
		return bytes.Fields(message), true
	}
	head, rest, _ := bytes.Cut(message, []byte("\n"))
	n, err := length(head)
	if err != nil || n <= 0 {
		return nil, err == nil
	}
	for range n {
		head, tail, ok := bytes.Cut(rest, []byte("\n"))
		if !ok || head0(head) != '$' {
			return all, false // a simple string, a number or an aggregate
		}
		k, err := length(head)
		if err != nil || k < 0 || len(tail) < k+2 {
			return all, false
		}
		all = append(all, tail[:k:k])
		rest = tail[k+2:]
	}
	return all, true
}

// command is a request: its name in capitals, and its arguments.
type command struct {
	kind string
	args [][]byte
}

// parseCommand is false for what no client sends. An empty command has no kind.
func parseCommand(message []byte) (command, bool) {
	all, ok := words(message)
	if !ok || len(all) == 0 {
		return command{}, ok
	}
	return command{kind: strings.ToUpper(string(all[0])), args: all[1:]}, true
}

// mentions says whether one of the arguments is the key.
func (c command) mentions(key string) bool {
	for _, a := range c.args {
		if string(a) == key {
			return true
		}
	}
	return false
}

func (c command) strings() []string {
	all := []string{c.kind}
	for _, a := range c.args {
		all = append(all, string(a))
	}
	return all
}

func (c command) String() string {
	if len(c.args) == 0 {
		return c.kind
	}
	return c.kind + " " + string(bytes.Join(c.args, []byte(" ")))
}

// confirms is how many confirmations answer the command: one for each channel that
// it subscribes to or leaves. How many it leaves that names none is not known here;
// the first answers it then.
func (c command) confirms() int {
	if !strings.HasSuffix(c.kind, "SUBSCRIBE") {
		return 0
	}
	return max(len(c.args), 1)
}

// blocks says whether the server may keep the command waiting while it executes
// others.
func (c command) blocks() bool {
	switch c.kind {
	case "WAIT", "WAITAOF":
		return true
	case "XREAD", "XREADGROUP":
		for _, a := range c.args {
			if strings.EqualFold(string(a), "BLOCK") {
				return true
			}
		}
		return false
	}
	return strings.HasPrefix(c.kind, "BL") || strings.HasPrefix(c.kind, "BR") || strings.HasPrefix(c.kind, "BZ")
}

// pushed classifies a message from the server: one that was published, the
// confirmation of a subscription, or neither. Before RESP3 both are arrays, which
// nothing but their first word tells from a reply.
func pushed(message []byte) (published, confirmation bool) {
	if c := head0(message); c != '*' && c != '>' {
		return false, false
	}
	first, _ := words(message)
	if len(first) == 0 {
		return false, false
	}
	switch string(first[0]) {
	case "message", "pmessage", "smessage":
		return true, false
	case "subscribe", "psubscribe", "ssubscribe", "unsubscribe", "punsubscribe", "sunsubscribe":
		return false, true
	}
	return false, false
}

// errorReply is an error as the server would send it.
func errorReply(text string) []byte { return []byte("-" + text + "\r\n") }
