package ingress

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"boxgate/audit"
	"boxgate/policy"
	"boxgate/policy/name"
)

// The memory of a request may belong to another one when the cut of the first is due.
func TestCutAfterTheEnd(t *testing.T) {
	var a active
	var r request
	cut := ""
	begin := func(id string) { a.begin(&r, Target{ID: id}, admission{}, func() { cut += id }) }
	begin("first")
	found := a.matching(func(r *request) bool { return r.target.ID == "first" })
	r.unregister()
	begin("second")
	defer r.unregister()
	for _, d := range found {
		a.doom(d)
		<-d.ended
	}
	if len(found) != 1 || cut != "" {
		t.Errorf("%d found, and %q cut in place of the first", len(found), cut)
	}
	for _, d := range a.matching(func(r *request) bool { return r.target.ID == "second" }) {
		a.doom(d)
	}
	if cut != "second" {
		t.Errorf("%q cut in place of the second", cut)
	}
}

// Requests are cut while others begin and end in the same memory: each gets its own response or is cut, and none stays cut for
// good.
func TestCutsWhileRequestsEnd(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	f.expose("one", record(t).Server, Auth{Open: true})
	asking := make(chan struct{})
	var cutting, all sync.WaitGroup
	for range 2 {
		cutting.Go(func() {
			for {
				select {
				case <-asking:
					return
				default:
					f.CloseURL("one" + domain)
				}
			}
		})
	}
	for range 4 {
		all.Go(func() {
			v := f.frames(t, "one")
			for range 100 {
				r := v.answer(v.ask(true, to("GET", "one", "/")...))
				if s := r.status(); s != "200" && s != "401" && s != "reset CANCEL" {
					t.Error(s)
				}
			}
		})
		all.Go(func() {
			c := f.client(t, false)
			for range 100 {
				resp, err := c.Get("https://one" + domain + "/")
				if err != nil {
					continue // it was cut
				}
				if _, _ = io.Copy(io.Discard, resp.Body); resp.StatusCode != 200 && resp.StatusCode != 401 {
					t.Error(resp.Status)
				}
				_ = resp.Body.Close()
			}
		})
	}
	all.Wait()
	close(asking)
	cutting.Wait()
	v := f.frames(t, "one")
	if r := v.answer(v.ask(true, to("GET", "one", "/")...)); r.status() != "200" {
		t.Error("afterwards:", r.status())
	}
}

// Either a cut gets the request's connection to its box, or the connection is reused after the request's end, never both.
func TestConnectionIsCutOrKept(t *testing.T) {
	t.Parallel()
	for name, cutFirst := range map[string]bool{"cut, then ended": true, "ended, then cut": false} {
		t.Run(name, func(t *testing.T) {
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer ln.Close()
			conn, err := net.Dial("tcp", ln.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			box, err := ln.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer box.Close()
			g := &core{}
			g.upstreams.open(1)
			e := &exchange{g: g}
			if e.up, err = g.upstreams.dialled(Target{}, conn); err != nil {
				t.Fatal(err)
			}
			e.cuts.Store(e.up)
			if cutFirst {
				e.abortUpstream()
			}
			e.keepUpstream()
			e.abortUpstream()
			kept := g.upstreams.get(Target{})
			if kept == nil != cutFirst {
				t.Fatalf("kept: %v", kept != nil)
			}
			if kept == nil {
				return
			}
			kept.reader.Begin(e, time.Millisecond)
			if err := kept.ask([]byte("hello"), true); err != nil {
				t.Error("the next request finds it cut:", err)
			}
		})
	}
}

// Requests over HTTP/2 follow each other in the same memory, for any visitor and with any ending: no data of one appears in
// another, and the end of one ends no other.
func TestOneRequestAfterAnother(t *testing.T) {
	t.Parallel()
	f := start(t, func(c *Config) { c.FailedCredentials = 1 << 20 })
	box := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if strings.HasPrefix(r.URL.Path, "/never") {
			<-r.Context().Done()
			return
		}
		fmt.Fprint(w, r.Method, " ", r.Host, r.URL.Path, " ", r.Header.Get("x-mine"), r.Header.Get("authorization"), string(body))
	}))
	t.Cleanup(box.Close)
	f.expose("one", box, tokenAuth("token one"))
	f.expose("two", box, tokenAuth("token two"))
	var all sync.WaitGroup
	for n, host := range []string{"one", "two", "one", "two"} {
		all.Go(func() { f.requestsInTurn(t, n, host) })
	}
	all.Wait()
}

// tokenAuth asks for a bearer token.
func tokenAuth(token string) Auth { return Auth{Bearer: digest(BearerDigest(token))} }

// requestsInTurn makes requests of many kinds over one connection.
func (f *fixture) requestsInTurn(t *testing.T, n int, host string) {
	v := f.frames(t, host)
	for i := range 40 {
		mine := fmt.Sprintf("%s-%d-%d", host, n, i)
		path := "/" + mine
		right := []string{"authorization", "Bearer token " + host}
		want := map[string]string{"GET": "200 GET " + host + domain + path + " " + mine, "POST": "200 POST " + host + domain + path + " body of " + mine, "HEAD": "200 "}
		check := func(id uint32, want string, sameEvent func(audit.Event) bool) {
			r := v.answer(id)
			if got := r.status() + " " + r.body; !strings.HasPrefix(got, want) || want[:3] == "200" && got != want {
				t.Errorf("%q in place of %q", got, want)
			} else if sameEvent != nil {
				f.event(t, func(e audit.Event) bool { return e.Path == path && sameEvent(e) })
			}
		}
		ask := func(end bool, method, path string, more ...string) uint32 {
			return v.ask(end, append(to(method, host, path), more...)...)
		}
		switch i % 8 {
		case 0:
			never := ask(true, "GET", "/never"+mine, right...)
			f.reset(t, v, never)
		case 1:
			check(ask(true, "GET", path, append(right, "x-mine", mine)...), want["GET"], func(e audit.Event) bool {
				return e.Method == "GET" && e.Status == 200 && e.Verdict == policy.Allow && e.Error == "" && e.BytesIn == 0 && e.BytesOut == int64(len(want["GET"])-4)
			})
		case 2:
			check(ask(true, "GET", path, "authorization", "Bearer token for another"), "401", func(e audit.Event) bool {
				return e.Reason == name.ReasonURLAuth && e.Status == 401 && e.Verdict == policy.Deny
			})
		case 3:
			check(ask(true, "GET", "/%zz", right...), "400", nil)
		case 4:
			id := ask(false, "POST", path, right...)
			_ = v.WriteData(id, false, []byte("body of "))
			_ = v.WriteData(id, true, []byte(mine))
			check(id, want["POST"], func(e audit.Event) bool { return e.Method == "POST" && e.BytesIn == int64(8+len(mine)) })
		case 5:
			check(ask(true, "HEAD", path, right...), want["HEAD"], func(e audit.Event) bool { return e.Method == "HEAD" && e.BytesOut == 0 })
		case 6: // its body does not arrive
			f.reset(t, v, ask(false, "POST", "/never"+mine, right...))
		case 7:
			check(ask(true, "GET", path), "401", func(e audit.Event) bool { return e.Status == 401 && e.Credential == "" })
		}
	}
}

// reset resets a request without waiting for its end.
func (f *fixture) reset(t *testing.T, v *frames, id uint32) {
	t.Helper()
	if err := v.WriteRSTStream(id, http2.ErrCodeCancel); err != nil {
		t.Error(err)
	}
}
