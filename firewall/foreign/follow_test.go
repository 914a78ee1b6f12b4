package foreign

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"boxgate/firewall/namespace"
	"boxgate/internal/nightly"
)

// Rules as administrators write them are followed to their end for packets of boxes.
func TestRulesAreFollowed(t *testing.T) {
	nightly.Root(t)
	gateway := testNamespace(t)
	const hook, established = "type filter hook forward priority 0; policy ", "ct state established,related accept; "
	for name, c := range map[string]struct {
		chains string
		want   string // empty: no finding
	}{
		"a final reject":         {"chain f { " + hook + "accept; " + established + "reject; }", "drops what the kernel forwards"},
		"a drop for all":         {"chain f { " + hook + "accept; " + established + "counter drop; }", "drops what the kernel forwards"},
		"some addresses":         {"chain f { " + hook + "accept; ip daddr 192.0.2.1 drop; limit rate 5/second drop; }", ""},
		"another interface":      {"chain f { " + hook + "accept; iifname eth1 drop; iifname \"br*\" drop; }", ""},
		"all but an interface":   {"chain f { " + hook + "accept; " + established + "iifname != eth1 drop; }", "drops what the kernel forwards"},
		"a name with a wildcard": {"chain f { " + hook + "drop; " + established + "iifname \"bg*\" accept; }", ""},
		"names in a set":         {"chain f { " + hook + "drop; " + established + "iifname { lo, eth1 } accept; }", "drops what the kernel forwards"},
		"a wildcard in a set":    {"chain f { " + hook + "drop; " + established + "iifname { lo, \"bg*\" } accept; }", ""},
		"other names in a set":   {"chain f { " + hook + "accept; iifname { lo, \"br*\" } drop; }", ""},
		"a map of states":        {"chain f { " + hook + "drop; ct state vmap { established : accept, related : accept, invalid : drop }; iifgroup 45253 accept; }", ""},
		"no replies":             {"chain f { " + hook + "drop; iifgroup 45253 accept; }", "drops replies to what the kernel forwards"},
		"a chain that accepts":   {"chain a { iifname \"bg*\" accept; }; chain f { " + hook + "drop; jump a; " + established + "}", ""},
		"a chain that returns":   {"chain a { return; drop; }; chain f { " + hook + "accept; jump a; }", ""},
		"a chain for good":       {"chain a { counter; }; chain f { " + hook + "drop; goto a; iifgroup 45253 accept; }", "drops what the kernel forwards"},
		"one family":             {"chain f { " + hook + "accept; meta nfproto ipv6 drop; }", "drops what the kernel forwards"},
		"the host's ports":       {"chain i { type filter hook input priority 0; policy accept; iif lo accept; " + established + "tcp dport 22 accept; drop; }", "drops DNS queries and proxied connections"},
		"output":                 {"chain o { type filter hook output priority 0; policy drop; }", ""},
	} {
		script := "table inet host { " + c.chains + "; }"
		var err error
		if broken := namespace.Do(gateway, func() error {
			if out, err := exec.CommandContext(t.Context(), "nft", script).CombinedOutput(); err != nil {
				return fmt.Errorf("%w %s", err, out)
			}
			err = Check()
			return exec.CommandContext(t.Context(), "nft", "delete table inet host").Run()
		}); broken != nil {
			t.Errorf("%s: %v", name, broken)
			continue
		}
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}
