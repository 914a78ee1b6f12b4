package ui

import (
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/api/apitest"
	"boxgate/policy"
	"boxgate/policy/authority"
)

var previewInput = regexp.MustCompile(`name="preview" value="([^"]+)"`)

// formOf returns the fields of a form that confirm its preview.
func formOf(t *testing.T, page string, with url.Values) url.Values {
	t.Helper()
	m := previewInput.FindStringSubmatch(page)
	if m == nil {
		t.Fatalf("no preview in %s", page)
	}
	form := url.Values{"token": {tokenOf(t, page)}, "preview": {m[1]}}
	for k, v := range with {
		form[k] = v
	}
	return form
}

// TestAllowForm: an entry is made as it was previewed, or not at all: not without the preview, not for another destination or time, not
// after a change of the policy, and a wide one only if it was typed again. The default is an hour.
func TestAllowForm(t *testing.T) {
	t.Parallel()
	g := serve(t)
	id := policy.BoxID(g.host.Add(t, api.CreateRequest{Name: "a", Policy: policy.Spec{Mode: policy.ModeCustom, AllowedDomains: []string{"paypal.com:443"}}}))
	b := g.as(t, apitest.Key)
	at := boxPath(id, "allow")
	leases := func() []api.Lease {
		g.host.Mu.Lock()
		defer g.host.Mu.Unlock()
		return g.host.ByID[id].Policy.Leases
	}
	post := func(what string, form url.Values, want int, part string) {
		t.Helper()
		n := len(leases())
		resp, text := b.post(t, at, form)
		if resp.StatusCode != want || !strings.Contains(text, part) {
			t.Errorf("%s: %s, want %d %q", what, resp.Status, want, part)
		}
		if made := len(leases()) - n; (made == 1) != (want == http.StatusOK) {
			t.Errorf("%s made %d entries", what, made)
		}
	}
	one := url.Values{"host": {"www.example.com"}, "port": {"443"}}
	_, shown := b.get(t, at+"?"+one.Encode())
	post("no preview", url.Values{"token": {tokenOf(t, shown)}, "host": one["host"], "port": one["port"]}, http.StatusConflict, "changed since the preview")
	post("another host", formOf(t, shown, url.Values{"host": {"evil.example.net"}, "port": {"443"}}), http.StatusConflict, "changed since the preview")
	post("another time", formOf(t, shown, url.Values{"host": one["host"], "port": one["port"], "for": {"168h"}}), http.StatusConflict, "changed since the preview")
	post("the previewed entry", formOf(t, shown, one), http.StatusOK, "")
	if l := leases(); l[0].Entry != "www.example.com:443" || l[0].ExpiresAt.Sub(l[0].StartedAt).Hours() != 1 {
		t.Errorf("%+v", l)
	}
	post("again, with another version of the policy", formOf(t, shown, one), http.StatusConflict, "changed since the preview")
	for _, host := range []string{"*.example.com", "paypa1.com", "xn--pypal-4ve.com"} {
		wide := url.Values{"host": {host}, "port": {"443"}}
		_, shown := b.get(t, at+"?"+wide.Encode())
		post(host+" without its name", formOf(t, shown, wide), http.StatusUnprocessableEntity, "exactly as it is shown")
		wide.Set("confirm", host)
		post(host+" without its port", formOf(t, shown, wide), http.StatusUnprocessableEntity, "exactly as it is shown")
		wide.Set("confirm", host+":443")
		post(host, formOf(t, shown, wide), http.StatusOK, "")
	}
	if _, text := b.get(t, at+"?host=*.com&port=443"); strings.Contains(text, `name="preview"`) || !strings.Contains(text, "policy editor") {
		t.Errorf("*.com can be allowed: %s", text)
	}
	g.host.Gained = []authority.Line{{Kind: authority.KindName, Name: "api.example.org", Headers: []string{"api.example.org:443"}}}
	_, shown = b.get(t, at+"?host=api.example.org&port=443")
	if !strings.Contains(shown, "could use the credentials") {
		t.Errorf("the header rule is not named: %s", shown)
	}
	g.host.Gained[0].Headers = nil
	post("after a change of the header rules", formOf(t, shown, url.Values{"host": {"api.example.org"}, "port": {"443"}}), http.StatusConflict, "changed since the preview")
}

// TestPolicyForm: a policy is applied as it was checked, or not at all, and one that opens more than a person may overlook only with the
// name of the box.
func TestPolicyForm(t *testing.T) {
	t.Parallel()
	g := serve(t)
	id := policy.BoxID(g.host.Add(t, api.CreateRequest{Name: "alpha", Policy: policy.Spec{Mode: policy.ModeCustom, AllowedDomains: []string{"api.example.com"}}}))
	b := g.as(t, apitest.Key)
	at := boxPath(id, "policy")
	_, page := b.get(t, at)
	token := tokenOf(t, page)
	post := func(what string, form url.Values, want int, part string) string {
		t.Helper()
		form.Set("token", token)
		resp, text := b.post(t, at, form)
		if resp.StatusCode != want || !strings.Contains(text, part) {
			t.Errorf("%s: %s, want %d %q in %s", what, resp.Status, want, part, text)
		}
		return text
	}
	mode := func() policy.Mode {
		g.host.Mu.Lock()
		defer g.host.Mu.Unlock()
		return g.host.ByID[id].Policy.Spec.Mode
	}
	const deny, open = `{"mode": "deny-all"}`, `{"mode": "allow-all"}`
	checked := post("check", url.Values{"policy": {deny}, "version": {"1"}, "do": {"check"}}, http.StatusOK, "Apply to alpha")
	post("no preview", url.Values{"policy": {deny}, "version": {"1"}, "do": {"apply"}}, http.StatusConflict, "another one than you had checked")
	post("another text", formOf(t, checked, url.Values{"policy": {open}, "version": {"1"}, "do": {"apply"}}), http.StatusConflict, "another one than you had checked")
	post("a mistake", url.Values{"policy": {`{"mode": "custom", "allowed_domains": ["b..example"]}`}, "version": {"1"}, "do": {"apply"}}, http.StatusUnprocessableEntity, "/allowed_domains/0")
	wide := post("a wide policy", url.Values{"policy": {open}, "version": {"1"}, "do": {"check"}}, http.StatusOK, "Type alpha")
	post("without the name", formOf(t, wide, url.Values{"policy": {open}, "version": {"1"}, "do": {"apply"}, "confirm": {"beta"}}), http.StatusUnprocessableEntity, "exactly as it is shown")
	if mode() != policy.ModeCustom {
		t.Errorf("the policy is %s", mode())
	}
	post("the checked text", formOf(t, checked, url.Values{"policy": {deny}, "version": {"1"}, "do": {"apply"}}), http.StatusOK, "in force now")
	post("an old version", formOf(t, wide, url.Values{"policy": {open}, "version": {"1"}, "do": {"apply"}, "confirm": {"alpha"}}), http.StatusConflict, "came into force while you edited")
	if mode() != policy.ModeDenyAll {
		t.Errorf("the policy is %s", mode())
	}
}
