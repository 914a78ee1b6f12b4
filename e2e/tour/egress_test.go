package tour

import (
	"encoding/json"
	"strings"
	"testing"

	"boxgate/audit"
	"boxgate/e2e/harness"
	"boxgate/internal/lab"
	"boxgate/internal/testnet"
	"boxgate/policy"
	"boxgate/policy/name"
)

func TestSecretReachesTheServerAndNeverTheBox(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box := w.SecretBox()

	out := w.MustSh(box, "curl -sS https://api.example.com/echo")
	var echo struct {
		Method  string
		Headers map[string][]string
	}
	if err := json.Unmarshal([]byte(out), &echo); err != nil || echo.Method != "GET" {
		t.Fatalf("echo: %v: %s", err, out)
	}
	seen := w.Net.Received("api.example.com", testnet.Path("/echo"))
	if len(seen) != 1 || seen[0].Header.Get("Authorization") != "Bearer "+harness.TestSecret {
		t.Fatalf("the server received %+v", seen)
	}
	e := w.Event(box, func(e audit.Event) bool { return e.Stage == policy.StageHTTP && e.Verdict == policy.Allow })
	if e.Name != "api.example.com" || e.Action != audit.ActionIntercept || len(e.Headers) != 1 || e.Headers[0] != "Authorization" || e.Status != 200 {
		t.Errorf("decision %+v", e)
	}
	// The box's own header of that name is replaced, in every spelling.
	w.MustSh(box, "curl -sS -o /dev/null -H 'authorization: mine' -H 'AUTHORIZATION: mine' https://api.example.com/variants")
	seen = w.Net.Received("api.example.com", testnet.Path("/variants"))
	if len(seen) != 1 || len(seen[0].Header.Values("Authorization")) != 1 || seen[0].Header.Get("Authorization") != "Bearer "+harness.TestSecret {
		t.Errorf("the server received %+v", seen)
	}
	found := strings.Fields(harness.Output(w.Sh(box, lab.SearchLine(harness.TestSecret))))
	if strings.Join(found, " ") != "0 0 0" {
		t.Errorf("matches in environment, /proc and files: %v", found)
	}
}

func TestHostNotOnTheListIsRefusedByAnAlert(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box := w.Create(map[string]any{"network_policy": harness.Custom("api.example.com")})

	out, code := w.Sh(box, "curl -sS https://evil.example.net/")
	if code != 35 {
		t.Errorf("curl exited with %d: %s", code, out)
	}
	out, code = w.Sh(box, "curl -sS -o /tmp/body -w '%{http_code} %{content_type}' http://evil.example.net/ && cat /tmp/body")
	if code != 0 || !strings.HasPrefix(out, "403 application/problem+json") {
		t.Errorf("plain HTTP: %d %s", code, out)
	}
	harness.Contains(t, out, "not_allowed")
	w.NothingReached("evil.example.net")
	for _, stage := range []policy.Stage{policy.StageDNS, policy.StageConn, policy.StageHTTP} {
		e := w.Event(box, func(e audit.Event) bool { return e.Stage == stage && e.Name == "evil.example.net" })
		if e.Verdict != policy.Deny || e.Reason != name.ReasonNotAllowed {
			t.Errorf("%s decision %+v", stage, e)
		}
	}
	if q := w.Net.Queries("evil.example.net"); len(q) != 0 {
		t.Errorf("the name went upstream: %+v", q)
	}
}

func TestSpoofedSNIReachesTheOwnerOfTheName(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box := w.Create(map[string]any{"network_policy": harness.Custom("api.example.com")})
	addrs := w.MustSh(box, "getent ahostsv4 api.example.com")
	if !strings.Contains(addrs, ".") {
		t.Fatalf("api.example.com did not resolve: %s", addrs)
	}
	evil := w.V4("evil.example.net")
	out := w.MustSh(box, "curl -k -sS --resolve api.example.com:443:"+evil.String()+" https://api.example.com/echo")
	harness.Contains(t, out, `"method"`)
	w.NothingReached("evil.example.net")
	if seen := w.Net.Received("api.example.com", testnet.Path("/echo")); len(seen) != 1 {
		t.Errorf("the owner of the name received %d requests", len(seen))
	}
}

func TestMetadataIsRefusedAlthoughThePolicyListsIt(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box := w.Create(map[string]any{"network_policy": map[string]any{
		"mode": "custom", "allowed_cidrs": []string{"169.254.169.254/32", "0.0.0.0/0"},
	}})
	if out, code := w.Sh(box, "curl -sS -m 60 http://169.254.169.254/latest/meta-data/"); code == 0 {
		t.Errorf("the metadata address answered: %s", out)
	}
	w.NothingReached("169.254.169.254")
	e := w.Event(box, func(e audit.Event) bool { return e.Addr.String() == "169.254.169.254" })
	if e.Verdict != policy.Deny || e.Reason != name.ReasonProtectedRange || e.Stage != policy.StageKernel || e.Port != 80 {
		t.Errorf("decision %+v", e)
	}
}

func TestAllowedAddressTakesTheKernelPath(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	v4, v6 := w.V4("www.example.com"), w.V6("www.example.com")
	box := w.Create(map[string]any{"network_policy": map[string]any{
		"mode": "custom", "allowed_cidrs": []string{v4.String() + "/32", v6.String() + "/128"},
	}})
	for _, a := range []string{v4.String(), "[" + v6.String() + "]"} {
		w.MustSh(box, "curl -sS -k -o /dev/null https://"+a+"/kernel")
	}
	if seen := w.Net.Received("www.example.com", testnet.Path("/kernel")); len(seen) != 2 {
		t.Errorf("the server received %d requests", len(seen))
	}
	for _, e := range w.Events(box) {
		if e.Stage == policy.StageConn {
			t.Errorf("the proxy was involved: %+v", e)
		}
	}
}

func TestPolicyOpensAndClosesOnARunningBox(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box := w.Create(map[string]any{"network_policy": harness.Custom("api.example.com")})
	const line = "curl -k -sS -o /dev/null -w '%{http_code}' https://evil.example.net/"
	if _, code := w.Sh(box, line); code != 35 {
		t.Fatalf("before: curl exited with %d", code)
	}
	w.SetPolicy(box, harness.Custom("api.example.com", "*.example.net"))
	if out, code := w.Sh(box, line); code != 0 || out != "200" {
		t.Fatalf("opened: %d %s", code, out)
	}
	// A stream is open while the policy closes; another one, still allowed, is not interrupted.
	var cut, kept lab.SyncBuffer
	cutEnd := w.Background(box, "curl -m 150 -k -sS -N https://evil.example.net/sse", &cut)
	keptEnd := w.Background(box, "curl -k -sS -N --limit-rate 300k https://api.example.com/bytes/600000 | tee part | wc -c", &kept)
	if err := cut.Await(t.Context(), "data:"); err != nil {
		t.Fatalf("the stream did not begin: %v: %s", err, cut.String())
	}
	w.MustSh(box, "until [ -s part ]; do sleep 0.01; done")
	w.SetPolicy(box, harness.Custom("api.example.com"))
	if code, err := cutEnd(); err != nil || code == 0 || code == 28 { // 28: curl's timeout, the connection was not cut
		t.Errorf("the cut stream ended with %d, %v", code, err)
	}
	e := w.Event(box, func(e audit.Event) bool { return e.Reason == name.ReasonPolicyChanged })
	if e.Name != "evil.example.net" {
		t.Errorf("decision %+v", e)
	}
	if code, err := keptEnd(); code != 0 || err != nil || kept.String() != "600000\n" {
		t.Errorf("the transfer that stayed allowed ended with %d, %v: %s", code, err, kept.String())
	}
	if _, code := w.Sh(box, line); code != 35 {
		t.Errorf("closed: curl exited with %d", code)
	}
}

func TestDenyAllRefusesEverything(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box := w.Create(map[string]any{"network_policy": map[string]any{"mode": "deny-all"}})
	v4, v6 := w.V4("www.example.com"), w.V6("www.example.com")
	for line, want := range map[string]int{
		"curl -sS -m 60 https://www.example.com/":                                                                                               35,
		"curl -sS -m 60 -k https://" + v4.String() + "/":                                                                                        35,
		"curl -sS -m 60 -k 'https://[" + v6.String() + "]/'":                                                                                    35,
		"curl -sS -m 60 telnet://" + v4.String() + ":7":                                                                                         7,
		"curl -sS -m 60 -x http://10.200.0.1:3128 https://www.example.com/":                                                                     56,
		"python3 -c 'import socket; s=socket.socket(); s.connect((\"" + v4.String() + "\", 22))'":                                               1,
		"python3 -c 'import socket; s=socket.socket(2,2); s.connect((\"" + v4.String() + "\", 7)); s.send(b\"x\"); s.settimeout(2); s.recv(9)'": 1,
	} {
		if out, code := w.Sh(box, line); code != want {
			t.Errorf("%s: exit %d, want %d: %s", line, code, want, out)
		}
	}
	w.NothingReached("www.example.com")
	if q := w.Net.Queries("www.example.com"); len(q) != 0 {
		t.Errorf("the name went upstream: %+v", q)
	}
}

func TestHeaderRuleIsNoWayAround(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	// allow-all leaves addresses to the kernel; a host with a rule must still never be reached without the interceptor.
	box := w.Create(map[string]any{
		"attach_headers": map[string]any{"api.example.com": map[string]string{"X-Key": harness.TestSecret}},
	})
	api := w.V4("api.example.com")
	w.MustSh(box, "curl -sS -o /dev/null https://api.example.com/a")
	w.MustSh(box, "curl -sS -o /dev/null --http1.1 https://api.example.com/b")
	w.MustSh(box, "curl -sS -o /dev/null --resolve api.example.com:443:"+w.V4("evil.example.net").String()+" https://api.example.com/c")
	for _, path := range []string{"/a", "/b", "/c"} {
		seen := w.Net.Received("api.example.com", testnet.Path(path))
		if len(seen) != 1 || seen[0].Header.Get("X-Key") != harness.TestSecret {
			t.Errorf("%s: the server received %+v", path, seen)
		}
	}
	// Not on plain HTTP, not under another authority.
	w.Sh(box, "curl -sS -o /dev/null http://api.example.com/plain")
	out, _ := w.Sh(box, "curl -sS -H 'Host: evil.example.net' https://api.example.com/other -w '%{http_code}'")
	harness.Contains(t, out, "421")
	w.Sh(box, "curl -k -sS -o /dev/null https://"+api.String()+"/by-address")
	for _, r := range w.Net.Received("api.example.com", testnet.Any) {
		if r.Header.Get("X-Key") != "" && (r.Target == "/plain" || r.Target == "/other" || r.Target == "/by-address") {
			t.Errorf("the secret went out on %s", r.Target)
		}
	}
	// A host without a rule passes end to end: the box sees the server's own certificate.
	out = w.MustSh(box, "curl -k -sS -v -o /dev/null https://www.example.com/ 2>&1 | grep -i issuer")
	if strings.Contains(out, "boxgate") {
		t.Errorf("a host without a rule was intercepted: %s", out)
	}
}
