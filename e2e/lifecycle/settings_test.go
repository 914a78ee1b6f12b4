package lifecycle

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/e2e/harness"
)

// New boxes get the environment shared by all boxes, overridden by their own. Existing boxes keep theirs. A
// placeholder, which keeps a secret out of the box, replaces a shared variable.
func TestEnvironmentOfNewBoxes(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	const show = `printf '%s|%s|%s' "$SHARED" "$OWN" "$TOKEN"`
	before := w.Create(map[string]any{})
	putConfig(w, "/v2/box/settings/env", map[string]any{"env_vars": map[string]string{"SHARED": "all", "OWN": "all", "TOKEN": "all"}})
	after := w.Create(map[string]any{
		"env_vars": map[string]string{"OWN": "box"},
		"attach_headers": map[string]any{"api.example.com": map[string]any{
			"headers": map[string]string{}, "placeholders": map[string]string{"TOKEN": harness.TestSecret},
		}},
	})
	putConfig(w, "/v2/box/settings/env/SHARED", map[string]string{"value": "changed"})
	if out := w.MustSh(before, show); out != "||" {
		t.Errorf("a box that was there before has %q", out)
	}
	check := func() {
		t.Helper()
		out := w.MustSh(after, show)
		harness.Contains(t, out, "all|box|")
		if strings.Contains(out, "|all") || strings.Contains(out, harness.TestSecret) {
			t.Errorf("the placeholder gave way: %q", out)
		}
	}
	check()
	w.Kill()
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	check()
	if out := w.MustSh(w.Create(map[string]any{}), show); out != "changed|all|all" {
		t.Errorf("a box made after the change has %q", out)
	}
}

// The configuration is read back unchanged, also after the gateway was killed.
func TestConfigurationIsKept(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box := w.Create(map[string]any{
		"labels": []string{"one"}, "agent": "custom", "model": "custom", "custom_runner": map[string]any{"command": "node"},
		"agent_api_key": harness.TestSecret, "mcp_servers": []any{map[string]any{"name": "m", "source": "url", "package_or_url": "https://mcp.example.com", "headers": map[string]string{"X-Key": harness.TestSecret}}},
	})
	post := func(path string, body any) {
		t.Helper()
		if err := w.Client.Do(t.Context(), "POST", api.BoxPath(box, path), body, nil); err != nil {
			t.Errorf("POST %s: %v", path, err)
		}
	}
	post("config/labels", map[string]string{"label": "two"})
	post("config/skills", map[string]string{"skill_id": "upstash/qstash-js/qstash-js"})
	putConfig(w, api.BoxPath(box, "config/model"), map[string]string{"model": "custom/other"})
	putConfig(w, api.BoxPath(box, "config/custom-runner"), map[string]any{"custom_runner": map[string]any{"command": "node", "args": []string{"x.mjs"}}})
	if err := w.Client.Do(t.Context(), "DELETE", api.BoxPath(box, "config/labels/one"), nil, nil); err != nil {
		t.Error(err)
	}
	for range 2 {
		var now map[string]any
		if err := w.Client.Do(t.Context(), "GET", api.BoxPath(box), nil, &now); err != nil {
			t.Fatal(err)
		}
		got := fmt.Sprint(now["labels"], now["enabled_skills"], now["model"], now["custom_runner"], now["mcp_servers"])
		for _, want := range []string{"[two]", "[upstash/qstash-js/qstash-js]", "custom/other", "args:[x.mjs]", "X-Key"} {
			harness.Contains(t, got, want)
		}
		if strings.Contains(fmt.Sprint(now), harness.TestSecret) {
			t.Errorf("a secret is shown: %v", now)
		}
		w.Kill()
		if err := w.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestMetadataOfBoxes: the metadata of a box is shown, selects boxes, is kept when the gateway is killed, and is replaced as a whole.
func TestMetadataOfBoxes(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box := w.Create(map[string]any{"metadata": map[string]string{"user": "42", "User": "x", "note": "a=b&c d\nü"}})
	w.Create(map[string]any{"metadata": map[string]string{"user": "43"}})
	check := func(what string, want map[string]string) {
		t.Helper()
		var is struct{ Metadata map[string]string }
		if err := w.Client.Get(t.Context(), api.BoxPath(box), &is); err != nil || !maps.Equal(is.Metadata, want) {
			t.Errorf("%s: %v %v", what, is, err)
		}
		var found []struct{ ID string }
		if err := w.Client.Get(t.Context(), api.SelectionPath("", want), &found); err != nil || len(found) != 1 || found[0].ID != box {
			t.Errorf("%s, found: %v %v", what, found, err)
		}
	}
	first := map[string]string{"user": "42", "User": "x", "note": "a=b&c d\nü"}
	check("created", first)
	w.Kill()
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	check("after a restart of the gateway", first)
	second := map[string]string{"stage": "test"}
	putConfig(w, api.BoxPath(box, "config/metadata"), map[string]any{"metadata": second})
	check("replaced", second)
	var found []struct{ ID string }
	if err := w.Client.Get(t.Context(), api.SelectionPath("", map[string]string{"user": "42"}), &found); err != nil || len(found) != 0 {
		t.Errorf("found by the former metadata: %v %v", found, err)
	}
}
