package sdk

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"boxgate/api"
	"boxgate/e2e/harness"
	"boxgate/internal/testnet"
)

// sent is a line of testdata/dialects.mjs: a policy as sent by an SDK of another product.
type sent struct {
	Case, How string
	Policy    json.RawMessage
}

// recorded makes the npm packages report the requests they send.
func recorded(t *testing.T, w *harness.World) (all []sent) {
	t.Helper()
	cmd := newNode(t).Command(t.Context(), "dialects.mjs")
	cmd.Env = append(os.Environ(), "API="+w.V4("api.example.com").String(), "API6="+w.V6("api.example.com").String(), "EVIL="+w.V4("evil.example.net").String())
	err := lines(w, cmd, func(dec *json.Decoder) error {
		var s sent
		err := dec.Decode(&s)
		if err == nil {
			all = append(all, s)
		}
		return err
	})
	if err != nil || len(all) != 2*len(dialectCases) {
		t.Fatalf("%d policies, not 2 for each of %d cases: %v", len(all), len(dialectCases), err)
	}
	return all
}

// dialectCase is the expected result for a policy of another product.
type dialectCase struct {
	onCreate, onUpdate string              // pointer to the refused member; "": accepted
	holds              func(d *dialectBox) // checks a box with the policy
}

var dialectCases = map[string]dialectCase{
	"vercel: open":   {holds: func(d *dialectBox) { d.reaches("www", "api", "evil"); d.refuses() }},
	"vercel: closed": {holds: func(d *dialectBox) { d.reaches(); d.refuses("www", "api", "evil") }},
	// Denied addresses take precedence over names; allowed ones need no name.
	"vercel: list":             {holds: func(d *dialectBox) { d.reaches("www", "evil address"); d.refuses("api", "api address", "evil name") }},
	"vercel: rules":            {holds: (*dialectBox).vercelRules},
	"vercel: another response": {onCreate: "/allow/api.example.com/0/response/statusCode", onUpdate: "/allow/api.example.com/0/response/statusCode"},

	"e2b: rules": {holds: func(d *dialectBox) {
		d.refuses("www", "evil")
		d.MustSh(d.box, "curl -sS -f -o /dev/null -H 'X-Tenant: own' https://api.example.com"+d.path)
		got := d.Net.Received("api.example.com", testnet.Path(d.path))
		if len(got) != 1 || got[0].Header.Get("Authorization") != "Bearer canary" || strings.Join(got[0].Header.Values("X-Tenant"), " ") != "second" {
			d.T.Errorf("the server received %+v", got)
		}
	}},
	"e2b: denied address":           {holds: func(d *dialectBox) { d.reaches("www", "evil"); d.refuses("api", "api address") }},
	"e2b: no internet":              {holds: func(d *dialectBox) { d.refuses("www", "api", "evil") }},
	"e2b: no internet but one host": {holds: func(d *dialectBox) { d.reaches("www"); d.refuses("api", "evil") }},
	"e2b: identity tokens": {
		onCreate: "/rules/api.example.com/0/transform/headers/Authorization", onUpdate: "/rules/api.example.com/0/transform/headers/Authorization"},
	"e2b: nothing denied": {onCreate: "/allowOut", onUpdate: "/allowOut"},
	// There, settings of public URLs exist in a create only: an update does not send them.
	"e2b: HTTPS ports":  {onCreate: "/httpsPorts", onUpdate: "none"},
	"e2b: another host": {onCreate: "/maskRequestHost", onUpdate: "none"},
	"e2b: private URLs": {onCreate: "/allowPublicTraffic", onUpdate: "none"},
}

// dialectBox is a box with a policy of another product.
type dialectBox struct {
	*harness.World
	box, path string
	proxied   *proxied
}

// proxied is an operator's proxy that receives forwarded requests.
type proxied struct {
	mu   sync.Mutex
	seen []string
}

// ServeHTTP implements [http.Handler].
func (p *proxied) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen = append(p.seen, r.Host+" "+r.RequestURI+" for "+r.Header.Get("Vercel-Forwarded-Host"))
	fmt.Fprint(w, "decided by the proxy")
}

// ask returns curl's arguments for a host or an address.
func (d *dialectBox) ask(what string) string {
	host := map[string]string{"www": "www.example.com", "api": "api.example.com", "evil": "evil.example.net"}[strings.Fields(what)[0]]
	switch {
	case strings.HasSuffix(what, " address"):
		return "http://" + d.V4(host).String() + d.path
	case strings.HasSuffix(what, " name"): // a name of an allowed address, over IPv6, which is not allowed
		return "-6 http://" + host + d.path
	}
	return "-k https://" + host + d.path
}

func (d *dialectBox) reaches(what ...string) {
	d.T.Helper()
	for i, ran := range d.curl(what) {
		if ran.Code != 0 || ran.Out != "200" {
			d.T.Errorf("%s is not reached: exit %d: %s", what[i], ran.Code, ran.Out)
		}
	}
}

func (d *dialectBox) curl(what []string) []harness.ShellResult {
	d.T.Helper()
	var lines []string
	for _, w := range what {
		lines = append(lines, "curl -sS -o /dev/null -w '%{http_code}' "+d.ask(w))
	}
	return d.ShEach(d.box, lines...)
}

func (d *dialectBox) refuses(what ...string) {
	d.T.Helper()
	for i, ran := range d.curl(what) {
		if ran.Code == 0 && ran.Out != "403" {
			d.T.Errorf("%s is reached: %s", what[i], ran.Out)
		}
	}
}

// vercelRules: the first rule that matches applies, the last one answers the rest.
func (d *dialectBox) vercelRules() {
	d.reaches("www")
	d.refuses("evil")
	for _, way := range []string{"--http1.1", "--http2"} {
		for n, tt := range []struct{ arguments, status, header, value string }{
			{"-X POST -H 'X-Api-Key: placeholder' $/v1/chat", "200", "Authorization", "Bearer canary"},
			{"-X POST $/v1/chat", "403", "", ""},
			{"-H 'X-Api-Key: placeholder' $/v1/chat", "403", "", ""},
			{"-X POST -H 'X-Api-Key: placeholder' $/v2/chat", "403", "", ""},
			{"'$/any?model=small-1'", "200", "X-Model", "small"},
			{"'$/any?model=large'", "403", "", ""},
			{"$/open", "200", "", ""},
			{"$/in/a?" + strings.TrimPrefix(d.path, "/"), "200", "", ""},
			{"$/", "403", "", ""},
		} {
			agent := fmt.Sprint("case-", n, way, d.path)
			line := "curl -sS -A " + agent + " -o /tmp/out -w '%{http_code}' " + way + " " + strings.ReplaceAll(tt.arguments, "$", "https://api.example.com")
			out, _ := d.Sh(d.box, line)
			got := slices.DeleteFunc(d.Net.Received("api.example.com", testnet.Of(testnet.Request)), func(r testnet.Received) bool {
				return r.Header.Get("User-Agent") != agent
			})
			forwarded := strings.Contains(tt.arguments, "/in/")
			if out != tt.status || (len(got) == 1) != (tt.status == "200" && !forwarded) {
				d.T.Errorf("%d: %s: %s; the server received %+v", n, line, out, got)
			}
			if tt.header != "" && len(got) == 1 && got[0].Header.Get(tt.header) != tt.value {
				d.T.Errorf("%d: %s: the server received %+v", n, line, got)
			}
		}
	}
	d.proxied.mu.Lock()
	defer d.proxied.mu.Unlock()
	forwarded := "proxy.example.net:8443 /sandbox/in/a?" + strings.TrimPrefix(d.path, "/") + " for api.example.com"
	own := slices.DeleteFunc(slices.Clone(d.proxied.seen), func(line string) bool { return line != forwarded })
	if got := strings.Join(own, ", "); got != forwarded+", "+forwarded {
		d.T.Errorf("forwarded: %s", got)
	}
}

// TestPoliciesOfOtherSDKs: network policies sent by the SDKs of Vercel Sandbox and E2B have the same meaning in a real
// box as there, when the box is created and when it runs. Members without an equivalent are refused with their
// position.
func TestPoliciesOfOtherSDKs(t *testing.T) {
	t.Parallel()
	w, _ := newWorld(t)
	proxy := &proxied{}
	if err := errors.Join(w.Net.AddHost("proxy.example.net", "198.51.100.95"), w.Net.ServeHTTPSAt("proxy.example.net", 8443, proxy)); err != nil {
		t.Fatal(err)
	}
	refused := func(t *testing.T, err error, at string) bool {
		t.Helper()
		if problem, ok := errors.AsType[*api.ResponseError](err); at != "" && (!ok || problem.Status != http.StatusUnprocessableEntity || !strings.Contains(problem.Pointer, at)) {
			t.Errorf("want a refusal of %s, got %+v %v", at, problem, err)
		} else if at == "" && err != nil {
			t.Error(err)
		}
		return at != "" || err != nil
	}
	for n, s := range recorded(t, w) {
		c, known := dialectCases[s.Case]
		if !known || c.onUpdate == "none" && s.How == "update" {
			if !known || string(s.Policy) != "{}" {
				t.Errorf("%s, %s: %s", s.Case, s.How, s.Policy)
			}
			continue
		}
		t.Run(s.Case+", "+s.How, func(t *testing.T) {
			t.Parallel()
			w := w.On(t)
			d := &dialectBox{World: w, path: fmt.Sprint("/case-", n), proxied: proxy}
			if s.How == "create" {
				var made struct{ ID string }
				err := w.Client.Do(t.Context(), "POST", "/v2/box", map[string]any{"network_policy": s.Policy}, &made)
				if refused(t, err, c.onCreate) {
					return
				}
				d.box = made.ID
			} else {
				d.box = w.Create(map[string]any{"network_policy": map[string]string{"mode": "deny-all"}})
				err := w.Client.Do(t.Context(), "PUT", api.BoxPath(d.box, "config/network-policy"), s.Policy, nil)
				if refused(t, err, c.onUpdate) {
					d.refuses("www", "api", "evil") // as before
					return
				}
			}
			c.holds(d)
		})
	}
}

// TestDaytonaSettings: the three keys of Daytona's network settings, at the creation of a box and on a running one: the lists allow
// together, networkBlockAll wins, and without lists everything is open. Header rules of the box stay.
func TestDaytonaSettings(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	evil := w.V4("evil.example.net").String()
	lists := map[string]any{"domainAllowList": "www.example.com, *.none.example", "networkAllowList": evil + "/32"}
	d := &dialectBox{World: w, path: "/daytona", box: w.Create(map[string]any{"network_policy": lists, "attach_headers": map[string]any{"api.example.com": map[string]string{"X-Key": "canary"}}})}
	listed := func() { d.reaches("www", "evil address"); d.refuses("api", "api address", "evil name") }
	listed()
	w.SetPolicy(d.box, map[string]any{"networkBlockAll": true, "domainAllowList": "www.example.com"})
	d.refuses("www", "api", "evil address")
	w.SetPolicy(d.box, map[string]any{"networkBlockAll": false})
	d.reaches("www", "api", "evil", "evil address")
	if got := w.Net.Received("api.example.com", testnet.Path(d.path)); len(got) != 1 || got[0].Header.Get("X-Key") != "canary" {
		t.Errorf("the server received %+v", got)
	}
	w.SetPolicy(d.box, lists)
	listed()
}
