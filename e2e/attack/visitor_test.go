package attack

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/audit"
	"boxgate/e2e/harness"
	"boxgate/policy"
	"boxgate/policy/name"
)

// socketServer answers the handshake of a WebSocket, as its path selects, with a first message, and other requests with
// a description of the request. It appends each request to the file seen.
const socketServer = `cat > server.py <<'EOF'
import base64, hashlib, http.server
class H(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def answer(self):
        open("seen", "a").write(self.command + " " + self.path + "\n")
        if self.headers.get("Upgrade", "").lower() != "websocket":
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(200); self.send_header("Content-Length", "2"); self.end_headers(); self.wfile.write(b"ok")
            return
        key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
        more = {"/protocol": ("Sec-WebSocket-Protocol", "other"), "/extension": ("Sec-WebSocket-Extensions", "other")}.get(self.path)
        self.send_response(101); self.send_header("Connection", "Upgrade"); self.send_header("Upgrade", "websocket")
        if self.path != "/none": self.send_header("Sec-WebSocket-Accept", {"/wrong": "d3Jvbmc="}.get(self.path, accept))
        if more: self.send_header(*more)
        self.end_headers(); self.wfile.write(b"\x81\x02hi"); self.close_connection = True
    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = answer
http.server.ThreadingHTTPServer(("", 8000), H).serve_forever()
` + "EOF" + `
setsid python3 server.py >/dev/null 2>&1 & until curl -s -o /dev/null http://127.0.0.1:8000/ready; do sleep 0.05; done; : > seen`

// visited is a public URL and a visitor that sends raw bytes.
type visited struct {
	*harness.World
	box, host string
	roots     *x509.CertPool
	harness.PublicURL
}

// socketURL creates a box with a WebSocket server and a public URL for it.
func socketURL(w *harness.World, with map[string]any) *visited {
	w.T.Helper()
	box := w.Create(map[string]any{"network_policy": map[string]any{"mode": "deny-all"}})
	w.MustSh(box, socketServer)
	with["port"] = 8000
	return visitURL(w, box, with)
}

// visitURL creates a public URL for a port of a box.
func visitURL(w *harness.World, box string, with map[string]any) *visited {
	w.T.Helper()
	v := &visited{World: w, box: box, roots: x509.NewCertPool()}
	if err := w.Client.Do(w.T.Context(), "POST", api.BoxPath(v.box, "preview"), with, &v.PublicURL); err != nil {
		w.T.Fatal(err)
	}
	u, err := url.Parse(v.URL)
	if err != nil {
		w.T.Fatal(err)
	}
	v.host = u.Host
	var pem []byte
	if err := w.Client.Get(w.T.Context(), "/v2/ca", &pem); err != nil || !v.roots.AppendCertsFromPEM(pem) {
		w.T.Fatal("the CA of the public URLs: ", err)
	}
	return v
}

// ask sends a request with header lines and returns the status, and the body or the first data after a 101.
func (v *visited) ask(method, path string, lines ...string) (status int, said string) {
	v.T.Helper()
	res, said := v.send(method, path, "", lines...)
	return res.StatusCode, said
}

// send is ask with a body, and returns the whole head of the answer.
func (v *visited) send(method, path, body string, lines ...string) (res *http.Response, said string) {
	v.T.Helper()
	tcp, err := v.Net.Gateway().DialContext(v.T.Context(), "tcp", "127.0.0.1:443")
	if err != nil {
		v.T.Fatal(err)
	}
	defer tcp.Close()
	_ = tcp.SetDeadline(time.Now().Add(harness.Patience))
	c := tls.Client(tcp, &tls.Config{ServerName: v.host, RootCAs: v.roots})
	r := bufio.NewReader(c)
	if body != "" {
		lines = append(lines, "Content-Length: "+strconv.Itoa(len(body)))
	}
	request := method + " " + path + " HTTP/1.1\r\nHost: " + v.host + "\r\n" + strings.Join(append(lines, "\r\n"), "\r\n") + body
	res, said = harness.Exchange(v.T, c, r, request)
	if res.StatusCode == 101 {
		said, _ = r.ReadString('i')
	}
	return res, said
}

// takeSeen returns the requests that arrived in the box since the last call.
func (v *visited) takeSeen() string {
	v.T.Helper()
	return v.MustSh(v.box, "cat seen; : > seen")
}

var socketLines = strings.Split(strings.TrimSuffix(harness.UpgradeHead, "\r\n\r\n"), "\r\n")

// TestAttackAnotherSiteUsesThePassword: a browser stores the user and password of a public URL and adds them to
// requests made by any page. A foreign page opens a WebSocket, or sends a request that changes state. No request
// reaches the box.
func TestAttackAnotherSiteUsesThePassword(t *testing.T) {
	t.Parallel()
	v := socketURL(harness.Shared(t), map[string]any{"basic_auth": true, "bearer_token": true})
	basic := "Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(v.Username+":"+v.Password))
	bearer := "Authorization: Bearer " + v.Token
	own, sibling := "Origin: https://"+v.host, "Origin: "+strings.Replace(v.URL, v.box, "0123456789abcdef", 1)
	for name, c := range map[string]struct {
		method string
		lines  []string
		want   int
	}{
		"a WebSocket of another site":       {"GET", append([]string{basic, "Origin: https://evil.example.net"}, socketLines...), 403},
		"of the URL of another box":         {"GET", append([]string{basic, sibling}, socketLines...), 403},
		"of a sandboxed page":               {"GET", append([]string{basic, "Origin: null"}, socketLines...), 403},
		"of the same name, without TLS":     {"GET", append([]string{basic, "Origin: http://" + v.host}, socketLines...), 403},
		"of another port of the name":       {"GET", append([]string{basic, own + ":8443"}, socketLines...), 403},
		"of a name that begins alike":       {"GET", append([]string{basic, own + ".example.net"}, socketLines...), 403},
		"of two sites":                      {"GET", append([]string{basic, own, "Origin: https://evil.example.net"}, socketLines...), 403},
		"that the browser calls cross-site": {"GET", append([]string{basic, "Sec-Fetch-Site: cross-site"}, socketLines...), 403},
		"a form of another site":            {"POST", []string{basic, "Origin: https://evil.example.net", "Content-Length: 0"}, 403},
		"a form of a sibling":               {"POST", []string{basic, "Sec-Fetch-Site: same-site", "Content-Length: 0"}, 403},
		"a deletion":                        {"DELETE", []string{basic, "Origin: null"}, 403},

		"a WebSocket of its own page":    {"GET", append([]string{basic, own}, socketLines...), 101},
		"of its own page, port told":     {"GET", append([]string{basic, own + ":443", "Sec-Fetch-Site: same-origin"}, socketLines...), 101},
		"of a program":                   {"GET", append([]string{basic}, socketLines...), 101},
		"of another site with the token": {"GET", append([]string{bearer, "Origin: https://evil.example.net"}, socketLines...), 101},
		"a form of its own":              {"POST", []string{basic, own, "Content-Length: 0"}, 200},
		"of its own, without referrer":   {"POST", []string{basic, "Origin: null", "Sec-Fetch-Site: same-origin", "Content-Length: 0"}, 200},
		"a form with the token":          {"POST", []string{bearer, "Origin: https://evil.example.net", "Content-Length: 0"}, 200},
		"a request of a program":         {"POST", []string{basic, "Content-Length: 0"}, 200},
		"a link on another site":         {"GET", []string{basic, "Sec-Fetch-Site: cross-site"}, 200},
	} {
		status, _ := v.ask(c.method, "/x", c.lines...)
		if seen := v.takeSeen(); status != c.want || (seen == "") != (c.want == 403) {
			t.Errorf("%s: %d, want %d; the box saw %q", name, status, c.want, seen)
		}
	}
	if e := v.Event(v.box, func(e audit.Event) bool { return e.Reason == name.ReasonURLOrigin && e.Method == "DELETE" }); e.Verdict != policy.Deny ||
		e.Stage != policy.StageURL || e.Status != 403 {
		t.Errorf("decision %+v", e)
	}
}

// TestAttackBoxAnswersNoWebSocket: an application answers the handshake of a WebSocket with a 101 that does not
// complete it. No tunnel is opened, and no later data of the application reaches the visitor.
func TestAttackBoxAnswersNoWebSocket(t *testing.T) {
	t.Parallel()
	v := socketURL(harness.Shared(t), map[string]any{})
	for path, want := range map[string]int{"/right": 101, "/wrong": 502, "/none": 502, "/protocol": 502, "/extension": 502} {
		status, said := v.ask("GET", path, socketLines...)
		if status != want || strings.HasSuffix(said, "hi") != (want == 101) {
			t.Errorf("%s: %d %q", path, status, said)
		}
		if want == 502 {
			v.Event(v.box, func(e audit.Event) bool {
				return e.Path == path && e.Reason == name.ReasonURLUnavailable && e.Verdict == policy.Deny && e.Error != ""
			})
		}
	}
}
