package ingress

import (
	"encoding/base64"
	"testing"
)

// A page of another site can neither open a WebSocket over HTTP/2 with the password that the browser keeps, nor send a request
// that changes something.
func TestAnotherSiteOverHTTP2(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	box := record(t)
	basic := BasicDigest("box", "password")
	f.expose("one", box.Server, Auth{Basic: &basic})
	password := []string{"authorization", "Basic " + base64.StdEncoding.EncodeToString([]byte("box:password"))}
	v := f.frames(t, "one")
	for name, c := range map[string]struct {
		fields []string
		want   string
	}{
		"a WebSocket":              {append([]string{":protocol", "websocket"}, to("CONNECT", "one", "/", "origin", "https://evil.example")...), "403"},
		"of a sandboxed page":      {append([]string{":protocol", "websocket"}, to("CONNECT", "one", "/", "origin", "null")...), "403"},
		"one that names the site":  {append([]string{":protocol", "websocket"}, to("CONNECT", "one", "/", "sec-fetch-site", "same-site")...), "403"},
		"a form":                   {to("POST", "one", "/", "origin", "https://two"+domain), "403"},
		"a form of its own":        {to("POST", "one", "/", "origin", "https://one"+domain), "200"},
		"without the password":     {to("POST", "one", "/", "origin", "https://one"+domain), "401"},
		"its password in the path": {to("GET", "one", "/?authorization=Basic"), "401"},
	} {
		fields := append(c.fields[:len(c.fields):len(c.fields)], password...)
		if c.want == "401" {
			fields = c.fields
		}
		answer := v.answer(v.ask(true, fields...))
		if got := answer.status(); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
	if n := box.count(); n != 1 {
		t.Errorf("%d requests reached the box", n)
	}
}
