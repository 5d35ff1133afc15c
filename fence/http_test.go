package fence_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed58520471/redlock/fence"
)

// byPath names a request's resource.
func byPath(r *http.Request) string { return strings.TrimPrefix(r.URL.Path, "/") }

// ask sends a request with headers to a handler.
func ask(t *testing.T, h http.Handler, path string, tokens ...string) *http.Response {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPut, path, nil)
	for _, token := range tokens {
		r.Header.Add(fence.Header, token)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

func text(t *testing.T, r *http.Response) string {
	t.Helper()
	body, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	return strings.TrimSpace(string(body))
}

func TestAHandlerRefusesOnlyLowerTokens(t *testing.T) {
	var m fence.Memory
	ran := 0
	h := fence.Handler(&m, byPath, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		ran++
		w.WriteHeader(http.StatusNoContent)
	}))
	for _, token := range []uint64{older, older, newer} {
		require.Equal(t, http.StatusNoContent, ask(t, h, "/orders/42", strconv.FormatUint(token, 10)).StatusCode)
	}
	refused := ask(t, h, "/orders/42", strconv.FormatUint(older, 10))
	assert.Equal(t, http.StatusPreconditionFailed, refused.StatusCode)
	assert.Equal(t, strconv.FormatUint(newer, 10), refused.Header.Get("Redlock-Fence"))
	assert.Equal(t, `fence: "orders/42": stale fencing token: it is 1796035000123456, and 1796035000123457 was here`, text(t, refused))
	assert.Equal(t, 3, ran)
	assert.Equal(t, http.StatusNoContent, ask(t, h, "/orders/43", "1").StatusCode, "another resource has seen nothing")
}

func TestAHandlerAsksForAToken(t *testing.T) {
	var m fence.Memory
	h := fence.Handler(&m, byPath, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("it ran") }))
	for _, c := range []struct {
		path   string
		tokens []string
		status int
		says   string
	}{
		{"/a", nil, http.StatusPreconditionRequired, "the request has no Redlock-Fence header"},
		{"/a", []string{""}, http.StatusBadRequest, `Redlock-Fence is ""; want decimal digits, 1 to 9007199254740991`},
		{"/a", []string{"0"}, http.StatusBadRequest, "the token is 0"},
		{"/a", []string{"-1"}, http.StatusBadRequest, `is "-1"`},
		{"/a", []string{"+1"}, http.StatusBadRequest, `is "+1"`},
		{"/a", []string{" 1"}, http.StatusBadRequest, `is " 1"`},
		{"/a", []string{"01"}, http.StatusBadRequest, `is "01"`},
		{"/a", []string{"1.0"}, http.StatusBadRequest, `is "1.0"`},
		{"/a", []string{"1796035000123457, 5"}, http.StatusBadRequest, "want decimal digits"},
		{"/a", []string{"9007199254740992"}, http.StatusBadRequest, "at most 9007199254740991"},
		{"/a", []string{"18446744073709551616"}, http.StatusBadRequest, "want decimal digits"},
		{"/a", []string{strings.Repeat("9", 10_000)}, http.StatusBadRequest, "(10000 bytes)"},
		{"/a", []string{"1", "2"}, http.StatusBadRequest, "2 Redlock-Fence headers; want 1"},
		{"/", []string{"1"}, http.StatusBadRequest, "the resource has no name"},
	} {
		answer := ask(t, h, c.path, c.tokens...)
		assert.Equal(t, c.status, answer.StatusCode, c.tokens)
		assert.Contains(t, text(t, answer), c.says)
		assert.Empty(t, answer.Header.Get(fence.Header))
		assert.NoError(t, fence.Refusal(answer))
	}
	assert.Zero(t, m.Remembered())
}

func TestOneRequestAtATimeIsAtAResource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m fence.Memory
		var order []string
		h := fence.Handler(&m, byPath, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			token := r.Header.Get(fence.Header)
			if token == "1" {
				time.Sleep(time.Hour) // it is paused in the middle of its work
			}
			order = append(order, token)
		}))
		var all sync.WaitGroup
		all.Go(func() { ask(t, h, "/a", "1") })
		synctest.Wait()
		all.Go(func() { ask(t, h, "/a", "2") })
		synctest.Wait()

		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		r := httptest.NewRequestWithContext(ctx, http.MethodPut, "/a", nil)
		require.NoError(t, fence.SetHeader(r.Header, 3))
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		assert.Equal(t, http.StatusServiceUnavailable, w.Code)
		assert.Contains(t, w.Body.String(), "waiting for the turn")

		all.Wait()
		assert.Equal(t, []string{"1", "2"}, order)
	})
}

func TestAClientKnowsARefusalOverTheNetwork(t *testing.T) {
	var m fence.Memory
	s := httptest.NewServer(fence.Handler(&m, byPath, http.NotFoundHandler()))
	defer s.Close()
	put := func(token uint64) error {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPut, s.URL+"/a", nil)
		require.NoError(t, err)
		require.NoError(t, fence.SetHeader(r.Header, token))
		answer, err := s.Client().Do(r)
		require.NoError(t, err)
		defer answer.Body.Close()
		return fence.Refusal(answer)
	}
	require.NoError(t, put(newer))
	requireStale(t, put(older), "/a")

	other := &http.Response{StatusCode: http.StatusPreconditionFailed, Header: http.Header{}}
	require.NoError(t, fence.Refusal(other), "it is somebody else's")
}

func TestNoHeaderIsSetForWhatIsNoToken(t *testing.T) {
	for token, bound := range notTokens {
		h := make(http.Header)
		err := fence.SetHeader(h, token)
		require.ErrorIs(t, err, fence.ErrInvalid)
		require.ErrorContains(t, err, bound)
		require.Empty(t, h)
	}
}

func TestAHandlerThatBreaksOffFreesTheTurn(t *testing.T) {
	var m fence.Memory
	h := fence.Handler(&m, byPath, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
	require.Panics(t, func() { ask(t, h, "/a", "1") })
	require.NoError(t, m.Do(t.Context(), "a", 1, func() error { return nil }))
}

func FuzzToken(f *testing.F) {
	for _, seed := range []string{"", "0", "1", "01", "+1", "1 ", "9007199254740991", "9007199254740992", "1796035000123456", "1_0", "0x10", "٣"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, value string) {
		token, err := fence.Token(http.Header{fence.Header: {value}})
		if err != nil {
			require.ErrorIs(t, err, fence.ErrInvalid)
			require.NotErrorIs(t, err, fence.ErrStale)
			return
		}
		require.NotZero(t, token)
		require.LessOrEqual(t, token, fence.MaxToken)
		h := make(http.Header)
		require.NoError(t, fence.SetHeader(h, token))
		require.Equal(t, value, h.Get(fence.Header), "one token has one text")
		require.False(t, errors.Is(err, fence.ErrInvalid))
	})
}
