package secrets

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"boxgate/audit"
	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/internal/nightly"
	"boxgate/internal/testnet"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/secrets"
)

// secretFile writes the file of a secret and returns its path.
func secretFile(t *testing.T, value string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(path, []byte(value+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// withSecretFile gives a gateway one secret, read from a file ten times a second.
func withSecretFile(name, path string) func(*config.Config) {
	return func(cfg *config.Config) {
		cfg.Secrets = config.Secrets{Sources: map[string]secrets.Source{name: {File: path, Refresh: 100 * time.Millisecond}}}
	}
}

// everyWay are curl's arguments for each family and version; in the gate, each once.
var everyWay = nightly.Size([]string{"-4 --http1.1", "-6 --http2"}, []string{"-4 --http1.1", "-6 --http1.1", "-4 --http2", "-6 --http2"})

// TestHeaderRulesOfBoxAndGateway: only the most specific pattern applies, a box's rule replaces the global one with the
// same pattern, and other fields are unchanged.
func TestHeaderRulesOfBoxAndGateway(t *testing.T) {
	t.Parallel()
	w := harness.NewWorld(t, withSecretFile("openai", secretFile(t, harness.TestSecret)))
	if err := w.Client.Do(t.Context(), "PUT", "/v2/box/settings/attach-headers", map[string]any{
		"*.example.com":   map[string]string{"X-Wide": "global", "X-Key": "global"},
		"www.example.com": map[string]string{"X-Www": "global"},
		"ws.example.com":  map[string]string{"X-Ws": "global"},
	}, nil); err != nil {
		t.Fatal(err)
	}
	box := w.Create(map[string]any{
		"network_policy": harness.Custom("*.example.com"),
		"attach_headers": map[string]any{
			"api.example.com": map[string]any{"headers": map[string]any{
				"Authorization": map[string]string{"secret": "openai", "prefix": "Bearer "}, "X-Key": map[string]string{"value": "box"},
			}},
			"www.example.com":      map[string]string{"X-Www": "box"},
			"ws.example.com":       map[string]string{},
			"api.example.com:8443": map[string]string{"X-Port": "box"},
		},
	})
	names := []string{"Authorization", "X-Key", "X-Wide", "X-Www", "X-Ws", "X-Port"}
	for i, way := range everyWay {
		for url, want := range map[string]string{
			"https://api.example.com":      "Authorization=Bearer " + harness.TestSecret + " X-Key=box",
			"https://api.example.com:8443": "X-Port=box",
			"https://www.example.com":      "X-Www=box",
			"https://ws.example.com":       "",
			"https://a.b.example.com":      "X-Key=global X-Wide=global",
		} {
			host, _, _ := strings.Cut(strings.TrimPrefix(url, "https://"), ":")
			if strings.HasPrefix(host, "a.b.") && len(w.Net.Addrs(host)) == 0 {
				if err := w.Net.AddHost(host, "198.51.100.78", "2001:db8:1::78"); err != nil {
					t.Fatal(err)
				}
			}
			path := fmt.Sprintf("/way-%d-%s", i, strings.NewReplacer("/", "-", ":", "-").Replace(url))
			w.MustSh(box, "curl -k -sS -f -o /dev/null "+way+" "+url+path)
			seen := w.Net.Received(host, testnet.Path(path))
			if len(seen) != 1 {
				t.Errorf("curl %s %s: %d requests arrived", way, url, len(seen))
				continue
			}
			var got []string
			for _, name := range names {
				for _, v := range seen[0].Header.Values(name) {
					got = append(got, name+"="+v)
				}
			}
			if strings.Join(got, " ") != want {
				t.Errorf("curl %s %s: the server received %q, want %q", way, url, got, want)
			}
		}
	}
}

// TestSecretSourceFails: a rotated file is used without a change of rules. When the file is gone, requests are refused
// and the server receives none.
func TestSecretSourceFails(t *testing.T) {
	t.Parallel()
	path := secretFile(t, "first")
	w := harness.NewWorld(t, withSecretFile("key", path))
	box := w.Create(map[string]any{
		"network_policy": harness.Custom("api.example.com"),
		"attach_headers": map[string]any{"api.example.com": map[string]any{"headers": map[string]any{"X-Key": map[string]string{"secret": "key"}}}},
	})
	received := func(way, path string) string {
		w.Sh(box, "curl -sS -o /tmp/body "+way+" https://api.example.com"+path)
		got := "nothing"
		for _, r := range w.Net.Received("api.example.com", testnet.Path(path)) {
			got = r.Header.Get("X-Key")
		}
		return got
	}
	for i, way := range everyWay {
		if got := received(way, fmt.Sprintf("/first-%d", i)); got != "first" {
			t.Errorf("curl %s: the server received %q", way, got)
		}
	}
	if err := os.WriteFile(path, []byte("second"), 0o600); err != nil {
		t.Fatal(err)
	}
	n := 0
	w.Until("the new value is used", func() bool { n++; return received("-4", fmt.Sprintf("/second-%d", n)) == "second" })
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	w.Until("requests are refused", func() bool { n++; return received("-4", fmt.Sprintf("/third-%d", n)) == "nothing" })
	for i, way := range everyWay {
		if got := received(way, fmt.Sprintf("/fourth-%d", i)); got != "nothing" {
			t.Errorf("curl %s: without a value the server received a request with %q", way, got)
		}
		harness.Contains(t, w.MustSh(box, "cat /tmp/body"), `"secret_unavailable"`, `"status":502`)
	}
	e := w.Event(box, func(e audit.Event) bool { return e.Reason == name.ReasonSecretUnavailable })
	if e.Verdict != policy.Deny || e.Status != 502 || !strings.Contains(e.Error, `"key"`) || len(e.Headers) != 0 {
		t.Errorf("decision %+v", e)
	}
}

// TestHeadersCommand: flags set, show and remove the rule of one host, and the other rules keep their values, which are
// not on the command line.
func TestHeadersCommand(t *testing.T) {
	t.Parallel()
	w := harness.NewWorld(t, withSecretFile("openai", secretFile(t, harness.TestSecret)))
	box := w.Create(map[string]any{"network_policy": harness.Custom("api.example.com", "www.example.com")})
	rules := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(rules, []byte("www.example.com:\n  X-Www: 'kept'\napi.example.com:\n  headers:\n    X-Old: {value: old}\n  scrub: true\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(want int, args ...string) string {
		t.Helper()
		out, code := w.GatewayCommand(append([]string{"headers", "--box", box}, args...)...)
		if code != want {
			t.Errorf("gateway headers %v: exit %d: %s", args, code, out)
		}
		return out
	}
	run(0, "set", "@"+rules)
	out := run(0, "set", "api.example.com", "--secret", "Authorization=Bearer {openai}", "--header", "X-Plain=plain", "--placeholder", "OPENAI_API_KEY=openai", "--scrub")
	harness.Contains(t, out, "HOST", "PLACEHOLDERS", "Authorization (openai), X-Plain", "OPENAI_API_KEY (openai)", "yes", "www.example.com", "X-Www")
	if strings.Contains(out, "plain\n") || strings.Contains(out, "kept") || strings.Contains(out, harness.TestSecret) || strings.Contains(out, "X-Old") {
		t.Errorf("a value, or an old header, is shown: %s", out)
	}
	var shown struct {
		Rules map[string]struct {
			Headers      []struct{ Name, Secret string }
			Placeholders []struct{ Variable, Secret string }
			Scrub        bool
		}
	}
	if out := run(0, "list", "--json"); json.Unmarshal([]byte(out), &shown) != nil || len(shown.Rules) != 2 || !shown.Rules["api.example.com"].Scrub || shown.Rules["api.example.com"].Headers[0].Secret != "openai" {
		t.Errorf("%+v", shown)
	}
	w.MustSh(box, "curl -sS -f -o /dev/null https://api.example.com/cli https://www.example.com/cli")
	for host, want := range map[string]string{"api.example.com": "Bearer " + harness.TestSecret + "|plain||", "www.example.com": "|||kept"} {
		h := w.Net.Received(host, testnet.Path("/cli"))[0].Header
		if got := h.Get("Authorization") + "|" + h.Get("X-Plain") + "|" + h.Get("X-Old") + "|" + h.Get("X-Www"); got != want {
			t.Errorf("%s received %q", host, got)
		}
	}
	harness.Contains(t, run(1, "set", "elsewhere.test", "--header", "X-Key=@"+rules+"-none"), "there is no file")
	harness.Contains(t, run(0, "set", "elsewhere.test", "--secret", "X-Key=openai"), "warning: /attach_headers/elsewhere.test: can never apply")
	harness.Contains(t, run(1, "set", "api.example.com", "--secret", "X-Key=unknown"), "--secret X-Key: there is no secret of this name", "no secret")
	harness.Contains(t, run(1, "set", `{"api.example.com": {"Host": "x"}}`), "/attach_headers/api.example.com/Host")
	run(2, "set", "api.example.com")
	run(2, "set", "@"+rules, "--scrub")
	run(0, "rm", "api.example.com", "elsewhere.test")
	harness.Contains(t, run(1, "rm", "api.example.com"), "no header rule")
	harness.Contains(t, run(0, "list"), "www.example.com")
	run(0, "rm")
	if out := run(0, "list"); strings.Contains(out, "example") {
		t.Errorf("after rm: %s", out)
	}
	harness.Contains(t, run(0, "set", "--help"), "gateway headers set --box demo api.openai.com --secret", "placeholders:")
}

// TestRequestRulesFromABox: a denied path is denied in every spelling, and odd paths pass where no rule covers the
// host.
func TestRequestRulesFromABox(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	spec := harness.Custom("api.example.com", "www.example.com")
	spec["rules"] = []map[string]any{{"hosts": []string{"api.example.com"}, "paths": []string{"/admin*"}, "action": "deny"}}
	box := w.Create(map[string]any{
		"network_policy": spec, "attach_headers": map[string]any{"www.example.com": map[string]string{"X-Key": "1"}},
	})
	odd := map[string]string{
		"/admin/x": "request_rule", "/x/../admin/x": "ambiguous_path", "/%61dmin": "ambiguous_path", "//admin": "ambiguous_path", "/admin;x": "ambiguous_path",
		"/x%2f..%2fadmin": "ambiguous_path", `/x\..\admin`: "ambiguous_path", "/%2e/admin": "ambiguous_path", "/x%252f": "ambiguous_path", "/x%00": "ambiguous_path",
	}
	var lines, reasons []string // "": passes
	for _, way := range everyWay {
		for path, reason := range odd {
			for host, reason := range map[string]string{"api.example.com": reason, "www.example.com": ""} {
				lines = append(lines, "curl -sS --path-as-is "+way+" -o /tmp/body -w '%{http_code}' 'https://"+host+path+"'; cat /tmp/body")
				reasons = append(reasons, reason)
			}
		}
	}
	for i, ran := range w.ShEach(box, lines...) {
		passed := strings.HasPrefix(ran.Out, "200") || strings.HasPrefix(ran.Out, "30")
		refused := strings.HasPrefix(ran.Out, "403") && strings.Contains(ran.Out, `"`+reasons[i]+`"`)
		if ran.Code != 0 || reasons[i] == "" && !passed || reasons[i] != "" && !refused {
			t.Errorf("%s: exit %d: %s", ran.Line, ran.Code, ran.Out)
		}
	}
	if seen := w.Net.Received("api.example.com", testnet.Of(testnet.Request)); len(seen) != 0 {
		t.Errorf("api.example.com received %+v", seen)
	}
	got := map[string]int{}
	for _, r := range w.Net.Received("www.example.com", testnet.Of(testnet.Request)) {
		got[r.Target]++
	}
	for path := range odd {
		if got[path] != len(everyWay) {
			t.Errorf("www.example.com received %q %d times", path, got[path])
		}
	}
}

// TestResponseFieldsFromABox: a box does not receive the fields that a rule removes from responses, by either version
// of HTTP. Responses of other hosts keep theirs.
func TestResponseFieldsFromABox(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box := w.Create(map[string]any{
		"network_policy": harness.Custom("api.example.com", "www.example.com"),
		"attach_headers": map[string]any{"api.example.com": map[string]any{"response_headers": map[string]any{"remove": []string{"date"}}}},
	})
	runs := w.ShEach(box,
		"curl -sSi --http1.1 https://api.example.com/", "curl -sSi --http2 https://api.example.com/", "curl -sSi https://www.example.com/")
	for i, run := range runs {
		if got := strings.ToLower(run.Out); !strings.Contains(got, " 200") || strings.Contains(got, "\ndate:") != (i == 2) {
			t.Errorf("%d: %s", i, run.Out)
		}
	}
}
