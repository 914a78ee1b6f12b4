package ingress

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// forgedIdentity is a visitor's forged identity, which must not reach the box.
const forgedIdentity = "198.51.100.66"

// documentedFields returns the prefixes and names that docs/urls.md promises to remove.
func documentedFields(t *testing.T) (beginnings, names []string) {
	t.Helper()
	doc, err := os.ReadFile("../docs/urls.md")
	if err != nil {
		t.Fatal(err)
	}
	quoted := regexp.MustCompile("`([a-z0-9-]+)(\\*?)`")
	for line := range strings.Lines(string(doc)) {
		if !strings.HasPrefix(line, "- families: ") && !strings.HasPrefix(line, "- single fields: ") {
			continue
		}
		for _, m := range quoted.FindAllStringSubmatch(line, -1) {
			if m[2] == "*" {
				beginnings = append(beginnings, m[1])
			} else {
				names = append(names, m[1])
			}
		}
	}
	return beginnings, names
}

// someFields is below the number of fields that one request may have.
const someFields = 60

// identityFields are the fields of the list of applications and proxies, and one field of each family in docs/urls.md.
func identityFields(t *testing.T) []string {
	t.Helper()
	beginnings, all := documentedFields(t)
	for _, b := range beginnings {
		all = append(all, b, strings.TrimSuffix(b, "-")+"-user", b+"z")
	}
	for _, names := range trustedFields {
		all = append(all, names...)
	}
	for i, name := range all {
		all[i] = strings.ReplaceAll(strings.ToLower(name), "_", "-")
	}
	slices.Sort(all)
	all = slices.Compact(all)
	if len(all) < 134 {
		t.Fatalf("only %d fields", len(all))
	}
	return all
}

// spellings are names that servers consider the same.
var spellings = map[string]func(string) string{
	"lower case":  strings.ToLower,
	"upper case":  strings.ToUpper,
	"underscores": func(s string) string { return strings.ReplaceAll(s, "-", "_") },
	"dots":        func(s string) string { return strings.ReplaceAll(s, "-", ".") },
	"mixed": func(s string) string {
		return strings.Replace(strings.ToUpper(strings.Replace(s, "-", "_", 1)), "-", ".", 1)
	},
	"other marks": func(s string) string { return strings.ReplaceAll(s, "-", "~") },
}

// No field in which proxies identify a visitor to servers reaches the box from a visitor: for no application, in no spelling
// that servers consider the same, over either version of HTTP, in heads and trailers.
func TestIdentityFieldsOfOtherProxiesAreRemoved(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	box := record(t)
	f.expose("one", box.Server, Auth{Open: true})
	all := identityFields(t)
	for spelling, spell := range spellings {
		for names := range slices.Chunk(all, someFields) {
			spelled := make([]string, 0, len(names))
			for _, name := range names {
				spelled = append(spelled, spell(name))
			}
			f.forge(t, box, spelling, spelled)
		}
	}
}

// forge sends fields with a forged identity in a head and in a trailer, over both versions of HTTP.
func (f *fixture) forge(t *testing.T, box *recorder, spelling string, names []string) {
	t.Helper()
	var lines strings.Builder
	var fields []string
	for _, name := range names {
		lines.WriteString(name + ": " + forgedIdentity + "\r\n")
		fields = append(fields, strings.ToLower(name), forgedIdentity)
	}
	c := f.connectTo(t, "one"+domain)
	_, _ = io.WriteString(c, "POST / HTTP/1.1\r\nHost: one"+domain+"\r\nX-Kept: "+spelling+"\r\nTransfer-Encoding: chunked\r\n"+lines.String()+
		"\r\n1\r\nx\r\n0\r\n"+lines.String()+"\r\n")
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	box.sawNoIdentity(t, "HTTP/1.1, "+spelling, resp.StatusCode == http.StatusOK)
	v := f.frames(t, "one")
	id := v.ask(false, append(to("POST", "one", "/", "x-kept", spelling), fields...)...)
	_ = v.WriteData(id, false, []byte("x"))
	v.next = id
	v.ask(true, fields...) // trailers
	r := v.answer(id)
	box.sawNoIdentity(t, "HTTP/2, "+spelling, r.status() == "200")
}

// This also holds for applications that speak HTTP/2 and for visitors in boxes.
func TestIdentityFieldsFromBoxesAndOverHTTP2(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	box := record(t)
	f.expose("one", box.Server, Auth{Open: true})
	f.exposeAt("two", h2App(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Proto+" "+dump(r)) }), Auth{Open: true}, H2C)
	get(t, f.client(t, false), "https://one"+domain+"/", nil) // after this, the listener is ready for boxes
	c, err := f.visitFrom(t, "10.200.0.7:40000", f.url("one"), f.url("one"))
	if err != nil {
		t.Fatal(err)
	}
	client := http.Client{Transport: &http.Transport{DialTLSContext: func(context.Context, string, string) (net.Conn, error) { return c, nil }}}
	defer client.CloseIdleConnections()
	for names := range slices.Chunk(identityFields(t), someFields) {
		forge := func(r *http.Request) {
			for _, name := range names {
				r.Header[name] = []string{forgedIdentity}
			}
			r.Header.Set("X-Kept", "1")
		}
		for _, h2 := range []bool{false, true} {
			if _, seen := get(t, f.client(t, h2), "https://two"+domain+"/", forge); strings.Contains(seen, forgedIdentity) ||
				!strings.HasPrefix(seen, "HTTP/2.0 ") || !strings.Contains(seen, "X-Forwarded-For: 127.0.0.1\r\n") || !strings.Contains(seen, "X-Kept: 1\r\n") {
				t.Errorf("h2 %v: the application got\n%s", h2, seen)
			}
		}
		get(t, &client, "https://"+f.url("one")+"/", forge)
		if got := box.last(t); strings.Contains(dump(got), forgedIdentity) || got.Header.Get("X-Forwarded-For") != "10.200.0.7" || got.Header.Get("X-Kept") != "1" {
			t.Errorf("from a box the application got\n%s", dump(got))
		}
	}
}

// Fields of clients for their own use pass unchanged, over both versions of HTTP.
func TestOrdinaryFieldsPass(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	box := record(t)
	f.expose("one", box.Server, Auth{Open: true})
	for _, h2 := range []bool{false, true} {
		get(t, f.client(t, h2), "https://one"+domain+"/", func(r *http.Request) {
			for _, name := range ordinaryFields {
				r.Header.Set(name, "kept "+name)
			}
			r.Header.Set("User-Agent", "kept User-Agent")
		})
		for _, name := range append(ordinaryFields, "User-Agent") {
			if got := box.last(t).Header.Get(name); got != "kept "+name {
				t.Errorf("h2 %v: %s is %q", h2, name, got)
			}
		}
	}
}

// The operator lets a field pass by its exact name. Other spellings are removed, as are the fields that the gateway sets.
func TestFieldsThatTheOperatorLetsPass(t *testing.T) {
	t.Parallel()
	f := start(t, func(c *Config) {
		c.ForwardFields = []string{"X-Auth-Token", "x-user-agent", "X-Forwarded-For", "x_real_ip"}
	})
	box := record(t)
	f.expose("one", box.Server, Auth{Open: true})
	for _, h2 := range []bool{false, true} {
		get(t, f.client(t, h2), "https://one"+domain+"/", func(r *http.Request) {
			for _, name := range []string{"X_Auth_Token", "x-auth.token", "X-Auth-Tokens", "X-User", "X-Forwarded-For", "X_Real_Ip", "X-Real-Ip"} {
				r.Header[name] = []string{forgedIdentity}
			}
			r.Header.Set("X-Auth-Token", "token")
			r.Header.Set("X-User-Agent", "grpc-web")
		})
		got := box.last(t)
		if strings.Contains(dump(got), forgedIdentity) || got.Header.Get("X-Auth-Token") != "token" || got.Header.Get("X-User-Agent") != "grpc-web" ||
			!slices.Equal(got.Header["X-Forwarded-For"], []string{"127.0.0.1"}) {
			t.Errorf("h2 %v: the box got\n%s", h2, dump(got))
		}
	}
}

// sawNoIdentity checks the latest request.
func (r *recorder) sawNoIdentity(t *testing.T, what string, served bool) {
	t.Helper()
	if !served {
		t.Fatalf("%s: not served", what)
	}
	got := r.last(t)
	if got.Header.Get("X-Kept") == "" || got.Header.Get("X-Forwarded-For") != "127.0.0.1" || strings.Contains(dump(got), forgedIdentity) || len(got.Trailer) != 0 {
		t.Errorf("%s: the box got\n%s%v", what, dump(got), got.Trailer)
	}
}

// The removed fields are the same as those listed in docs/urls.md.
func TestIdentityFieldsAreDocumented(t *testing.T) {
	t.Parallel()
	beginnings, names := documentedFields(t)
	for _, list := range []struct{ removed, documented []string }{{claimedBeginnings, beginnings}, {claimedNames, names}} {
		for _, name := range list.removed {
			if !slices.Contains(list.documented, name) {
				t.Errorf("%s is removed and not in docs/urls.md", name)
			}
		}
		for _, name := range list.documented {
			if !slices.Contains(list.removed, name) {
				t.Errorf("%s is in docs/urls.md and not removed", name)
			}
		}
	}
}
