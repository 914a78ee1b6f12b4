package cni

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"boxgate/api"
	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/internal/lab"
	"boxgate/internal/nightly"
)

// tools has what `make cni` builds.
const tools = "/var/lib/boxgate/cni"

// The policies that the configuration of the worlds lets pods ask for, and one that it does not.
const (
	webPolicy    = "web"
	secretPolicy = "all"
)

// network is a CNI network on the host of a world's gateway.
type network struct {
	*harness.World
	dir  string
	name string
	conf map[string]any // of the plugin
}

// newNetwork starts a gateway and makes a network: chained after the bridge plugin of the CNI project, or the plugin alone.
func newNetwork(t *testing.T, chained bool, conf map[string]any, changes ...func(*config.Config)) *network {
	t.Helper()
	nightly.Root(t)
	w := harness.NewWorld(t, func(c *config.Config) {
		c.Attach.CNI = config.AttachRules{{Namespace: "sandboxes", Default: "named:" + webPolicy}, {Policies: []string{"named:" + webPolicy}, Labels: []string{"team=x"}}}
		c.Attach.OCI = config.AttachRules{{Policies: []string{"named:" + webPolicy}}}
		for _, change := range changes {
			change(c)
		}
	})
	for name, policy := range map[string]map[string]any{webPolicy: harness.Custom("api.example.com"), secretPolicy: {"mode": "allow-all"}} {
		if err := w.Client.Do(t.Context(), "PUT", "/v2/box/settings/network-policies/"+name, policy, nil); err != nil {
			t.Fatal(err)
		}
	}
	n := &network{World: w, dir: t.TempDir(), name: "pods-" + strings.ToLower(rand.Text()[:6])}
	n.conf = map[string]any{
		"type": "boxgate-cni", "config": w.Config, "stateDir": n.records(),
		"capabilities": map[string]bool{"io.kubernetes.cri.pod-annotations": true, "dns": true},
	}
	maps.Copy(n.conf, conf)
	if err := os.Mkdir(filepath.Join(n.dir, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(w.Self, filepath.Join(n.dir, "bin", "boxgate-cni")); err != nil {
		t.Fatal(err)
	}
	n.write(chained)
	return n
}

// records is the directory of the plugin's records.
func (n *network) records() string { return filepath.Join(n.dir, "records") }

// bridge is the configuration of the first plugin of a chain.
func (n *network) bridge() map[string]any {
	return map[string]any{
		"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true,
		"ipam": map[string]any{
			"type": "host-local", "dataDir": filepath.Join(n.dir, "ipam"), "routes": []map[string]string{{"dst": "0.0.0.0/0"}},
			"ranges": [][]map[string]string{{{"subnet": "10.88.0.0/16"}}},
		},
	}
}

// write writes the network's configuration. CHECK of the bridge plugin would fail for a pod whose interface was replaced.
func (n *network) write(chained bool) {
	n.T.Helper()
	plugins := []map[string]any{n.conf}
	if chained {
		plugins = []map[string]any{n.bridge(), n.conf}
	}
	n.writeList(map[string]any{"cniVersion": "1.1.0", "name": n.name, "disableCheck": chained, "plugins": plugins})
}

func (n *network) writeList(list map[string]any) {
	n.T.Helper()
	data, err := json.Marshal(list)
	if err == nil {
		err = os.WriteFile(filepath.Join(n.dir, n.name+".conflist"), data, 0o600)
	}
	if err != nil {
		n.T.Fatal(err)
	}
}

// pod is a network namespace as a container runtime makes it: a mount at a path, before any process is in it.
type pod struct {
	n    *network
	path string
	env  []string
}

// newPod makes a pod with annotations.
func (n *network) newPod(annotations map[string]string) *pod {
	n.T.Helper()
	p := &pod{n: n, path: filepath.Join(n.T.TempDir(), "netns"), env: []string{"CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=agent"}}
	if annotations != nil {
		data, err := json.Marshal(map[string]any{"io.kubernetes.cri.pod-annotations": annotations, "dns": map[string]any{"Searches": []string{"default.svc.cluster.local"}}})
		if err != nil {
			n.T.Fatal(err)
		}
		p.env = append(p.env, "CAP_ARGS="+string(data))
	}
	if err := os.WriteFile(p.path, nil, 0o600); err != nil {
		n.T.Fatal(err)
	}
	if out, err := exec.Command("unshare", "--net="+p.path, "true").CombinedOutput(); err != nil {
		n.T.Fatal(err, string(out))
	}
	n.T.Cleanup(func() {
		p.must("del")
		p.end()
	})
	return p
}

// end removes the namespace, as a runtime does. Further calls have no effect.
func (p *pod) end() {
	if unix.Unmount(p.path, unix.MNT_DETACH) == nil {
		_ = os.Remove(p.path) // as runtimes do
	}
}

// webPod makes a pod with the policy web.
func (n *network) webPod() *pod {
	n.T.Helper()
	return n.newPod(map[string]string{"boxgate.dev/policy": "named:" + webPolicy})
}

// tool runs cnitool on the host of the gateway.
func (p *pod) tool(command string, env ...string) (string, int) {
	p.n.T.Helper()
	cmd := exec.Command(filepath.Join(tools, "bin", "cnitool"), command, p.n.name, p.path)
	cmd.Env = append(append(append(os.Environ(), "NETCONFPATH="+p.n.dir, "CNI_PATH="+filepath.Join(p.n.dir, "bin")+":"+filepath.Join(tools, "plugins")), p.env...), env...)
	return p.n.onHost(cmd)
}

// onHost runs a command in the network namespace of the gateway.
func (n *network) onHost(cmd *exec.Cmd) (string, int) {
	n.T.Helper()
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := n.Net.Gateway().Start(cmd); err != nil {
		n.T.Fatal(err)
	}
	_ = cmd.Wait()
	return out.String(), cmd.ProcessState.ExitCode()
}

// must runs cnitool, which must succeed.
func (p *pod) must(command string) string {
	p.n.T.Helper()
	out, code := p.tool(command)
	if code != 0 {
		p.n.T.Fatalf("cnitool %s: %d %s", command, code, out)
	}
	return out
}

// fails runs cnitool, which must fail with a text.
func (p *pod) fails(command, text string, env ...string) {
	p.n.T.Helper()
	if out, code := p.tool(command, env...); code == 0 || !strings.Contains(out, text) {
		p.n.T.Errorf("cnitool %s %q: %d %s; want an error with %q", command, env, code, out, text)
	}
}

// sh runs a shell line in the pod. Its resolver is the cluster's, at an address that does not exist.
func (p *pod) sh(line string) (string, int) {
	p.n.T.Helper()
	resolv := filepath.Join(p.n.dir, "resolv.conf")
	if err := os.WriteFile(resolv, []byte("search default.svc.cluster.local\nnameserver 10.96.0.10\noptions ndots:5 timeout:2\n"), 0o600); err != nil {
		p.n.T.Fatal(err)
	}
	cmd := exec.CommandContext(p.n.T.Context(), "nsenter", "--net="+p.path, "unshare", "--mount", "sh", "-c", `mount --bind "$1" /etc/resolv.conf && exec sh -c "$2"`, "sh", resolv, line)
	out, _ := cmd.CombinedOutput()
	return string(out), cmd.ProcessState.ExitCode()
}

// reaches checks that the policy web is in force: its host answers, and another is denied.
func (p *pod) reaches(when string) {
	p.n.T.Helper()
	for _, family := range []string{"-4", "-6"} {
		if out, code := p.sh("curl -sS -k --max-time 60 " + family + " https://api.example.com/echo"); code != 0 {
			p.n.T.Errorf("%s: curl %s: %d %s", when, family, code, out)
		}
	}
	if out, code := p.sh("curl -sS -k --max-time 60 https://evil.example.net/"); code != 35 {
		p.n.T.Errorf("%s: a host that is not allowed: %d %s", when, code, out)
	}
}

// links returns the names of the interfaces in the pod.
func (p *pod) links() []string {
	p.n.T.Helper()
	out, code := p.sh("ip -o link | cut -d: -f2 | cut -d@ -f1 | tr -d ' '")
	if code != 0 {
		p.n.T.Fatal(out)
	}
	return strings.Fields(out)
}

// trace is what attachments may leave on the host. The bridge and the empty chains of its plugin stay.
func (n *network) trace() string {
	n.T.Helper()
	var all strings.Builder
	for _, line := range []string{
		"ip -o link | grep -o 'veth[^:@]*\\|bg[^:@]*' || true", "ip -4 rule", "ip -6 rule", "ip -4 route show table all | grep -v 10.88. ", "ip -6 route show table all | grep -v 'fe80\\|ff00\\|cni0' ",
		"ip neigh show nud permanent", "iptables-save -t nat | grep -i 'cni-\\|10.88.0' | grep -v '^:\\|-j CNI-HOSTPORT\\|CNI-PORTMAP' || true", "nft list map inet boxgate boxes; nft list set inet boxgate sources4",
	} {
		out, _ := n.onHost(exec.Command("sh", "-c", line))
		fmt.Fprintf(&all, "$ %s\n%s\n", line, out)
	}
	var boxes []map[string]any
	if err := n.Client.Get(n.T.Context(), api.BoxesPath(""), &boxes); err != nil {
		n.T.Fatal(err)
	}
	fmt.Fprintf(&all, "boxes: %d\n", len(boxes))
	for _, dir := range []string{n.records(), filepath.Join(n.dir, "ipam", n.name), filepath.Join(lab.RunDir(n.Dir), "netns")} {
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			if name := e.Name(); !slices.Contains([]string{"lock"}, name) && !strings.HasPrefix(name, "last_reserved_ip") {
				fmt.Fprintln(&all, dir, name)
			}
		}
	}
	return all.String()
}

// counters matches the counters in a list of rules.
var counters = regexp.MustCompile(`packets \d+ bytes \d+|# handle \d+`)
