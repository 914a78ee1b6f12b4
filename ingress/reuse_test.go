package ingress

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/sys/unix"

	"boxgate/audit"
	"boxgate/internal/socket"
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

// While a request waits for its box, its data stays its own, although other requests come, complete and break off, and their
// memory is reused.
func TestAttackFieldsOfAnotherVisitor(t *testing.T) {
	t.Parallel()
	awake := make(chan struct{})
	f := start(t, func(c *Config) {
		c.RequestRate = 1_000_000
		c.Boxes = &sleepers{wake: func(_ context.Context, box policy.BoxID, _ uint16) error {
			if box == "asleep" {
				<-awake
			}
			return nil
		}}
	})
	f.wakeWait = time.Minute
	wake := sync.OnceFunc(func() { close(awake) })
	t.Cleanup(wake)
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Mine", r.Header.Get("X-Mine"))
		_, _ = fmt.Fprint(w, told(r))
	}))
	t.Cleanup(app.Close)
	for _, host := range []string{"asleep", "one"} {
		target := f.expose(host, app, Auth{Open: true})
		target.Box = policy.BoxID(host)
		f.set(host+domain, target)
	}
	ask := func(v *frames, host, mine string) uint32 {
		return v.ask(true, to("GET", host, "/"+mine, "x-mine", mine, "authorization", "Bearer "+mine, "cookie", "a="+mine, "x-"+mine, "1")...)
	}
	const many = 20
	come := func(from int) {
		others := f.frames(t, "one")
		for i := range 10 * many {
			mine := fmt.Sprintf("other-%d", from+i)
			own(t, others.answer(ask(others, "one", mine)), mine)
		}
	}
	come(0)
	v := f.frames(t, "asleep")
	var waiting, gone []uint32
	for i := range 2 * many {
		id := ask(v, "asleep", fmt.Sprintf("waiting-%d", i))
		if i%2 == 0 {
			waiting = append(waiting, id)
		} else {
			gone = append(gone, id)
		}
	}
	until(t, "all wait", func() bool { return f.active.count() == 2*many })
	for _, id := range gone {
		if err := v.WriteRSTStream(id, http2.ErrCodeCancel); err != nil {
			t.Fatal(err)
		}
	}
	until(t, "half have gone", func() bool { return f.active.count() == many })
	come(1000)
	wake()
	answers := v.answers(waiting)
	for i, id := range waiting {
		own(t, answers[id], fmt.Sprintf("waiting-%d", 2*i))
	}
}

// told returns the part of an application's input that identifies a request of the test.
func told(r *http.Request) string {
	var marks []string
	for name := range r.Header {
		if mark, ok := strings.CutPrefix(strings.ToLower(name), "x-"); ok && strings.ContainsAny(mark, "0123456789") {
			marks = append(marks, mark)
		}
	}
	return strings.Join(append([]string{r.URL.Path, r.Header.Get("X-Mine"), r.Header.Get("Authorization"), r.Header.Get("Cookie")}, marks...), " ")
}

// own fails the test unless the response belongs to the request, and the application received only that request's data.
func own(t *testing.T, got response, mine string) {
	t.Helper()
	if want := fmt.Sprintf("/%s %[1]s Bearer %[1]s a=%[1]s %[1]s", mine); got.body != want {
		t.Errorf("the application was sent %q, want %q", got.body, want)
	}
	for _, h := range got.heads {
		for _, field := range h.RegularFields() {
			if field.Name == "x-mine" && field.Value != mine {
				t.Errorf("%s is answered with the field of %s", mine, field.Value)
			}
		}
	}
}

// answers reads the responses of streams until all have ended.
func (v *frames) answers(ids []uint32) map[uint32]response {
	v.t.Helper()
	all := map[uint32]response{}
	open := map[uint32]bool{}
	for _, id := range ids {
		open[id] = true
	}
	for len(open) > 0 {
		f, err := v.ReadFrame()
		if err != nil {
			v.t.Fatalf("%v, with %d open", err, len(open))
		}
		id := f.Header().StreamID
		r := all[id]
		switch f := f.(type) {
		case *http2.MetaHeadersFrame:
			r.heads, r.ended = append(r.heads, f), f.StreamEnded()
		case *http2.DataFrame:
			r.body += string(f.Data())
			r.ended = f.StreamEnded()
		case *http2.RSTStreamFrame:
			r.reset, r.ended = f.ErrCode, true
		}
		if all[id] = r; r.ended {
			delete(open, id)
		}
	}
	return all
}

// delivered waits until all data written to a connection has arrived at its peer.
func (f *fixture) delivered(t *testing.T, c net.Conn) {
	tcp, _ := socket.TCP(c)
	raw, err := tcp.SyscallConn()
	if err != nil {
		t.Error(err)
		return
	}
	f.await(t, "the acknowledgement", func() bool {
		left := -1
		_ = raw.Control(func(fd uintptr) { left, _ = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) })
		return left == 0
	})
}

// Data that a box sends on an idle connection after its response is not used as the next response, with or without content,
// and the connection carries no further request.
func TestNothingUnaskedIsAnAnswer(t *testing.T) {
	t.Parallel()
	const poison = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison"
	for name, c := range map[string]struct{ method, answer, late string }{
		"content":    {"GET", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", poison},
		"chunks":     {"GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n", poison},
		"HEAD":       {"HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 45\r\n\r\n", poison},
		"no content": {"GET", "HTTP/1.1 204 No Content\r\n\r\n", poison},
		"a byte":     {"GET", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", "\r"},
	} {
		for _, next := range []string{"GET", "POST", "GET HTTP/2", "POST HTTP/2"} {
			t.Run(name+" "+next, func(t *testing.T) {
				t.Parallel()
				f := start(t, nil)
				read, sent, first := make(chan struct{}), make(chan struct{}), new(atomic.Bool)
				f.script(t, "one", func(s net.Conn, in *bufio.Reader) {
					r, err := http.ReadRequest(in)
					if err != nil {
						return
					}
					_, _ = io.Copy(io.Discard, r.Body)
					if first.Swap(true) {
						_, _ = io.WriteString(s, "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ntrue")
						return
					}
					_, _ = io.WriteString(s, c.answer)
					<-read
					_, _ = io.WriteString(s, c.late)
					f.delivered(t, s)
					close(sent)
					if r, err := http.ReadRequest(in); err == nil {
						t.Errorf("another request comes over the connection: %s", r.Method)
					}
				})
				next, h2 := strings.CutSuffix(next, " HTTP/2")
				client := f.client(t, h2)
				do(t, client, c.method, "https://one"+domain+"/")
				close(read)
				<-sent
				if got := do(t, client, next, "https://one"+domain+"/"); got != "true" {
					t.Errorf("the next response is %q", got)
				}
			})
		}
	}
}

// do makes a request without a body and returns the body of the response.
func do(t *testing.T, client *http.Client, method, url string) string {
	t.Helper()
	r, err := http.NewRequest(method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Error(err)
	}
	return string(body)
}
