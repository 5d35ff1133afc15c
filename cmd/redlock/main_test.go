package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestCallsThatMakeNoSenseAreExplainedAndShowNoPassword(t *testing.T) {
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"dmo"}, "no such command"},
		{[]string{"redis://:s3cret@h:1"}, "no such command"},
		{[]string{"demo", "redis://:s3cret@h:1"}, "takes no arguments"},
		{[]string{"demo", "--nodez", "redis://:s3cret@h:1"}, "not defined"},
		{[]string{"demo", "--nodes"}, "needs an argument"},
		{[]string{"--nodes", "redis://:s3cret@h:1", "demo"}, "not defined"},
		{[]string{"demo", "--json=redis://:s3cret@h:1"}, "invalid value"},
		{[]string{"demo", "--nodes", ""}, "URL 1 has another scheme"},
		{[]string{"demo", "--nodes", "http://:s3cret@h:1"}, "URL 1 has another scheme; want redis:// or rediss://"},
		{[]string{"demo", "--nodes", "redis://a:1,redis://:s3cret@b:x"}, "URL 2 cannot be parsed"},
		{[]string{"demo", "--nodes", "redis://:s3cret@h:1/nine"}, "URL 1 has a database or parameter"},
		{[]string{"demo", "--nodes", "redis://:s3cret@h:1?s3cret=1"}, "URL 1 has a database or parameter"},
		{[]string{"demo", "--nodes", "redis://:s3cret@h:1,redis://:s3cret@h:1"}, "name the same server, h:1"},
	} {
		code, out, errs := invoke(t.Context(), tc.args...)
		assert.Equal(t, exitUsage, code, tc.args)
		assert.Empty(t, out, tc.args)
		assert.Regexp(t, `^redlock: .*\n$`, errs, tc.args)
		assert.Contains(t, errs, tc.want, tc.args)
		assert.NotContains(t, errs, "s3cret", tc.args)
	}
}

func TestHelpTeaches(t *testing.T) {
	for _, tc := range []struct {
		args []string
		want []string
	}{
		{nil, []string{"redlock demo", "--help"}},
		{[]string{"--help"}, []string{"redlock demo", "--help"}},
		{[]string{"demo", "--help"}, []string{
			"Examples:", "--json", "--nodes redis://", "exit code", "How to read the votes",
		}},
	} {
		code, out, errs := invoke(t.Context(), tc.args...)
		assert.Equal(t, exitOK, code, tc.args)
		assert.Empty(t, errs, tc.args)
		for _, want := range tc.want {
			assert.Contains(t, out, want, tc.args)
		}
	}
}
