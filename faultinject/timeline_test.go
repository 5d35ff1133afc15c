package faultinject

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var updatePictures = flag.Bool("update-pictures", false, "write testdata's timelines and SVGs anew")

// requirePicture compares a picture with the one that somebody has looked at.
func requirePicture(t *testing.T, file, picture string) {
	t.Helper()
	path := filepath.Join("testdata", file)
	if *updatePictures {
		require.NoError(t, os.WriteFile(path, []byte(picture), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), picture, "look at it, then go test ./faultinject -update-pictures")
}

var pictureStories = map[string]func(*History){
	"clean":      pictureClean,
	"twoholders": pictureTwoHolders,
	"many":       pictureMany,
}

func TestTimelinesLookAsInTestdata(t *testing.T) {
	for name, tell := range pictureStories {
		t.Run(name, func(t *testing.T) {
			historyStory(t, func(h *History) {
				tell(h)
				requirePicture(t, name+".txt", h.String())
			})
		})
	}
}

func TestTimelinesKeepToTheirWidth(t *testing.T) {
	historyStory(t, func(h *History) {
		pictureHuge(h)
		long := strings.Repeat("häß\n", 50)
		h.Try(long, long).Won(long, historyIn(time.Second))
		h.Strike(long, time.Now(), historyIn(time.Second), long)
		text := h.String()
		for line := range strings.SplitSeq(text, "\n") {
			assert.LessOrEqual(t, utf8.RuneCountInString(line), 110, line)
		}
		assert.Contains(t, text, "and 4 more names")
		assert.Contains(t, text, "and 124 more faults")
		assert.Less(t, strings.Count(text, "\n"), 300)
	})
}

func TestTimelineShowsTheNameWithTwoHoldersWhenThereAreMany(t *testing.T) {
	historyStory(t, func(h *History) {
		for i := range 20 {
			for range 1 + 20 - i {
				a := h.Try("a", fmt.Sprintf("name-%02d", i))
				time.Sleep(time.Millisecond)
				a.Failed(nil)
			}
		}
		for _, c := range []string{"a", "b"} {
			h.Try(c, "name-17").Won(c, historyIn(time.Second))
		}
		time.Sleep(100 * time.Millisecond)
		h.Health(3, 3)
		text := h.String()
		assert.Contains(t, text, `"name-17": 6 attempts`)
		assert.Contains(t, text, "TWO HOLDERS")
		assert.Contains(t, text, "and 14 more names")
	})
}

func TestLettersTellClientsApart(t *testing.T) {
	for clients, letters := range map[string]string{
		"alice bob carol":   "abc",
		"worker-1 worker-2": "12",
		"ab ac bb":          "abc",
		"aa ab ba":          "abc",
	} {
		h := NewHistory()
		for _, c := range strings.Fields(clients) {
			h.Try(c, "x")
		}
		d := h.digest()
		got := d.letters()
		var b strings.Builder
		for _, c := range d.allClients() {
			b.WriteRune(got[c])
		}
		assert.Equal(t, letters, b.String(), clients)
	}
}

func TestTicksAreRound(t *testing.T) {
	for end, want := range map[time.Duration]string{
		0:                       "0µs",
		9 * time.Second:         "0s 1s 2s 3s 4s 5s 6s 7s 8s 9s",
		1500 * time.Millisecond: "0s 0.2s 0.4s 0.6s 0.8s 1s 1.2s 1.4s",
		42 * time.Second:        "0s 5s 10s 15s 20s 25s 30s 35s 40s",
		4 * time.Millisecond:    "0ms 0.5ms 1ms 1.5ms 2ms 2.5ms 3ms 3.5ms 4ms",
		300 * 24 * time.Hour:    "0s 5000000s 10000000s 15000000s 20000000s 25000000s",
	} {
		_, labels := historyTicks(end, 10)
		assert.Equal(t, want, strings.Join(labels, " "))
	}
}

func TestNamesAreOrderedAsPeopleCount(t *testing.T) {
	assert.Negative(t, historyNatural("worker-2", "worker-10"))
	assert.Negative(t, historyNatural("alice", "bob"))
	assert.Negative(t, historyNatural("a-01", "a-1"))
	assert.Zero(t, historyNatural("a", "a"))
}
