package server

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"boxgate/api/strict"
)

// TestEveryRouteRefusesQueriesItDoesNotKnow compares the query parameters that each route accepts with its description.
func TestEveryRouteRefusesQueriesItDoesNotKnow(t *testing.T) {
	t.Parallel()
	f := serve(t)
	id := f.create(t, "{}")
	var doc struct {
		Paths map[string]map[string]struct{ Parameters []struct{ Name, In string } }
	}
	if err := json.Unmarshal([]byte(f.Call(t, "GET", "/openapi.json", "").Text), &doc); err != nil {
		t.Fatal(err)
	}
	for _, rt := range f.api.routes {
		var described []string
		for _, p := range doc.Paths[rt.Path][strings.ToLower(rt.Method)].Parameters {
			if p.In == "query" {
				described = append(described, p.Name)
			}
		}
		var takes []string
		if rt.Query != nil {
			for _, f := range strict.FieldsOf(rt.Query) {
				takes = append(takes, f.Name)
			}
		}
		if !slices.Equal(described, takes) {
			t.Errorf("%s %s takes %v and describes %v", rt.Method, rt.Path, takes, described)
		}
		path := strings.NewReplacer("{id}", id, "{port}", "80", "{run}", "x").Replace(rt.Path)
		queries := map[string]string{"unknown=1": "unknown", "%zz": "cannot be parsed", "a=1;b=2": "cannot be parsed"}
		for _, name := range takes {
			queries[name+"=1&"+name+"=1"] = "twice"
		}
		for query, want := range queries {
			if got := f.Call(t, rt.Method, path+"?"+query, ""); got.StatusCode != 422 || !strings.Contains(got.Text, want) {
				t.Errorf("%s %s?%s: %s %s", rt.Method, path, query, got.Status, got.Text)
			}
		}
	}
	if got := f.Call(t, "GET", "/v2/box/"+id, ""); got.StatusCode != 200 {
		t.Errorf("the box: %s %s", got.Status, got.Text)
	}
}

// TestArgumentsThatTheKernelWouldRefuse: arguments that execve would reject are refused as problems of the request.
func TestArgumentsThatTheKernelWouldRefuse(t *testing.T) {
	t.Parallel()
	f := serve(t)
	id := f.create(t, "{}")
	exec := "/v2/box/" + id + "/exec"
	long := func(n int) string { return strings.Repeat("x", n) }
	env := func(vars map[string]string) string {
		data, err := json.Marshal(map[string]any{"env_vars": vars})
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	many := func(n, size int) map[string]string {
		vars := map[string]string{}
		for i := range n {
			vars[fmt.Sprintf("V%05d", i)] = long(size)
		}
		return vars
	}
	command := func(args ...string) string {
		data, err := json.Marshal(map[string]any{"command": args})
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	placeholders := map[string]any{}
	for host := range 9 {
		vars := map[string]string{}
		for i := range 60 {
			vars[fmt.Sprintf("P%d_%d", host, i)] = "v"
		}
		placeholders[fmt.Sprintf("h%d.test", host)] = map[string]any{"placeholders": vars}
	}
	rules, err := json.Marshal(placeholders)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		what, path, body, pointer string
		status                    int
	}{
		{"the largest variable", "/v2/box", env(map[string]string{"A": long(128<<10 - 3)}), "", 201},
		{"one byte more", "/v2/box", env(map[string]string{"A": long(128<<10 - 2)}), "/env_vars/A", 422},
		{"as many as fit", "/v2/box", env(many(7, 120<<10)), "", 201},
		{"many small ones", "/v2/box", env(many(1<<20/16+1, 0)), "/env_vars", 422},
		{"the largest argument", exec, command("true", long(128<<10-1)), "", 200},
		{"an argument too large", exec, command("true", long(128<<10)), "/command/1", 422},
		{"arguments too large together", exec, command(slices.Repeat([]string{long(127 << 10)}, 5)...), "/command", 422},
		{"too many placeholders", "/v2/box", `{"attach_headers":` + string(rules) + `}`, "/attach_headers", 422},
	} {
		got := f.Call(t, "POST", tt.path, tt.body)
		if pointer, _ := got.JSON(t)["pointer"].(string); got.StatusCode != tt.status || pointer != tt.pointer {
			t.Errorf("%s: %s %.200s, want %d at %q", tt.what, got.Status, got.Text, tt.status, tt.pointer)
		}
	}
}
