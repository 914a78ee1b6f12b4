package command

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
)

// TestCompletion: shells complete boxes, presets, policies and reasons where a command takes one.
func TestCompletion(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `[{"id":"b1","name":"demo"},{"id":"b2"}]`)
	}))
	t.Cleanup(srv.Close)
	t.Setenv("BOXGATE_ADMIN", srv.URL)
	t.Setenv("BOXGATE_API_KEY", "key")
	for _, c := range []struct {
		args []string
		want string
		not  string
	}{
		{[]string{"policy", "get", ""}, "demo b2", "preset:npm"},
		{[]string{"policy", "get", "demo", ""}, "", "demo"},
		{[]string{"box", "rm", "demo", ""}, "b2", "demo"},
		{[]string{"log", "--box", ""}, "demo b2", ""},
		{[]string{"policy", "set", "demo", ""}, "allow-all deny-all preset:github", "demo"},
		{[]string{"policy", "allow", "demo", "preset:github,n"}, "preset:github,npm", "preset:github,github"},
		{[]string{"box", "create", "--policy", "preset:pypi,"}, "preset:pypi,npm", "preset:pypi,pypi"},
		{[]string{"policy", "presets", ""}, "github npm pypi", "demo"},
	} {
		out, _ := runCommandLine(t, append([]string{"__complete"}, c.args...)...)
		offered := strings.Fields(out)
		for _, want := range strings.Fields(c.want) {
			if !slices.Contains(offered, want) {
				t.Errorf("%v offers %v without %q", c.args, offered, want)
			}
		}
		if slices.Contains(offered, c.not) {
			t.Errorf("%v offers %q", c.args, c.not)
		}
	}
	srv.Close()
	if out, _ := runCommandLine(t, "__complete", "policy", "get", ""); !strings.Contains(out, ":4") {
		t.Errorf("without a gateway: %s", out)
	}
}
