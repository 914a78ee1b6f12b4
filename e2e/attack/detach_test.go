package attack

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"boxgate/e2e/harness"
	"boxgate/internal/lab"
)

// An attached box with control of its own network misuses it, and the absence of a killed gateway. It reaches no more
// than its policy allows, other boxes are not affected, and detaching leaves no traces.
func TestAttackAttachedBoxWorksOnItsOwnNetwork(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box := w.Attach(map[string]any{"network_policy": harness.Custom("api.example.com")})
	other := w.Attach(map[string]any{"network_policy": harness.Custom("api.example.com")})
	evil := w.V4("evil.example.net").String()
	reaches := func(box, what string) bool {
		_, code := w.Sh(box, "curl -sS --max-time 5 --connect-timeout 2 "+what)
		return code == 0
	}
	const api = "-k https://api.example.com/echo"
	for _, act := range []string{
		"ip link set eth0 down; ip link set eth0 address 02:00:00:00:00:77; ip link set eth0 up",
		"ip link set eth0 mtu 68; ip link set eth0 mtu 9000",
		"ip link set eth0 down; ip link set eth0 name other0; ip link set other0 up",
		"ip addr flush dev eth0; ip addr add 10.200.0.1/16 dev eth0; ip route replace default dev eth0",
		"ip link add eth1 type veth peer name eth2; ip link set eth1 up; ip link set eth2 up; ip addr add 10.200.0.2/16 dev eth1",
		"ip link add link eth0 name v5 type vlan id 5; ip link add m0 link eth0 type macvlan mode bridge; ip link set m0 up",
		"ip link add t0 type vxlan id 5 remote " + evil + " dstport 4789 dev eth0; ip link set t0 up",
		"ip link del eth0",
		"unshare --net sh -c 'echo $$ > /tmp/$0; sleep 1' mover$$ & until [ -s /tmp/mover$$ ]; do :; done; ip link set eth0 netns $(cat /tmp/mover$$); rm /tmp/mover$$; wait",
		"for family in -4 -6; do ip $family rule del pref 0; ip $family rule add pref 0 prohibit; done; ip link del eth0",
	} {
		w.Sh(box, act)
		if reaches(box, "-k --resolve evil.example.net:443:"+evil+" https://evil.example.net/") || reaches(box, "http://"+evil+"/") {
			t.Errorf("after %q a forbidden host is reached", act)
		}
		if !reaches(other, api) {
			t.Errorf("after %q another box has no network", act)
		}
	}
	w.Kill()
	w.Sh(box, "ip link del eth0; ip link add eth0 type veth peer name eth9; ip link set eth0 up; ip link set eth9 up")
	began := time.Now()
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took > 25*time.Second {
		t.Errorf("the gateway took %v to start", took)
	}
	if !reaches(other, api) || reaches(box, "http://"+evil+"/") {
		t.Error("after a restart of the gateway")
	}
	w.SetPolicy(other, map[string]any{"mode": "deny-all"})
	for _, id := range []string{box, other} {
		if out, code := w.GatewayCommand("box", "detach", id); code != 0 {
			t.Errorf("detaching: %s", out)
		}
	}
	rules, err := w.Net.Gateway().Run(t.Context(), "sh", "-c", "nft list ruleset; ip link; ip route; ip -6 route; ip neigh")
	if err != nil || strings.Contains(rules, box) || strings.Contains(rules, other) {
		t.Errorf("left behind (%v): %s", err, rules)
	}
	if pins, err := os.ReadDir(filepath.Join(lab.RunDir(w.Dir), "attached")); err != nil || len(pins) != 0 {
		t.Errorf("left pinned: %v %v", pins, err)
	}
}

// An attached box is restricted like a launched one, although its root controls its own network.
func TestAttacksFromAttachedBoxes(t *testing.T) {
	t.Parallel()
	rows := []string{
		"TestAttackForgedSource", "TestAttackForgedNeighbours", // spoofing
		"TestAttackFragmentsOptionsAndTunnels", "TestAttackMalformedPackets", "TestAttackICMPTunnel", "TestAttackUDP", // the kernel
		"TestAttackAllowedNameAtForeignAddress", "TestAttackAuthorityOtherThanSNI", "TestAttackSecondHostOnKeepAlive", // names
		"TestAttackSpecialAddresses", "TestAttackHostPorts", "TestAttackDenyWins", // addresses
		"TestAttackFlowsOutliveThePolicy", "TestAttackFlowsUnderABorrowedName", // tightening
	}
	harness.Repeat(t, harness.AttachedRun(t.Context(), rows...), rows...)
}
