package attack

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"testing"
	"time"

	"boxgate/audit"
	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/internal/testnet"
	"boxgate/policy"
	"boxgate/policy/name"
)

// secretWorld returns a world with a box that may reach a few hosts, with a key for api.example.com, but not
// evil.example.net.
func secretWorld(t *testing.T, change func(*config.Config)) *harness.Intruder {
	w := harness.SharedWith(t, change)
	return w.Intrude(w.Create(map[string]any{
		"network_policy": harness.Custom("api.example.com", "www.example.com", harness.OriginName),
		"attach_headers": map[string]any{
			"api.example.com":  map[string]string{"Authorization": harness.Canary},
			harness.OriginName: map[string]string{"Authorization": harness.Canary},
		},
	}))
}

func TestAttackTunnelOutOfAnInterceptedConnection(t *testing.T) {
	t.Parallel()
	in := secretWorld(t, nil)
	toEvil := "GET http://evil.example.net/ HTTP/1.1\r\nHost: evil.example.net\r\n\r\n"

	t.Run("WebSocket stays with its host", func(t *testing.T) {
		in := in.On(t)
		c := in.TLS(in.DialHost("api.example.com", 443), "api.example.com")
		r := bufio.NewReader(c)
		res, _ := harness.Exchange(t, c, r, "GET /ws HTTP/1.1\r\nHost: api.example.com\r\n"+harness.UpgradeHead)
		if res.StatusCode != 101 {
			t.Fatalf("upgrade: %d", res.StatusCode)
		}
		if _, err := io.WriteString(c, toEvil); err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, r); err != nil && !strings.Contains(err.Error(), "reset") {
			t.Errorf("the server's end of it: %v", err)
		}
	})
	t.Run("a refused upgrade is no tunnel", func(t *testing.T) {
		in := in.On(t)
		c := in.TLS(in.DialHost("api.example.com", 443), "api.example.com")
		r := bufio.NewReader(c)
		since := time.Now()
		res, _ := harness.Exchange(t, c, r, "GET /ws HTTP/1.1\r\nHost: api.example.com\r\n"+strings.Replace(harness.UpgradeHead, ": 13", ": 777", 1))
		if res.StatusCode/100 != 4 {
			t.Fatalf("upgrade: %d", res.StatusCode)
		}
		if res, _ = harness.Exchange(t, c, r, "GET / HTTP/1.1\r\nHost: evil.example.net\r\n\r\n"); res.StatusCode != 421 {
			t.Errorf("the request behind it: %d", res.StatusCode)
		}
		in.Denied(since, policy.StageHTTP, name.ReasonAuthorityMismatch)
	})
	for label, request := range map[string]string{
		"CONNECT to another host": "CONNECT evil.example.net:443 HTTP/1.1\r\nHost: evil.example.net:443\r\n\r\n",
		"CONNECT to its own host": "CONNECT api.example.com:443 HTTP/1.1\r\nHost: api.example.com:443\r\n\r\n",
		"CONNECT to an address":   "CONNECT " + in.V4("evil.example.net").String() + ":443 HTTP/1.1\r\nHost: api.example.com\r\n\r\n",
		"TRACE":                   "TRACE /echo HTTP/1.1\r\nHost: api.example.com\r\n\r\n",
		"TRACK":                   "TRACK /echo HTTP/1.1\r\nHost: api.example.com\r\n\r\n",
		"trace":                   "trace /echo HTTP/1.1\r\nHost: api.example.com\r\n\r\n",
	} {
		t.Run(label, func(t *testing.T) {
			in := in.On(t)
			c := in.TLS(in.DialHost("api.example.com", 443), "api.example.com")
			since := time.Now()
			if res, body := harness.Exchange(t, c, bufio.NewReader(c), request); res.StatusCode != 405 || strings.Contains(body, harness.Canary) {
				t.Errorf("answer %d %s", res.StatusCode, body)
			}
			in.Denied(since, policy.StageHTTP, name.ReasonMethod)
		})
	}
	t.Run("STARTTLS stays with its host", func(t *testing.T) {
		in := in.On(t)
		c := in.DialHost("www.example.com", 25)
		_ = c.SetDeadline(time.Now().Add(harness.Patience))
		r := bufio.NewReader(c)
		if line, err := r.ReadString('\n'); !strings.HasPrefix(line, "220") {
			t.Fatalf("greeting %q, %v", line, err)
		}
		evil := "STARTTLS\r\n" + hello{0x303, []uint16{0x304}, []string{"evil.example.net"}, false}.String()
		if _, err := io.WriteString(c, evil); err != nil {
			t.Fatal(err)
		}
		echo := make([]byte, len(evil)) // the server echoes its input
		if _, err := io.ReadFull(r, echo); err != nil || string(echo) != evil {
			t.Errorf("echo %q, %v", echo, err)
		}
	})
	if seen := in.Net.Received("api.example.com", testnet.Path("/echo")); len(seen) != 0 {
		t.Errorf("the server received %+v", seen)
	}
	in.NothingReached("evil.example.net")
}

func TestAttackUpgradeToAnotherProtocol(t *testing.T) {
	t.Parallel()
	change, start := harness.WithOrigin(t)
	in := secretWorld(t, change)
	origin := start(in.World)
	upgrades := "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: %s\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n\r\n"
	for _, protocol := range []string{"h2c", "h2c, websocket", "websocket, h2c", "TLS/1.0", "connect-udp"} {
		for _, secure := range []bool{true, false} {
			c := in.DialHost(harness.OriginName, map[bool]uint16{true: 443, false: 80}[secure])
			if secure {
				c = in.TLS(c, harness.OriginName)
			}
			request := "GET / HTTP/1.1\r\nHost: " + harness.OriginName + "\r\n" + fmt.Sprintf(upgrades, protocol)
			if res, _ := harness.Exchange(t, c, bufio.NewReader(c), request); res.StatusCode != 200 {
				t.Errorf("%s: %d", protocol, res.StatusCode)
			}
			got := origin.Received()
			for _, gone := range []string{"h2c", "Upgrade", "HTTP2-Settings", "TLS/1.0"} {
				if strings.Contains(got, gone) {
					t.Errorf("%s (TLS: %v) arrived: %q", gone, secure, got)
				}
			}
			if strings.Contains(got, harness.Canary) != secure {
				t.Errorf("TLS: %v, the secret: %q", secure, got)
			}
		}
	}
}

// TestAttackServerAnswersNoWebSocket: a server that colludes with the box answers the handshake of a WebSocket with a
// 101 that does not complete it, to get a tunnel of another kind. Only the correct answer opens a tunnel.
func TestAttackServerAnswersNoWebSocket(t *testing.T) {
	t.Parallel()
	change, start := harness.WithOrigin(t)
	in := secretWorld(t, change)
	origin := start(in.World)
	const right = "Sec-WebSocket-Accept: BACScCJPNqyz+UBoqMH89VmURoA=\r\n"
	for label, c := range map[string]struct {
		fields string
		want   int
	}{
		"the right answer":                {"Connection: Upgrade\r\nUpgrade: websocket\r\n" + right, 101},
		"no accept":                       {"Connection: Upgrade\r\nUpgrade: websocket\r\n", 502},
		"another accept":                  {"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: d3Jvbmc=\r\n", 502},
		"two accepts":                     {"Connection: Upgrade\r\nUpgrade: websocket\r\n" + right + right, 502},
		"no Upgrade":                      {"Connection: Upgrade\r\n" + right, 502},
		"no Connection":                   {"Upgrade: websocket\r\n" + right, 502},
		"another protocol":                {"Connection: Upgrade\r\nUpgrade: h2c\r\n" + right, 502},
		"a subprotocol that nobody asked": {"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Protocol: ssh\r\n" + right, 502},
		"an extension that nobody asked":  {"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Extensions: tunnel\r\n" + right, 502},
	} {
		origin.Answers("HTTP/1.1 101 Switching Protocols\r\n" + c.fields + "\r\nSSH-2.0-tunnel\r\n")
		for _, way := range []string{"intercepted", "plain"} {
			tcp, path := in.DialHost(harness.OriginName, map[string]uint16{"intercepted": 443, "plain": 80}[way]), "/"+strings.ReplaceAll(label, " ", "-")
			if way == "intercepted" {
				tcp = in.TLS(tcp, harness.OriginName)
			}
			_ = tcp.SetDeadline(time.Now().Add(harness.Patience))
			r := bufio.NewReader(tcp)
			res, _ := harness.Exchange(t, tcp, r, "GET "+path+" HTTP/1.1\r\nHost: "+harness.OriginName+"\r\n"+harness.UpgradeHead)
			said := ""
			if c.want == 101 {
				said, _ = r.ReadString('\n')
			} else if rest, _ := io.ReadAll(r); len(rest) > 0 {
				t.Errorf("%s, %s: behind the refusal came %q", label, way, rest)
			}
			if res.StatusCode != c.want || (said != "") != (c.want == 101) {
				t.Errorf("%s, %s: %d %q", label, way, res.StatusCode, said)
			}
			if c.want == 502 {
				in.Event(in.Box, func(e audit.Event) bool {
					return e.Path == path && e.Reason == name.ReasonUpstreamHTTP && e.Verdict == policy.Deny
				})
			}
		}
		f := in.Frames(harness.OriginName)
		f.Send(1, false, harness.Head(harness.OriginName, harness.Field{":method", "CONNECT"}, harness.Field{":protocol", "websocket"}, harness.Field{"sec-websocket-version", "13"})...)
		if got := f.Outcome(1); got != "502" { // its WebSocket key differs
			t.Errorf("%s, over HTTP/2: %s", label, got)
		}
	}
}

// TestAttackExplicitProxy requests from the explicit proxy the connections that the transparent path refuses.
func TestAttackExplicitProxy(t *testing.T) {
	t.Parallel()
	in := secretWorld(t, nil)
	evil := in.V4("evil.example.net").String()
	for request, want := range map[string]struct {
		status int
		stage  policy.Stage
		reason name.Reason
	}{
		"CONNECT evil.example.net:443":            {403, policy.StageConn, name.ReasonNotAllowed},
		"CONNECT " + evil + ":443":                {403, policy.StageConn, name.ReasonNotAllowed},
		"CONNECT [2001:db8:bad::10]:443":          {403, policy.StageConn, name.ReasonNotAllowed},
		"CONNECT 169.254.169.254:80":              {403, policy.StageConn, name.ReasonProtectedRange},
		"CONNECT [::ffff:169.254.169.254]:80":     {403, policy.StageConn, name.ReasonProtectedRange},
		"CONNECT [64:ff9b::a9fe:a9fe]:80":         {403, policy.StageConn, name.ReasonProtectedRange},
		"CONNECT 127.0.0.1:8600":                  {403, policy.StageConn, name.ReasonProtectedRange},
		"CONNECT [::1]:8600":                      {403, policy.StageConn, name.ReasonProtectedRange},
		"CONNECT 0.0.0.0:8600":                    {403, policy.StageConn, name.ReasonProtectedRange},
		"CONNECT 10.200.0.1:3128":                 {403, policy.StageConn, name.ReasonHostPort},
		"CONNECT 192.0.2.254:9600":                {403, policy.StageConn, name.ReasonProtectedRange},
		"CONNECT 2852039166:80":                   {400, policy.StageConn, name.ReasonBadRequest},
		"CONNECT 0xa9fea9fe:80":                   {400, policy.StageConn, name.ReasonBadRequest},
		"CONNECT 0251.0376.0251.0376:80":          {400, policy.StageConn, name.ReasonBadRequest},
		"CONNECT 169.254.43518:80":                {400, policy.StageConn, name.ReasonBadRequest},
		"CONNECT localhost:8600":                  {403, policy.StageConn, name.ReasonNotAllowed},
		"CONNECT www.example.com":                 {400, policy.StageConn, name.ReasonBadRequest},
		"CONNECT www.example.com:0":               {400, policy.StageConn, name.ReasonBadRequest},
		"CONNECT www.example.com:65979":           {400, policy.StageConn, name.ReasonBadRequest},
		"CONNECT www.example.com@evil:443":        {400, policy.StageConn, name.ReasonBadRequest},
		"GET http://evil.example.net/":            {403, policy.StageHTTP, name.ReasonNotAllowed},
		"GET http://" + evil + "/":                {403, policy.StageHTTP, name.ReasonNotAllowed},
		"GET http://www.example.com@evil/":        {400, policy.StageHTTP, name.ReasonBadRequest},
		"GET https://www.example.com/":            {400, policy.StageHTTP, name.ReasonBadRequest},
		"GET http://169.254.169.254/latest":       {403, policy.StageHTTP, name.ReasonProtectedRange},
		"GET http://0xa9fea9fe/latest":            {400, policy.StageHTTP, name.ReasonBadRequest},
		"GET http://10.200.0.1:3128/":             {403, policy.StageHTTP, name.ReasonProtectedRange},
		"GET http://metadata.example.net/latest":  {403, policy.StageHTTP, name.ReasonNotAllowed},
		"GET ftp://www.example.com/":              {400, policy.StageHTTP, name.ReasonBadRequest},
		"GET /":                                   {400, policy.StageHTTP, name.ReasonBadRequest},
		"OPTIONS *":                               {400, policy.StageHTTP, name.ReasonBadRequest},
		"GET http://www.example.com:443/":         {0, policy.StageHTTP, ""}, // plain HTTP to port 443
		"GET http://api.example.com/no-key-there": {0, policy.StageHTTP, ""},
	} {
		t.Run(request, func(t *testing.T) {
			in := in.On(t)
			for _, gateway := range []string{"10.200.0.1", "fd42:b0c5::1"} {
				since := time.Now()
				c := in.Dial(netip.AddrPortFrom(netip.MustParseAddr(gateway), 3128))
				_, target, _ := strings.Cut(request, " ")
				host := strings.TrimPrefix(strings.TrimPrefix(target, "http://"), "https://")
				host, _, _ = strings.Cut(host, "/")
				if host == "" || host == "*" {
					host = "www.example.com"
				}
				res, body := harness.Exchange(t, c, bufio.NewReader(c), request+" HTTP/1.1\r\nHost: "+host+"\r\n\r\n")
				if want.status == 0 {
					continue
				}
				if res.StatusCode != want.status || !strings.Contains(body, string(want.reason)) {
					t.Errorf("answer %d %s", res.StatusCode, body)
				}
				in.Denied(since, want.stage, want.reason)
			}
		})
	}
	t.Run("SNI of another host in the tunnel", func(t *testing.T) {
		in := in.On(t)
		since := time.Now()
		c := in.Dial(netip.MustParseAddrPort("10.200.0.1:3128"))
		harness.Exchange(t, c, bufio.NewReader(c), "CONNECT www.example.com:443 HTTP/1.1\r\nHost: www.example.com:443\r\n\r\n")
		answer, _ := harness.SendAndReadAll(c, hello{0x303, []uint16{0x304}, []string{"evil.example.net"}, false}.String())
		if answer != harness.AlertDenied {
			t.Errorf("answer %q", answer)
		}
		in.Denied(since, policy.StageConn, name.ReasonAuthorityMismatch)
	})
	t.Run("CONNECT in the tunnel", func(t *testing.T) {
		in := in.On(t)
		c := in.Dial(netip.MustParseAddrPort("10.200.0.1:3128"))
		r := bufio.NewReader(c)
		harness.Exchange(t, c, r, "CONNECT www.example.com:80 HTTP/1.1\r\nHost: www.example.com:80\r\n\r\n")
		res, _ := harness.Exchange(t, c, r, "CONNECT evil.example.net:443 HTTP/1.1\r\nHost: evil.example.net:443\r\n\r\n")
		if res.StatusCode != 405 {
			t.Errorf("answer %d", res.StatusCode)
		}
	})
	t.Run("plain HTTP of another host in the tunnel", func(t *testing.T) {
		in := in.On(t)
		c := in.Dial(netip.MustParseAddrPort("10.200.0.1:3128"))
		r := bufio.NewReader(c)
		harness.Exchange(t, c, r, "CONNECT www.example.com:80 HTTP/1.1\r\nHost: www.example.com:80\r\n\r\n")
		res, _ := harness.Exchange(t, c, r, "GET / HTTP/1.1\r\nHost: evil.example.net\r\n\r\n")
		if res.StatusCode != 403 {
			t.Errorf("answer %d", res.StatusCode)
		}
	})
	in.NothingReached("evil.example.net")
	in.NothingReached("169.254.169.254")
	for _, r := range in.Net.Received("api.example.com", testnet.Any) {
		if r.Header.Get("Authorization") != "" {
			t.Errorf("the secret went out over plain HTTP: %+v", r)
		}
	}
}

func TestAttackResumptionUnderAnotherName(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	in := w.Intrude(w.Create(map[string]any{
		"network_policy": harness.Custom("api.example.com", "cdn.example.org"),
		"attach_headers": map[string]any{
			"api.example.com": map[string]string{"X-Key": harness.Canary}, "cdn.example.org": map[string]string{"X-Other": "other"},
		},
	}))
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		cache := &oneSession{}
		connect := func(host, dialled string) (tls.ConnectionState, error) {
			c := tls.Client(in.DialHost(dialled, 443), &tls.Config{
				ServerName: host, InsecureSkipVerify: true, ClientSessionCache: cache, MaxVersion: version,
			})
			_, err := get(c, host, "/resumed")
			return c.ConnectionState(), err
		}
		if s, err := connect("api.example.com", "api.example.com"); err != nil || s.DidResume {
			t.Fatalf("first: %v, resumed: %v", err, s.DidResume)
		}
		if s, err := connect("api.example.com", "api.example.com"); err != nil || !s.DidResume {
			t.Errorf("the same name: %v, resumed: %v", err, s.DidResume)
		}
		s, err := connect("cdn.example.org", "cdn.example.org")
		if err != nil || s.DidResume || s.PeerCertificates[0].VerifyHostname("cdn.example.org") != nil {
			t.Errorf("another name: %v, resumed: %v", err, s.DidResume)
		}
		since := time.Now()
		if _, err := connect("evil.example.net", "api.example.com"); err == nil || !strings.Contains(err.Error(), "access denied") {
			t.Errorf("a denied name: %v", err)
		}
		in.Denied(since, policy.StageConn, name.ReasonNotAllowed)
	}
	for _, r := range in.Requests("cdn.example.org", "/resumed") {
		if r.Header.Get("X-Key") != "" || r.Header.Get("X-Other") != "other" {
			t.Errorf("cdn.example.org received %+v", r)
		}
	}
	in.NothingReached("evil.example.net")
}

// oneSession is a session cache that returns the last session for every name.
type oneSession struct{ last *tls.ClientSessionState }

// Get returns the last session.
func (c *oneSession) Get(string) (*tls.ClientSessionState, bool) { return c.last, c.last != nil }

// Put stores a session.
func (c *oneSession) Put(_ string, s *tls.ClientSessionState) {
	if s != nil {
		c.last = s
	}
}
