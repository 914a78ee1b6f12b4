package attack

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/audit"
	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/policy"
	"boxgate/policy/name"
)

// sharedView are the shared ports of a box.
type sharedView struct {
	URL, Access, Token string
	Except             []int
}

// share shares the ports of a box.
func share(w *harness.World, box string, with map[string]any) (p sharedView) {
	w.T.Helper()
	if err := w.Client.Do(w.T.Context(), "PUT", api.BoxPath(box, "config/ports"), with, &p); err != nil {
		w.T.Fatal(err)
	}
	return p
}

// at returns the visitor of another host name below the same domain.
func (v *visited) at(label string) *visited {
	other := *v
	_, rest, _ := strings.Cut(v.host, ".")
	other.host = label + "." + rest
	return &other
}

// sharedBoxes returns two boxes with servers on ports 8000 and 8001, and a visitor of the first, whose port 8001 has a URL of its own.
func sharedBoxes(t *testing.T, change func(*config.Config)) (v *visited, other string) {
	t.Helper()
	w := harness.NewWorld(t, func(c *config.Config) {
		c.Ingress.TokenHeaders = []string{"X-Port-Token"}
		if change != nil {
			change(c)
		}
	})
	var boxes []string
	for range 2 {
		in := w.Intrude(w.Create(map[string]any{"network_policy": map[string]any{"mode": "deny-all"}}))
		for _, port := range []int{8000, 8001} {
			serveRaw(in, port, showing(port))
		}
		boxes = append(boxes, in.Box)
	}
	return visitURL(w, boxes[0], map[string]any{"port": 8001}), boxes[1]
}

// TestAttackSharedPorts: a visitor with the token of a box's ports opens every port of that box that is not excepted and has no URL, and
// none of another box. No application sees the token, whatever the spelling and the URL.
func TestAttackSharedPorts(t *testing.T) {
	t.Parallel()
	v, other := sharedBoxes(t, nil)
	before, _ := v.at("8000-"+v.box).ask("GET", "/")
	if before != 404 {
		t.Errorf("before they are shared: %d", before)
	}
	made, foreign := share(v.World, v.box, map[string]any{"except": []int{22}}), share(v.World, other, map[string]any{})
	if made.Access != "token" || len(made.Token) != 64 || made.URL != "https://{port}-"+v.box+".preview.localhost" {
		t.Fatalf("%+v", made)
	}
	bearer, field := "Authorization: Bearer "+made.Token, "X-Port-Token: "+made.Token
	for what, c := range map[string]struct {
		label, path string
		lines       []string
		want        int
	}{
		"the token":                        {"8000-" + v.box, "/", []string{bearer}, 200},
		"in its field":                     {"8000-" + v.box, "/", []string{field}, 200},
		"in both":                          {"8000-" + v.box, "/", []string{field, bearer}, 200},
		"in another spelling too":          {"8000-" + v.box, "/", []string{field, "x_port_token: " + made.Token}, 200},
		"at the name of URLs":              {v.box + "-8000", "/", []string{bearer}, 200},
		"a WebSocket, which needs one too": {"8000-" + v.box, "/", socketLines, 401},
		"no token":                         {"8000-" + v.box, "/", nil, 401},
		"a token in the query":             {"8000-" + v.box, "/?boxgate_token=" + made.Token, nil, 401},
		"the token of another box":         {"8000-" + v.box, "/", []string{"Authorization: Bearer " + foreign.Token}, 401},
		"it at the other box":              {"8000-" + other, "/", []string{bearer}, 401},
		"that box's own":                   {"8000-" + other, "/", []string{"X-Port-Token: " + foreign.Token}, 200},
		"an excepted port":                 {"22-" + v.box, "/", []string{bearer}, 404},
		"a port that is closed":            {"8002-" + v.box, "/", []string{bearer}, 502},
		"a port with leading zero":         {"08000-" + v.box, "/", []string{bearer}, 404},
		"a port too high":                  {"73536-" + v.box, "/", []string{bearer}, 404},
		"no such box":                      {"8000-0123456789abcdef", "/", []string{bearer}, 404},
		"an open URL":                      {v.box + "-8001", "/", []string{bearer, field}, 200},
		"the same URL by its other name":   {"8001-" + v.box, "/", []string{bearer, field}, 200},
		"that URL without a token":         {"8001-" + v.box, "/", nil, 200},
	} {
		status, seen := v.at(c.label).ask("GET", c.path, c.lines...)
		if status != c.want || strings.Contains(seen, made.Token) || strings.Contains(seen, foreign.Token) {
			t.Errorf("%s: %d, not %d; the box saw %q", what, status, c.want, seen)
		}
	}
	if _, seen := v.at("8000-"+v.box).ask("GET", "/", field, "Authorization: Bearer application"); !strings.Contains(seen, "Bearer application") {
		t.Errorf("the application does not get its own credential: %s", seen)
	}
	locked := visitURL(v.World, v.box, map[string]any{"port": 8001, "bearer_token": true})
	if status, _ := locked.at("8001-"+v.box).ask("GET", "/", bearer); status != 401 {
		t.Errorf("the token opens a URL that has its own: %d", status)
	}
	if status, seen := locked.at("8001-"+v.box).ask("GET", "/", "Authorization: Bearer "+locked.Token); status != 200 || strings.Contains(seen, locked.Token) {
		t.Errorf("the URL's own token: %d %s", status, seen)
	}
	if err := v.Client.Do(t.Context(), "GET", api.BoxPath(v.box, "config/ports"), nil, &made); err != nil || made.URL == "" {
		t.Errorf("%+v %v", made, err)
	}
	v.Event(v.box, func(e audit.Event) bool {
		return e.Reason == name.ReasonURL && e.Port == 8000 && e.Credential == audit.CredentialBearer && e.Verdict == policy.Allow
	})
}

// TestAttackSharedPortsAreCut: a new token, other settings and the end of the sharing end what the ports let in, and nothing else; a
// token that is kept goes on to work, also after a restart of the gateway.
func TestAttackSharedPortsAreCut(t *testing.T) {
	t.Parallel()
	v, _ := sharedBoxes(t, nil)
	in, more := v.Intrude(v.box), make(chan struct{})
	for _, port := range []int{8100, 8101, 8102} {
		serveRaw(in, port, func(c net.Conn) {
			_, _ = fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: first\n\n")
			if port > 8100 {
				<-more
				_, _ = fmt.Fprint(c, "data: more\n\n")
			}
			_, _ = io.Copy(io.Discard, c)
		})
	}
	url := visitURL(v.World, v.box, map[string]any{"port": 8101})
	made := share(v.World, v.box, map[string]any{})
	path := api.BoxPath(v.box, "config/ports")
	end := func() { _ = v.Client.Do(t.Context(), "DELETE", path, nil, nil) }
	for what, change := range map[string]func(){
		"a new token":    func() { made = share(v.World, v.box, map[string]any{}) },
		"other settings": func() { share(v.World, v.box, map[string]any{"keep_token": true, "except": []int{9000}}) },
		"the end":        end,
	} {
		token := "Authorization: Bearer " + made.Token
		shared, open := v.stream("8100-"+v.box, token), url.stream(v.box+"-8101")
		change()
		if rest, err := io.ReadAll(shared); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("%s: the response is not cut: %q, %v", what, rest, err)
		}
		want := map[string]int{"a new token": 401, "other settings": 200, "the end": 404}[what]
		if status, _ := v.at("8000-"+v.box).ask("GET", "/", token); status != want {
			t.Errorf("%s: the earlier token gets %d, not %d", what, status, want)
		}
		more <- struct{}{}
		if !reads(open, "data: more\n") {
			t.Errorf("%s: the response of the URL has ended", what)
		}
		if what == "the end" {
			made = share(v.World, v.box, map[string]any{})
		}
	}
	taken, kept := v.stream("8100-"+v.box, "Authorization: Bearer "+made.Token), v.stream("8102-"+v.box, "Authorization: Bearer "+made.Token)
	visitURL(v.World, v.box, map[string]any{"port": 8100, "bearer_token": true})
	if _, err := io.ReadAll(taken); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("a URL takes over the port, and its visitors stay: %v", err)
	}
	more <- struct{}{}
	if !reads(kept, "data: more\n") {
		t.Error("another port is cut too")
	}
	if err := v.Client.Do(t.Context(), "DELETE", api.BoxPath(v.box, "preview/8100"), nil, nil); err != nil {
		t.Error(err)
	}
	for what, err := range map[string]error{
		"a URL":  v.Client.Do(t.Context(), "DELETE", api.BoxPath(v.box, "preview/8102"), nil, nil),
		"a link": v.Client.Do(t.Context(), "POST", api.BoxPath(v.box, "preview/8102/sign"), map[string]any{}, nil),
	} {
		if refused, ok := errors.AsType[*api.ResponseError](err); !ok || refused.Status != 404 {
			t.Errorf("%s of a port that has none: %v", what, err)
		}
	}
	v.Kill()
	if err := v.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if status, _ := v.at("8000-"+v.box).ask("GET", "/", "X-Port-Token: "+made.Token); status != 200 {
		t.Errorf("after a restart: %d", status)
	}
	end()
}

// stream begins a response that does not end.
func (v *visited) stream(label string, lines ...string) *bufio.Reader {
	v.T.Helper()
	tcp, err := v.Net.Gateway().DialContext(v.T.Context(), "tcp", "127.0.0.1:443")
	if err != nil {
		v.T.Fatal(err)
	}
	v.T.Cleanup(func() { tcp.Close() })
	_ = tcp.SetDeadline(time.Now().Add(harness.Patience))
	host := v.at(label).host
	c := tls.Client(tcp, &tls.Config{ServerName: host, RootCAs: v.roots})
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: "+host+"\r\n"+strings.Join(append(lines, "\r\n"), "\r\n")); err != nil {
		v.T.Fatal(err)
	}
	r := bufio.NewReader(c)
	if !reads(r, "data: first\n") {
		v.T.Fatalf("%s: no response", label)
	}
	return r
}

// reads reads until a line, and reports whether it came.
func reads(r *bufio.Reader, line string) bool {
	for {
		if got, err := r.ReadString('\n'); got == line || err != nil {
			return got == line
		}
	}
}

// TestAttackSharedPortsWithoutToken: ports are shared without a token only where the operator permits it, and not by keys of one box.
func TestAttackSharedPortsWithoutToken(t *testing.T) {
	t.Parallel()
	v, _ := sharedBoxes(t, nil)
	public := map[string]any{"access": "public"}
	if err := v.Client.Do(t.Context(), "PUT", api.BoxPath(v.box, "config/ports"), public, nil); err == nil || !strings.Contains(err.Error(), "ingress.public_ports") {
		t.Errorf("by default: %v", err)
	}
	v, _ = sharedBoxes(t, func(c *config.Config) { c.Ingress.PublicPorts = true })
	if err := weak(t, v.World, map[string]any{"name": "one", "role": "one-box", "box": v.box}).Do(t.Context(), "PUT", api.BoxPath(v.box, "config/ports"), public, nil); err == nil || !strings.Contains(err.Error(), "only with a token") {
		t.Errorf("by a key of the box: %v", err)
	}
	if made := share(v.World, v.box, public); made.Token != "" || made.Access != "public" {
		t.Errorf("%+v", made)
	}
	if status, seen := v.at("8000-"+v.box).ask("GET", "/", "Authorization: Bearer application"); status != 200 || !strings.Contains(seen, "Bearer application") {
		t.Errorf("%d %s", status, seen)
	}
}

// TestAttackCertificatesOfSharedPorts: names that only mean a port of a box get no certificate of their own.
func TestAttackCertificatesOfSharedPorts(t *testing.T) {
	t.Parallel()
	v, _ := sharedBoxes(t, func(c *config.Config) { c.Ingress.Names = "nested" })
	made := share(v.World, v.box, map[string]any{})
	flat := *v
	flat.host = fmt.Sprintf("8000-%s.preview.localhost", v.box)
	if status, seen := flat.ask("GET", "/", "Authorization: Bearer "+made.Token); status != 200 {
		t.Errorf("%d %s", status, seen)
	}
	for _, port := range []int{8001, 8000} {
		tcp, err := v.Net.Gateway().DialContext(t.Context(), "tcp", "127.0.0.1:443")
		if err != nil {
			t.Fatal(err)
		}
		defer tcp.Close()
		_ = tcp.SetDeadline(time.Now().Add(harness.Patience))
		err = tls.Client(tcp, &tls.Config{ServerName: fmt.Sprintf("%d.%s.preview.localhost", port, v.box), RootCAs: v.roots}).HandshakeContext(t.Context())
		if hasURL := port == 8001; (err == nil) != hasURL {
			t.Errorf("port %d: %v", port, err)
		}
	}
}

// TestSharedPortsOpenWebSockets: a WebSocket opens with the token and not without it, and ends with the token.
func TestSharedPortsOpenWebSockets(t *testing.T) {
	t.Parallel()
	v := socketURL(harness.Shared(t), map[string]any{})
	if err := v.Client.Do(t.Context(), "DELETE", api.BoxPath(v.box, "preview/8000"), nil, nil); err != nil {
		t.Fatal(err)
	}
	token := "Authorization: Bearer " + share(v.World, v.box, map[string]any{}).Token
	port := v.at("8000-" + v.box)
	if status, said := port.ask("GET", "/x", append([]string{token}, socketLines...)...); status != 101 || !strings.HasSuffix(said, "hi") {
		t.Errorf("with the token: %d %q", status, said)
	}
	v.takeSeen()
	if status, _ := port.ask("GET", "/x", socketLines...); status != 401 || v.takeSeen() != "" {
		t.Errorf("without it: %d", status)
	}
	share(v.World, v.box, map[string]any{})
	if status, _ := port.ask("GET", "/x", append([]string{token}, socketLines...)...); status != 401 || v.takeSeen() != "" {
		t.Errorf("with the earlier token: %d", status)
	}
}
