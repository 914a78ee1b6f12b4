package boundary

import (
	"strings"
	"testing"

	"boxgate/policy"
	"boxgate/policy/match"
	"boxgate/policy/name"
)

// TestNextSteps: next_steps suggest a request for access only if an approval can lift the denial.
func TestNextSteps(t *testing.T) {
	t.Parallel()
	read := match.RequestRule{Hosts: []string{"a.example"}, Methods: []string{"GET"}, Action: "allow"}
	messages := match.RequestRule{Hosts: []string{"a.example"}, Paths: []string{"/mcp"}, Action: "deny", Match: &match.Match{MCP: &match.MCP{Tools: []string{"delete"}}}}
	c, err := policy.Compile(policy.Spec{
		Mode: policy.ModeCustom, AllowedDomains: []string{"a.example"}, Rules: []match.RequestRule{messages, read, {Hosts: []string{"a.example"}, Action: "deny"}},
	}, policy.Options{})
	if err != nil {
		t.Fatal(err)
	}
	request := func(method, path string) Denial {
		return Denial{Reason: name.ReasonRequestRule, Host: "a.example", Port: 443, Method: method, Path: path}
	}
	for _, x := range []struct {
		d    Denial
		has  string
		asks bool
	}{
		{Denial{Reason: name.ReasonNotAllowed, Host: "b.example", Port: 80}, `{"host":"b.example","port":80,"reason":`, true},
		{Denial{Reason: name.ReasonDenyAll, Host: "b.example"}, `{"host":"b.example","reason":`, true},
		{Denial{Reason: name.ReasonNotAllowed}, "Find the name", false},
		{Denial{Reason: name.ReasonNotAllowed, Host: "b.example", Port: 80, Asked: "abc"}, URL + "/v1/requests/abc/wait", false},
		{Denial{Reason: name.ReasonNotAllowed, Host: "b.example", Rule: "policy.ceiling"}, "ceiling", false},
		{Denial{Reason: name.ReasonDeniedDomain, Host: "b.example"}, "Do not repeat", false},
		{request("DELETE", "/x"), `"method":"DELETE","path":"/x"`, true},
		{request("DELETE", "/x*"), "Do not repeat", false}, // a star in a path is no prefix
		{request("DELETE", "//x"), "Do not repeat", false},
		{request("POST", "/mcp"), "MCP or GraphQL", false},
		{request("GET", "/x"), "Do not repeat", false},
		{request("DELETE", "/\"},{\x1b"), "Do not repeat", false},
		{Denial{Reason: name.ReasonUnreadableContent, Host: "a.example"}, "Do not repeat", false},
	} {
		steps := strings.Join(NextSteps(c, x.d), "\n")
		if !strings.Contains(steps, x.has) || strings.Contains(steps, "POST {") != x.asks {
			t.Errorf("%+v: %s", x.d, steps)
		}
	}
	if steps := NextSteps(nil, request("DELETE", "/x")); len(steps) != 1 || !strings.Contains(steps[0], "Do not repeat") {
		t.Error("without a policy:", steps)
	}
}
