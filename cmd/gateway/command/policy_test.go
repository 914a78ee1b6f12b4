package command

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"boxgate/cmd/gateway/command/cli"
	"boxgate/policy/dialect"
)

// admin stands in for the admin API of a gateway with one box.
type admin struct {
	mu      sync.Mutex
	doc     map[string]any
	version int
	others  int // how often another client changes the policy right after it was read
	puts    int
}

// newAdmin starts an admin with the given policy for the commands of this test.
func newAdmin(t *testing.T, doc string) *admin {
	t.Helper()
	a := &admin{version: 1}
	a.set(t, doc)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v2/box/demo/config/network-policy", a.get)
	mux.HandleFunc("PUT /v2/box/demo/config/network-policy", a.handlePut)
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	t.Setenv("BOXGATE_ADMIN", srv.URL)
	t.Setenv("BOXGATE_API_KEY", "key")
	return a
}

func (a *admin) set(t *testing.T, doc string) {
	t.Helper()
	a.doc = map[string]any{}
	if err := json.Unmarshal([]byte(doc), &a.doc); err != nil {
		t.Fatal(err)
	}
}

func (a *admin) answer(w http.ResponseWriter) {
	view := map[string]any{"version": a.version}
	for k, v := range a.doc {
		view[k] = v
	}
	_ = json.NewEncoder(w).Encode(view)
}

func (a *admin) get(w http.ResponseWriter, _ *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.answer(w)
	if a.others > 0 {
		a.others--
		a.version++
		a.doc["denied_domains"] = []any{fmt.Sprintf("other%d.example", a.version)}
	}
}

func (a *admin) handlePut(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	var doc map[string]any
	err := json.NewDecoder(r.Body).Decode(&doc)
	if version, given := doc["version"]; err != nil || given && version != float64(a.version) {
		w.WriteHeader(http.StatusPreconditionFailed)
		fmt.Fprint(w, `{"error":"another version is in force"}`)
		return
	}
	delete(doc, "version")
	a.doc, a.version, a.puts = doc, a.version+1, a.puts+1
	a.answer(w)
}

// policy returns the active policy as canonical JSON.
func (a *admin) policy(t *testing.T) string {
	t.Helper()
	data, err := json.Marshal(a.doc)
	if err != nil {
		t.Fatal(err)
	}
	spec, err := dialect.ParseSpec(data)
	if err != nil {
		t.Fatal(err)
	}
	out, _ := json.Marshal(spec)
	return string(out)
}

// runCommandLine runs a command line and returns its output, including the error, and its exit status.
func runCommandLine(t *testing.T, args ...string) (string, int) {
	t.Helper()
	var out bytes.Buffer
	root := newRootCommand(&cli.Options{})
	root.SetArgs(args)
	root.SetOut(&out)
	root.SetErr(&out)
	root.SetIn(strings.NewReader(""))
	cmd, err := root.ExecuteContextC(t.Context())
	status := cli.Report(&out, cmd, err, false)
	return out.String(), status
}

// TestPolicyAllowKeepsWhatOthersChange: if another client changes the policy first, the command is applied to that
// client's policy.
func TestPolicyAllowKeepsWhatOthersChange(t *testing.T) {
	a := newAdmin(t, `{"mode":"custom","allowed_domains":["a.example"]}`)
	a.others = 3
	out, code := runCommandLine(t, "policy", "allow", "demo", "b.example", "192.0.2.0/24", "a.example")
	want := `{"mode":"custom","allowed_domains":["a.example","b.example"],"denied_domains":["other4.example"],"allowed_cidrs":["192.0.2.0/24"]}`
	if code != 0 || a.policy(t) != want || a.puts != 1 {
		t.Errorf("exit %d, %d changes, %s\n%s", code, a.puts, a.policy(t), out)
	}
	for _, part := range []string{"b.example: allowed\n", "192.0.2.0/24: allowed\n", `a.example: nothing to do: "a.example" allows it already`, "Version 5 of the policy is in force."} {
		if !strings.Contains(out, part) {
			t.Errorf("%q is not in\n%s", part, out)
		}
	}
}

// TestPolicyAllowSaysWhatHasNoEffect: an entry with a warning from the gateway, or one that no policy can open, is not
// reported as allowed, whether it is new or was there before.
func TestPolicyAllowSaysWhatHasNoEffect(t *testing.T) {
	doc, asked := map[string]any{"mode": "custom", "allowed_domains": []any{"a.example"}, "allowed_cidrs": []any{"169.254.169.254"}}, 0
	mux := http.NewServeMux()
	mux.HandleFunc("/v2/box/demo/config/network-policy", func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut {
			doc = map[string]any{}
			_ = json.NewDecoder(r.Body).Decode(&doc)
			doc["warnings"] = []any{map[string]any{"pointer": "/allowed_cidrs/1", "message": `"10.0.0.0/8" is in a protected range, which no policy opens`}, map[string]any{"pointer": "/mode", "message": "another"}}
		}
		doc["version"] = 1
		_ = json.NewEncoder(w).Encode(doc)
	})
	mux.HandleFunc("POST /v2/box/demo/config/network-policy/leases", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"version":2,"leases":[{"action":"allow","entry":"10.0.0.1","expires_at":1}]}`)
	})
	mux.HandleFunc("POST /v2/box/demo/egress/explain", func(w http.ResponseWriter, _ *http.Request) {
		asked++
		fmt.Fprint(w, `{"verdict":"deny","reason":"protected_range"}`)
	})
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	t.Setenv("BOXGATE_ADMIN", srv.URL)
	t.Setenv("BOXGATE_API_KEY", "key")
	out, code := runCommandLine(t, "policy", "allow", "demo", "10.0.0.0/8", "b.example", "169.254.169.254")
	for _, part := range []string{
		`10.0.0.0/8: added, but it has no effect: "10.0.0.0/8" is in a protected range`, "b.example: allowed\n", "warning: /mode: another\n",
		"169.254.169.254: nothing to do: it is in the policy already, and has no effect: no policy opens this range",
	} {
		if !strings.Contains(out, part) {
			t.Errorf("%q is not in\n%s", part, out)
		}
	}
	if code != 0 || strings.Count(out, "protected range, which") != 1 || asked != 1 {
		t.Errorf("exit %d, asked %d times\n%s", code, asked, out)
	}
	out, _ = runCommandLine(t, "policy", "allow", "demo", "10.0.0.1", "--for", "1h")
	if !strings.Contains(out, "10.0.0.1: no effect: no policy opens this range") || strings.Contains(out, "allowed until") {
		t.Error(out)
	}
}

// TestPolicyAmendChangesAllOrNothing: a single invalid or impossible destination prevents the whole change.
func TestPolicyAmendChangesAllOrNothing(t *testing.T) {
	const before = `{"mode":"custom","allowed_domains":["a.example"],"denied_domains":["*.b.example"]}`
	a := newAdmin(t, before)
	for _, c := range []struct {
		args   []string
		status int
		said   string
	}{
		{[]string{"allow", "demo", "c.example", "x.b.example"}, cli.ExitFailed, `denied by "*.b.example"`},
		{[]string{"allow", "demo", "c.example", "https://d.example/"}, cli.ExitUsage, `use "d.example"`},
		{[]string{"deny", "demo", "c.example", "preset:gitub"}, cli.ExitUsage, `no preset "gitub"`},
		{[]string{"deny", "demo", "x.b.example"}, 0, `"*.b.example" denies it already`},
		{[]string{"deny", "nobody", "x.b.example"}, cli.ExitFailed, "404"},
	} {
		out, code := runCommandLine(t, append([]string{"policy"}, c.args...)...)
		if code != c.status || !strings.Contains(out, c.said) || a.policy(t) != before || a.puts != 0 {
			t.Errorf("%v: exit %d, %s\n%s", c.args, code, a.policy(t), out)
		}
	}
}

// TestPolicyAmendNeedsToKnowAll: a policy with an unknown field is not rewritten without it.
func TestPolicyAmendNeedsToKnowAll(t *testing.T) {
	a := newAdmin(t, `{"mode":"custom","allowed_domains":["a.example"],"quota":7}`)
	if out, code := runCommandLine(t, "policy", "allow", "demo", "b.example"); code != cli.ExitFailed || !strings.Contains(out, "does not understand") || a.puts != 0 {
		t.Errorf("exit %d: %s", code, out)
	}
}

func TestPolicyAmendAsJSON(t *testing.T) {
	newAdmin(t, `{"mode":"deny-all"}`)
	out, code := runCommandLine(t, "--json", "policy", "allow", "demo", "preset:anthropic")
	var answer struct {
		Entries []struct {
			Entry   string
			Changed bool
		}
		Policy struct {
			Mode    string
			Version int
		}
	}
	if err := json.Unmarshal([]byte(out), &answer); err != nil || code != 0 || len(answer.Entries) != 1 || !answer.Entries[0].Changed || answer.Policy.Mode != "custom" || answer.Policy.Version != 2 {
		t.Errorf("exit %d: %s %v", code, out, err)
	}
}

func TestPolicyDiff(t *testing.T) {
	a := newAdmin(t, `{"mode":"custom","allowed_domains":["pypi.org:443","a.example"]}`)
	out, code := runCommandLine(t, "policy", "diff", "demo", "preset:pypi")
	if want := "- allowed_domains: a.example\n+ allowed_domains: files.pythonhosted.org:443\n"; code != 0 || out != want || a.puts != 0 {
		t.Errorf("exit %d: %s", code, out)
	}
	if out, _ := runCommandLine(t, "policy", "diff", "demo", a.policy(t)); out != "The policies are the same.\n" {
		t.Error(out)
	}
	if out, code := runCommandLine(t, "policy", "diff", "demo", `{"mode":"open"}`); code != cli.ExitFailed || !strings.Contains(out, "/mode") {
		t.Errorf("exit %d: %s", code, out)
	}
}

// TestPolicyEdit: either the edited policy becomes active, or the policy is unchanged and the edited file is kept.
func TestPolicyEdit(t *testing.T) {
	const before = `{"mode":"custom","allowed_domains":["a.example"]}`
	t.Setenv("VISUAL", "")
	for _, c := range []struct {
		editor, after, said string
		status, others      int
		kept                bool
	}{
		{"sed -i s/a.example/b.example/", `{"mode":"custom","allowed_domains":["b.example"]}`, "+ allowed_domains: b.example", 0, 0, false},
		{"true", before, "Nothing was changed.", 0, 0, false},
		{"sed -i s/custom/open/", before, "/mode", cli.ExitFailed, 0, true},
		{"false", before, `the editor "false" failed`, cli.ExitFailed, 0, false},
		{"sed -i s/a.example/b.example/", `{"mode":"custom","allowed_domains":["a.example"],"denied_domains":["other2.example"]}`, "somebody else changed", cli.ExitFailed, 1, true},
	} {
		a := newAdmin(t, before)
		a.others = c.others
		t.Setenv("TMPDIR", t.TempDir())
		t.Setenv("EDITOR", c.editor)
		out, code := runCommandLine(t, "policy", "edit", "demo")
		if code != c.status || !strings.Contains(out, c.said) || a.policy(t) != c.after {
			t.Errorf("%s: exit %d, %s\n%s", c.editor, code, a.policy(t), out)
		}
		files, _ := filepath.Glob(os.Getenv("TMPDIR") + "/*/policy.json")
		if (len(files) == 1) != c.kept || c.kept && !strings.Contains(out, files[0]) {
			t.Errorf("%s: %v is left\n%s", c.editor, files, out)
		}
	}
}

// TestPolicyArgumentsTakePresets: presets are accepted wherever a policy is.
func TestPolicyArgumentsTakePresets(t *testing.T) {
	t.Parallel()
	data, err := cli.PolicyArgument("preset:pypi,anthropic", cli.PolicyHelp, nil)
	if want := `{"mode":"custom","allowed_domains":["pypi.org:443","files.pythonhosted.org:443","api.anthropic.com:443"]}`; err != nil || string(data) != want {
		t.Errorf("%s %v", data, err)
	}
	if data, err := cli.PolicyArgument("preset:", cli.PolicyHelp, nil); err == nil {
		t.Errorf("no preset is %s", data)
	}
}

func TestPolicyPresets(t *testing.T) {
	t.Parallel()
	if out, code := runCommandLine(t, "policy", "presets"); code != 0 || !strings.Contains(out, "github ") || !strings.Contains(out, "docker-hub ") {
		t.Errorf("exit %d: %s", code, out)
	}
	if out, code := runCommandLine(t, "policy", "presets", "npm"); code != 0 || !strings.Contains(out, "registry.npmjs.org:443") || !strings.Contains(out, "version ") {
		t.Errorf("exit %d: %s", code, out)
	}
	if out, code := runCommandLine(t, "policy", "presets", "npn"); code != cli.ExitUsage || !strings.Contains(out, "the presets are") {
		t.Errorf("exit %d: %s", code, out)
	}
}

// follower stands in for the admin API of a gateway with the named policy "web", followed by the box demo. It records
// changes.
func follower(t *testing.T) (changes *[]string) {
	t.Helper()
	changes = new([]string)
	const web = `{"name":"web","policy":{"mode":"custom","allowed_domains":["a.example"]},"version":3,"boxes":[{"id":"b1","name":"demo"},{"id":"b2"}]}`
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			body, _ := io.ReadAll(r.Body)
			*changes = append(*changes, r.Method+" "+r.URL.String()+" "+string(body))
		}
		switch r.URL.Path {
		case "/v2/box/settings/network-policies/shared":
			fmt.Fprint(w, `{"name":"shared","fleet":true,"policy":{"mode":"deny-all"},"version":5,"boxes":[],"warnings":[{"message":"not in force here"}]}`)
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
		{"policy named set shared deny-all --fleet", "Version 5 of the policy shared is in force, for 0 boxes of this host, and on all hosts of the fleet.", `PUT /v2/box/settings/network-policies/shared?fleet=true {"mode":"deny-all"}`},
		{"policy named rm --fleet shared", "", "DELETE /v2/box/settings/network-policies/shared?fleet=true "},
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

// TestListOfNamedPolicies: the list shows the owners of policies in a fleet alone.
func TestListOfNamedPolicies(t *testing.T) {
	own := namedAnswer{Name: "web", Policy: json.RawMessage(`{"mode":"deny-all"}`), Version: 3}
	shared := own
	shared.Name, shared.Fleet = "shared", true
	for want, all := range map[string][]namedAnswer{
		"NAME  VERSION  MODE      BOXES\nweb   3        deny-all  \n":                                                             {own},
		"NAME    VERSION  MODE      BOXES  OF\nweb     3        deny-all         host\nshared  3        deny-all         fleet\n": {own, shared},
	} {
		var out strings.Builder
		if err := printNamed(&out, all); err != nil || out.String() != want {
			t.Errorf("%v\n%s\nwant\n%s", err, out.String(), want)
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
