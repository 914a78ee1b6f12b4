package dialect

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"boxgate/policy"
	"boxgate/policy/document"
	"boxgate/policy/name"
	"boxgate/policy/policytest"
	"boxgate/rule"
)

// TestGoldenProblems compares the errors about bad policies and headers with the tables of testdata/problems: each
// document is followed by its problems.
func TestGoldenProblems(t *testing.T) {
	policytest.EachArchive(t, "testdata/problems/*.txtar", func(t *testing.T, a *txtar.Archive) {
		for i := 0; i+1 < len(a.Files); i += 2 {
			doc := a.Files[i]
			err := readAny(doc)
			invalid, ok := errors.AsType[*document.InvalidError](err)
			if !ok {
				t.Errorf("%s: want an *InvalidError, got %v", doc.Name, err)
				continue
			}
			a.Files[i+1].Data = policytest.ProblemLines(invalid.Problems)
			if strings.Contains(err.Error(), "SECRET") {
				t.Errorf("%s: the error shows a header value: %v", doc.Name, err)
			}
		}
	})
}

func readAny(f txtar.File) error {
	if !strings.HasSuffix(f.Name, ".headers.json") {
		_, _, err := Parse(f.Data)
		return err
	}
	_, err := policy.ParseHeaderRules(f.Data, rule.Configured(func(secret string) bool { return secret == "openai" }))
	return err
}

// TestDeniedNames: the answers that a policy may choose, and what it may not.
func TestDeniedNames(t *testing.T) {
	t.Parallel()
	for doc, problem := range map[string]string{
		`{"mode":"custom","allowed_domains":["a.test"],"denied_names":"sink"}`:     "",
		`{"mode":"custom","allowed_domains":["a.test"],"denied_names":"nxdomain"}`: "",
		`{"mode":"deny-all","denied_names":"refused"}`:                             "",
		`{"mode":"deny-all","denied_names":"NXDOMAIN"}`:                            `/denied_names: "NXDOMAIN" is no way to answer; use "sink", "nxdomain" or "refused"`,
		`{"mode":"deny-all","denied_names":1}`:                                     "/denied_names: is",
		`{"mode":"allow-all","denied_names":"sink"}`:                               `/denied_names: means nothing in mode "allow-all"`,
		`{"mode":"deny-all","denied_name":"sink"}`:                                 "denied_names",
	} {
		if _, err := ParseSpec([]byte(doc)); (err == nil) != (problem == "") || err != nil && !strings.Contains(err.Error(), problem) {
			t.Errorf("%s: %v", doc, err)
		}
	}
}

// TestParseVercelEmpty: in that dialect an empty policy allows nothing.
func TestParseVercelEmpty(t *testing.T) {
	t.Parallel()
	for _, doc := range []string{`{}`, `{"allow":[]}`, `{"allow":{}}`, `{"subnets":{"deny":["1.1.1.0/24"]}}`, `"deny-all"`} {
		spec, headers, err := ParseVercel([]byte(doc))
		if err != nil || spec.Mode != policy.ModeDenyAll || headers != nil {
			t.Errorf("%s: %+v, %v, %v", doc, spec, headers, err)
		}
	}
}

// TestSpecCannotCarryHeaders: where only a policy is read, headers in it are refused, not dropped.
func TestSpecCannotCarryHeaders(t *testing.T) {
	t.Parallel()
	_, err := ParseSpec([]byte(`{"allow":{"a.test":[{"transform":[{"headers":{"x-a":"1"}}]}]}}`))
	if err == nil {
		t.Error("the headers were dropped")
	}
}

// TestRepoProblems: each mistake has its pointer.
func TestRepoProblems(t *testing.T) {
	t.Parallel()
	for doc, at := range map[string]string{
		`{"name": "acme", "access": "read"}`:                                   "/repos/0/name",
		`{"name": "acme/web.git", "access": "read"}`:                           "/repos/0/name",
		`{"name": "acme/../web", "access": "read"}`:                            "/repos/0/name",
		`{"name": "acme/web/", "access": "read"}`:                              "/repos/0/name",
		`{"name": "acme/.*", "access": "read"}`:                                "/repos/0/name",
		`{"name": "acme/web"}`:                                                 "/repos/0/access",
		`{"name": "acme/web", "access": "write"}`:                              "/repos/0/access",
		`{"name": "acme/web", "access": "read", "host": "*.example.com"}`:      "/repos/0/host",
		`{"name": "acme/web", "access": "read", "host": "https://github.com"}`: "/repos/0/host",
		`{"name": "acme/web", "access": "read", "host": "github.com:8443"}`:    "/repos/0/host",
		`{"name": "acme/web", "access": "read", "host": "www.github.com."}`:    "/repos/0/host",
		`{"name": "acme/web/x", "access": "read", "host": "GitHub.com.:443"}`:  "/repos/0/name",
		`{"name": "acme/web", "access": "read", "branch": "x"}`:                "/repos/0/branch",
	} {
		_, err := ParseSpec([]byte(`{"mode": "allow-all", "repos": [` + doc + `]}`))
		invalid, ok := errors.AsType[*document.InvalidError](err)
		if !ok || invalid.Problems[0].Pointer != at {
			t.Errorf("%s: %v, want a problem at %q", doc, err, at)
		}
	}
	if _, err := ParseSpec([]byte(`{"mode": "deny-all", "repos": [{"name": "a/b", "access": "read"}]}`)); err == nil {
		t.Error("repositories in deny-all")
	}
}

// FuzzParseSpec: what is accepted compiles, and its JSON parses to the same; what is refused says why.
func FuzzParseSpec(f *testing.F) {
	for _, s := range []string{
		`{"mode":"allow-all"}`, `"deny-all"`, `{"allow":["a.test"],"subnets":{"deny":["1.1.1.0/24"]}}`,
		`{"mode":"custom","allowed_domains":["*.a.test:443"],"denied_domains":["b.a.test"],"allowed_cidrs":["1.1.1.1","::/0"],"dns":"resolve"}`,
		`{"mode":"custom","denied_cidrs":["1.1.1.0/24"],"allowed_cidrs":[],"rules":[{"hosts":["*"],"methods":["GET"],"paths":["/a*"],"action":"deny"}]}`,
		`{"allow":{"a.test":[{"match":{"path":{"startsWith":"/a"}},"transform":[{"headers":{"x-a":"1"}}]}],"*":[]}}`,
		`{"allowOut":["a.test","1.1.1.1"],"denyOut":["0.0.0.0/0"],"rules":{"a.test":[{"transform":{"headers":{"x-a":"1"}}}]}}`, `{"networkAllowList":"192.0.2.1/24, 198.51.100.7/32","domainAllowList":"a.test,*.b.test"}`, `{"networkBlockAll":true}`, `{"mode":"custom","mode":"deny-all"}`, `{"MODE":"allow-all"}`, `[[[[`, `{"mode":`, `{}{}`, "\xff",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		spec, headers, err := Parse(data)
		if err != nil {
			checkProblems(t, err)
			return
		}
		if _, err := policy.Compile(spec, policy.Options{Version: 1, Headers: headers}); err != nil {
			t.Fatalf("headers of %s: %v", data, err)
		}
		c, err := policy.Compile(spec, policy.Options{Version: 1})
		if err != nil {
			t.Fatalf("%s parses but does not compile: %v", data, err)
		}
		text, err := json.Marshal(spec)
		if err != nil {
			t.Fatal(err)
		}
		again, err := ParseSpec(text)
		if err != nil {
			t.Fatalf("%s: %s does not parse: %v", data, text, err)
		}
		if twice, _ := json.Marshal(again); !bytes.Equal(text, twice) {
			t.Fatalf("%s came back as %s", text, twice)
		}
		d, err := policy.Compile(again, policy.Options{Version: 1})
		if err != nil || !reflect.DeepEqual(c.Kernel(), d.Kernel()) || c.ResolvesOthers(name.Name{}) != d.ResolvesOthers(name.Name{}) {
			t.Fatalf("%s means something else after it was stored", data)
		}
	})
}

func checkProblems(t *testing.T, err error) {
	t.Helper()
	invalid, ok := errors.AsType[*document.InvalidError](err)
	if !ok || len(invalid.Problems) == 0 {
		t.Fatalf("want an *InvalidError with problems, got %v", err)
	}
	for _, p := range invalid.Problems {
		if p.Message == "" || p.Pointer != "" && p.Pointer[0] != '/' {
			t.Fatalf("bad problem %+v", p)
		}
	}
}
