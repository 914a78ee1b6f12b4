package server

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/api/apitest"
	"boxgate/audit/trail"
)

// withTrail serves an API with an audit trail in a temporary directory.
func withTrail(t testing.TB, edits ...func(*Config)) (*fixture, string) {
	t.Helper()
	dir := t.TempDir()
	tr, err := trail.Open(dir, trail.Options{Size: 64 << 20}, "test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tr.Close() })
	return serve(t, append([]func(*Config){func(cfg *Config) { cfg.Trail = tr }}, edits...)...), dir
}

// entries reads the trail.
func entries(t testing.TB, dir string) (out []trail.Entry, text string) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		text += string(data)
	}
	for line := range strings.Lines(text) {
		var e trail.Entry
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(line, err)
		}
		out = append(out, e)
	}
	return out, text
}

// TestTheTrailSaysWhoChangedWhat: the trail contains calls with their outcome, key, box and change, and refused calls,
// but no reads.
func TestTheTrailSaysWhoChangedWhat(t *testing.T) {
	t.Parallel()
	f, dir := withTrail(t)
	id := f.create(t, `{"name":"web"}`)
	ci := f.key(t, `{"name":"ci","role":"one-box","box":"web"}`)
	f.Call(t, "PUT", "/v2/box/web/config/network-policy", `{"mode":"custom","allowed_domains":["api.example.com"]}`, apitest.With(ci))
	f.Call(t, "GET", "/v2/box/web", "", apitest.With(ci))
	f.Call(t, "POST", "/v2/box/attach", `{}`, apitest.With(ci))
	f.Call(t, "POST", "/v2/box", `{}`, apitest.With("sk-wrong-key"))
	f.Call(t, "PUT", "/v2/box/web/config/network-policy", `{"mode":"nonsense"}`)
	all, _ := entries(t, dir)
	has := func(want string, is func(e trail.Entry) bool) {
		t.Helper()
		for _, e := range all {
			if is(e) {
				return
			}
		}
		t.Errorf("the trail does not have %s", want)
	}
	var call uint64
	has("the call", func(e trail.Entry) bool {
		if e.Kind == trail.Call && e.Key == "ci" && e.KeyID == "key_1" && e.Role == "one-box" && e.Box == "box1" && strings.HasPrefix(e.Remote, "127.") && e.Method == "PUT" {
			call = e.Seq
		}
		return call != 0
	})
	has("its answer", func(e trail.Entry) bool {
		return e.Kind == trail.Answer && e.Call == call && e.Status == 200 && strings.Contains(string(e.Change.RawMessage), `"added":["api.example.com"]`) && strings.Contains(string(e.Change.RawMessage), `"mode":`)
	})
	has("the box that was made", func(e trail.Entry) bool {
		return e.Kind == trail.Answer && string(e.Box) == id && e.Status == 201 && e.Key == "operator"
	})
	has("the key that was made", func(e trail.Entry) bool {
		return strings.Contains(string(e.Change.RawMessage), `"api_key_made":{"id":"key_1"`)
	})
	has("what the role does not permit", func(e trail.Entry) bool { return e.Kind == trail.Refused && e.Key == "ci" && e.Status == 403 })
	has("a call with a wrong key", func(e trail.Entry) bool { return e.Kind == trail.Refused && e.KeyID == "" && e.Status == 401 })
	has("a mistake", func(e trail.Entry) bool { return e.Kind == trail.Answer && e.Status == 422 })
	for _, e := range all {
		if strings.HasPrefix(e.Route, "GET") {
			t.Errorf("reading is in the trail: %+v", e)
		}
	}
}

// noTrail fails after a number of entries.
type noTrail struct {
	mu      sync.Mutex
	left    int
	entries []trail.Entry
}

func (n *noTrail) Append(e trail.Entry) (uint64, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.left--; n.left < 0 {
		return 0, errors.New("no space left on device")
	}
	n.entries = append(n.entries, e)
	return uint64(len(n.entries)), nil
}

func (n *noTrail) AppendAll(list []trail.Entry) (first uint64, err error) {
	for _, e := range list {
		seq, err := n.Append(e)
		if err != nil {
			return 0, err
		}
		if first == 0 {
			first = seq
		}
	}
	return first, nil
}

// TestNothingChangesWithoutTheTrail: if the trail cannot record a call, every changing endpoint refuses it before
// executing it, while reads continue. If the trail cannot record the outcome, the response is not a success.
func TestNothingChangesWithoutTheTrail(t *testing.T) {
	t.Parallel()
	none := &noTrail{}
	f := serve(t, func(cfg *Config) { cfg.Trail = none })
	for _, rt := range f.api.routes {
		reads := rt.Method == "GET" && rt.ID != "openSession" && rt.ID != "backupStore" || rt.ID == "explainDecision" || rt.ID == "replayPolicy"
		got := f.Call(t, rt.Method, pathTo(rt, "box1"), "")
		refused := got.StatusCode == http.StatusServiceUnavailable && strings.Contains(got.Text, "audit trail")
		if reads == refused {
			t.Errorf("%s %s: %s %s", rt.Method, rt.Path, got.Status, got.Text)
		}
	}
	if got := f.Call(t, "POST", "/v2/box", `{}`); got.StatusCode != http.StatusServiceUnavailable || !strings.Contains(got.Text, "nothing was changed") {
		t.Error(got.Status, got.Text)
	}
	if len(f.host.Created)+len(f.host.Keys) != 0 {
		t.Error("something was made")
	}
	none.mu.Lock()
	none.left = 1 // the call but not its outcome
	none.mu.Unlock()
	if got := f.Call(t, "POST", "/v2/box", `{}`); got.StatusCode != http.StatusServiceUnavailable || !strings.Contains(got.Text, "was carried out") || len(f.host.Created) != 1 {
		t.Error(got.Status, got.Text)
	}
}

// ordered checks the state of the host when an entry is written.
type ordered struct {
	noTrail
	f *fixture
	t *testing.T
}

func (o *ordered) Append(e trail.Entry) (uint64, error) {
	o.f.host.Mu.Lock()
	made := len(o.f.host.Created)
	o.f.host.Mu.Unlock()
	if e.Kind == trail.Call && made != 0 || e.Kind == trail.Answer && made != 1 {
		o.t.Errorf("%s is written with %d boxes made", e.Kind, made)
	}
	return o.noTrail.Append(e)
}

// TestTheCallIsWrittenFirst: the call is recorded before it executes, and its outcome before the response.
func TestTheCallIsWrittenFirst(t *testing.T) {
	t.Parallel()
	o := &ordered{t: t, noTrail: noTrail{left: 1000}}
	f := serve(t, func(cfg *Config) { cfg.Trail = o })
	o.f = f
	f.create(t, `{}`)
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.entries) != 2 || o.entries[1].Kind != trail.Answer {
		t.Errorf("when the answer is there the trail has %+v", o.entries)
	}
}

// TestNoSecretIsInTheTrail: of anything that a caller sends, in bodies, paths, queries and headers of every endpoint, the
// trail contains only names that the gateway accepted.
func TestNoSecretIsInTheTrail(t *testing.T) {
	t.Parallel()
	const canary = "sk-canary-7f3a"
	f, dir := withTrail(t)
	f.create(t, `{"name":"web","env_vars":{"TOKEN":"`+canary+`"},"github_token":"`+canary+`","attach_headers":{"api.example.com":{"Authorization":"Bearer `+canary+`"}}}`)
	f.Call(t, "PUT", "/v2/box/web/config/attach-headers", `{"api.example.com":{"X-Key":"`+canary+`"}}`)
	f.Call(t, "PATCH", "/v2/box/settings/attach-headers", `{"api.example.org":{"X-Key":"`+canary+`"}}`)
	f.Call(t, "PUT", "/v2/box/settings/env", `{"env_vars":{"TOKEN":"`+canary+`"}}`)
	f.Call(t, "POST", "/v2/box/web/exec", `{"command":["echo","`+canary+`"]}`)
	f.Call(t, "PUT", "/v2/box/web/config/network-policy", `{"mode":"custom","allowed_domains":["a.example"],"rules":[{"hosts":["a.example"],"paths":["/`+canary+`"],"action":"deny"}]}`)
	f.Expect(t, 200, "PUT", "/v2/box/web/config/network", `{"network_policy":{"mode":"custom","allowed_domains":["a.example"]},"attach_headers":{"a.example":{"X-Key":"`+canary+`"}}}`)
	f.Expect(t, 200, "PUT", "/v2/box/web/config/network-policy", `{"allow":{"b.example":[{"transform":[{"headers":{"X-Key":"`+canary+`"}}]}]}}`)
	made := f.Call(t, "POST", "/v2/box/web/preview", `{"port":3000,"bearer_token":true}`)
	token, _ := made.JSON(t)["token"].(string)
	key := f.key(t, `{"name":"ci","role":"read-only"}`)
	for _, rt := range f.api.routes {
		if rt.ID == "deleteBox" || rt.ID == "deleteBoxes" {
			continue
		}
		path := strings.NewReplacer("{id}", "web").Replace(rt.Path)
		for strings.Contains(path, "{") {
			path = path[:strings.Index(path, "{")] + canary + path[strings.Index(path, "}")+1:]
		}
		for _, with := range []func(*http.Request){apitest.With(apitest.Key), apitest.With(key), apitest.With(canary)} {
			f.Call(t, rt.Method, path+"?x="+canary, `{"`+canary+`":"`+canary+`"}`, with, func(r *http.Request) { r.Header.Set("User-Agent", canary) })
			f.Call(t, "POST", path+"/"+canary, `{}`, with)
		}
	}
	all, text := entries(t, dir)
	for _, secret := range []string{canary, token, key, apitest.Key} {
		if secret == "" || strings.Contains(text, secret) {
			t.Errorf("%q is in the trail, or was not made", secret)
		}
	}
	if len(all) < 100 {
		t.Errorf("only %d entries", len(all))
	}
	if !strings.Contains(text, `"hosts":["b.example"]`) || !strings.Contains(text, `"allowed_domains":{"added":["b.example"],"removed":["a.example"]}`) {
		t.Error("a change of policy and header rules is in the trail without one of the two")
	}
}

// TestHalfTheTrailIsNotAllOfIt: a reader notices if the trail could not be read to its end.
func TestHalfTheTrailIsNotAllOfIt(t *testing.T) {
	t.Parallel()
	f, _ := withTrail(t)
	for _, fail := range []error{nil, errors.New("the disk is gone")} {
		f.host.Mu.Lock()
		f.host.Unread = fail
		f.host.Mu.Unlock()
		resp := f.stream(t, "/v2/audit", "")
		if _, err := io.ReadAll(resp.Body); resp.StatusCode != http.StatusOK || fail == nil && err != nil || fail != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%v: %s %v", fail, resp.Status, err)
		}
		err := api.NewClient(f.URL, apitest.Key).Events(t.Context(), "/v2/audit", func(string) {}, func([]byte) error { return nil })
		if (err == nil) != (fail == nil) || err != nil && !strings.Contains(err.Error(), "answer is incomplete") {
			t.Errorf("%v: the client says %v", fail, err)
		}
	}
}

// TestRefusalsDoNotFloodTheTrail: refusals are bounded per key, and the suppressed ones counted.
func TestRefusalsDoNotFloodTheTrail(t *testing.T) {
	t.Parallel()
	var c refusals
	now := time.Now()
	written := 0
	for range 1000 {
		if _, ok := c.count("a", now); ok {
			written++
		}
	}
	if left, ok := c.count("b", now); !ok || left != 0 || written != maxRefusals {
		t.Error(left, ok, written)
	}
	if left, ok := c.count("a", now.Add(time.Minute)); !ok || left != 1000-maxRefusals {
		t.Error(left, ok)
	}
}

// TestAStreamIsInTheTrailWhenItBegins: a stream is recorded at its beginning, not at its end.
func TestAStreamIsInTheTrailWhenItBegins(t *testing.T) {
	t.Parallel()
	f, dir := withTrail(t)
	f.create(t, `{}`)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "POST", f.URL+"/v2/box/box1/exec-stream", strings.NewReader(`{"command":["sh","-c","echo one; sleep 600"]}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Box-Api-Key", apitest.Key)
	res, err := f.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	bufio.NewScanner(res.Body).Scan()
	all, _ := entries(t, dir)
	if last := all[len(all)-1]; last.Kind != trail.Answer || last.Status != 200 || last.Route != "POST /v2/box/{id}/exec-stream" {
		t.Errorf("%+v", last)
	}
}

// The trail records "unix" only for requests over the Unix socket.
func TestWhereRequestsComeFrom(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		remote string
		local  net.Addr
		want   string
	}{
		{"192.0.2.1:4000", &net.TCPAddr{}, "192.0.2.1"},
		{"[2001:db8::1]:4000", &net.TCPAddr{}, "2001:db8::1"},
		{"@", &net.UnixAddr{Net: "unix"}, "unix"},
		{"", &net.UnixAddr{Net: "unix"}, "unix"},
		{"", &net.TCPAddr{}, "unknown"},
	} {
		r := httptest.NewRequestWithContext(context.WithValue(t.Context(), http.LocalAddrContextKey, c.local), http.MethodGet, "/", nil)
		if r.RemoteAddr = c.remote; (&API{}).remoteOf(r) != c.want {
			t.Errorf("%q to %s: %q, want %q", c.remote, c.local.Network(), (&API{}).remoteOf(r), c.want)
		}
	}
}

// TestNamedPolicyInTheTrail: the audit trail contains the change of a named policy, the number of its boxes, and the
// resulting policy version of each box.
func TestNamedPolicyInTheTrail(t *testing.T) {
	t.Parallel()
	const namedWeb = "/v2/box/settings/network-policies/web"
	f, dir := withTrail(t)
	f.Call(t, "PUT", namedWeb, `{"mode":"deny-all"}`)
	id := f.create(t, `{"network_policy":{"named":"web"}}`)
	f.Call(t, "PUT", namedWeb, `{"mode":"custom","allowed_domains":["a.example"]}`)
	f.Call(t, "PUT", "/v2/box/"+id+"/config/network-policy", `{"mode":"deny-all"}`)
	f.Call(t, "DELETE", namedWeb, "")
	all, text := entries(t, dir)
	has := false
	for _, e := range all {
		change := string(e.Change.RawMessage)
		has = has || e.Kind == trail.Policy && string(e.Box) == id && e.PolicyVersion == 2 && e.Key == "operator" && e.Status == 0 && all[e.Call-1].Kind == trail.Call &&
			strings.Contains(change, `"name":"web","version":2`) && strings.Contains(change, `"added":["a.example"]`)
	}
	if !has {
		t.Errorf("nothing says what the change has made of the policy of the box:\n%s", text)
	}
	for _, part := range []string{`"named_policy":"web"`, `"boxes":1,"name":"web","policy":{"version":2,"mode":["deny-all","custom"],"allowed_domains":{"added":["a.example"]}`, `"named":["web",""]`, `"deleted":true,"name":"web"`} {
		if !strings.Contains(text, part) {
			t.Errorf("%s is not in\n%s", part, text)
		}
	}
}

// TestImpossibleTimesAreRefused: every endpoint that reads records refuses a time that must be empty, and takes dates.
func TestImpossibleTimesAreRefused(t *testing.T) {
	t.Parallel()
	f := serve(t)
	f.create(t, `{}`)
	for _, path := range []string{"/v2/egress/history", "/v2/box/box1/egress/history", "/v2/audit", "/v2/audit/report", "/v2/secrets/openai/uses"} {
		for query, why := range map[string]string{
			"since=1h&until=2h": "is not after", "since=2026-01-02&until=2026-01-02": "is not after", "since=2999-01-01": "is in the future", "since=soon": "is not a time",
		} {
			if got := f.Call(t, "GET", path+"?"+query, ""); got.StatusCode != http.StatusUnprocessableEntity || !strings.Contains(got.Text, why) {
				t.Errorf("%s?%s: %s %s", path, query, got.Status, got.Text)
			}
		}
		if got := f.Call(t, "GET", path+"?since=2026-01-01&until=2026-01-02T03:04:05Z", ""); got.StatusCode != http.StatusOK {
			t.Errorf("%s: %s %s", path, got.Status, got.Text)
		}
	}
}
