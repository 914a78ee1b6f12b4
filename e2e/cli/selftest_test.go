package cli

import (
	"strings"
	"testing"

	"boxgate/cmd/gateway/command/cli"
	"boxgate/e2e/harness"
	"boxgate/internal/lab"
	"boxgate/internal/testnet"
)

// TestSelfTestOfTightBoxes: under every kind of policy the card is clean and shows what the policy allows. No host of
// the internet receives traffic except the owner of an allowed name.
func TestSelfTestOfTightBoxes(t *testing.T) {
	t.Parallel()
	for name, policy := range map[string]map[string]any{
		"deny-all":  {"mode": "deny-all"},
		"allow-all": {"mode": "allow-all"},
		"domains":   {"mode": "custom", "allowed_domains": []string{"api.example.com", "*.example.org"}, "denied_domains": []string{"evil.example.org"}},
		"cidrs":     {"mode": "custom", "allowed_cidrs": []string{"198.51.100.0/24", "2001:db8:1::/48"}},
		"denied":    {"mode": "custom", "denied_domains": []string{"*.example.net"}, "denied_cidrs": []string{"203.0.113.0/24"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := harness.Shared(t)
			box := w.Create(map[string]any{"network_policy": policy})
			w.IsTight(box)
			for _, host := range []string{"evil.example.net", "169.254.169.254", "private.example.net", "www.example.com"} {
				for _, r := range w.Net.Received(host, testnet.Any) {
					t.Errorf("%s received %+v", host, r)
				}
			}
			out, code := w.GatewayCommand("box", "selftest", box)
			if code != cli.ExitOK {
				t.Errorf("exit status %d: %s", code, out)
			}
			t.Logf("card:\n%s", out)
			harness.Contains(t, out, "protected addresses", "forged sources", "DNS", "TIGHT")
		})
	}
}

// TestSelfTestFindsHoles opens one hole at a time in the kernel rules, without the gateway restoring them. The card
// must fail at the attack that gets through it.
func TestSelfTestFindsHoles(t *testing.T) {
	t.Parallel()
	const forward, local = "0xb0c50f01", "0xb0c50f02" // marks of packets that may leave, and that may reach the gateway
	for name, tt := range map[string]struct {
		mode  string
		holes []string // see nft
		group string
		// attack and family identify the probe that must find the hole. why is a part of its message.
		attack, family, why string
	}{
		"metadata is no longer protected": {"allow-all", []string{"flush set inet boxgate protected_*_v4"},
			"protected addresses", "cloud metadata", "ipv4", "a packet left by up0 to 169.254.169.254:80"},
		"nothing is protected over IPv6": {"allow-all", []string{"flush set inet boxgate protected_*_v6"},
			"protected addresses", "unique local", "ipv6", "a packet left by up0"},
		"sources are not checked": {"allow-all", []string{"delete rule inet boxgate guard_box handle HANDLE(guard_box, refuse_spoofed_source)"},
			"forged sources", "a stranger's address", "ipv6", "a packet left by up0"},
		"shapes are not checked": {"allow-all", []string{"flush chain inet boxgate guard_shape4", "flush chain inet boxgate guard_shape6"},
			"protocols and packets", "IP options", "ipv4", "a packet left by up0"},
		"the box's own chain accepts": {"deny-all", []string{"insert rule inet boxgate plan_* meta mark set " + forward + " meta pkttype set host accept"},
			"addresses not allowed", "TCP to any port", "ipv6", "a packet left by up0"},
		"the host is open": {"deny-all", []string{
			"insert rule inet boxgate judge_box meta mark set " + local + " meta pkttype set host accept", "insert rule inet boxgate input accept"},
			"the host", "TCP to a listening port", "ipv4", "it arrived at the listener"},
		"refusals are not logged": {"deny-all", []string{
			"flush chain inet boxgate refuse_protected_range", "add rule inet boxgate refuse_protected_range drop"},
			"protected addresses", "private 10/8", "ipv4", "no decision was logged"},
		"another rule stands behind the one that is gone": {"deny-all", []string{"flush set inet boxgate protected_*_v4"},
			"protected addresses", "multicast", "ipv4", "not for protected_range"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := harness.NewStopped(t, lab.Options{})
			w.Flags = []string{"--no-watch"}
			if err := w.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			box := w.Create(map[string]any{"network_policy": map[string]any{"mode": tt.mode}})
			for _, line := range tt.holes {
				w.NFT(line)
			}
			card, code := w.SelfTest(box)
			if code != cli.ExitFailed || card.Tight || card.Summary.Holes == 0 {
				t.Errorf("exit status %d, tight %t, %d holes", code, card.Tight, card.Summary.Holes)
			}
			for _, p := range card.Probes {
				if p.Group == tt.group && p.Attack == tt.attack && p.Family == tt.family {
					if p.Verdict != "hole" || !strings.Contains(p.Why, tt.why) {
						t.Errorf("%+v\n%s", p, card)
					}
					return
				}
			}
			t.Errorf("no such probe:\n%s", card)
		})
	}
}

// TestSelfTestFindsAMirror: another program copies the box's packets to the internet, outside of the gateway's table.
func TestSelfTestFindsAMirror(t *testing.T) {
	t.Parallel()
	w := harness.NewWorld(t, nil)
	box := w.Create(map[string]any{"network_policy": map[string]any{"mode": "deny-all"}})
	links, err := w.Net.Gateway().Run(t.Context(), "ip", "-o", "link", "show", "group", "0xb0c5")
	if err != nil {
		t.Fatalf("%v: %s", err, links)
	}
	link, _, _ := strings.Cut(strings.Fields(links)[1], "@")
	w.NFT("add table netdev mirror")
	w.NFT("add chain netdev mirror in { type filter hook ingress device " + link + " priority 0; }")
	w.NFT("add rule netdev mirror in dup to up0")
	card, code := w.SelfTest(box)
	if code != cli.ExitFailed || card.Summary.Holes < 50 {
		t.Errorf("exit status %d, %d holes", code, card.Summary.Holes)
	}
}
