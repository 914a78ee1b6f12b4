package ui

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/config"
	"boxgate/e2e/harness"
)

// payload is text of a box that runs a script where a page takes it for HTML.
const payload = `<img src=x onerror=document.title='owned'>`

// fired reports whether the payload has run on a page, after the browser has had the time to run it.
func fired(p *page) bool {
	p.t.Helper()
	p.do("evaluate", "new Promise(done => { const i = new Image(); i.onerror = i.onload = () => setTimeout(done, 50); i.src = '/ui/assets/none'; })")
	return get[string](p, "title") == "owned"
}

// A box writes a script as Host, path and reason of a request. Pages show it as text, and nothing runs. The control: without the content
// security policy and the escaping, which the test takes away between gateway and browser, the same text runs.
func TestTextOfABoxRunsNothing(t *testing.T) {
	t.Parallel()
	w := harness.NewWorld(t, func(c *config.Config) { c.Approvals.Enabled, c.Approvals.EveryBox = true, true })
	box := w.Create(map[string]any{"name": "attacker", "network_policy": map[string]any{
		"mode": "custom", "allowed_domains": []string{"api.example.com", "plain.example.com"},
		"rules": []map[string]any{{"hosts": []string{"plain.example.com"}, "methods": []string{"DELETE"}, "action": "deny"}},
	}})
	in := w.Intrude(box)
	hostile := strings.ReplaceAll(payload, " ", "/")
	for _, request := range []string{
		"DELETE /" + hostile + " HTTP/1.1\r\nHost: plain.example.com\r\nConnection: close\r\n\r\n", "GET / HTTP/1.1\r\nHost: " + hostile + "\r\nConnection: close\r\n\r\n",
	} {
		c := in.DialHost("plain.example.com", 80)
		_, _ = harness.SendAndReadAll(c, request)
	}
	reason := fmt.Sprintf(`{"host": "files.example.net", "reason": %q}`, payload)
	w.MustSh(box, "curl -sS --fail-with-body -H 'Content-Type: application/json' -d '"+strings.ReplaceAll(reason, "'", `'\''`)+"' http://policy.boxgate.internal/v1/requests")

	b := newBrowser(t, w.Net.Gateway())
	shown := 0
	for _, exposed := range []bool{false, true} {
		p := operator(t, w, b, fmt.Sprint("exposed ", exposed), nil)
		if exposed {
			p.do("expose", origin)
		}
		ran := 0
		for _, path := range []string{"/ui/boxes/" + box, "/ui/requests", "/ui/trail", "/ui/boxes/" + box + "/allow?host=" + "%3Cimg%20src%3Dx%20onerror%3Ddocument.title%3D'owned'%3E"} {
			p.visit(path)
			if strings.Contains(get[string](p, "text", "body"), "onerror=") {
				shown++
			}
			if fired(p) {
				ran++
			}
			if n := get[int](p, "count", "main img"); !exposed && n > 0 {
				t.Errorf("%s has %d images", path, n)
			}
		}
		switch {
		case !exposed && ran > 0:
			t.Errorf("the script ran on %d pages", ran)
		case !exposed && shown == 0:
			t.Error("no page shows the text, so the test tests nothing")
		case exposed && ran == 0:
			t.Error("control: the script does not run without the protections")
		}
		if !exposed {
			p.clean()
		}
	}
}

// Another site, of another name or at another port of the same one, can neither post to the dashboard with the cookies of an operator
// who has signed in, nor frame it, nor read it.
func TestOtherSitesCannotUseTheDashboard(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box := w.Create(map[string]any{"network_policy": harness.Custom("api.example.com")})
	var ln net.Listener
	err := w.Net.Gateway().Do(func() (err error) {
		ln, err = net.Listen("tcp", "127.0.0.1:0")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	end := "/ui/boxes/" + box + "/policy"
	site := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = fmt.Fprintf(w, `<!doctype html><title>site</title><iframe id="frame" src="%[1]s/ui/"></iframe>
<form id="form" method="post" action="%[1]s%[2]s" target="answer"><input name="policy" value='{"mode":"allow-all"}'><input name="version" value="1"><input name="do" value="apply"></form>
<iframe name="answer"></iframe>`, origin, end)
	})}
	t.Cleanup(func() { _ = site.Close() })
	go func() { _ = site.Serve(ln) }()
	port := ln.Addr().(*net.TCPAddr).Port
	b := newBrowser(t, w.Net.Gateway(), "--host-resolver-rules=MAP evil.example 127.0.0.1")
	p := operator(t, w, b, "a", nil)
	for _, from := range []string{siteAt(port), fmt.Sprintf("http://evil.example:%d", port)} {
		p.do("goto", from)
		read := get[string](p, "evaluate", `(async () => {
			const tries = [fetch("`+origin+`/ui/", { credentials: "include" }).then(r => r.text()),
				fetch("`+origin+end+`", { method: "POST", credentials: "include", mode: "no-cors", body: new URLSearchParams({ policy: '{"mode":"allow-all"}', version: "1", do: "apply" }) }).then(r => r.type)];
			return JSON.stringify((await Promise.allSettled(tries)).map(t => t.value ?? "refused"));
		})()`)
		if read != `["refused","opaque"]` && read != `["refused","refused"]` {
			t.Errorf("%s reads %s", from, read)
		}
		p.do("evaluate", `document.getElementById("form").submit()`)
		if got := get[bool](p, "evaluate", `(() => { try { return !!document.getElementById("frame").contentDocument?.querySelector("main"); } catch { return false; } })()`); got {
			t.Errorf("%s reads a frame", from)
		}
		window := get[string](p, "evaluate", `(async () => { const w = open("`+origin+`/ui/"); await new Promise(done => setTimeout(done, 500));
			try { return w.document.body.innerText; } catch (error) { return error.name; } })()`)
		if window != "SecurityError" && window != "" && !strings.HasPrefix(window, "TypeError") {
			t.Errorf("%s reads a window: %s", from, window)
		}
	}
	var now struct {
		Mode    string
		Version uint64
	}
	if err := w.Client.Get(t.Context(), api.BoxPath(box, "config/network-policy"), &now); err != nil || now.Mode != "custom" || now.Version != 1 {
		t.Errorf("the policy is %+v %v", now, err)
	}
	p.visit("/ui/") // still signed in
	if framed := frameRefused(t, b, siteAt(port)); !framed {
		t.Error("the dashboard is shown in a frame")
	}
}

// siteAt returns the origin of a site at another port of the same name.
func siteAt(port int) string { return fmt.Sprintf("http://127.0.0.1:%d", port) }

// frameRefused reports whether the browser refuses to show the dashboard in a frame of a page.
func frameRefused(t *testing.T, b *browser, from string) bool {
	t.Helper()
	p := b.open(t, "framed", nil)
	p.do("goto", from)
	p.do("evaluate", "new Promise(done => setTimeout(done, 300))")
	for _, text := range get[[]string](p, "problems") {
		if strings.Contains(text, "frame") {
			return true
		}
	}
	return get[bool](p, "evaluate", `(() => { try { return document.getElementById("frame").contentDocument === null || !document.getElementById("frame").contentDocument.querySelector("main"); } catch { return true; } })()`)
}
