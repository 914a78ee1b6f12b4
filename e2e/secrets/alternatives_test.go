package secrets

import (
	"fmt"
	"net/url"
	"strings"
	"testing"

	"boxgate/e2e/harness"
	"boxgate/internal/testnet"
	"boxgate/policy"
	"boxgate/policy/name"
)

// TestAlternativesFromABox: the rule for a request decides which value the server receives, for every family, version
// and spelling. Ambiguous requests reach no server.
func TestAlternativesFromABox(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box := w.Create(map[string]any{
		"network_policy": harness.Custom("api.example.com"),
		"attach_headers": map[string]any{"api.example.com": []any{
			map[string]any{"match": map[string]any{"path": map[string]string{"prefix": "/admin"}}, "deny": true},
			map[string]any{"match": map[string]any{"methods": []string{"GET"}, "query": map[string]any{"team": map[string]string{"exact": "blue"}}},
				"headers": map[string]string{"X-Key": "reader"}, "remove": []string{"X-Debug"}},
			map[string]any{"match": map[string]any{"headers": map[string]any{"X-Role": map[string]string{"regex": "^root$"}}},
				"headers": map[string]string{"X-Key": "root"}},
		}},
	})
	for i, way := range everyWay {
		for args, want := range map[string]string{
			"'HOST/N?team=blue' -H 'X-Key: mine' -H 'X-Debug: 1'": "reader",
			"'HOST/N?team=red'":                            "",
			"'HOST/N?team=blue' -d x":                      "",
			"'HOST/N' -H 'x-role: root'":                   "root",
			"'HOST/admin/N?team=blue'":                     "header_rule",
			"'HOST/ADMIN/N'":                               "header_rule",
			"'HOST/x/../admin/N'":                          "ambiguous_path",
			"'HOST/%2561dmin/N'":                           "ambiguous_path",
			"'HOST/N?team=blue&team=red'":                  "ambiguous_request",
			"'HOST/N?team=red;team=blue'":                  "ambiguous_request",
			"'HOST/N?TEAM=blue'":                           "ambiguous_request",
			"'HOST/N?team=%2562lue'":                       "ambiguous_request",
			"'HOST/N' -H 'X-Role: root' -H 'X-Role: user'": "ambiguous_request",
			"'HOST/N' -H 'X_Role: root'":                   "ambiguous_request",
			"'HOST/N?team=red' -H 'X-Role: user, root'":    "ambiguous_request",
		} {
			mark := fmt.Sprintf("way-%d-%s", i, url.PathEscape(strings.NewReplacer("/", "-", ";", "-", "%", "-", "?", "-").Replace(args)))
			mark = strings.NewReplacer("%", "-", "'", "-").Replace(mark)
			line := strings.NewReplacer("HOST", "https://api.example.com", "/N", "/"+mark).Replace(args)
			out := w.MustSh(box, "curl -sS --path-as-is "+way+" "+line)
			got, debug := "nothing", ""
			for _, r := range w.Net.Received("api.example.com", testnet.Of(testnet.Request)) {
				if strings.Contains(r.Target, mark) {
					got, debug = r.Header.Get("X-Key"), r.Header.Get("X-Debug")
				}
			}
			if got == "nothing" && strings.Contains(out, `"reason":`) {
				_, got, _ = strings.Cut(out, `"reason":"`)
				got, _, _ = strings.Cut(got, `"`)
			}
			if got != want || debug != "" {
				t.Errorf("curl %s %s: %q, want %q, X-Debug %q\n%s", way, args, got, want, debug, out)
			}
		}
	}
	if e := w.DenialOf(box, policy.StageHTTP, "api.example.com", name.ReasonHeaderRule); e.Rule != "api.example.com, alternative 1" || len(e.Headers) != 0 {
		t.Errorf("decision %+v", e)
	}
}
