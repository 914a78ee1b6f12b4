package dialect

import (
	"encoding/json"
	"maps"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/policy/policytest"
	"boxgate/rule/kinds"
)

// TestConvert compares conversions with the tables of testdata/convert: a document, named by its dialect, is followed by
// it in the others, or by what they cannot say. What another dialect can say means the same when it is read again.
func TestConvert(t *testing.T) {
	policytest.EachArchive(t, "testdata/convert/*.txtar", func(t *testing.T, a *txtar.Archive) {
		from := Dialect(a.Files[0].Name)
		for i := 1; i < len(a.Files); i++ {
			to := Dialect(strings.TrimPrefix(a.Files[i].Name, "to "))
			out, err := Convert(a.Files[0].Data, from, to)
			if err != nil {
				a.Files[i].Data = []byte(strings.ReplaceAll(err.Error(), "; /", "\n/") + "\n")
				continue
			}
			a.Files[i].Data = append(out, '\n')
			back, err := Convert(out, to, Boxgate)
			if err != nil {
				t.Fatalf("%s: what was written cannot be read: %v\n%s", to, err, out)
			}
			if again, err := Convert(back, Boxgate, to); err != nil || string(again) != string(out) {
				t.Errorf("%s: came back as %s, %v", to, again, err)
			}
		}
	})
}

// everyField are header rules that between them use every field there is.
var everyField = []string{
	`{"headers": {"X-A": {"secret": "k", "prefix": "p ", "suffix": " s"}, "X-B": "literal"}, "remove": ["X-C"]}`,
	`{"headers": {"Authorization": {"secret": "k", "encode": "basic", "user": "me"}}}`,
	`{"placeholders": {"KEY": "value", "OTHER": {"secret": "k"}}, "places": ["header", "query", "json"], "scrub": false}`,
	`{"query": {"key": {"secret": "k", "prefix": "p", "suffix": "s"}, "other": "literal"}}`,
	`{"sign": {"aws": {"credentials": "{\"access_key_id\":\"AKID\",\"secret_access_key\":\"canary\"}", "region": ["a", "b"], "service": "s3"}}}`,
	`{"sign": {"aws": {"credentials": {"secret": "k"}, "region": "a", "service": "s3"}}}`,
	`{"sign": {"hmac": {"key": {"secret": "k"}, "header": "x-sig", "template": "{method}", "encoding": "base64", "format": "v1={signature}",
		"timestamp": {"header": "x-time", "format": "rfc3339"}}}}`,
	`{"sign": {"hmac": {"key": "literal", "header": "x-sig", "template": "{body}"}}, "headers": {"X-A": "literal"}, "scrub": true}`,
	`[{"match": {"methods": ["GET"], "path": {"prefix": "/a"}, "query": {"a": {"exact": "b"}}, "headers": {"x-a": {"regex": "c"}}}, "deny": true}, {"remove": ["X-C"]}]`,
	`{"postgres": {"user": "u", "database": "d", "password": {"secret": "k"}, "auth": "md5"}}`,
	`{"postgres": {"user": "u", "database": "d", "password": "literal"}}`,
	`{"ssh": {"user": "git", "key": {"secret": "k"}, "host_keys": ["@cert-authority ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f"],
		"repos": [{"name": "o/r", "access": "push"}], "commands": ["uptime"]}}`,
	`{"proxy": {"username": "u", "password": "literal"}}`,
	`{"proxy": {"scheme": "socks5", "username": "u", "password": {"secret": "k"}}}`,
	`{"client_certificate": {"certificate": {"secret": "c"}, "key": {"secret": "k"}}}`,
	`{"forward_url": "https://proxy.test:8443/in", "remove": ["X-C"]}`,
}

// TestConvertForgetsNothing: each field of a header rule is still there once the rule was written and read again, and a dialect
// that cannot say it refuses. A new field fails here until it is in everyField.
func TestConvertForgetsNothing(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	reveal := cmp.Comparer(func(a, b name.Secret) bool { return a.Reveal() == b.Reveal() })
	entries := everyField
	for _, kind := range kinds.All {
		entries = append(entries, `{"`+kind.Key()+`": `+kind.Example()+`}`)
	}
	for _, entry := range entries {
		host := "a.test"
		if strings.Contains(entry, "postgres") || strings.Contains(entry, `"ssh"`) || strings.Contains(entry, `"proxy"`) {
			host += ":5432"
		}
		attach := `{"` + host + `": ` + entry + `}`
		rules := rulesOf(t, attach)
		noteFields(reflect.ValueOf(rules), seen)
		doc := []byte(`{"network_policy": {"mode": "custom", "allowed_domains": ["` + host + `"]}, "attach_headers": ` + attach + `}`)
		out, err := Convert(doc, Boxgate, Boxgate)
		if err != nil {
			t.Fatalf("%s: %v", entry, err)
		}
		var back struct {
			AttachHeaders json.RawMessage `json:"attach_headers"`
		}
		if err := json.Unmarshal(out, &back); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(rules, rulesOf(t, string(back.AttachHeaders)), reveal, cmp.AllowUnexported(name.Pattern{}, name.Name{})); diff != "" {
			t.Errorf("%s: %s", entry, diff)
		}
		for _, other := range []Dialect{Vercel, E2B, Daytona} {
			if r := rules[0]; other == Vercel && r.OnConnections().Redirect != nil && len(r.Effects) == 1 { // which that dialect knows
				continue
			}
			if out, err := Convert(doc, Boxgate, other); err == nil {
				t.Errorf("%s: became %s", entry, out)
			}
		}
	}
	for name := range maps.Keys(seen) {
		if !seen[name] && name != "HeaderRule.Fleet" { // of the list that has the rule, and in no document
			t.Errorf("no rule of everyField has %s", name)
		}
	}
}

// noteFields notes the fields of rules: whether one has a value other than zero.
func noteFields(v reflect.Value, seen map[string]bool) {
	compiled := map[string]bool{"Match.MCP": true, "Match.GraphQL": true, "HeaderRule.Shared": true, "Placeholder.Token": true, "RepoRule.Host": true, "HeaderRule.Effects": true, "HeaderRule.Connection": true, "HeaderRule.Request": true}
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			noteFields(v.Elem(), seen)
		}
	case reflect.Slice:
		for i := range v.Len() {
			noteFields(v.Index(i), seen)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			f := v.Type().Field(i)
			if name := v.Type().Name() + "." + f.Name; f.IsExported() && !compiled[name] {
				seen[name] = seen[name] || !v.Field(i).IsZero()
				noteFields(v.Field(i), seen)
			}
		}
	}
}

func rulesOf(t testing.TB, doc string) []policy.HeaderRule {
	t.Helper()
	rules, err := policy.ParseHeaderRules([]byte(doc), nil)
	if err != nil {
		t.Fatal(err)
	}
	return rules
}
