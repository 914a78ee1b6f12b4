package attack

import (
	"bufio"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"slices"
	"strings"
	"testing"
	"time"

	"boxgate/e2e/harness"
)

// serveRaw answers connections to a port of a box.
func serveRaw(in *harness.Intruder, port int, answer func(net.Conn)) {
	in.T.Helper()
	var ln net.Listener
	err := in.InNetNS(func() (err error) {
		ln, err = net.Listen("tcp", fmt.Sprint(":", port))
		return err
	})
	if err != nil {
		in.T.Fatal(err)
	}
	in.T.Cleanup(func() { _ = ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				answer(c)
			}()
		}
	}()
}

// showing answers every request with the port and the request as the box received it.
func showing(port int) func(net.Conn) {
	return func(c net.Conn) {
		for r := bufio.NewReader(c); ; {
			req, err := http.ReadRequest(r)
			if err != nil {
				return
			}
			said, err := httputil.DumpRequest(req, true)
			if err != nil {
				return
			}
			_, _ = fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%d %s", len(said)+5, port, said)
		}
	}
}

// newShownURLs returns two URLs of a box whose applications show the requests they get.
func newShownURLs(t *testing.T) (one, other *visited) {
	t.Helper()
	w := harness.Shared(t)
	in := w.Intrude(w.Create(map[string]any{"network_policy": map[string]any{"mode": "deny-all"}}))
	for _, port := range []int{8000, 8001} {
		serveRaw(in, port, showing(port))
	}
	return visitURL(w, in.Box, map[string]any{"port": 8000}), visitURL(w, in.Box, map[string]any{"port": 8001, "bearer_token": true})
}

// say sends bytes as a visitor with the URL's name in its TLS, and returns all data until the gateway closes the
// connection.
func (v *visited) say(said string) string {
	v.T.Helper()
	tcp, err := v.Net.Gateway().DialContext(v.T.Context(), "tcp", "127.0.0.1:443")
	if err != nil {
		v.T.Fatal(err)
	}
	defer tcp.Close()
	_ = tcp.SetDeadline(time.Now().Add(harness.Patience))
	c := tls.Client(tcp, &tls.Config{ServerName: v.host, RootCAs: v.roots})
	if _, err := io.WriteString(c, said); err != nil {
		v.T.Fatal(err)
	}
	answer, err := io.ReadAll(c)
	if err != nil {
		v.T.Fatalf("%.80q: after %.80q: %v", said, answer, err)
	}
	return string(answer)
}

// TestAttackForgedIdentity: a visitor forges its address in the fields that proxies set, in odd spellings and as
// hop-by-hop fields. The application sees the address of the connection, once.
func TestAttackForgedIdentity(t *testing.T) {
	t.Parallel()
	v, _ := newShownURLs(t)
	var forged []string
	for _, name := range []string{"X-Forwarded-For", "x-forwarded-for", "X_Forwarded_For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Forwarded-Port",
		"Forwarded", "X-Real-IP", "X_Real_IP", "True-Client-IP", "CF-Connecting-IP", "Fastly-Client-IP", "X-Envoy-External-Address",
		"X-Azure-ClientIP", "X-Remote-Addr", "X-Originating-IP", "X-Auth-Request-User", "X-Goog-Authenticated-User-Email", "Client-Cert", "X-WEBAUTH-USER",
		"Remote-Email", "Remote_Groups", "Remote.User", "Tailscale-User-Login", "X-MS-CLIENT-PRINCIPAL", "X.Ms.Client.Principal.Name", "SSL_CLIENT_S_DN", "Proxy"} {
		forged = append(forged, name+": 198.51.100.66", name+": for=198.51.100.66;host=forged.example")
	}
	status, seen := v.ask("GET", "/", append(forged, "Connection: X-Forwarded-For, X-Forwarded-Host, X-Real-IP, Forwarded")...)
	if status != 200 || strings.Contains(seen, "198.51.100.66") || strings.Contains(seen, "forged.example") {
		t.Errorf("%d: the application read\n%s", status, seen)
	}
	for _, want := range []string{"X-Forwarded-For: 127.0.0.1\r\n", "X-Forwarded-Proto: https\r\n", "X-Forwarded-Host: " + v.host + "\r\n", "X-Real-Ip: 127.0.0.1\r\n", "Host: " + v.host + "\r\n"} {
		if strings.Count(seen, "\r\n"+want) != 1 {
			t.Errorf("%q is not there once:\n%s", want, seen)
		}
	}
}

// TestAttackWrongCredentials: none, a wrong one, one of another URL, of another port, or of the URL before it was
// recreated, and the correct one in the wrong place. The box sees none of these requests.
func TestAttackWrongCredentials(t *testing.T) {
	t.Parallel()
	v := socketURL(harness.Shared(t), map[string]any{"bearer_token": true, "basic_auth": true})
	old := *v
	v = visitURL(v.World, v.box, map[string]any{"port": 8000, "bearer_token": true, "basic_auth": true})
	port := visitURL(v.World, v.box, map[string]any{"port": 8001, "bearer_token": true, "basic_auth": true})
	other := visitURL(v.World, v.Create(map[string]any{}), map[string]any{"port": 8000, "bearer_token": true, "basic_auth": true})
	basic := func(user, password string) string {
		return "Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))
	}
	for name, c := range map[string]struct {
		path  string
		lines []string
		want  int
	}{
		"none":                             {"/", nil, 401},
		"a wrong token":                    {"/", []string{"Authorization: Bearer " + v.Token + "x"}, 401},
		"an empty token":                   {"/", []string{"Authorization: Bearer "}, 401},
		"another box's token":              {"/", []string{"Authorization: Bearer " + other.Token}, 401},
		"another port's token":             {"/", []string{"Authorization: Bearer " + port.Token}, 401},
		"the token as it was":              {"/", []string{"Authorization: Bearer " + old.Token}, 401},
		"another box's password":           {"/", []string{basic(other.Username, other.Password)}, 401},
		"the password as it was":           {"/", []string{basic(old.Username, old.Password)}, 401},
		"the token as a password":          {"/", []string{basic(v.Username, v.Token)}, 401},
		"two credentials":                  {"/", []string{"Authorization: Bearer " + v.Token, "Authorization: Bearer " + v.Token}, 401},
		"the token for another reader":     {"/", []string{"Proxy-Authorization: Bearer " + v.Token, "X-Box-Api-Key: " + v.Token}, 401},
		"the token in a query":             {"/?token=" + v.Token + "&access_token=" + v.Token + "&bearer_token=" + v.Token, nil, 401},
		"in the query of a WebSocket":      {"/?boxgate_token=" + v.Token + "&token=" + v.Token, socketLines, 401},
		"the token":                        {"/", []string{"Authorization: Bearer " + v.Token}, 200},
		"the password, the scheme in caps": {"/", []string{strings.Replace(basic(v.Username, v.Password), "Basic", "BASIC", 1)}, 200},
	} {
		status, said := v.ask("GET", c.path, c.lines...)
		if seen := v.takeSeen(); status != c.want || (seen == "") != (c.want == 401) {
			t.Errorf("%s: %d, want %d; the box saw %q", name, status, c.want, seen)
		}
		for _, secret := range []string{v.Token, v.Password} {
			if strings.Contains(said, secret) {
				t.Errorf("%s: the credential is in what is answered: %q", name, said)
			}
		}
	}
	for _, secret := range []string{v.Token, v.Password, old.Token} {
		if strings.Contains(v.ReadLog(), secret) {
			t.Error("a credential is in the log")
		}
	}
}

// TestAttackOtherHosts requests other hosts on a connection to one URL. No other box or port answers.
func TestAttackOtherHosts(t *testing.T) {
	t.Parallel()
	v, other := newShownURLs(t)
	for name, head := range map[string]string{
		"another URL":                     "GET / HTTP/1.1\r\nHost: " + other.host + "\r\n",
		"another URL, absolute":           "GET https://" + other.host + "/ HTTP/1.1\r\nHost: " + v.host + "\r\n",
		"a box that is not":               "GET / HTTP/1.1\r\nHost: " + strings.Replace(v.host, v.box, "0123456789abcdef", 1) + "\r\n",
		"a port without a URL":            "GET / HTTP/1.1\r\nHost: " + strings.Replace(v.host, "-8000.", "-8002.", 1) + "\r\n",
		"a port with a leading zero":      "GET / HTTP/1.1\r\nHost: " + strings.Replace(v.host, "-8000.", "-08000.", 1) + "\r\n",
		"no box's name":                   "GET / HTTP/1.1\r\nHost: preview.localhost\r\n",
		"an address":                      "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n",
		"the name with a letter for port": "GET / HTTP/1.1\r\nHost: " + v.host + ":abc\r\n",
		"two hosts":                       "GET / HTTP/1.1\r\nHost: " + v.host + "\r\nHost: " + other.host + "\r\n",
		"no host":                         "GET / HTTP/1.1\r\n",
		"user information":                "GET / HTTP/1.1\r\nHost: " + v.host + "@" + other.host + "\r\n",
	} {
		answer := v.say(head + "Connection: close\r\n\r\n")
		if !slices.ContainsFunc([]string{"400", "404", "421"}, func(s string) bool { return strings.HasPrefix(answer, "HTTP/1.1 "+s+" ") }) ||
			strings.Contains(answer, "8001 GET") || strings.Contains(answer, "8000 GET") {
			t.Errorf("%s: %.200q", name, answer)
		}
	}
}

// TestAttackAmbiguousRequests sends requests whose end is ambiguous to parsers, each followed by a second request. Each
// gets one refusal, after which the connection is closed. The application reads no part of them.
func TestAttackAmbiguousRequests(t *testing.T) {
	t.Parallel()
	v, _ := newShownURLs(t)
	behind := "GET /smuggled HTTP/1.1\r\nHost: " + v.host + "\r\n\r\n"
	for name, said := range map[string]string{
		"both framings":             "POST / HTTP/1.1\r\nHost: H\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"chunked in HTTP/1.0":       "POST / HTTP/1.0\r\nHost: H\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"bare line feeds":           "POST / HTTP/1.1\nHost: H\nContent-Length: 0\n\n",
		"one bare line feed":        "POST / HTTP/1.1\r\nHost: H\nContent-Length: 0\r\n\r\n",
		"a folded line":             "POST / HTTP/1.1\r\nHost: H\r\nX: a\r\n b\r\nContent-Length: 0\r\n\r\n",
		"two lengths":               "POST / HTTP/1.1\r\nHost: H\r\nContent-Length: 0\r\nContent-Length: 5\r\n\r\n",
		"one length twice":          "POST / HTTP/1.1\r\nHost: H\r\nContent-Length: 0\r\nContent-Length: 0\r\n\r\n",
		"a list of lengths":         "POST / HTTP/1.1\r\nHost: H\r\nContent-Length: 0, 0\r\n\r\n",
		"a signed length":           "POST / HTTP/1.1\r\nHost: H\r\nContent-Length: +0\r\n\r\n",
		"an unknown coding":         "POST / HTTP/1.1\r\nHost: H\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
		"a blank before the colon":  "POST / HTTP/1.1\r\nHost: H\r\nContent-Length : 0\r\n\r\n",
		"a blank in front of names": "POST / HTTP/1.1\r\n Host: H\r\nContent-Length: 0\r\n\r\n",
		"a zero byte":               "POST / HTTP/1.1\r\nHost: H\r\nX: a\x00b\r\nContent-Length: 0\r\n\r\n",
	} {
		answer := v.say(strings.ReplaceAll(said, "Host: H", "Host: "+v.host) + behind)
		if !strings.HasPrefix(answer, "HTTP/1.1 400 ") || strings.Count(answer, "HTTP/1.1 ") != 1 || strings.Contains(answer, "8000 ") {
			t.Errorf("%s: %.300q", name, answer)
		}
	}
	// A request with a bad chunk has already begun: it must get exactly one answer.
	answer := v.say("POST / HTTP/1.1\r\nHost: " + v.host + "\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n" + behind)
	if strings.Count(answer, "HTTP/1.1 ") != 1 || strings.Contains(answer, "smuggled") || strings.HasPrefix(answer, "HTTP/1.1 200 ") {
		t.Errorf("a bad chunk: %.300q", answer)
	}
}

// TestAttackOddApplications: an application answers in ways intended for another visitor, or for no visitor.
func TestAttackOddApplications(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	in := w.Intrude(w.Create(map[string]any{"network_policy": map[string]any{"mode": "deny-all"}}))
	const ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
	const cookies = "Set-Cookie: a=1; Domain=preview.localhost\r\nSet-Cookie: __Host-boxgate-x=1\r\nAlt-Svc: h3=\":443\"\r\nClear-Site-Data: \"cookies\"\r\n"
	answers := map[string]string{
		"/status-000":   "HTTP/1.1 000 None\r\nContent-Length: 0\r\n\r\n",
		"/status-099":   "HTTP/1.1 099 None\r\nContent-Length: 0\r\n\r\n",
		"/two-answers":  ok + "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nsecond",
		"/endless-1xx":  strings.Repeat("HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n", 1000) + ok,
		"/endless-head": "HTTP/1.1 200 OK\r\n" + strings.Repeat("X-Filler: "+strings.Repeat("x", 1000)+"\r\n", 1000),
		"/cookies":      "HTTP/1.1 103 Early Hints\r\n" + cookies + "\r\nHTTP/1.1 200 OK\r\n" + cookies + "Transfer-Encoding: chunked\r\nTrailer: Set-Cookie\r\n\r\n2\r\nok\r\n0\r\n" + cookies + "\r\n",
		"/both":         "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
	}
	serveRaw(in, 8000, func(c net.Conn) {
		line, err := bufio.NewReader(c).ReadString('\n') // answers before the request is complete
		if err == nil {
			_, _ = io.WriteString(c, answers[strings.Fields(line)[1]])
		}
	})
	v := visitURL(w, in.Box, map[string]any{"port": 8000})
	for path := range answers {
		answer := v.say("GET " + path + " HTTP/1.1\r\nHost: " + v.host + "\r\nTE: trailers\r\nConnection: close, TE\r\n\r\n")
		switch path {
		case "/two-answers":
			if !strings.HasPrefix(answer, "HTTP/1.1 200 ") || strings.Contains(answer, "second") {
				t.Errorf("%s: %.300q", path, answer)
			}
		case "/cookies":
			if strings.Contains(answer, "Domain=") || strings.Contains(answer, "boxgate-x") || strings.Contains(answer, "h3=") || strings.Contains(answer, "Clear-Site") || !strings.Contains(answer, "a=1") {
				t.Errorf("%s: %q", path, answer)
			}
		default:
			if !strings.Contains(answer, "HTTP/1.1 502 ") || strings.Contains(answer, "HTTP/1.1 200 ") {
				t.Errorf("%s: %.300q", path, answer)
			}
		}
	}
}
