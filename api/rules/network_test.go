package rules_test

import (
	"slices"
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/api/apitest"
)

const network = `{"network_policy":{"mode":"custom","allowed_domains":["a.example"]},"attach_headers":{"a.example":{"Authorization":"sk-one"}}}`

// TestNetwork: policy and header rules are replaced by one call with one precondition, and shown without values.
func TestNetwork(t *testing.T) {
	t.Parallel()
	f := serve(t)
	path := "/v2/box/" + f.create(t, api.CreateRequest{}) + "/config/network"
	first := f.Expect(t, 200, "GET", path, "")
	set := f.Expect(t, 200, "PUT", path, network, `"attach_headers":{"a.example":["Authorization"]}`)
	shown := f.Expect(t, 200, "GET", path, "", `"rules":{"a.example":{"headers":[{"name":"Authorization"}]}}`, `"headers_version":2`)
	if first.Header.Get("ETag") != `"1.1"` || set.Header.Get("ETag") != `"2.2"` || shown.Header.Get("ETag") != `"2.2"` || strings.Contains(set.Text+shown.Text, "sk-one") {
		t.Errorf("%s %s\n%s %s", first.Header, first.Text, set.Header, set.Text)
	}
	for tag, status := range map[string]int{`"1.2"`: 412, `"2.1"`: 412, `"2"`: 412, `"x.y"`: 412, `2.2`: 412, `"2.2"`: 200, `*`: 200} {
		got := f.Call(t, "PUT", path+"?dry_run=true", network, apitest.IfMatch(tag))
		if got.StatusCode != status {
			t.Errorf("If-Match %s: %s %s", tag, got.Status, got.Text)
		}
		if sent := got.Header.Get("ETag"); sent != "" {
			t.Errorf("a dry run has the ETag %s, which no change takes", sent)
		}
	}
	if got := f.Expect(t, 200, "GET", path, ""); got.Header.Get("ETag") != `"2.2"` {
		t.Error("a dry run has changed the box:", got.Header)
	}
	f.Expect(t, 412, "PUT", path, strings.Replace(network, `{"mode"`, `{"version":1,"mode"`, 1))
	f.Expect(t, 200, "PUT", path, strings.Replace(network, `{"mode"`, `{"version":2,"mode"`, 1))
	f.Expect(t, 200, "PUT", path, `{"network_policy":"deny-all","attach_headers":{}}`, `"rules":{}`)
	f.Expect(t, 200, "PUT", path, `{"network_policy":{"allow":{"a.example":[{"transform":[{"headers":{"x":"sk-two"}}]}]}}}`, `"attach_headers":{"a.example":["X"]}`)
	f.Expect(t, 200, "PUT", path, `{"network_policy":{"allow":{"a.example":[]}},"attach_headers":{"a.example":{"Y":"sk-two"}}}`, `"attach_headers":{"a.example":["Y"]}`)
	f.Expect(t, 200, "PUT", namedWeb, `{"mode":"custom","allowed_domains":["a.example"]}`)
	f.Expect(t, 200, "PUT", path, `{"network_policy":{"named":"web"},"attach_headers":{}}`, `"named":"web"`)
}

// TestNetworkProblems: a mistake in one of the two has its pointer, and leaves both unchanged.
func TestNetworkProblems(t *testing.T) {
	t.Parallel()
	f := serve(t)
	id := f.create(t, api.CreateRequest{})
	path := "/v2/box/" + id + "/config/network"
	f.Expect(t, 200, "PUT", path, network)
	before := f.Expect(t, 200, "GET", path, "").Text
	for body, pointers := range map[string][]string{
		`{}`:                                     {"/network_policy"},
		`{"network_policy":{"mode":"deny-all"}}`: {"/attach_headers"},
		`{"attach_headers":{}}`:                  {"/network_policy"},
		`{"network_policy":{"mode":"custom","allowed_domains":["a b"]},"attach_headers":{"a.example":{"X":{"secret":"known"}}}}`:          {"/network_policy/allowed_domains/0", "/attach_headers/a.example/X"},
		`{"network_policy":{"mode":"deny-all"},"attach_headers":{"a.example":{"headers":{"X":{"secret":"unknown"}}}}}`:                    {"/attach_headers/a.example/headers/X/secret"},
		`{"network_policy":{"allow":{"a.example":[{"transform":[{"headers":{"x":"y"}}]}]}},"attach_headers":{"a.example":{"X":"y"}}}`:     {"/network_policy"},
		`{"network_policy":{"allow":{"a.example":[{"transform":[{"headers":{"x":"y"}}]}]}},"attach_headers":{"a.example:443":{"Y":"y"}}}`: {"/network_policy"},
		`{"network_policy":{"mode":"deny-all","version":"x"},"attach_headers":{}}`:                                                        {"/network_policy/version"},
		`{"network_policy":{"mode":"deny-all"},"attach_headers":{},"more":1}`:                                                             {"/more"},
		`{"network_policy":{"named":"nope"},"attach_headers":{}}`:                                                                         {"/named"},
	} {
		got := f.Call(t, "PUT", path, body)
		pointer, _ := got.JSON(t)["pointer"].(string)
		if got.StatusCode != 422 || !slices.Contains(pointers, pointer) {
			t.Errorf("%s: %s %s", body, got.Status, got.Text)
		}
	}
	f.Expect(t, 422, "PUT", path+"?since=1h", network)
	if after := f.Expect(t, 200, "GET", path, "").Text; after != before {
		t.Errorf("a refused change has changed the box: %s", after)
	}
}
