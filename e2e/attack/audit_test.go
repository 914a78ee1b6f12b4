package attack

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"boxgate/audit"
	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/policy"
	"boxgate/policy/match"
	"boxgate/policy/name"
)

// wouldDeny matches traffic to a host that passed only because the policy is audited.
func wouldDeny(host, rule string) func(audit.Event) bool {
	return func(e audit.Event) bool {
		return e.Name == host && e.Stage != policy.StageDNS && e.Verdict == policy.Allow && e.Reason == name.ReasonWouldDeny && strings.HasPrefix(e.Rule, rule)
	}
}

// While its policy is audited, a box reaches other hosts and makes other requests than the policy allows. None of them carries a
// credential, over whichever way and whichever connection the gateway keeps to the server. Protected ranges, denied lists, the ceiling and a
// denying lease stay closed.
func TestAttackSecretUnderAnAudit(t *testing.T) {
	t.Parallel()
	w := harness.NewCaptured(t, func(c *config.Config) {
		c.Policy.Ceiling.Spec = policy.Spec{
			Mode: policy.ModeCustom, DeniedDomains: []string{"git.example.com"},
			Rules: []match.RequestRule{{Hosts: []string{"www.example.com"}, Methods: []string{"DELETE"}, Action: match.ActionDeny}},
		}
	})
	key := map[string]string{"X-Key": harness.Canary}
	spec := harness.Custom("api.example.com")
	spec["denied_domains"] = []string{"evil.example.net"}
	spec["rules"] = []map[string]any{{"hosts": []string{"api.example.com"}, "methods": []string{"GET"}, "action": "allow"}, {"hosts": []string{"api.example.com"}, "action": "deny"}}
	box := w.Create(map[string]any{"network_policy": spec, "attach_headers": map[string]any{"api.example.com": key, "cdn.example.org": key, "www.example.com": key}})
	w.Lease(box, "deny", time.Hour, "multi.example.com")
	run := func(line string, want int) string {
		t.Helper()
		out, code := w.Sh(box, line)
		if code != want {
			t.Errorf("%s: exit status %d, want %d\n%s", line, code, want, out)
		}
		return out
	}
	run("curl -k -sS -m 30 https://cdn.example.org/before", 35)
	w.Audit(box, time.Hour)

	const flags = "-k -sS -m 30 -o /dev/null -w '%{http_code}\\n' "
	run("curl "+flags+"https://cdn.example.org/direct", 0)
	run("curl "+flags+"-x http://10.200.0.1:3128 https://cdn.example.org/connect", 0)
	run("curl "+flags+"-x http://10.200.0.1:3128 http://plain.example.com/proxied", 0)
	run("curl "+flags+"http://plain.example.com/plain", 0)
	run("curl "+flags+"https://www.example.com/read", 0) // intercepted for the ceiling
	for _, version := range []string{"--http1.1", "--http2"} {
		var line strings.Builder
		fmt.Fprintf(&line, "curl %s %s https://api.example.com/get", flags, version)
		for range 3 {
			fmt.Fprintf(&line, " --next %s %s -X POST -d x https://api.example.com/post --next %s %s https://api.example.com/get", flags, version, flags, version)
		}
		if out := run(line.String(), 0); strings.Contains(out, "403") {
			t.Errorf("%s: %s", version, out)
		}
	}
	got, others := 0, 0
	for _, host := range []string{"api.example.com", "cdn.example.org", "www.example.com", "plain.example.com"} {
		for _, r := range w.Net.Received(host) {
			switch {
			case r.Method == "":
			case strings.HasPrefix(r.Target, "/get"):
				if got++; r.Header.Get("X-Key") != harness.Canary {
					t.Errorf("the policy allows %s %s%s, which has no credential", r.Method, host, r.Target)
				}
			default:
				if others++; strings.Contains(fmt.Sprint(r.Header), harness.Canary) {
					t.Errorf("a credential was sent to %s %s%s", r.Method, host, r.Target)
				}
			}
		}
	}
	if got != 8 || others < 11 {
		t.Errorf("%d requests that the policy allows, and %d others", got, others)
	}
	w.Event(box, wouldDeny("cdn.example.org", "not_allowed"))
	w.Event(box, wouldDeny("plain.example.com", "not_allowed"))
	w.Event(box, wouldDeny("api.example.com", "request_rule: "))

	for _, host := range []string{"evil.example.net", "git.example.com", "multi.example.com"} {
		run("curl -k -sS -m 30 https://"+host+"/denied", 35)
		run("curl -k -sS -m 30 -x http://10.200.0.1:3128 https://"+host+"/denied", 56)
		run("curl -k -sS -m 30 --resolve "+host+":443:"+w.V4("cdn.example.org").String()+" https://"+host+"/denied", 35)
		if seen := w.Net.Received(host); len(seen) > 0 {
			t.Errorf("%s received %+v", host, seen)
		}
	}
	if out := run("curl "+flags+"-X DELETE https://www.example.com/ceiling", 0); !strings.HasPrefix(out, "403") {
		t.Errorf("a request that the ceiling denies: %s", out)
	}
	for _, host := range []string{"metadata.example.net", "private.example.net"} {
		if out, code := w.Sh(box, "curl -k -sS -m 10 https://"+host+"/"); code == 0 {
			t.Errorf("%s: %s", host, out)
		}
	}
	r := w.Raid(box)
	for _, port := range []uint16{443, 853} { // QUIC, and DNS over QUIC
		for _, a := range harness.AttackerAt(74) {
			if got, other := r.Try("udp", netip.AddrPortFrom(a, port)), r.Try("udp", netip.AddrPortFrom(a, 7780)); got == other {
				t.Errorf("UDP to %v port %d: %q, like another port", a, port, got)
			}
		}
	}
	for _, to := range []string{"169.254.169.254:80", "10.0.0.5:443", "10.200.0.1:8600", "127.0.0.1:8600"} {
		if got := r.Try("tcp", netip.MustParseAddrPort(to)); got == "connected" || got == "" {
			t.Errorf("%s: %q", to, got)
		}
	}
	w.NoInternalErrors()
}

// The policy is enforced again at the end of an audit, while a box floods the gateway: all that only the audit let pass is cut, in the proxy
// and in the kernel, and what the policy allows loses no byte.
func TestAttackOutlivesAnAudit(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	in := w.Intrude(w.Create(map[string]any{
		"network_policy": harness.Custom("api.example.com", "www.example.com"),
		"attach_headers": map[string]any{"api.example.com": map[string]string{"X-Key": harness.Canary}},
	}))
	kept := openAll(in, "api.example.com", "www.example.com")
	const lasts = 6 * time.Second
	w.Audit(in.Box, lasts)
	ends := time.Now().Add(lasts)
	closed := map[string]under{}
	for kind, open := range kinds {
		closed[kind] = open(in, "evil.example.net", func(c net.Conn, sni string) net.Conn { return harness.TLSUnchecked(c, sni) })
	}
	r := w.Raid(in.Box)
	var udp []*harness.Chatter
	for _, a := range harness.AttackerAt(73) {
		push(w, netip.AddrPortFrom(a, 7779))
		udp = append(udp, listenTo(r, netip.AddrPortFrom(a, 7779)))
	}
	flood := make(chan string, 1)
	go func() {
		out, _ := w.Sh(in.Box, `for i in 1 2 3 4; do timeout 12 sh -c 'while :; do curl -k -s -m 3 -o /dev/null https://evil.example.net/flood$RANDOM; done' & done; wait`)
		flood <- out
	}()
	grace := graceOf(t)
	w.Until("the audit ends", func() bool { return time.Now().After(ends) })
	isClosed := cutInTime(in)
	for kind, u := range closed {
		isClosed(kind, u.Conn)
	}
	w.Until("time has passed", func() bool { return time.Since(ends) > grace()+more })
	for _, c := range udp {
		if last := time.Unix(0, c.Heard.Load()); last.After(ends.Add(grace())) && !harness.RaceDetector() {
			t.Errorf("a flow to %v was heard %v after the end", c.Conn.RemoteAddr(), last.Sub(ends))
		}
		if c.Heard.Load() == 0 {
			t.Errorf("a flow to %v was never heard", c.Conn.RemoteAddr())
		}
	}
	for kind, u := range kept {
		if isCut(t, u.Conn) {
			t.Errorf("%s: cut although it is still allowed", kind)
		}
	}
	if out, code := w.Sh(in.Box, "curl -k -sS -m 30 https://evil.example.net/after"); code != 35 {
		t.Errorf("after its end: %d %s", code, out)
	}
	<-flood
	harness.Contains(t, w.ReadLog(), `"action":"audit"`)
	finishAll(t, kept, "api.example.com", "www.example.com")
	w.NoInternalErrors()
}
