package command

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"boxgate/cmd/gateway/command/cli"
)

// follower stands in for the admin API of a gateway with the named policy "web", followed by the box demo. It records
// changes.
func follower(t *testing.T) (changes *[]string) {
	t.Helper()
	changes = new([]string)
	const web = `{"name":"web","policy":{"mode":"custom","allowed_domains":["a.example"]},"version":3,"boxes":[{"id":"b1","name":"demo"},{"id":"b2"}]}`
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			body, _ := io.ReadAll(r.Body)
			*changes = append(*changes, r.Method+" "+r.URL.Path+" "+string(body))
		}
		switch r.URL.Path {
		case "/v2/box/demo/config/network-policy":
			fmt.Fprint(w, `{"mode":"custom","allowed_domains":["a.example"],"named":"web","version":3}`)
		case "/v2/box/settings/network-policies":
			fmt.Fprint(w, "["+web+"]")
		case "/v2/box/settings/network-policies/web":
			fmt.Fprint(w, web)
		default:
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, `{"error":"nothing here"}`)
		}
	}))
	t.Cleanup(srv.Close)
	t.Setenv("BOXGATE_ADMIN", srv.URL)
	t.Setenv("BOXGATE_API_KEY", "key")
	return changes
}

// TestPolicyNamed: named policies can be listed, shown, set, removed, compared and referred to.
func TestPolicyNamed(t *testing.T) {
	changes := follower(t)
	for _, c := range []struct{ args, said, sent string }{
		{"policy named list", "web   3        custom  demo b2", ""},
		{"policy named get web", `"allowed_domains"`, ""},
		{"policy named get named:web", `"allowed_domains"`, ""},
		{"policy named set web preset:npm", "Version 3 of the policy web is in force, for 2 boxes.", `PUT /v2/box/settings/network-policies/web {"mode":"custom","allowed_domains":["registry.npmjs.org`},
		{"policy named rm web", "", "DELETE /v2/box/settings/network-policies/web "},
		{"policy set demo named:web", "", `PUT /v2/box/demo/config/network-policy {"named":"web"}`},
		{"policy diff demo named:web", "The policies are the same.", ""},
	} {
		*changes = nil
		out, status := runCommandLine(t, strings.Fields(c.args)...)
		if status != 0 || !strings.Contains(out, c.said) || !strings.HasPrefix(strings.Join(*changes, "\n"), c.sent) || (c.sent == "") != (len(*changes) == 0) {
			t.Errorf("%s: exit %d, sent %q\n%s", c.args, status, *changes, out)
		}
	}
}

// TestPolicyDiffExitCode: with --exit-code, the status is 3 if the policies differ, 0 if they do not, and 1 on a failure.
func TestPolicyDiffExitCode(t *testing.T) {
	follower(t)
	for args, want := range map[string]int{
		"policy diff demo named:web": cli.ExitOK, "policy diff demo named:web --exit-code": cli.ExitOK, "policy diff demo named:web --exit-code --json": cli.ExitOK,
		"policy diff demo deny-all": cli.ExitOK, "policy diff demo deny-all --exit-code": 3, "policy diff demo deny-all --exit-code --json": 3,
		"policy diff nope deny-all --exit-code": cli.ExitFailed, "policy diff demo deny --exit-code": cli.ExitUsage,
	} {
		out, status := runCommandLine(t, strings.Fields(args)...)
		if status != want || status == 3 && (strings.Contains(out, "gateway: ") || !strings.Contains(out, "a.example")) {
			t.Errorf("%s: exit %d\n%s", args, status, out)
		}
	}
}

// TestFollowersAreNotAmended: commands that change the policy of one box refuse a named policy, which other boxes share.
func TestFollowersAreNotAmended(t *testing.T) {
	changes := follower(t)
	t.Setenv("VISUAL", "false")
	for _, args := range []string{"policy allow demo b.example", "policy deny demo b.example", "policy edit demo"} {
		out, status := runCommandLine(t, strings.Fields(args)...)
		if status != cli.ExitFailed || !strings.Contains(out, `follows the named policy "web"`) || len(*changes) > 0 {
			t.Errorf("%s: exit %d, %q\n%s", args, status, *changes, out)
		}
	}
	if out, status := runCommandLine(t, "run", "--policy", "named:web", "--", "true"); status != cli.ExitUsage || !strings.Contains(out, "running gateway") {
		t.Errorf("run: exit %d\n%s", status, out)
	}
}

// TestCompletionOfNamedPolicies: names are completed where a command takes a named policy or any policy.
func TestCompletionOfNamedPolicies(t *testing.T) {
	follower(t)
	for args, want := range map[string]string{
		"policy named get": "web", "policy named rm": "web", "policy named set": "web", "policy set demo": "named:", "policy named set web": "preset:npm",
	} {
		if out, _ := runCommandLine(t, append(append([]string{"__complete"}, strings.Fields(args)...), "")...); !strings.Contains(out, want+"\n") {
			t.Errorf("%s: %s", args, out)
		}
	}
	if out, _ := runCommandLine(t, "__complete", "box", "create", "--policy", "named:"); !strings.Contains(out, "named:web\n") {
		t.Error(out)
	}
}
