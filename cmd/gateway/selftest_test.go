package main

import (
	"encoding/json"
	"path"
	"strings"
	"testing"

	"boxgate/internal/lab"
	"boxgate/internal/testnet"
)

// selftest runs the command in a world and returns its card and exit status.
func (w *world) selftest(box string) (selfTestCard, int) {
	w.t.Helper()
	cmd := w.Command(w.t.Context(), "box", "selftest", box, "--json")
	var errout strings.Builder
	cmd.Stderr = &errout
	out, _ := cmd.Output()
	var card selfTestCard
	if err := json.Unmarshal(out, &card); err != nil {
		w.t.Fatalf("%v: %s%s", err, out, errout.String())
	}
	return card, cmd.ProcessState.ExitCode()
}

// isTight fails the test unless the box is tight.
func (w *world) isTight(box string) selfTestCard {
	w.t.Helper()
	card, code := w.selftest(box)
	if !card.Tight || code != exitOK || card.Summary.Tight < 60 {
		var text strings.Builder
		_ = printCard(&text, card)
		w.t.Errorf("exit status %d, %d tight:\n%s", code, card.Summary.Tight, text.String())
	}
	if card.DurationMS > 10_000 {
		w.t.Errorf("the card took %d ms", card.DurationMS)
	}
	return card
}

// TestSelfTestOfTightBoxes: under every kind of policy the card is clean, says what the policy allows, and no host of
// the internet was bothered but the owner of an allowed name.
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
			w := newWorld(t, nil)
			box := w.create(map[string]any{"network_policy": policy})
			w.isTight(box)
			for _, host := range []string{"evil.example.net", "169.254.169.254", "private.example.net", "www.example.com"} {
				for _, r := range w.Net.Received(host, testnet.Any) {
					t.Errorf("%s received %+v", host, r)
				}
			}
			out, code := w.gatewayCommand("box", "selftest", box)
			if code != exitOK {
				t.Errorf("exit status %d: %s", code, out)
			}
			t.Logf("card:\n%s", out)
			contains(t, out, "protected addresses", "forged sources", "DNS", "TIGHT")
		})
	}
}

// TestSelfTestFindsHoles makes one hole at a time in the kernel rules, while nobody puts them back, and wants the card to
// fail at the attack that comes through it.
func TestSelfTestFindsHoles(t *testing.T) {
	t.Parallel()
	const forward, local = "0xb0c50f01", "0xb0c50f02" // marks of packets that may leave, and that may reach the gateway
	for name, tt := range map[string]struct {
		mode  string
		holes []string // see nft; BOX stands for the box
		group string
		// attack and family are of a probe that must have found it, why a part of what it says.
		attack, family, why string
	}{
		"metadata is no longer protected": {"allow-all", []string{"flush set inet boxgate protected_*_v4"},
			"protected addresses", "cloud metadata", "ipv4", "a packet left by up0 to 169.254.169.254:80"},
		"nothing is protected over IPv6": {"allow-all", []string{"flush set inet boxgate protected_*_v6"},
			"protected addresses", "unique local", "ipv6", "a packet left by up0"},
		"sources are not checked": {"allow-all", []string{"delete rule inet boxgate guard_box handle HANDLE(guard_box, refuse_spoofed_source)"},
			"forged sources", "a stranger's address", "ipv6", "a packet left by up0"},
		"shapes are not checked": {"allow-all", []string{"flush chain inet boxgate guard_shape"},
			"protocols and packets", "IP options", "ipv4", "a packet left by up0"},
		"the box's own chain accepts": {"deny-all", []string{"insert rule inet boxgate box_BOX_* meta mark set " + forward + " meta pkttype set host accept"},
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
			w := stoppedWorld(t, lab.Options{})
			w.Flags = []string{"--no-watch"}
			if err := w.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			box := w.create(map[string]any{"network_policy": map[string]any{"mode": tt.mode}})
			for _, line := range tt.holes {
				w.nft(strings.ReplaceAll(line, "BOX", box))
			}
			card, code := w.selftest(box)
			if code != exitFailed || card.Tight || card.Summary.Holes == 0 {
				t.Errorf("exit status %d, tight %t, %d holes", code, card.Tight, card.Summary.Holes)
			}
			var text strings.Builder
			_ = printCard(&text, card)
			for _, p := range card.Probes {
				if p.Group == tt.group && p.Attack == tt.attack && p.Family == tt.family {
					if p.Verdict != "hole" || !strings.Contains(p.Why, tt.why) {
						t.Errorf("%+v\n%s", p, text.String())
					}
					return
				}
			}
			t.Errorf("no such probe:\n%s", text.String())
		})
	}
}

// TestSelfTestFindsAMirror: another program copies the box's packets to the internet, outside of the gateway's table.
func TestSelfTestFindsAMirror(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	box := w.create(map[string]any{"network_policy": map[string]any{"mode": "deny-all"}})
	links, err := w.Net.Gateway().Run(t.Context(), "ip", "-o", "link", "show", "group", "0xb0c5")
	if err != nil {
		t.Fatalf("%v: %s", err, links)
	}
	link, _, _ := strings.Cut(strings.Fields(links)[1], "@")
	w.nft("add table netdev mirror")
	w.nft("add chain netdev mirror in { type filter hook ingress device " + link + " priority 0; }")
	w.nft("add rule netdev mirror in dup to up0")
	card, code := w.selftest(box)
	if code != exitFailed || card.Summary.Holes < 50 {
		t.Errorf("exit status %d, %d holes", code, card.Summary.Holes)
	}
}

// nft runs one command in the gateway's namespace. HANDLE(chain, text) stands for the handle of the chain's rule that
// holds the text, and a word with a star for the chain or set of that name: those of a plan have another one after each
// change.
func (w *world) nft(command string) {
	w.t.Helper()
	command = w.nftNames(command)
	if head, rest, ok := strings.Cut(command, "HANDLE("); ok {
		args, tail, _ := strings.Cut(rest, ")")
		chain, text, _ := strings.Cut(args, ", ")
		listing, err := w.Net.Gateway().Run(w.t.Context(), "nft", "-a", "list", "chain", "inet", "boxgate", chain)
		if err != nil {
			w.t.Fatalf("%v: %s", err, listing)
		}
		for line := range strings.Lines(listing) {
			if _, handle, found := strings.Cut(line, "# handle "); found && strings.Contains(line, text) {
				command = head + strings.TrimSpace(handle) + tail
			}
		}
	}
	if out, err := w.Net.Gateway().Run(w.t.Context(), "nft", command); err != nil {
		w.t.Fatalf("nft %s: %v: %s", command, err, out)
	}
}

// nftNames replaces words with stars by the shortest names in the gateway's table that match.
func (w *world) nftNames(command string) string {
	w.t.Helper()
	if !strings.Contains(command, "*") {
		return command
	}
	listing, err := w.Net.Gateway().Run(w.t.Context(), "nft", "list", "table", "inet", "boxgate")
	if err != nil {
		w.t.Fatalf("%v: %s", err, listing)
	}
	words := strings.Fields(command)
	for i, pattern := range words {
		found := ""
		for line := range strings.Lines(listing) {
			f := strings.Fields(line)
			if len(f) < 2 || f[0] != "chain" && f[0] != "set" {
				continue
			}
			if ok, _ := path.Match(pattern, f[1]); ok && (found == "" || len(f[1]) < len(found)) {
				found = f[1]
			}
		}
		if strings.Contains(pattern, "*") {
			words[i] = found
		}
	}
	return strings.Join(words, " ")
}
