package attack

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/audit"
	"boxgate/e2e/harness"
	"boxgate/policy/name"
)

const namedWeb = "/v2/box/settings/network-policies/web"

func setWeb(w *harness.World, spec map[string]any) {
	w.T.Helper()
	if err := w.Client.Do(w.T.Context(), "PUT", namedWeb, spec, nil); err != nil {
		w.T.Fatal(err)
	}
}

// TestAttackKeepsUsingWhatANamedPolicyClosed: two boxes follow a named policy. They have an exchange of every kind
// open, and connections that the kernel forwards, when the policy closes some of the destinations. In both boxes
// exactly the connections to these are cut. A third box, whose own policy allows the same, loses no connection. The
// policy cannot be deleted, and it still applies after a restart of the gateway.
func TestAttackKeepsUsingWhatANamedPolicyClosed(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	flows, key := harness.AttackerAt(73), map[string]string{"X-Key": harness.Canary}
	wide := map[string]any{
		"mode": "custom", "allowed_domains": []string{"api.example.com", "www.example.com", "cdn.example.org", "evil.example.net"},
		"allowed_cidrs": []string{flows[0].String() + "/32", flows[1].String() + "/128"},
	}
	setWeb(w, wide)
	create := func(name string, policy any) *harness.Intruder {
		return w.Intrude(w.Create(map[string]any{
			"name": name, "network_policy": policy, "attach_headers": map[string]any{"api.example.com": key, "cdn.example.org": key},
		}))
	}
	followers := []*harness.Intruder{create("first", map[string]any{"named": "web"}), create("second", map[string]any{"named": "web"})}
	other := create("other", wide)
	var servers [2]*echoServer
	for family := range 2 {
		servers[family] = echo(w, netip.AddrPortFrom(flows[family], 7777))
	}
	var closed, kept []map[string]under
	var chats []*harness.Chatter
	for _, in := range followers {
		closed, kept = append(closed, openAll(in, "cdn.example.org", "evil.example.net")), append(kept, openAll(in, "api.example.com", "www.example.com"))
		r := w.Raid(in.Box)
		chats = append(chats, r.Chat("tcp", servers[0].at), r.Chat("tcp", servers[1].at))
	}
	kept = append(kept, openAll(other, "cdn.example.org", "evil.example.net"))

	setWeb(w, harness.Custom("api.example.com", "www.example.com"))
	isClosed := cutInTime(other)
	for i, all := range closed {
		for name, u := range all {
			isClosed(fmt.Sprintf("%s of box %d", name, i), u.Conn)
		}
	}
	for _, c := range chats {
		select {
		case <-c.Ended:
		case <-time.After(harness.Patience):
			t.Errorf("a flow to %v is still open", c.Conn.RemoteAddr())
		}
	}
	for i, all := range kept {
		for name, u := range all {
			if isCut(t, u.Conn) {
				t.Errorf("%s of box %d: cut although it is still allowed", name, i)
			}
		}
	}
	finishAll(t, kept[0], "api.example.com", "www.example.com")
	finishAll(t, kept[1], "api.example.com", "www.example.com")
	finishAll(t, kept[2], "cdn.example.org", "evil.example.net")
	for _, in := range followers {
		w.Event(in.Box, func(e audit.Event) bool {
			return e.Reason == name.ReasonPolicyChanged && e.Name == "evil.example.net"
		})
	}
	refused := func(when string) {
		t.Helper()
		for _, in := range followers {
			if out, code := w.Sh(in.Box, "curl -k -sS -m 30 https://evil.example.net/after"); code != 35 {
				t.Errorf("%s: %d %s", when, code, out)
			}
			w.MustSh(in.Box, "curl -k -sS -m 60 -o /dev/null https://api.example.com/after")
		}
		w.MustSh(other.Box, "curl -k -sS -m 60 -o /dev/null https://evil.example.net/after")
	}
	refused("after the change")

	err := w.Client.Do(t.Context(), "DELETE", namedWeb, nil, nil)
	if r, ok := errors.AsType[*api.ResponseError](err); !ok || r.Status != 409 || !strings.Contains(r.Message, "first, second;") {
		t.Errorf("deleting what two boxes follow: %v", err)
	}
	w.Kill()
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	refused("after a restart")
	setWeb(w, wide)
	for _, in := range followers {
		w.MustSh(in.Box, "curl -k -sS -m 60 -o /dev/null https://evil.example.net/open")
	}
	w.NoInternalErrors()
}

// TestAttackBelowANamedPolicy: neither a lease nor a policy set with the box's own key lifts denials of the ceiling and
// the named policy, and protected ranges stay closed.
func TestAttackBelowANamedPolicy(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	setWeb(w, map[string]any{"mode": "custom", "allowed_domains": []string{"*.example.com"}, "denied_domains": []string{"www.example.com"}, "allowed_cidrs": []string{"10.0.0.0/8", "169.254.0.0/16"}})
	box := w.Create(map[string]any{"network_policy": map[string]any{"named": "web"}})
	w.Lease(box, "allow", time.Hour, "*.example.net")
	w.Lease(box, "deny", time.Hour, "api.example.com")
	err := w.Client.Do(t.Context(), "POST", api.BoxPath(box, "config/network-policy/leases"), map[string]any{"action": "allow", "entries": []string{"www.example.com"}, "expires_in": 60}, nil)
	if r, ok := errors.AsType[*api.ResponseError](err); !ok || r.Status != 422 {
		t.Errorf("a lease of what the named policy denies: %v", err)
	}
	reaches := func(when, url string, want bool) {
		t.Helper()
		if out, code := w.Sh(box, "curl -k -sS -m 30 -o /dev/null "+url); (code == 0) != want {
			t.Errorf("%s, %s: exit status %d, want it reached: %v\n%s", when, url, code, want, out)
		}
	}
	all := func(when string) {
		t.Helper()
		for url, want := range map[string]bool{
			"https://evil.example.net/": true, "https://api.example.com/": false, "https://www.example.com/": false, "https://multi.example.com/": true,
			"http://169.254.169.254/": false, "http://10.200.0.1:8600/": false,
		} {
			reaches(when, url, want)
		}
	}
	all("at first")
	setWeb(w, map[string]any{"mode": "custom", "denied_domains": []string{"www.example.com"}})
	all("changed")
	setWeb(w, map[string]any{"mode": "custom", "allowed_domains": []string{"multi.example.com"}, "denied_domains": []string{"evil.example.net"}})
	reaches("denied below the lease", "https://evil.example.net/", false)
	reaches("denied below the lease", "https://multi.example.com/", true)
}
