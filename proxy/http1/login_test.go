package http1_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"boxgate/proxy/proxytest"
)

// connectionLogin is a server at which connections log in, as by NTLM: after a login of three messages every request on
// the connection is the user's, without a field.
func connectionLogin(c net.Conn, r *bufio.Reader) {
	user := ""
	for {
		req, err := http.ReadRequest(r)
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, req.Body)
		status, more, body := "200 OK", "", user
		switch message := strings.TrimPrefix(req.Header.Get("Authorization"), "NTLM "); {
		case strings.HasPrefix(message, "1"):
			status, more, body = "401 Unauthorized", "WWW-Authenticate: NTLM 2\r\n", "go on"
		case strings.HasPrefix(message, "3"):
			user = message[1:]
			body = user
		case user == "":
			status, more, body = "401 Unauthorized", "WWW-Authenticate: NTLM\r\n", "who?"
		}
		if req.URL.Path == "/last" {
			more += "Connection: close\r\n"
		}
		fmt.Fprintf(c, "HTTP/1.1 %s\r\n%sContent-Length: %d\r\n\r\n%s", status, more, len(body), body)
		if req.URL.Path == "/last" {
			return
		}
	}
}

// visitor is a client of such a server.
type visitor struct {
	conn net.Conn
	r    *bufio.Reader
	host string
}

func newVisitor(l *proxytest.Rig, port uint16) *visitor {
	conn := l.DialPair(proxytest.API, port, true)
	return &visitor{conn, bufio.NewReader(conn), proxytest.HostPort(port)}
}

// ask returns the status and the body of an answer.
func (v *visitor) ask(path, authorization string) (status int, body string, err error) {
	text := "GET " + path + " HTTP/1.1\r\nHost: " + v.host + "\r\n"
	if authorization != "" {
		text += "Authorization: " + authorization + "\r\n"
	}
	if _, err := io.WriteString(v.conn, text+"\r\n"); err != nil {
		return 0, "", err
	}
	res, err := http.ReadResponse(v.r, &http.Request{Method: http.MethodGet})
	if err != nil {
		return 0, "", err
	}
	b, err := io.ReadAll(res.Body)
	return res.StatusCode, string(b), err
}

// login logs the connection in as a user.
func (v *visitor) login(user string) error {
	for _, step := range []struct {
		authorization string
		status        int
	}{{"", 401}, {"NTLM 1" + user, 401}, {"NTLM 3" + user, 200}} {
		status, body, err := v.ask("/", step.authorization)
		if err != nil || status != step.status || status == 200 && body != user {
			return fmt.Errorf("the answer to %q of %s is %d %q: %v", step.authorization, user, status, body, err)
		}
	}
	return nil
}

// TestAttackLoginOfAnotherUser: where connections log in, nobody's request is sent on the connection of somebody else.
func TestAttackLoginOfAnotherUser(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll)
	port := l.RawServer(true, connectionLogin)
	l.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
	var all sync.WaitGroup
	var users []*visitor
	for i := range 30 {
		v, user := newVisitor(l, port), fmt.Sprint("user", i)
		users = append(users, v)
		all.Go(func() {
			if err := v.login(user); err != nil {
				t.Error(err)
				return
			}
			for range 5 {
				if status, body, err := v.ask("/", ""); err != nil || status != 200 || body != user {
					t.Errorf("%s is answered %d as %q: %v", user, status, body, err)
				}
			}
		})
	}
	all.Wait()
	for _, v := range users { // what anybody may have of their connections is left now
		_ = v.conn.Close()
	}
	proxytest.Await(t, "the end of the users", func() bool { return l.Upstreams() == 0 || proxytest.IdleUpstreams(l) > 0 })
	for range 5 {
		stranger := newVisitor(l, port)
		if status, body, err := stranger.ask("/", ""); err != nil || status != 401 {
			t.Errorf("who has not logged in is answered %d as %q: %v", status, body, err)
		}
	}
}

// TestLoginKeepsItsConnection: a user stays logged in while the connection rests, and the two connections end together.
func TestLoginKeepsItsConnection(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll)
	cut := make(chan net.Conn, 10)
	port := l.RawServer(true, func(c net.Conn, r *bufio.Reader) {
		cut <- c
		connectionLogin(c, r)
	})
	l.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
	v := newVisitor(l, port)
	if err := v.login("ann"); err != nil {
		t.Fatal(err)
	}
	server := <-cut
	for range 3 {
		if n := proxytest.IdleUpstreams(l); n != 0 {
			t.Fatalf("%d connections are for anybody", n)
		}
		if status, body, err := v.ask("/", ""); err != nil || status != 200 || body != "ann" {
			t.Fatalf("she is answered %d as %q: %v", status, body, err)
		}
	}
	_ = server.Close()
	if _, err := v.r.ReadByte(); err == nil {
		t.Error("her connection goes on without that to the server")
	}
	proxytest.Await(t, "the end of the connection", func() bool { return l.Upstreams() == 0 })

	v = newVisitor(l, port)
	if err := v.login("bob"); err != nil {
		t.Fatal(err)
	}
	if status, _, err := v.ask("/last", ""); err != nil || status != 200 {
		t.Fatalf("the last answer is %d: %v", status, err)
	}
	if _, err := v.r.ReadByte(); err == nil {
		t.Error("his connection goes on after the last answer of the server")
	}

	v = newVisitor(l, port)
	if err := v.login("cat"); err != nil {
		t.Fatal(err)
	}
	_ = v.conn.Close()
	proxytest.Await(t, "the end of the connection to the server", func() bool { return l.Upstreams() == 0 })
}
