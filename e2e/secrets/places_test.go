package secrets

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"sync"
	"testing"

	"boxgate/audit"
	"boxgate/e2e/harness"
	"boxgate/policy"
	"boxgate/policy/name"
)

const bodiesHost = "bodies.example.com"

// bodies is a server that records request bodies.
type bodies struct {
	mu  sync.Mutex
	got map[string]string // path with query → body
}

func (b *bodies) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		body = append(body, " (cut short)"...)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.got[r.RequestURI] = string(body)
}

func (b *bodies) takeAll() map[string]string {
	b.mu.Lock()
	defer b.mu.Unlock()
	got := b.got
	b.got = map[string]string{}
	return got
}

// TestPlaceholderInQueriesAndBodies: curl and Python send the variable where the API expects its key, and the server
// gets the secret if the rule allows that place.
func TestPlaceholderInQueriesAndBodies(t *testing.T) {
	t.Parallel()
	w := harness.NewWorld(t, withSecretFile("openai", secretFile(t, `from "`+harness.TestSecret)))
	server := &bodies{got: map[string]string{}}
	if err := w.Net.AddHost(bodiesHost, "198.51.100.130", "2001:db8:1::130"); err != nil {
		t.Fatal(err)
	}
	if err := w.Net.ServeHTTP(bodiesHost, server); err != nil {
		t.Fatal(err)
	}
	rule := map[string]any{"placeholders": map[string]any{"API_KEY": map[string]string{"secret": "openai"}}}
	create := func(more map[string]any) string {
		entry := map[string]any{}
		for _, m := range []map[string]any{rule, more} {
			for k, v := range m {
				entry[k] = v
			}
		}
		return w.Create(map[string]any{"network_policy": harness.Custom(bodiesHost, "www.example.com"), "attach_headers": map[string]any{
			bodiesHost: entry, "www.example.com": map[string]string{"X-Www": "1"}}})
	}
	box := create(map[string]any{"places": []string{"header", "query", "form", "json"}, "query": map[string]any{"key": map[string]string{"secret": "openai"}}})
	plain := create(nil)
	const query, json = `from%20%22` + harness.TestSecret, `from \"` + harness.TestSecret
	lines := []struct{ line, path, body string }{
		{`curl -sS -f %s "https://` + bodiesHost + `/q?a=$API_KEY&key=own"`, "/q?a=" + query + "&key=" + query, ""},
		{`curl -sS -f %s -d "client_secret=$API_KEY&grant=x" https://` + bodiesHost + `/form`, "/form?key=" + query, "client_secret=" + query + "&grant=x"},
		{`curl -sS -f %s --json "{\"key\": \"$API_KEY\"}" https://` + bodiesHost + `/json`, "/json?key=" + query, `{"key": "` + json + `"}`},
		{`printf '{"key": "%%s"}' $API_KEY | curl -sS -f %s -H 'Content-Type: application/json' -T - -X POST https://` + bodiesHost + `/streamed`, "/streamed?key=" + query, `{"key": "` + json + `"}`},
	}
	for _, tt := range lines {
		for _, way := range everyWay {
			line := fmt.Sprintf(tt.line, way)
			if out, code := w.Sh(box, line); code != 0 {
				t.Errorf("%s: exit %d: %s", line, code, out)
			}
			got := server.takeAll()
			maps.DeleteFunc(got, func(_, body string) bool { return strings.HasSuffix(body, " (cut short)") }) // of the refused command before
			if len(got) != 1 || got[tt.path] != tt.body {
				t.Errorf("%s: the server received %q", line, got)
			}
			if out, code := w.Sh(plain, line); code == 0 {
				t.Errorf("%s, not in the rule: %s", line, out)
			}
			for path, body := range server.takeAll() {
				if !strings.HasSuffix(body, " (cut short)") || strings.Contains(path+body, harness.TestSecret) {
					t.Errorf("%s, not in the rule: the server received %q: %q", line, path, body)
				}
			}
			out, code := w.Sh(box, strings.ReplaceAll(line, bodiesHost, "www.example.com"))
			early := strings.Contains(way, "http2") || tt.path[:2] == "/s" // that host may answer before it has read a streamed body
			if code == 0 && !early {
				t.Errorf("%s, another host: %s", line, out)
			}
		}
	}
	w.MustSh(box, `python3 -c 'import os, json, gzip, urllib.request as u
u.urlopen(u.Request("https://`+bodiesHost+`/python", data=json.dumps({"key": os.environ["API_KEY"]}).encode(), headers={"Content-Type": "application/json"})).read()'`)
	if got := server.takeAll(); got["/python?key="+query] != `{"key": "`+json+`"}` {
		t.Errorf("python: %q", got)
	}
	e := w.Event(box, func(e audit.Event) bool { return e.Name == bodiesHost && e.Path == "/python" })
	if e.Verdict != policy.Allow || strings.Join(e.Headers, " ") != "?key body" {
		t.Errorf("event %+v", e)
	}
	w.DenialOf(plain, policy.StageHTTP, bodiesHost, name.ReasonPlaceholderLeak)
	if strings.Contains(w.LogText(), harness.TestSecret) {
		t.Error("the gateway's log holds the secret")
	}
}
