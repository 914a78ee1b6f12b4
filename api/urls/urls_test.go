package urls_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/api/apitest"
	"boxgate/api/history"
	"boxgate/api/urls"
	"boxgate/policy"
)

// fixture serves the endpoints of this package.
type fixture struct {
	*apitest.Served
	host    *apitest.Host
	history *history.History
}

// serve serves the endpoints until the test ends, and creates a box.
func serve(t *testing.T) (f *fixture, id string) {
	t.Helper()
	f = &fixture{host: apitest.NewHost(t), history: history.New(nil)}
	f.Served = apitest.Serve(t, f.host, (&urls.Endpoints{Boxes: f.host, Host: f.host, History: f.history, Bodies: apitest.Bodies}).Routes())
	return f, f.host.Add(t, api.CreateRequest{})
}

func TestURLs(t *testing.T) {
	t.Parallel()
	f, id := serve(t)
	path := "/v2/box/" + id + "/preview"
	if got := f.Call(t, "GET", path, ""); strings.TrimSpace(got.Text) != `{"previews":[]}` {
		t.Error(got.Text)
	}
	got := f.Call(t, "POST", path, `{"port":3000}`)
	if made := got.JSON(t); got.StatusCode != 201 || made["url"] != "https://"+id+"-3000.preview.test" || made["token"] != nil || made["password"] != nil {
		t.Errorf("%s %s", got.Status, got.Text)
	}
	if got := f.Call(t, "DELETE", path+"/3000", ""); got.StatusCode != 200 {
		t.Error(got.Status)
	}
	if got := f.Call(t, "DELETE", path+"/3000", ""); got.StatusCode != 404 {
		t.Error(got.Status)
	}
}

// TestCredentialsAreShownOnce: credentials are only in the response that created them, neither in lists nor in the trail.
func TestCredentialsAreShownOnce(t *testing.T) {
	t.Parallel()
	f, id := serve(t)
	path := "/v2/box/" + id + "/preview"
	f.Expect(t, 201, "POST", path, `{"port":3000,"bearer_token":true,"basic_auth":true}`, `"token":"url-token-secret"`, `"username":"box"`, `"password":"url-password-secret"`)
	if got := f.Expect(t, 200, "GET", path, "", `"bearer_token":true`, `"basic_auth":true`, `"port":3000`); strings.Contains(got.Text, "-secret") {
		t.Errorf("a credential is listed: %s", got.Text)
	}
	f.Expect(t, 201, "POST", path+"/3000/sign", `{"expires_in":60,"methods":["GET","HEAD"],"path_prefix":"/a"}`, `3000.preview.test/a?boxgate_link=GET-HEAD`, `"expires_at":60`)
	f.Expect(t, 201, "POST", path+"/3000/sign", `{}`)
	f.Expect(t, 200, "DELETE", path+"/3000", "")
	if all := strings.Join(f.Changes(), " "); strings.Contains(all, "-secret") || !strings.Contains(all, `"port":3000`) || !strings.Contains(all, `"url_deleted":3000`) {
		t.Errorf("the trail has %s", all)
	}
	if logs := fmt.Sprint(f.history.Logs("box1", 0, 100)); strings.Contains(logs, "-secret") || !strings.Contains(logs, "public URL of port 3000 deleted") {
		t.Errorf("the log has %s", logs)
	}
}

// TestURLsThatAreRefused: each mistake has its pointer, and the host is not called.
func TestURLsThatAreRefused(t *testing.T) {
	t.Parallel()
	f, id := serve(t)
	many := func(n int, format string) string {
		var list []string
		for i := range n {
			list = append(list, fmt.Sprintf(format, i))
		}
		return `["` + strings.Join(list, `","`) + `"]`
	}
	for _, tt := range []struct {
		name, path, body string
		status           int
		pointer          string
	}{
		{"no port", "", `{}`, 422, "/port"},
		{"port", "", `{"port":65536}`, 422, "/port"},
		{"hostname", "", `{"port":80,"hostnames":["app.example.org","192.0.2.1"]}`, 422, "/hostnames/1"},
		{"wildcard hostname", "", `{"port":80,"hostnames":["*.example.org"]}`, 422, "/hostnames/0"},
		{"hostname of one label", "", `{"port":80,"hostnames":["localhost"]}`, 422, "/hostnames/0"},
		{"hostname twice", "", `{"port":80,"hostnames":["app.example.org","APP.example.org."]}`, 422, "/hostnames/1"},
		{"too many hostnames", "", `{"port":80,"hostnames":["a.b","b.b","c.b","d.b","e.b","f.b","g.b","h.b","i.b","j.b","k.b","l.b","m.b","n.b","o.b","p.b","q.b"]}`, 422, "/hostnames"},
		{"preview option", "", `{"port":80,"bearerToken":true}`, 422, "/bearerToken"},
		{"preview origin", "", `{"port":80,"origins":["https://a.example","https://A.example/"]}`, 422, "/origins/1"},
		{"preview origin, no scheme", "", `{"port":80,"origins":["a.example"]}`, 422, "/origins/0"},
		{"preview origin, any", "", `{"port":80,"origins":["*"]}`, 422, "/origins/0"},
		{"preview origin, usual port", "", `{"port":80,"origins":["https://a.example:443"]}`, 422, "/origins/0"},
		{"preview origin, null", "", `{"port":80,"origins":["null"]}`, 422, "/origins/0"},
		{"preview that has ended", "", `{"port":80,"expires_in":0}`, 422, "/expires_in"},
		{"preview for ages", "", `{"port":80,"expires_in":9223372036854775807}`, 422, "/expires_in"},
		{"preview for nobody", "", `{"port":80,"oidc":{}}`, 422, "/oidc"},
		{"preview for any address", "", `{"port":80,"oidc":{"emails":["a@b.example","*@b.example"]}}`, 422, "/oidc/emails/1"},
		{"preview for any domain", "", `{"port":80,"oidc":{"domains":["*.b.example"]}}`, 422, "/oidc/domains/0"},
		{"preview for no group", "", `{"port":80,"oidc":{"groups":[""]}}`, 422, "/oidc/groups/0"},
		{"preview, accounts and tcp", "", `{"port":80,"protocol":"tcp","oidc":{"groups":["a"]}}`, 422, "/oidc"},
		{"link of no URL", "/81/sign", `{}`, 404, ""},
		{"link for ages", "/80/sign", `{"expires_in":31536001}`, 422, "/expires_in"},
		{"link for CONNECT", "/80/sign", `{"methods":["GET","CONNECT"]}`, 422, "/methods/1"},
		{"link for nothing", "/80/sign", `{"methods":[]}`, 422, "/methods"},
		{"link elsewhere", "/80/sign", `{"path_prefix":"https://x"}`, 422, "/path_prefix"},
		{"protocol", "", `{"port":80,"protocol":"h3"}`, 422, "/protocol"},
		{"raw TCP with a token", "", `{"port":80,"protocol":"tcp","bearer_token":true}`, 422, "/bearer_token"},
		{"raw TCP with a password", "", `{"port":80,"protocol":"tcp","basic_auth":true}`, 422, "/basic_auth"},
		{"raw TCP with origins", "", `{"port":80,"protocol":"tcp","origins":["https://a.example"]}`, 422, "/origins"},
		{"too many origins", "", `{"port":80,"origins":` + many(33, "https://o%d.example") + `}`, 422, "/origins"},
		{"origin with a path", "", `{"port":80,"origins":["https://a.example/x"]}`, 422, "/origins/0"},
		{"origin without a host", "", `{"port":80,"origins":["https://:8443"]}`, 422, "/origins/0"},
		{"too many accounts", "", `{"port":80,"oidc":{"groups":` + many(1000, "g%d") + `}}`, 422, "/oidc/groups"},
		{"link of no port", "/http/sign", `{}`, 404, ""},
		{"link of port 0", "/0/sign", `{}`, 404, ""},
		{"link with a field more", "/80/sign", `{"method":"GET"}`, 422, "/method"},
		{"long prefix", "/80/sign", `{"path_prefix":"/` + strings.Repeat("x", 1024) + `"}`, 422, "/path_prefix"},
		{"link that has ended", "/80/sign", `{"expires_in":0}`, 422, "/expires_in"},
	} {
		got := f.Call(t, "POST", "/v2/box/"+id+"/preview"+tt.path, tt.body)
		if pointer, _ := got.JSON(t)["pointer"].(string); got.StatusCode != tt.status || pointer != tt.pointer {
			t.Errorf("%s: %s %.300s, want %d at %q", tt.name, got.Status, got.Text, tt.status, tt.pointer)
		}
	}
	if len(f.host.ByID["box1"].URLs) > 0 || len(f.Changes()) > 0 {
		t.Error("a refused request had an effect")
	}
	for _, rt := range (&urls.Endpoints{}).Routes() {
		f.Expect(t, 404, rt.Method, strings.NewReplacer("{id}", "nobody", "{port}", "80").Replace(rt.Path), rt.Example, "no box has the ID or name")
	}
	for _, port := range []string{"http", "0", "70000"} {
		f.Expect(t, 404, "DELETE", "/v2/box/"+id+"/preview/"+port, "", "is not a port")
	}
}

// asked is a host that records the requested URL.
type asked struct {
	*apitest.Host
	url     api.URLRequest
	pending []api.PendingName
}

func (h *asked) CreateURL(ctx context.Context, id policy.BoxID, req api.URLRequest) (api.URL, error) {
	h.url = req
	u, err := h.Host.CreateURL(ctx, id, req)
	u.Pending = h.pending
	return u, err
}

// TestPendingDomainsAreShown: the response contains the records to publish, and the trail the pending domains.
func TestPendingDomainsAreShown(t *testing.T) {
	t.Parallel()
	host := &asked{Host: apitest.NewHost(t), pending: []api.PendingName{{Hostname: "app.example.org", Record: "_c.app.example.org", Value: "v=1"}}}
	f := apitest.Serve(t, host.Host, (&urls.Endpoints{Boxes: host, Host: host, History: history.New(nil), Bodies: apitest.Bodies}).Routes())
	id := host.Add(t, api.CreateRequest{})
	f.Expect(t, 201, "POST", "/v2/box/"+id+"/preview", `{"port":80,"hostnames":["app.example.org"]}`,
		`"pending_hostnames":[{"hostname":"app.example.org","record":"_c.app.example.org","value":"v=1"}]`)
	if all := strings.Join(f.Changes(), " "); !strings.Contains(all, `"pending_hostnames":["app.example.org"]`) {
		t.Errorf("the trail has %s", all)
	}
}

// TestURLsAsTheyAreAskedFor: the host receives all values in canonical form.
func TestURLsAsTheyAreAskedFor(t *testing.T) {
	t.Parallel()
	host := &asked{Host: apitest.NewHost(t)}
	f := apitest.Serve(t, host.Host, (&urls.Endpoints{Boxes: host, Host: host, History: history.New(nil), Bodies: apitest.Bodies}).Routes())
	id := host.Add(t, api.CreateRequest{})
	f.Expect(t, 201, "POST", "/v2/box/"+id+"/preview", `{"port":80,"hostnames":["APP.example.org."],"expires_in":60,"origins":["https://a.example:8443","http://[::1]:3000"],
		"oidc":{"emails":["Ann@Example.org"],"domains":["Example.net"],"groups":["Admins"]}}`)
	got := host.url
	if got.Protocol != "auto" || got.ExpiresIn != time.Minute || len(got.Hostnames) != 1 || got.Hostnames[0].String() != "app.example.org" || len(got.Origins) != 2 || got.Accounts == nil {
		t.Errorf("%+v", got)
	}
	if a := fmt.Sprintf("%+v", *got.Accounts); !strings.Contains(a, "Admins") || !strings.Contains(strings.ToLower(a), "ann@example.org") {
		t.Errorf("accounts %s", a)
	}
}
