package ingress

import (
	"bufio"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// forgedIdentity is what a visitor says about itself, of which the box must see nothing.
const forgedIdentity = "198.51.100.66"

// identityFields returns the fields that docs/urls.md promises to remove, one of each where only the beginning counts.
func identityFields(t *testing.T) []string {
	t.Helper()
	doc, err := os.ReadFile("../docs/urls.md")
	if err != nil {
		t.Fatal(err)
	}
	_, list, found := strings.Cut(string(doc), "\nFields that say who the visitor is: all that begin with ")
	list, _, ended := strings.Cut(strings.ToLower(list), "\n")
	beginnings, names, divided := strings.Cut(list, ", and ")
	if !found || !ended || !divided {
		t.Fatal("docs/urls.md lists no fields")
	}
	quoted := regexp.MustCompile("`([A-Za-z0-9-]+)`")
	var all []string
	for _, m := range quoted.FindAllStringSubmatch(beginnings, -1) {
		all = append(all, m[1], strings.TrimSuffix(m[1], "-")+"-user")
	}
	for _, m := range quoted.FindAllStringSubmatch(names, -1) {
		all = append(all, m[1])
	}
	return all
}

// No field in which proxies tell servers who a visitor is reaches the box from a visitor: not those of the list, in no
// spelling that servers take for the same, over neither version of HTTP.
func TestIdentityFieldsOfOtherProxiesAreRemoved(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	box := record(t)
	f.expose("one", box.Server, Auth{Open: true})
	all := identityFields(t)
	for _, known := range []string{"CF-Connecting-IP", "Fastly-Client-IP", "X-Envoy-External-Address", "X-Azure-ClientIP", "X-Remote-Addr",
		"X-Originating-IP", "True-Client-IP", "Remote-User", "X-Goog-IAP-JWT-Assertion", "Client-Cert", "X-Amzn-Oidc-Data"} {
		if !slices.Contains(all, strings.ToLower(known)) {
			all = append(all, known)
		}
	}
	for spelling, spell := range map[string]func(string) string{
		"lower case": strings.ToLower, "upper case": strings.ToUpper,
		"underscores": func(s string) string { return strings.ReplaceAll(s, "-", "_") },
		"mixed":       func(s string) string { return strings.ToUpper(strings.Replace(s, "-", "_", 1)) },
	} {
		var lines strings.Builder
		fields := to("GET", "one", "/", "x-kept", spelling)
		for _, name := range all {
			lines.WriteString(spell(name) + ": " + forgedIdentity + "\r\n")
			fields = append(fields, strings.ToLower(spell(name)), forgedIdentity)
		}
		c := f.connectTo(t, "one"+domain)
		_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: one"+domain+"\r\nX-Kept: "+spelling+"\r\n"+lines.String()+"\r\n")
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		box.sawNoIdentity(t, "HTTP/1.1, "+spelling, resp.StatusCode == http.StatusOK)
		v := f.frames(t, "one")
		r := v.answer(v.ask(true, fields...))
		box.sawNoIdentity(t, "HTTP/2, "+spelling, r.status() == "200")
	}
}

// sawNoIdentity checks the last request.
func (r *recorder) sawNoIdentity(t *testing.T, what string, served bool) {
	t.Helper()
	if !served {
		t.Fatalf("%s: not served", what)
	}
	got := r.last(t)
	if got.Header.Get("X-Kept") == "" || got.Header.Get("X-Forwarded-For") != "127.0.0.1" || strings.Contains(dump(got), forgedIdentity) {
		t.Errorf("%s: the box got\n%s", what, dump(got))
	}
}

// What is removed and what docs/urls.md lists are the same.
func TestIdentityFieldsAreDocumented(t *testing.T) {
	t.Parallel()
	documented := identityFields(t)
	for _, name := range slices.Concat(claimedNames, claimedBeginnings) {
		if !slices.Contains(documented, name) {
			t.Errorf("%s is removed and not in docs/urls.md", name)
		}
	}
}
