package lifecycle

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/e2e/harness"
	"boxgate/internal/lab"
	"boxgate/internal/testnet"
)

// globalKey returns a rule for every box.
func globalKey(value string) map[string]any {
	return map[string]any{"attach_headers": map[string]any{"api.example.com": map[string]string{"Authorization": value}}}
}

// sentKey returns the header with which a box's request arrives.
func sentKey(w *harness.World, box string) string {
	w.T.Helper()
	path := "/key-" + box + "-" + strings.ToLower(rand.Text())
	w.MustSh(box, "curl -sS -o /dev/null https://api.example.com"+path)
	seen := w.Net.Received("api.example.com", testnet.Path(path))
	if len(seen) != 1 {
		w.T.Fatalf("%d requests for %s arrived", len(seen), path)
	}
	return seen[0].Header.Get("Authorization")
}

// A change of settings shared by all boxes also reaches boxes that are being created.
func TestGlobalRulesReachBoxesBeingCreated(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	putConfig(w, "/v2/box/settings/attach-headers", globalKey("V0"))
	for round := range 4 {
		var wg sync.WaitGroup
		ids := make([]string, 3)
		for i := range ids {
			wg.Go(func() { ids[i] = w.Create(map[string]any{"network_policy": harness.Custom("api.example.com")}) })
		}
		want := fmt.Sprintf("V%d", round+1)
		putConfig(w, "/v2/box/settings/attach-headers", globalKey(want))
		wg.Wait()
		for _, id := range ids {
			if got := sentKey(w, id); got != want {
				t.Errorf("the change had been answered, and box %s sends %q instead of %q", id, got, want)
			}
		}
	}
}

func putConfig(w *harness.World, path string, body any) {
	w.T.Helper()
	if err := w.Client.Do(w.T.Context(), "PUT", path, body, nil); err != nil {
		w.T.Errorf("PUT %s: %v", path, err)
	}
}

// A client that disconnects does not leave a change halfway: it applies everywhere or nowhere.
func TestHangingUpLeavesNoChangeHalfWay(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	ids := []string{}
	for range 3 {
		ids = append(ids, w.Create(map[string]any{"network_policy": harness.Custom("api.example.com")}))
	}
	putConfig(w, "/v2/box/settings/attach-headers", globalKey("before")) // requests are intercepted from now on
	for round := range 6 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+3*round)*time.Millisecond)
		_ = w.Client.Do(ctx, "PUT", "/v2/box/settings/attach-headers", globalKey(fmt.Sprintf("V%d", round)), nil)
		cancel()
		// The change may still be running, or not even have begun. A change left halfway would never complete.
		w.Until(fmt.Sprintf("in round %d, all boxes send the same", round), func() bool {
			first := sentKey(w, ids[0])
			return !slices.ContainsFunc(ids[1:], func(id string) bool { return sentKey(w, id) != first })
		})
	}
}

// A deletion completes after its client has disconnected, and frees the name.
func TestHangingUpDoesNotStopADeletion(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	for round := range 4 {
		box := w.Create(map[string]any{"name": "again"})
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+5*round)*time.Millisecond)
		_ = w.Client.Do(ctx, "DELETE", api.BoxPath(box), nil, nil)
		cancel()
		// The deletion may not have begun. Deleting again waits for it and gets a 404, or deletes the box.
		var refused *api.ResponseError
		if err := w.Client.Do(t.Context(), "DELETE", api.BoxPath(box), nil, nil); err != nil && (!errors.As(err, &refused) || refused.Status != 404) {
			t.Errorf("round %d: deleting again: %v", round, err)
		}
	}
	w.Create(map[string]any{"name": "again"})
}

// A box whose processes ended is in error after a restart, and does not delay the others.
func TestBoxInErrorDoesNotHoldUpTheOthers(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	broken := w.Create(map[string]any{"network_policy": harness.Custom("api.example.com")})
	works := w.Create(map[string]any{"network_policy": harness.Custom("api.example.com")})
	if err := w.Stop(); err != nil {
		t.Fatal(err)
	}
	killInit(w, broken)
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	var state struct{ Status, Error string }
	if err := w.Client.Get(t.Context(), api.BoxPath(broken, "status"), &state); err != nil || state.Status != "error" {
		t.Errorf("the broken box: %+v %v", state, err)
	}
	putConfig(w, "/v2/box/settings/attach-headers", globalKey("V1"))
	if got := sentKey(w, works); got != "V1" {
		t.Errorf("the other box sends %q", got)
	}
	w.SetPolicy(broken, harness.Custom("www.example.com"))
	if err := w.Client.Do(t.Context(), "DELETE", api.BoxPath(broken), nil, nil); err != nil {
		t.Errorf("deleting it: %v", err)
	}
}

// killInit kills the first process of a box from outside, like the kernel when memory runs out.
func killInit(w *harness.World, box string) {
	w.T.Helper()
	pid := w.InitOf(box)
	if err := lab.KillAndAwait(pid); err != nil {
		w.T.Fatal(err)
	}
}

func TestNameThatLooksLikeAnIDIsRefused(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	err := w.Client.Do(t.Context(), "POST", "/v2/box", map[string]any{"name": "0123456789abcdef"}, nil)
	if err == nil || !strings.Contains(err.Error(), "choose another name") {
		t.Errorf("the answer was %v", err)
	}
}
