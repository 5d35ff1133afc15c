package main

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed58520471/redlock/fence"
)

func TestEveryGuardRefusesTheHolderThatWasPaused(t *testing.T) {
	var told strings.Builder
	require.NoError(t, run(t.Context(), &told, t.TempDir()), &told)
	t.Log(told.String())
	for _, guard := range []string{"memory", "redis", "sql", "http"} {
		assert.Contains(t, told.String(), guard)
	}
	assert.Equal(t, 4, strings.Count(told.String(), "REFUSED"))
}

func TestTheStoryFailsIfAResourceDoesNotKeepToIt(t *testing.T) {
	write := func(err error) func(context.Context, uint64, string) error {
		return func(context.Context, uint64, string) error { return err }
	}
	h := holder{name: "alice"}
	for what, r := range map[string]resource{
		"a guard that lets everybody in":     {guarded: true, write: write(nil)},
		"one that refuses for other reasons": {guarded: true, write: write(errors.New("disk full"))},
		"a refusal without a guard":          {write: write(&fence.StaleError{})},
		"a failure without a guard":          {write: write(errors.New("disk full"))},
	} {
		assert.Error(t, h.write(t.Context(), t.Output(), []resource{r}, "late", guards), what)
	}
}
