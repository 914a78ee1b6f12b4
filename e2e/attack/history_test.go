package attack

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/internal/nightly"
)

// TestAttackFloodErasesTheHistory: a box makes requests with long paths until the history has filled up several times.
// The entries of another box remain, also after a restart, and the history reports since when it is complete, for each
// box and for both.
func TestAttackFloodErasesTheHistory(t *testing.T) {
	t.Parallel()
	size := nightly.Size(1<<20, 32<<20)
	w := harness.NewWorld(t, func(c *config.Config) { c.Log.History = config.Bounds{Days: 7, Size: config.Size(size)} })
	policy := map[string]any{"network_policy": harness.Custom("api.example.com")}
	loud, honest := w.Create(policy), w.Create(policy)
	w.MustSh(honest, "curl -sS -o /dev/null http://api.example.com/first; curl -k -sS https://evil.example.net/; true")
	w.MustSh(loud, "curl -sS -o /dev/null http://api.example.com/theft")
	ask := func(box, path string) (found int, whole time.Time) {
		t.Helper()
		where := "/v2/egress/history?"
		if box != "" {
			where = api.BoxPath(box, "egress/history") + "?"
		}
		err := w.Client.History(t.Context(), where+url.Values{"since": {"1h"}, "host": {"api.example.com"}}.Encode(), func(at time.Time) { whole = at },
			func(line []byte) error {
				if strings.Contains(string(line), `"path":"`+path) {
					found++
				}
				return nil
			})
		if err != nil {
			t.Fatal(err)
		}
		return found, whole
	}
	begun := time.Now()
	for box, path := range map[string]string{honest: "/first", loud: "/theft"} {
		if found, whole := ask(box, path); found != 1 || whole.IsZero() || whole.After(begun) {
			t.Fatalf("before the flood, %s is found %d times, whole from %v", path, found, whole)
		}
	}
	w.MustSh(loud, fmt.Sprintf("curl -sS -o /dev/null 'http://api.example.com/[1-%d]/%s'", 3*size/800, strings.Repeat("x", 600)))
	check := func() {
		t.Helper()
		if found, _ := ask(loud, "/theft"); found != 0 {
			t.Fatal("the flood fills no history: this test shows nothing")
		}
		found, whole := ask(honest, "/first")
		if found != 1 || whole.After(begun) {
			t.Errorf("after the flood of another box, what a box did is found %d times, whole from %v", found, whole)
		}
		_, since := ask(loud, "/")
		if _, all := ask("", "/"); !since.After(begun) || all.Before(since) {
			t.Errorf("the history is said to be whole of the loud box from %v, of all from %v", since, all)
		}
	}
	check()
	if err := w.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	check()
	if out := w.Run(0, nil, "", "log", "--since", "1h", "--box", honest); !strings.Contains(out, "evil.example.net") {
		t.Error(out)
	}
	harness.Contains(t, w.Run(0, nil, "", "log", "--since", "1h", "--box", loud, "--denied"), "the history is whole from")
}
