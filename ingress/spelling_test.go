package ingress

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"boxgate/ingress/access"
	"boxgate/ingress/link"
)

// If a request contains a credential in a spelling that the gateway does not read, and another credential lets it in, the
// first does not reach the box.
func TestCredentialsInOtherSpellings(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	box := record(t)
	f.guarded("one", box)
	for _, h2 := range []bool{false, true} {
		c := f.client(t, h2)
		good := signIn(t, c, "one")
		for _, query := range []string{
			"boxgate%5Ftoken=tok", "a=1;boxgate_token=tok", "boxgate_tok%65n=tok", "Boxgate_Token=tok", "+boxgate_token=tok", "boxgate_token%3Dtok", "boxgate_token[]=tok",
		} {
			resp, _ := get(t, c, "https://one"+domain+"/?"+query+"&b", func(r *http.Request) {
				r.Header.Set("Cookie", good)
				r.Header.Set("Referer", "https://one"+domain+"/?"+query)
				r.Header["Authorization"] = []string{"Bearer of-the-app", "bearer  tok", "Bearer of-the-app", "Basic Ym94OnBhc3M="}
			})
			got := box.last(t)
			if sent := got.RequestURI + got.Referer(); resp.StatusCode != 200 || strings.Contains(strings.ToLower(sent), "tok") || !strings.HasSuffix(got.RequestURI, "b") {
				t.Errorf("h2 %v, %s: %s, the box got %q", h2, query, resp.Status, sent)
			}
			if own := got.Header["Authorization"]; !slices.Equal(own, []string{"Bearer of-the-app", "Bearer of-the-app"}) {
				t.Errorf("h2 %v: the box got %q", h2, own)
			}
		}
	}
}

// A signed link is not valid for another method that a field names. Requests with other credentials may name any.
func TestMethodsOfALinkAreNotOverridden(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	box := record(t)
	target := f.guarded("one", box)
	key := access.Key{1}
	target.Access.Links = key
	f.set("one"+domain, target)
	signed := "boxgate_link=" + link.Sign(key, target.ID, link.Link{Expires: time.Now().Add(time.Hour), Prefix: "/files", Methods: []string{"GET"}})
	for _, h2 := range []bool{false, true} {
		c := f.client(t, h2)
		for _, name := range []string{"X-HTTP-Method-Override", "x-http-method", "X-Method-Override", "X_HTTP_Method_Override"} {
			override := func(r *http.Request) { r.Header[name] = []string{"DELETE"} }
			if resp, _ := get(t, c, "https://one"+domain+"/files?"+signed, override); resp.StatusCode != 200 || strings.Contains(dump(box.last(t)), "DELETE") {
				t.Errorf("h2 %v, %s: %s, the box got\n%s", h2, name, resp.Status, dump(box.last(t)))
			}
			get(t, c, "https://one"+domain+"/files", func(r *http.Request) {
				override(r)
				r.Header.Set("Authorization", "Bearer tok")
			})
			if !strings.Contains(dump(box.last(t)), "DELETE") {
				t.Errorf("h2 %v: %s of one with the token is lost", h2, name)
			}
		}
	}
}

// Searching a request for the gateway's parameters and fields does not allocate.
func TestCleanRequestsAreNotCopied(t *testing.T) {
	target := []byte("/a/b?c=d&e=%20f;g=boxgate_x&page=2&boxgate=1")
	name := []byte("x-http-method-overridden")
	n := testing.AllocsPerRun(100, func() {
		if got := withoutOwnParameters(target); &got[0] != &target[0] || changesMethod(name) {
			t.Error("changed")
		}
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}
