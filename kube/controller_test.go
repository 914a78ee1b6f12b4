package kube

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"boxgate/internal/nightly"
	"boxgate/policy"
)

// memory has the policies of resources in memory.
type memory struct {
	mu      sync.Mutex
	specs   map[string]policy.Spec
	fail    map[string]error
	applied int
	changed chan struct{}
}

func newMemory() *memory {
	return &memory{specs: map[string]policy.Spec{}, fail: map[string]error{}, changed: make(chan struct{}, 1)}
}

func (m *memory) Resources() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.specs))
}

func (m *memory) ApplyResource(_ context.Context, resource string, spec policy.Spec) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.applied++
	if err := m.fail[resource]; err != nil {
		return err
	}
	m.specs[resource] = spec
	return nil
}

func (m *memory) CloseResource(_ context.Context, resource string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.specs, resource)
	return nil
}

// mode returns the mode of a resource's policy; "" if it has none.
func (m *memory) mode(resource string) policy.Mode {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.specs[resource].Mode
}

// run runs a controller until the test ends.
func run(t *testing.T, c *Controller) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); c.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
}

// until waits for a condition.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	patience, err := time.ParseDuration(os.Getenv("GATEWAY_TEST_PATIENCE"))
	if err != nil {
		patience = time.Minute
	}
	for end := time.Now().Add(patience); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("did not happen:", what)
		}
	}
}

const (
	openSpec = `{"mode":"allow-all"}`
	shutSpec = `{"mode":"deny-all"}`
)

// Resources become policies, in several pages, with their changes and ends; their statuses have the verdicts.
func TestResourcesBecomePolicies(t *testing.T) {
	t.Parallel()
	s, m := newAPIServer(t), newMemory()
	for i := range 3*pageSize + 1 {
		s.put(fmt.Sprintf("default/p%03d", i), shutSpec)
	}
	m.specs["default/gone"] = policy.Spec{Mode: policy.ModeAllowAll}
	c := s.controller(m)
	run(t, c)
	until(t, "all are listed", func() bool { return len(m.Resources()) == 3*pageSize+1 && m.mode("default/gone") == "" })
	s.put("team/web", openSpec)
	until(t, "a new one", func() bool { return m.mode("team/web") == policy.ModeAllowAll })
	until(t, "its status", func() bool { return len(s.status("team/web").Conditions) == 1 })
	if got := s.status("team/web"); got.Conditions[0].Status != "True" || got.Conditions[0].Reason != reasonValid || len(got.Problems) != 0 {
		t.Errorf("%+v", got)
	}
	s.put("team/web", `{"mode":"custom","allowed_domainz":[]}`)
	until(t, "the status of a mistake", func() bool { return s.status("team/web").Conditions[0].Status == "False" })
	if got := s.status("team/web").Conditions[0]; !strings.Contains(got.Message, "allowed_domainz") || got.ObservedGeneration != 2 {
		t.Errorf("%+v", got)
	}
	if m.mode("team/web") != policy.ModeAllowAll {
		t.Error("a policy with a mistake replaced the last valid one")
	}
	s.remove("team/web", false)
	until(t, "its end", func() bool { return m.mode("team/web") == "" })
	if c.Listed().IsZero() {
		t.Error("no time of the list")
	}
}

// The end of a watch, a version that is too old, and an error in it lose no change.
func TestWatchesEnd(t *testing.T) {
	t.Parallel()
	s, m := newAPIServer(t), newMemory()
	s.put("a/web", openSpec)
	run(t, s.controller(m))
	until(t, "the list", func() bool { return m.mode("a/web") == policy.ModeAllowAll })
	s.mu.Lock()
	s.oldest = s.version + 100 // 410 Gone
	s.version += 100
	s.wake()
	s.mu.Unlock()
	s.remove("a/web", true)
	until(t, "a list after 410", func() bool { return m.mode("a/web") == "" })

	ended := 0
	s.instead(func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Query().Get("watch") == "" {
			return false
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		switch ended++; ended % 3 {
		case 0:
			_, _ = w.Write([]byte("{no event}\n"))
		case 1:
			_, _ = w.Write([]byte(`{"type":"ADDED","object":{"metadata":{"namespace":"a","name":"x"}}}` + "\n")) // without a version
		}
		return true
	})
	s.CloseClientConnections()
	s.put("a/later", openSpec)
	until(t, "a list after broken watches", func() bool { return m.mode("a/later") == policy.ModeAllowAll })
}

// A deletion whose event is lost takes effect with the next list, although the watch goes on without an end.
func TestLostEvents(t *testing.T) {
	t.Parallel()
	s, m := newAPIServer(t), newMemory()
	s.put("a/web", openSpec)
	c := s.controller(m)
	c.resync = 20 * time.Millisecond
	run(t, c)
	until(t, "the list", func() bool { return m.mode("a/web") == policy.ModeAllowAll })
	s.remove("a/web", true)
	until(t, "the lost deletion", func() bool { return m.mode("a/web") == "" })
}

// A policy that this gateway cannot apply is a problem in the status, and is tried again.
func TestProblemsOfANode(t *testing.T) {
	t.Parallel()
	s, m := newAPIServer(t), newMemory()
	m.fail["a/web"] = errors.New("the named policy exists")
	s.put("a/web", openSpec)
	c := s.controller(m)
	_, failed, err := c.list(t.Context())
	if err != nil || !failed {
		t.Error(failed, err)
	}
	run(t, c)
	until(t, "the problem", func() bool { return len(s.status("a/web").Problems) == 1 })
	if got := s.status("a/web"); got.Problems[0].Node != "node-1" || got.Problems[0].Message != "the named policy exists" || got.Conditions[0].Status != "True" {
		t.Errorf("%+v", got)
	}
	m.mu.Lock()
	m.fail = map[string]error{}
	m.mu.Unlock()
	s.put("a/web", shutSpec)
	until(t, "it is solved", func() bool { return len(s.status("a/web").Problems) == 0 && m.mode("a/web") == policy.ModeDenyAll })
}

// While the API server does not answer, or answers nonsense, no policy changes or ends.
func TestAttackAPIServerAnswersNonsense(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]func(w http.ResponseWriter, r *http.Request){
		"no list": func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{}`) },
		"null items": func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, `{"metadata":{"resourceVersion":"1"},"items":null}`)
		},
		"no version":    func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"metadata":{},"items":[]}`) },
		"HTML":          func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `<html>`) },
		"an empty body": func(http.ResponseWriter, *http.Request) {},
		"403":           func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) },
		"404":           func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) },
		"500":           func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) },
		"a cut answer": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			fmt.Fprint(w, `{"metadata"`)
		},
		"the same page": func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, `{"metadata":{"resourceVersion":"1","continue":"x"},"items":[]}`)
		},
		"a redirect": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://127.0.0.1:1/", http.StatusFound)
		},
		"the second page":    secondPageFails,
		"a page without end": endless,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, m := newAPIServer(t), newMemory()
			m.specs["a/web"] = policy.Spec{Mode: policy.ModeDenyAll}
			s.instead(func(w http.ResponseWriter, r *http.Request) bool { answer(w, r); return true })
			c := s.controller(m)
			if _, _, err := c.list(t.Context()); err == nil {
				t.Error("it is a list")
			}
			if m.mode("a/web") != policy.ModeDenyAll {
				t.Error("the policy has changed")
			}
			if !c.Listed().IsZero() {
				t.Error("it counts as listed")
			}
		})
	}
}

// secondPageFails serves the first of two pages.
func secondPageFails(w http.ResponseWriter, r *http.Request) {
	if r.URL.Query().Get("continue") != "" {
		w.WriteHeader(http.StatusGone)
		return
	}
	fmt.Fprint(w, `{"metadata":{"resourceVersion":"1","continue":"x"},"items":[]}`)
}

// endless serves a page larger than its bound, whatever its number of items.
func endless(w http.ResponseWriter, _ *http.Request) {
	chunk := []byte(strings.Repeat(" ", 1<<20))
	for range 2 * mostPage >> 20 {
		if _, err := w.Write(chunk); err != nil {
			return
		}
	}
}

// An API server with another certificate gets neither a request nor the token.
func TestAttackOtherAPIServer(t *testing.T) {
	t.Parallel()
	s, m := newAPIServer(t), newMemory()
	asked := false
	s.instead(func(http.ResponseWriter, *http.Request) bool { asked = true; return true })
	other := httptest.NewUnstartedServer(http.NotFoundHandler())
	other.StartTLS()
	defer other.Close()
	c := s.controller(m)
	key, err := newAuthority()
	if err != nil {
		t.Fatal(err)
	}
	s.write(s.ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: key}))
	if _, _, err := c.list(t.Context()); err == nil || !strings.Contains(err.Error(), "certificate") || asked {
		t.Errorf("another root: %v, asked: %v", err, asked)
	}
	c.client.server.URL = "http" + strings.TrimPrefix(s.URL, "https")
	if _, _, err := c.list(t.Context()); err == nil || asked {
		t.Errorf("plain HTTP: %v", err)
	}
}

// Resources beyond bounds cost no memory, and do not keep others from their policies.
func TestAttackLargeResources(t *testing.T) {
	t.Parallel()
	s, m := newAPIServer(t), newMemory()
	large, err := json.Marshal(map[string]any{"mode": "custom", "denied_domains": []string{strings.Repeat("x", 3<<20)}})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 12 {
		s.put(fmt.Sprintf("a/large%d", i), string(large))
	}
	s.put("z/web", openSpec)
	run(t, s.controller(m))
	until(t, "the small one", func() bool { return m.mode("z/web") == policy.ModeAllowAll })
	until(t, "the status of a large one", func() bool { return len(s.status("a/large0").Conditions) == 1 })
	if got := s.status("a/large0").Conditions[0]; got.Status != "False" || !strings.Contains(got.Message, "at most") || len(got.Message) > 2*mostMessage {
		t.Errorf("%+v", got)
	}
	if n := len(m.Resources()); n != 1 {
		t.Errorf("%d policies", n)
	}
}

// A list of any length is read in pages, of which the controller keeps nothing.
func TestAttackListOfManyResources(t *testing.T) {
	t.Parallel()
	s, m := newAPIServer(t), newMemory()
	all, next := nightly.Size(5_000, 100_000), 0
	for i := range all {
		m.fail[fmt.Sprintf("a/p%d", i)] = errors.New("too many")
	}
	s.instead(func(w http.ResponseWriter, _ *http.Request) bool {
		var items []string
		for ; len(items) < pageSize && next < all; next++ {
			items = append(items, fmt.Sprintf(`{"metadata":{"namespace":"a","name":"p%d"},"spec":{"mode":"deny-all"}}`, next))
		}
		more := ""
		if next < all {
			more = fmt.Sprint("page-", next)
		}
		fmt.Fprintf(w, `{"metadata":{"resourceVersion":"1","continue":%q},"items":[%s]}`, more, strings.Join(items, ","))
		return true
	})
	c := s.controller(m)
	if _, failed, err := c.list(t.Context()); err != nil || !failed || m.applied != all {
		t.Errorf("%d of %d considered, %v", m.applied, all, err)
	}
	if n := len(c.statuses.waiting); n != mostWaiting {
		t.Errorf("%d statuses wait", n)
	}
}

// The status of many resources is written at a bounded rate, from a bounded queue.
func TestStatusesAreBounded(t *testing.T) {
	t.Parallel()
	s := newAPIServer(t)
	c := s.controller(newMemory())
	for i := range 3 * mostWaiting {
		c.statuses.add(metadata{Namespace: "a", Name: fmt.Sprint("p", i)}, status{})
	}
	if n := len(c.statuses.waiting); n != mostWaiting {
		t.Errorf("%d wait", n)
	}
}

// A namespace that writes long conditions into the statuses of its resources has the gateway hold few of them.
func TestAttackLongStatuses(t *testing.T) {
	t.Parallel()
	s := newAPIServer(t)
	c := s.controller(newMemory())
	long := status{Conditions: []condition{{Type: "Other", Message: strings.Repeat("x", 32<<10)}}}
	for i := range mostWaiting {
		c.statuses.add(metadata{Namespace: "a", Name: fmt.Sprint("p", i)}, long)
	}
	if n := len(c.statuses.waiting); int64(n)*long.size() > mostHeld || n == 0 {
		t.Errorf("%d wait, of %d bytes each", n, long.size())
	}
	s.instead(func(_ http.ResponseWriter, r *http.Request) bool { return r.Method == http.MethodPut })
	run(t, c)
	until(t, "room", func() bool { return c.statuses.held.Load() < mostHeld/2 })
}

// A resource that is refused for good does not have all resources listed all the time.
func TestAttackRefusedForGood(t *testing.T) {
	t.Parallel()
	s, m := newAPIServer(t), newMemory()
	m.fail["a/web"] = errors.New("too many")
	s.put("a/web", openSpec)
	c := s.controller(m)
	follow := func() {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s.instead(func(_ http.ResponseWriter, r *http.Request) bool {
			if r.URL.Query().Has("watch") {
				cancel()
			}
			return false
		})
		if err := c.follow(ctx); err != nil {
			t.Error(err)
		}
	}
	for _, want := range []time.Duration{retry, 2 * retry, 4 * retry, 8 * retry, 16 * retry, resync, resync} {
		if got := c.retryIn(); got != want {
			t.Errorf("%v until the next list, want %v", got, want)
		}
		follow()
	}
	m.mu.Lock()
	m.fail = map[string]error{}
	m.mu.Unlock()
	if follow(); c.retryIn() != retry {
		t.Errorf("%v until the next list after one that succeeded", c.retryIn())
	}
}
