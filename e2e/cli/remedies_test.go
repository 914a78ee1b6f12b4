package cli

import (
	"regexp"
	"strings"
	"testing"

	"boxgate/e2e/harness"
)

// remedyCommand matches a command that changes the policy in the advice below a denial.
var remedyCommand = regexp.MustCompile(`(?m)^  [a-z_]+: .*gateway (policy allow \S+ \S+)`)

// TestRemediesHelp: the command below a denial makes the refused request succeed; where there is none, the advice tells the truth
// about what would. Either way a request is one line.
func TestRemediesHelp(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	lists := func(lists map[string]any) map[string]any {
		lists["mode"] = "custom"
		return lists
	}
	// Over IPv4 alone, since a client that tries both families makes two connections.
	const https, ssh = "curl -4 -sSf -m 20 -o /dev/null https://", "timeout 20 curl -4 -s -m 3 telnet://git.example.com:22 </dev/null | grep -q SSH-2.0"
	for title, c := range map[string]struct {
		policy map[string]any
		try    string
		host   string // in the log
		advice string // part of the advice
		opens  bool   // a command makes try succeed
	}{
		"not allowed":        {harness.Custom("api.example.com"), https + "www.example.com/", "www.example.com:443", "not_allowed: to allow it: gateway policy allow BOX www.example.com:443", true},
		"another port":       {harness.Custom("www.example.com:443"), "curl -4 -sSf -m 20 -o /dev/null http://www.example.com/", "www.example.com:80", "the policy allows www.example.com on port 443, not on 80; to allow it: gateway policy allow BOX www.example.com:80", true},
		"below a name":       {harness.Custom("example.com"), https + "www.example.com/", "www.example.com:443", `"example.com" does not cover names below it, such as www.example.com; "*.example.com" does; to allow it: gateway policy allow BOX www.example.com:443`, true},
		"everything":         {map[string]any{"mode": "deny-all"}, https + "www.example.com/", "www.example.com:443", "deny_all: the policy denies everything; to allow it: gateway policy allow BOX www.example.com:443", true},
		"SSH":                {harness.Custom("api.example.com"), ssh, "git.example.com:22", "allow the name: gateway policy allow BOX git.example.com:22", true},
		"denied":             {lists(map[string]any{"denied_domains": []string{"www.example.com:443"}}), https + "www.example.com/", "www.example.com:443", `denied_domain: the policy denies it by "www.example.com:443"; to allow it: gateway policy allow BOX www.example.com:443`, true},
		"denied with others": {lists(map[string]any{"denied_domains": []string{"*.example.com"}}), https + "www.example.com/", "www.example.com:443", `denied entries win, and this one is for more than what was refused; to change it: gateway policy edit BOX`, false},
		"a denied address":   {lists(map[string]any{"denied_cidrs": []string{w.V4("www.example.com").String() + "/32"}}), "curl -4 -sSf -m 20 -o /dev/null https://www.example.com/", "www.example.com", "to change denied_cidrs: gateway policy edit BOX", false},
		"a protected range":  {map[string]any{"mode": "allow-all"}, https + "private.example.net/", "private.example.net", "protected_range: no policy opens this range; if boxes must reach it, add 10.0.0.5/32 to network.protected_exempt", false},
		"a method": {lists(map[string]any{"allowed_domains": []string{"www.example.com"}, "rules": []any{map[string]any{"hosts": []string{"www.example.com"}, "methods": []string{"DELETE"}, "action": "deny"}}}),
			"curl -4 -sSf -m 20 -o /dev/null -X TRACE https://www.example.com/", "www.example.com:443", "method: no policy opens it: TRACE", false},
	} {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			w := w.On(t)
			box := w.Create(map[string]any{"network_policy": c.policy})
			if out, code := w.Sh(box, c.try); code == 0 {
				t.Fatalf("it is not refused: %s", out)
			}
			advice := strings.ReplaceAll(c.advice, "BOX", box)
			var log string
			w.Until("the advice is printed", func() bool {
				log = w.Run(0, nil, "", "log", "--denied", "--box", box)
				return strings.Contains(log, advice)
			})
			if n := decisions(log, c.host); n != 1 {
				t.Errorf("a request is %d lines:\n%s", n, log)
			}
			found := remedyCommand.FindStringSubmatch(log)
			if (found != nil) != c.opens {
				t.Fatalf("the command is %q:\n%s", found, log)
			}
			if found != nil {
				w.Run(0, nil, "", strings.Fields(found[1])...)
				if out, code := w.Sh(box, c.try); code != 0 {
					t.Errorf("%s is followed, and it still fails: %s", found[1], out)
				}
			}
			w.MustDelete(box)
		})
	}
}

// TestServerThatDoesNotAnswerIsNoDenial: a server that does not answer is one line, a failure. --verbose shows its parts.
func TestServerThatDoesNotAnswerIsNoDenial(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box := w.Create(map[string]any{"network_policy": harness.Custom("v4only.example.com")})
	if out, _ := w.Sh(box, "curl -sS -m 20 http://v4only.example.com:9999/"); !strings.Contains(out, "upstream_unreachable") {
		t.Fatal(out)
	}
	var log string
	w.Until("the failure is logged", func() bool {
		log = w.Run(0, nil, "", "log", "--box", box)
		return strings.Contains(log, "FAIL ") && strings.Contains(log, "upstream_unreachable: the policy allows it, but the server does not answer")
	})
	verbose := w.Run(0, nil, "", "log", "--box", box, "--verbose")
	if strings.Contains(log, "DENY") || decisions(log, "v4only.example.com") != 1 || decisions(verbose, "v4only.example.com") < 2 {
		t.Errorf("without --verbose\n%s\nwith it\n%s", log, verbose)
	}
}
