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
		{[]string{"dmo"}, `no such command: "dmo";`},
		{[]string{"redis://:s3cret@h:1"}, "no such command;"},
		{[]string{"app:s3cret@h:1"}, "no such command;"},
		{[]string{"demo", "redis://:s3cret@h:1"}, "takes no arguments"},
		{[]string{"demo", "--nodez", "redis://:s3cret@h:1"}, "not defined"},
		{[]string{"demo", "--nodes"}, "needs an argument"},
		{[]string{"--nodes", "redis://:s3cret@h:1", "demo"}, "not defined"},
		{[]string{"demo", "--json=redis://:s3cret@h:1"}, "invalid value"},
		{[]string{"demo", "--nodes", ""}, "names no node"},
		{[]string{"demo", "--nodes", "http://:s3cret@h:1"}, "URL 1"},
		{[]string{"demo", "--nodes", "redis://a:1,redis://:s3cret@b:x"}, "URL 2"},
		{[]string{"demo", "--nodes", "redis://:s3cret@h:1/nine"}, "URL 1"},
		{[]string{"demo", "--nodes", "redis://:s3cret@h:1?s3cret=1"}, "URL 1"},
		{[]string{"demo", "--nodes", "redis://:s3cret@h:1,redis://:s3cret@h:1"}, "same server, h:1"},
		{[]string{"demo", "--name", "a"}, "--name needs --nodes or REDLOCK_NODES"},
		{[]string{"demo", "--nodes", "redis://:s3cret@h:1", "--name", ""}, "name is empty"},
		{[]string{"demo", "--nodes", "redis://:s3cret@h:1", "--name", "redlock:fence:a"}, `"redlock:fence:a"`},
	} {
		code, out, errs := invoke(t.Context(), tc.args...)
		assert.Equal(t, exitUsage, code, tc.args)
		assert.Empty(t, out, tc.args)
		assert.Regexp(t, `^redlock: .*\n$`, errs, tc.args)
		assert.Contains(t, errs, tc.want, tc.args)
		assert.NotContains(t, errs, "s3cret", tc.args)
	}
}

func TestAListFromTheEnvironmentIsCheckedTooAndNotShown(t *testing.T) {
	for _, tc := range []struct {
		list string
		args []string
		code int
		want string
	}{
		{"", []string{"demo"}, exitUsage, "names no node"},
		{"http://:s3cret@h:1", []string{"demo"}, exitUsage, "URL 1"},
		{"redis://:s3cret@h:1", []string{"demo", "--nodes", "redis://a:1,b"}, exitUsage, "URL 2"},
		{"redis://:s3cret@h:1", []string{"demo", "--help"}, exitOK, "[$REDLOCK_NODES]"},
	} {
		t.Setenv(nodesVariable, tc.list)
		code, out, errs := invoke(t.Context(), tc.args...)
		assert.Equal(t, tc.code, code, tc.args)
		assert.Contains(t, out+errs, tc.want, tc.args)
		assert.NotContains(t, out+errs, "s3cret", tc.args)
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
			"export REDLOCK_NODES=", "--name", "begins with redlock-demo/",
		}},
	} {
		code, out, errs := invoke(t.Context(), tc.args...)
		assert.Equal(t, exitOK, code, tc.args)
		assert.Empty(t, errs, tc.args)
		for _, want := range tc.want {
			assert.Contains(t, out, want, tc.args)
		}
		assertNarrow(t, out)
	}
}
