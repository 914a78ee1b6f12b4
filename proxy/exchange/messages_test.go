package exchange_test

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"boxgate/policy"
	"boxgate/policy/match"
	"boxgate/policy/name"
	"boxgate/proxy/proxytest"
)

// TestMessagesAreAnsweredByStreams: the server answers a call by events, which arrive one by one. A later policy that denies the call
// cuts the stream, another does not.
func TestMessagesAreAnsweredByStreams(t *testing.T) {
	t.Parallel()
	for _, h2 := range []bool{false, true} {
		t.Run(fmt.Sprintf("h2=%v", h2), func(t *testing.T) {
			t.Parallel()
			l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
			more := make(chan bool)
			_, port := l.HTTPSServer(h2, func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				w.Header().Set("Content-Type", "text/event-stream")
				for range more {
					_, _ = io.WriteString(w, "data: {}\n\n")
					_ = http.NewResponseController(w).Flush()
				}
			})
			defer close(more)
			l.Rules(messageRules, `{}`)
			client := l.HTTPClientLater(port, h2)
			go func() { more <- true }()
			req, err := http.NewRequestWithContext(t.Context(), "POST", "https://"+proxytest.HostPort(port)+"/mcp", strings.NewReader(call("search", "")))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/json")
			res, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			lines := bufio.NewReader(res.Body)
			event := func() error {
				_, err := lines.ReadString('\n')
				if err == nil {
					_, err = lines.ReadString('\n')
				}
				return err
			}
			if err := event(); err != nil {
				t.Fatal(err)
			}
			change := func(tool string) {
				spec := messageRules
				spec.Rules = []match.RequestRule{
					{Hosts: []string{proxytest.API}, Match: &match.Match{MCP: &match.MCP{Tools: []string{tool}}}, Action: "allow"},
					{Hosts: []string{proxytest.API}, Action: "deny"},
				}
				l.Rules(spec, `{}`)
				l.Proxy.Recheck(l.Box.ID)
			}
			change("se*")
			more <- true
			if err := event(); err != nil {
				t.Fatalf("cut under a policy that allows the call: %v", err)
			}
			change("other")
			if err := event(); err == nil {
				t.Error("not cut under a policy that denies the call")
			}
			l.WantReason(name.ReasonPolicyChanged)
		})
	}
}

// TestAttackSlowMessages: no byte of a request reaches a server before its last message was judged, by the policy of that time. The
// connection then serves the request behind it.
func TestAttackSlowMessages(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	up := &proxytest.Recorder{}
	_, port := l.HTTPSServer(false, up.Serve)
	l.Rules(messageRules, `{}`)
	c := l.DialPair(proxytest.API, port, true)
	r := bufio.NewReader(c)
	send := func(s string) {
		if _, err := io.WriteString(c, s); err != nil {
			t.Fatal(err)
		}
	}
	head := "POST /mcp HTTP/1.1\r\nHost: " + proxytest.HostPort(port) + "\r\nContent-Type: application/json\r\n"
	body := call("search", "")
	send(head + "Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n")
	if res := proxytest.ReadResponse(t, r, "POST"); res.StatusCode != 100 {
		t.Fatalf("%d instead of 100", res.StatusCode)
	}
	send(fmt.Sprintf("%x\r\n%s\r\n", 10, body[:10]))
	send(fmt.Sprintf("%x\r\n%s\r\n", len(body)-10, body[10:]))
	if got, _ := up.Take(); got != nil {
		t.Error("forwarded before the end of the body")
	}
	send("0\r\n\r\n" + head + fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body), body)) // pipelined
	for range 2 {
		if res := proxytest.ReadResponse(t, r, "POST"); res.StatusCode != 200 {
			t.Fatalf("%d: %s", res.StatusCode, proxytest.ReadAll(t, res.Body))
		} else if _, err := io.Copy(io.Discard, res.Body); err != nil {
			t.Fatal(err)
		}
	}
	if all, bodies := up.All(); len(all) != 2 || bodies[0] != body || bodies[1] != body {
		t.Errorf("the server received %q", bodies)
	}
	up.Take()

	send(head + fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body), body[:10]))
	l.Rules(policy.Spec{Mode: policy.ModeAllowAll, Rules: []match.RequestRule{
		{Hosts: []string{proxytest.API}, Match: &match.Match{MCP: &match.MCP{Tools: []string{"search"}}}, Action: "deny"},
	}}, `{}`)
	send(body[10:])
	if res := proxytest.ReadResponse(t, r, "POST"); res.StatusCode != 403 || !strings.Contains(proxytest.ReadAll(t, res.Body), refusedByRule) {
		t.Errorf("%d under a policy that denies the call", res.StatusCode)
	}
	if got, _ := up.Take(); got != nil {
		t.Error("forwarded what the policy denies")
	}
}

// TestAttackWebSocketBesideMessages: a rule that allows the GET of a session does not allow a WebSocket.
func TestAttackWebSocketBesideMessages(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	_, port := l.HTTPSServer(false, proxytest.EchoWebSocket)
	l.Rules(messageRules, `{}`)
	c := l.DialPair(proxytest.API, port, true)
	r := bufio.NewReader(c)
	request := "GET /mcp HTTP/1.1\r\nHost: " + proxytest.HostPort(port) + "\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n" +
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
	if res := proxytest.Ask(t, c, r, strings.Replace(request, "/mcp", "/open", 1), "GET"); res.StatusCode != 101 {
		t.Fatalf("%d where the rule does not depend on messages", res.StatusCode)
	}
	c = l.DialPair(proxytest.API, port, true)
	if res := proxytest.Ask(t, c, bufio.NewReader(c), request, "GET"); res.StatusCode != 403 || !strings.Contains(proxytest.ReadAll(t, res.Body), unreadable) {
		t.Errorf("%d for a WebSocket", res.StatusCode)
	}
}

// TestPlaceholdersInMessages: placeholders in the arguments of an allowed call are replaced, and those in its head.
func TestPlaceholdersInMessages(t *testing.T) {
	t.Parallel()
	token := proxytest.TokenFor("OTHER")
	proxytest.EachProtocol(t, func(t *testing.T, l *proxytest.Rig, client *http.Client, port uint16, up *proxytest.Recorder) {
		l.Rules(messageRules, proxytest.JSONRule(t, port, `, "places": ["header", "json"]`))
		header := http.Header{"Content-Type": {"application/json"}, "X-Key": {token}}
		for how, body := range map[string]io.Reader{"length": strings.NewReader(call("search", `, "x": "`+token+`"`)), "stream": proxytest.Unsized(call("search", `, "x": "`+token+`"`))} {
			status, text := proxytest.Send(t, client, "POST", "https://"+proxytest.HostPort(port)+"/mcp", header, body)
			got, arrived := up.Take()
			if status != 200 || got == nil || got.Header.Get("X-Key") != "from-source" || arrived != call("search", `, "x": "from-source"`) {
				t.Errorf("%s: %d %s, the server received %q", how, status, text, arrived)
			}
		}
		status, text := proxytest.Send(t, client, "POST", "https://"+proxytest.HostPort(port)+"/mcp", header, strings.NewReader(call("delete", `, "x": "`+token+`"`)))
		if got, _ := up.Take(); status != 403 || got != nil {
			t.Errorf("denied: %d %s", status, text)
		}
	})
}
