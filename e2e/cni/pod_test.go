package cni

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"boxgate/api"
)

// result is what ADD prints.
type result struct {
	Interfaces []struct{ Name, Sandbox string }
	IPs        []struct {
		Interface *int
		Address   string
	}
	Routes []struct{ Dst, GW string }
	DNS    struct{ Nameservers, Search []string }
}

// An annotated pod of a network with another plugin has the gateway as its only way out: the other plugin's interface is removed. What
// that plugin keeps on the host is removed by its DEL.
func TestChainedPodIsUnderTheGateway(t *testing.T) {
	t.Parallel()
	n := newNetwork(t, true, nil)
	n.newPod(nil).must("add") // makes the bridge and its chains, which stay
	before := n.trace()
	p := n.webPod()
	var r result
	if out := p.must("add"); json.Unmarshal([]byte(out), &r) != nil {
		t.Fatal(out)
	}
	if links := p.links(); !slices.Equal(links, []string{"lo", "eth0"}) {
		t.Errorf("interfaces of the pod: %q", links)
	}
	if last := len(r.Interfaces) - 1; len(r.IPs) != 2 || r.Interfaces[last].Name != "eth0" || r.Interfaces[last].Sandbox != p.path || *r.IPs[0].Interface != last ||
		!strings.HasPrefix(r.IPs[0].Address, "10.200.") || len(r.Routes) != 2 || r.DNS.Nameservers[0] != "10.200.0.1" || !slices.Contains(r.DNS.Search, "default.svc.cluster.local") {
		t.Errorf("the result: %+v", r)
	}
	for _, i := range r.Interfaces {
		if strings.HasPrefix(i.Name, "veth") {
			t.Errorf("the result has the interface %s, which is gone", i.Name)
		}
	}
	p.reaches("attached")
	if out, code := p.sh("ip route; ping -c1 -W2 10.88.0.1"); code == 0 {
		t.Errorf("the bridge is still reached: %s", out)
	}
	var boxes []struct {
		NamedPolicy string `json:"named_policy"`
		Attached    *api.Attached
	}
	if err := n.Client.Get(t.Context(), api.BoxesPath(""), &boxes); err != nil || len(boxes) != 1 || boxes[0].Attached.Kind != api.AttachCNI ||
		boxes[0].Attached.Pod != "default/agent" || boxes[0].NamedPolicy != webPolicy {
		t.Fatalf("%+v %v", boxes, err)
	}
	p.fails("add", "")
	p.must("del")
	p.must("del")
	if after := n.trace(); after != before {
		t.Errorf("left after DEL:\n%s\nbefore:\n%s", after, before)
	}
	if links := p.links(); !slices.Equal(links, []string{"lo"}) {
		t.Errorf("interfaces of the pod after DEL: %q", links)
	}
}

// A pod without annotation is untouched, whether the gateway runs or not.
func TestOtherPodIsUntouched(t *testing.T) {
	t.Parallel()
	n := newNetwork(t, true, nil)
	describe := func(p *pod) string {
		var all strings.Builder
		for _, line := range []string{"ip -o link | sed 's/ether [0-9a-f:]* //;s/@if[0-9]*//'", "ip -o -4 addr | sed 's|10.88.[0-9.]*|A|g'", "ip -4 route | sed 's|src 10.88.0.*|A|'", "ip neigh", "ip rule",
			"nft list ruleset", "cat /proc/sys/net/ipv4/conf/all/forwarding /proc/sys/net/ipv4/conf/eth0/rp_filter"} {
			out, _ := p.sh(line)
			all.WriteString("$ " + line + "\n" + out)
		}
		return all.String()
	}
	kernel := func() string {
		out, _ := n.onHost(exec.Command("nft", "list", "table", "inet", "boxgate"))
		return counters.ReplaceAllString(out, "")
	}
	n.writeList(map[string]any{"cniVersion": "1.1.0", "name": n.name, "plugins": []map[string]any{n.bridge()}})
	without := n.newPod(nil)
	plain := without.must("add")
	want := describe(without)
	rules := kernel()
	n.writeList(map[string]any{"cniVersion": "1.1.0", "name": n.name, "plugins": []map[string]any{n.bridge(), n.conf}})
	compare := func(when string, annotations map[string]string) {
		t.Helper()
		p := n.newPod(annotations)
		got := p.must("add")
		if have := describe(p); have != want {
			t.Errorf("%s: the pod:\n%s\nwithout the plugin:\n%s", when, have, want)
		}
		if a, b := strings.Count(got, "\n"), strings.Count(plain, "\n"); a != b {
			t.Errorf("%s: the result: %s\nwithout the plugin: %s", when, got, plain)
		}
		p.must("check")
		if now := kernel(); now != rules {
			t.Errorf("%s: the rules have changed: %s", when, now)
		}
		p.must("del")
	}
	compare("no annotations", nil)
	compare("other annotations", map[string]string{"example.com/boxgate.dev": "named:web"})
	if entries, _ := os.ReadDir(n.records()); len(entries) != 0 {
		t.Errorf("records: %v", entries)
	}
	n.Kill()
	compare("without a gateway", nil)
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// All pods of a network with the plugin alone, and of configured namespaces, are the gateway's.
func TestWhichPodsAreTheGateways(t *testing.T) {
	t.Parallel()
	n := newNetwork(t, true, map[string]any{"namespaces": []string{"sandboxes"}})
	args := func(namespace string) string {
		return "CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=" + namespace + ";K8S_POD_NAME=agent"
	}
	listed := n.newPod(nil)
	listed.env = []string{args("sandboxes")}
	listed.must("add")
	listed.reaches("a pod of the namespace") // by the namespace's default
	other := n.newPod(nil)
	other.must("add")
	if out, _ := other.sh("ip -4 addr show eth0"); !strings.Contains(out, "10.88.") {
		t.Errorf("a pod of another namespace: %s", out)
	}
	unknown := n.newPod(nil)
	unknown.env = nil
	unknown.fails("add", "K8S_POD_NAMESPACE")

	n.write(false)
	alone := n.newPod(nil)
	alone.env = []string{args("sandboxes")}
	alone.must("add")
	alone.reaches("the only plugin")
	alone.must("check")
	n.Kill()
	if out, code := alone.sh("curl -sS -k --max-time 5 https://api.example.com/"); code == 0 {
		t.Errorf("a pod whose gateway is down: %s", out)
	}
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	alone.must("check")
	alone.reaches("after a restart of the gateway")
	alone.must("del")
}

// ADD without a gateway fails and leaves nothing; DEL waits for the gateway that must remove the pod.
func TestAddWithoutGateway(t *testing.T) {
	t.Parallel()
	n := newNetwork(t, true, nil)
	n.newPod(nil).must("add")
	before := n.trace()
	attached := n.webPod()
	attached.must("add")
	p := n.webPod()
	n.Kill()
	p.fails("add", "cannot be reached")
	if out, code := p.sh("ip -4 addr show eth0"); code == 0 && !strings.Contains(out, "10.88.") {
		t.Errorf("the pod has the interface %s", out)
	}
	attached.fails("del", "cannot be reached")
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	attached.must("del")
	p.must("del")
	if after := n.trace(); after != before {
		t.Errorf("left:\n%s\nbefore:\n%s", after, before)
	}
	n.writeList(map[string]any{"cniVersion": "1.1.0", "name": n.name, "plugins": []map[string]any{n.conf}})
	p.must("status")
	n.Kill()
	p.fails("status", "cannot attach pods")
	p.fails("gc", "cannot be reached")
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// A failure of the gateway after the first plugin's interface was removed leaves nothing either.
func TestRefusedPodLeavesNothing(t *testing.T) {
	t.Parallel()
	n := newNetwork(t, true, nil)
	n.newPod(nil).must("add")
	before := n.trace()
	p := n.webPod()
	if out, code := p.sh("ip link add other type veth peer name another && ip link set other up"); code != 0 {
		t.Fatal(out)
	}
	p.fails("add", "the gateway must be its only way out")
	p.must("del")
	if after := n.trace(); after != before {
		t.Errorf("left:\n%s\nbefore:\n%s", after, before)
	}
	if entries, err := os.ReadDir(filepath.Join(n.Dir, "state", "boxes")); err == nil && len(entries) != 0 {
		t.Errorf("files of boxes: %v", entries)
	}
}
