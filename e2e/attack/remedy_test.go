package attack

import (
	"net/netip"
	"regexp"
	"strings"
	"testing"

	"boxgate/e2e/harness"
)

// printed matches the command at the end of a denial's hint.
var printed = regexp.MustCompile(`(?m)^  [a-z_]+: .*gateway (policy allow \S+ \S+)`)

// TestAttackPrintedRemedyOpensTooMuch: running the command that `gateway log` prints below a denial allows exactly the
// refused connection.
func TestAttackPrintedRemedyOpensTooMuch(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	shared, other, git := w.V4("cdn.example.org").String(), w.V4("www.example.com").String(), w.V4("git.example.com").String()
	const ssh = "timeout 20 curl -s -m 3 telnet://%s:22 </dev/null | grep -q SSH-2.0"
	dial := func(host string) string { return strings.Replace(ssh, "%s", host, 1) }
	tls := func(url string, more ...string) string {
		return "curl -k -sS -m 20 -o /dev/null " + strings.Join(more, " ") + " " + url
	}
	for name, c := range map[string]struct {
		policy     map[string]any
		try        string
		neighbours []string
		entry      string // of the policy
	}{
		"another port of an allowed name": {harness.Custom("cdn.example.org:443"), dial("cdn.example.org"), []string{
			dial(other), dial("static.example.org"), tls("https://cdn.example.org:8443/"), tls("https://static.example.org/", "--resolve static.example.org:443:"+shared),
			tls("https://static.example.org:8443/", "--resolve static.example.org:8443:"+shared),
		}, "cdn.example.org:22"},
		"a name on an odd port": {harness.Custom("api.example.com"), tls("https://www.example.com:8443/"), []string{
			tls("https://www.example.com/"), tls("https://evil.example.net:8443/", "--resolve evil.example.net:8443:"+other), dial(other),
		}, "www.example.com:8443"},
		"plain HTTP": {map[string]any{"mode": "deny-all"}, "curl -fsS -m 20 -o /dev/null http://www.example.com/", []string{
			tls("https://www.example.com/"), "curl -fsS -m 20 -o /dev/null http://www.example.com:8080/", "curl -fsS -m 20 -o /dev/null --resolve evil.example.net:80:" + other + " http://evil.example.net/",
		}, "www.example.com:80"},
		"a denied entry": {map[string]any{"mode": "custom", "denied_domains": []string{"www.example.com:8443", "evil.example.net"}}, tls("https://www.example.com:8443/"), []string{
			tls("https://evil.example.net:8443/"), tls("https://evil.example.net:8443/", "--resolve evil.example.net:8443:"+other),
		}, "www.example.com:8443"},
		"a look-up": {harness.Custom("api.example.com"), "getent ahostsv4 www.example.com | grep -q " + other, []string{
			tls("https://www.example.com:8443/"), "getent ahostsv4 evil.example.net | grep -q " + w.V4("evil.example.net").String(), dial("www.example.com"),
		}, "www.example.com:443"},
		"a name in a protocol without names": {harness.Custom("api.example.com"), dial("git.example.com"), []string{
			tls("https://git.example.com/"), dial("www.example.com"), dial(other), tls("https://evil.example.net:22/", "--resolve evil.example.net:22:"+git),
		}, "git.example.com:22"},
		"an address": {harness.Custom("api.example.com"), dial(git), []string{dial(other), dial(shared), tls("https://www.example.com/")}, git},
	} {
		box := w.Create(map[string]any{"network_policy": c.policy})
		for _, r := range w.ShEach(box, append([]string{c.try}, c.neighbours...)...) {
			if r.Code == 0 {
				t.Fatalf("%s: %s is not refused: %s", name, r.Line, r.Out)
			}
		}
		w.MustDelete(box)
		box = w.Create(map[string]any{"network_policy": c.policy}) // its first denial is the one that counts
		w.Sh(box, c.try)
		var found []string
		w.Until(name+": a command is printed", func() bool {
			log := w.Run(0, nil, "", "log", "--denied", "--box", box)
			found = nil
			for _, m := range printed.FindAllStringSubmatch(log, -1) {
				found = append(found, m[1])
			}
			return len(found) > 0 && strings.HasSuffix(found[len(found)-1], " "+c.entry)
		})
		log := w.Run(0, nil, "", "log", "--denied", "--box", box)
		if _, err := netip.ParseAddr(c.entry); (err == nil) != strings.Contains(log, "every port of the address") {
			t.Errorf("%s: whether an address with all its ports is opened is not said: %s", name, log)
		}
		w.Run(0, nil, "", strings.Fields(found[len(found)-1])...)
		if out, code := w.Sh(box, c.try); code != 0 {
			t.Errorf("%s: %s is followed, and still refused: %s", name, found, out)
		}
		for _, r := range w.ShEach(box, c.neighbours...) {
			if r.Code == 0 {
				t.Errorf("%s: %s is followed, and opens as well: %s\n%s", name, found, r.Line, r.Out)
			}
		}
	}
}

// TestAttackPrintedRemedyForUDP: no command could allow exactly one name for traffic that is judged by address, so none
// is printed where the name is known.
func TestAttackPrintedRemedyForUDP(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box := w.Create(map[string]any{"network_policy": harness.Custom("cdn.example.org:443")})
	w.Sh(box, "getent ahostsv4 cdn.example.org; bash -c 'echo x >/dev/udp/"+w.V4("cdn.example.org").String()+"/4444'")
	w.Until("the denial is explained", func() bool {
		return strings.Contains(w.Run(0, nil, "", "log", "--denied", "--box", box), "names do not open UDP")
	})
	if log := w.Run(0, nil, "", "log", "--denied", "--box", box); !strings.Contains(log, "udp/cdn.example.org:4444") || printed.MatchString(log) {
		t.Error(log)
	}
}
