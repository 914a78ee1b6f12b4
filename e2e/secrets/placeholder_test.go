package secrets

import (
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/audit"
	"boxgate/e2e/harness"
	"boxgate/internal/lab"
	"boxgate/internal/testnet"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/store"
)

var isToken = regexp.MustCompile(`^bxgph_[a-z2-7]{32}$`)

// placeholderBox creates a box whose variable API_KEY is a placeholder for a secret at api.example.com, and another for
// another host.
func placeholderBox(w *harness.World) string {
	return w.Create(map[string]any{
		"network_policy": harness.Custom("api.example.com", "www.example.com", "plain.example.com", "git.example.com"),
		"env_vars":       map[string]string{"MINE": "mine"},
		"attach_headers": map[string]any{
			"api.example.com": map[string]any{"placeholders": map[string]any{"API_KEY": harness.TestSecret, "SOURCE_KEY": map[string]string{"secret": "openai"}}},
			"git.example.com": map[string]any{"placeholders": map[string]any{"GIT_TOKEN": "git-" + harness.TestSecret}},
			"www.example.com": map[string]string{"X-Www": "1"},
		},
	})
}

// TestPlaceholderReachesTheServerAsTheSecret: curl and Python send the variable like a key, over both families and
// versions.
func TestPlaceholderReachesTheServerAsTheSecret(t *testing.T) {
	t.Parallel()
	w := harness.NewWorld(t, withSecretFile("openai", secretFile(t, "from-"+harness.TestSecret)))
	box := placeholderBox(w)
	token := strings.TrimSpace(w.MustSh(box, `printenv API_KEY`))
	if !isToken.MatchString(token) {
		t.Fatalf("the box sees %q", token)
	}
	if got := w.MustSh(box, "echo $MINE"); got != "mine\n" {
		t.Errorf("its own variable is %q", got)
	}
	for i, way := range everyWay {
		path := fmt.Sprintf("/way-%d", i)
		w.MustSh(box, `curl -sS -f -o /dev/null `+way+` -H "Authorization: Bearer $API_KEY" -H "X-Two: $API_KEY/$SOURCE_KEY" -H "X-None: a" --data "body" https://api.example.com`+path+
			` && curl -sS -f -o /dev/null `+way+` -u "x-access-token:$GIT_TOKEN" https://git.example.com`+path+
			` && curl -sS -f -o /dev/null `+way+` -u "$GIT_TOKEN:" https://git.example.com`+path+`-user`)
		api := w.Net.Received("api.example.com", testnet.Path(path))
		if len(api) != 1 || api[0].Header.Get("Authorization") != "Bearer "+harness.TestSecret || api[0].Header.Get("X-Two") != harness.TestSecret+"/from-"+harness.TestSecret || api[0].Header.Get("X-None") != "a" {
			t.Errorf("curl %s: api.example.com received %+v", way, api)
		}
		for suffix, want := range map[string]string{"": basicAuth("x-access-token", "git-"+harness.TestSecret), "-user": basicAuth("git-"+harness.TestSecret, "")} {
			if git := w.Net.Received("git.example.com", testnet.Path(path+suffix)); len(git) != 1 || git[0].Header.Get("Authorization") != want {
				t.Errorf("curl %s: git.example.com received %+v", way, git)
			}
		}
	}
	w.MustSh(box, `python3 -c 'import os, urllib.request as u; u.urlopen(u.Request("https://api.example.com/python", headers={"X-Api-Key": os.environ["API_KEY"]})).read()'`)
	if seen := w.Net.Received("api.example.com", testnet.Path("/python")); len(seen) != 1 || seen[0].Header.Get("X-Api-Key") != harness.TestSecret {
		t.Errorf("python: %+v", seen)
	}
	e := w.Event(box, func(e audit.Event) bool { return e.Path == "/way-0" && e.Name == "api.example.com" })
	if e.Verdict != policy.Allow || strings.Join(e.Headers, " ") != "Authorization X-Two" && strings.Join(e.Headers, " ") != "X-Two Authorization" {
		t.Errorf("decision %+v", e)
	}
	if found := strings.Fields(harness.Output(w.Sh(box, lab.SearchLine(harness.TestSecret)))); strings.Join(found, " ") != "0 0 0" {
		t.Errorf("matches of the secret in environment, /proc and files: %v", found)
	}
	if strings.Contains(w.LogText(), harness.TestSecret) {
		t.Error("the gateway's log holds the secret")
	}
}

// TestPlaceholderLeaks: a placeholder sent anywhere except in a header to its host is refused and logged, and neither
// it nor the secret arrives.
func TestPlaceholderLeaks(t *testing.T) {
	t.Parallel()
	w := harness.NewWorld(t, withSecretFile("openai", secretFile(t, "from-"+harness.TestSecret)))
	box, other := placeholderBox(w), placeholderBox(w)
	foreign := strings.TrimSpace(w.MustSh(other, "printenv API_KEY"))
	if own := strings.TrimSpace(w.MustSh(box, "printenv API_KEY")); own == foreign || !isToken.MatchString(foreign) {
		t.Fatalf("two boxes see %q and %q", own, foreign)
	}
	var lines []string
	for _, line := range []string{
		`-H "Authorization: Bearer $API_KEY" https://www.example.com/`,
		`-H "Authorization: Bearer $API_KEY" https://git.example.com/`,
		`-u "user:$API_KEY" https://www.example.com/`,
		`-u "$API_KEY:" https://git.example.com/`,
		`"https://api.example.com/?key=$API_KEY"`,
		`"https://api.example.com/$API_KEY/x"`,
		`-H "X-Key: $GIT_TOKEN" https://api.example.com/`,
		`-H "X-Key: ` + foreign + `" https://api.example.com/`,
		`-H "Authorization: Bearer $API_KEY" http://api.example.com/`,
		`-u "user:$API_KEY" http://plain.example.com/`,
		`"http://plain.example.com/?key=$API_KEY"`,
		`--data "key=$API_KEY" https://api.example.com/echo`,
		`--data "key=$API_KEY" http://plain.example.com/echo`,
	} {
		for _, way := range everyWay {
			lines = append(lines, "curl -sS -o /tmp/body -w '%{http_code}' "+way+" "+line+"; cat /tmp/body")
		}
	}
	n := len(lines)
	for _, ran := range w.ShEach(box, lines...) {
		if ran.Code != 0 || !strings.HasPrefix(ran.Out, "403") || !strings.Contains(ran.Out, `"placeholder_leak"`) {
			t.Errorf("%s: exit %d: %s", ran.Line, ran.Code, ran.Out)
		}
	}
	// The explicit proxy is not a bypass.
	out, _ := w.Sh(box, `curl -sS -x http://10.200.0.1:3128 -H "X-Key: $API_KEY" http://plain.example.com/ ; curl -sS -x http://10.200.0.1:3128 -H "X-Key: $API_KEY" https://www.example.com/`)
	if n += 2; strings.Count(out, `"placeholder_leak"`) != 2 {
		t.Errorf("through the explicit proxy: %s", out)
	}
	for _, r := range w.Net.Received("", testnet.Of(testnet.Request)) {
		if r.Method != "POST" || r.Proto != "HTTP/2.0" || r.Body != 0 { // its head is forwarded before the body is read
			t.Errorf("arrived: %+v", r)
		}
	}
	leaks := 0
	w.Until("every leak is in the log", func() bool {
		leaks = 0
		for _, e := range w.Events(box) {
			if e.Reason == name.ReasonPlaceholderLeak && e.Verdict == policy.Deny {
				leaks += int(max(e.Count, 1)) // repeated leaks share a line
			}
		}
		return leaks >= n
	})
	if leaks != n {
		t.Errorf("%d leaks in the log, want %d", leaks, n)
	}
	w.Event(box, func(e audit.Event) bool {
		return e.Reason == name.ReasonPlaceholderLeak && e.Name == "www.example.com" && strings.Contains(e.Error, "API_KEY") && strings.Contains(e.Error, "(Authorization)")
	})
}

// TestPlaceholdersFollowTheRules: a rule set later, and a global one, apply to the next command, and a removed one no
// longer does. A restart changes no token.
func TestPlaceholdersFollowTheRules(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box := w.Create(map[string]any{
		"network_policy": harness.Custom("api.example.com"), "env_vars": map[string]string{"LATER": "own"},
	})
	env := func(variable string) string {
		out, _ := w.Sh(box, "printenv "+variable)
		return strings.TrimSpace(out)
	}
	set := func(path, variable string) {
		t.Helper()
		rules := map[string]any{}
		if variable != "" {
			rules["api.example.com"] = map[string]any{"placeholders": map[string]string{variable: harness.TestSecret}}
		}
		if err := w.Client.Do(t.Context(), "PUT", path, map[string]any{"attach_headers": rules}, nil); err != nil {
			t.Fatal(err)
		}
	}
	if got := env("LATER"); got != "own" {
		t.Errorf("before there is a rule: %q", got)
	}
	set(api.BoxPath(box, "config/attach-headers"), "LATER")
	later := env("LATER")
	if !isToken.MatchString(later) {
		t.Errorf("a rule set later: %q", later)
	}
	set("/v2/box/settings/attach-headers", "GLOBAL_KEY")
	if got := env("GLOBAL_KEY"); got != "" {
		t.Errorf("the box's own rule replaces the global one of its host, and yet: %q", got)
	}
	set(api.BoxPath(box, "config/attach-headers"), "")
	global := env("GLOBAL_KEY")
	if !isToken.MatchString(global) || global == later || env("LATER") != "own" {
		t.Errorf("of a global rule: %q; of the rule taken away: %q", global, env("LATER"))
	}
	w.MustSh(box, `curl -sS -f -o /dev/null -H "X-Key: $GLOBAL_KEY" https://api.example.com/global`)
	if out, _ := w.Sh(box, "curl -sS -H 'X-Key: "+later+"' https://api.example.com/old"); !strings.Contains(out, "placeholder_leak") {
		t.Errorf("the token of the rule taken away: %s", out)
	}
	if err := w.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := env("GLOBAL_KEY"); got != global {
		t.Errorf("after a restart %q, before %q", got, global)
	}
	w.MustSh(box, "curl -sS -f -o /dev/null -H 'X-Key: "+global+"' https://api.example.com/restarted")
	for _, path := range []string{"/global", "/restarted"} {
		if seen := w.Net.Received("api.example.com", testnet.Path(path)); len(seen) != 1 || seen[0].Header.Get("X-Key") != harness.TestSecret {
			t.Errorf("%s: %+v", path, seen)
		}
	}
}

// TestPlaceholdersOfABoxFromAnOlderVersion: a box without a key for tokens gets one at the start of the gateway.
func TestPlaceholdersOfABoxFromAnOlderVersion(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box := w.Create(map[string]any{
		"attach_headers": map[string]any{"api.example.com": map[string]any{"placeholders": map[string]string{"API_KEY": harness.TestSecret}}},
	})
	before := w.MustSh(box, "printenv API_KEY")
	if err := w.Stop(); err != nil {
		t.Fatal(err)
	}
	db, err := store.Open(store.Options{Dir: filepath.Join(w.Dir, "state")})
	if err != nil {
		t.Fatal(err)
	}
	record, err := db.Boxes.Get(policy.BoxID(box))
	if err != nil {
		t.Fatal(err)
	}
	record.PlaceholderKey = name.Secret{}
	if err := errors.Join(db.Boxes.Update(record), db.Close(), w.Start(t.Context())); err != nil {
		t.Fatal(err)
	}
	after := w.MustSh(box, "printenv API_KEY")
	if !isToken.MatchString(strings.TrimSpace(after)) || after == before {
		t.Errorf("the box sees %q, before %q", after, before)
	}
	if again, err := os.ReadFile(filepath.Join(w.Dir, "state", "boxgate.db")); err == nil && strings.Contains(string(again), strings.TrimSpace(after)) {
		t.Error("the store holds the token")
	}
}

func basicAuth(user, password string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))
}
