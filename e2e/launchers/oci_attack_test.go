package launchers

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"boxgate/e2e/harness"
	"boxgate/internal/lab"
)

// refused checks that a container is not created, for a reason, which the log of the runtime has as well, and that nothing is left.
func (c *container) refused(why string) {
	c.w.T.Helper()
	_ = os.Remove(filepath.Join(c.dir, "log"))
	out, code := c.call("create", "--bundle", c.bundle, c.id)
	if code == 0 || !strings.Contains(out, why) {
		c.w.T.Errorf("create: %d %s; want %q", code, harness.Tail(out, 1000), why)
	}
	text, err := os.ReadFile(filepath.Join(c.dir, "log"))
	var line struct{ Level, Msg string }
	if err == nil {
		err = json.Unmarshal(text, &line)
	}
	if err != nil || line.Level != "error" || !strings.Contains(line.Msg, why) {
		c.w.T.Errorf("the log of the runtime: %v %s", err, text)
	}
	if _, code := c.call("state", c.id); code == 0 {
		c.w.T.Error("the refused container exists")
	}
}

// The annotations of a container, which its image may have written, choose only what the operator's rules allow.
func TestAttackAnnotationsThatAskForMore(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	headers := filepath.Join(t.TempDir(), "headers.json")
	if err := os.WriteFile(headers, []byte(`{"api.example.com":{"X-Key":"`+harness.Canary+`"}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	config, err := os.ReadFile(w.Config)
	if err != nil {
		t.Fatal(err)
	}
	bounded := filepath.Join(t.TempDir(), "boxgate.yaml")
	rules := "\nattach:\n  oci:\n  - {namespace: team-a, policies: [preset:npm], default: deny-all, headers: {api: " + headers + "}, names: [agent-*], labels: [team=a]}\n"
	if err := os.WriteFile(bounded, append(config, rules...), 0o600); err != nil {
		t.Fatal(err)
	}
	e := newEngine(w, "runc", "--config", bounded)
	in := func(namespace string, more ...string) map[string]string {
		all := map[string]string{"io.kubernetes.cri.sandbox-namespace": namespace}
		for i := 0; i < len(more); i += 2 {
			all["boxgate.dev/"+more[i]] = more[i+1]
		}
		return all
	}
	for i, tt := range []struct {
		annotations map[string]string
		why         string
	}{
		{in("team-a", "policy", "allow-all"), "does not allow here"},
		{in("team-a", "policy", "preset:github"), "does not allow here"},
		{in("team-b", "policy", "preset:npm"), "does not allow here"},
		{map[string]string{"boxgate.dev/policy": "preset:npm"}, "does not allow here"},
		{in("team-a", "policy", "@/etc/shadow"), "which is not named:NAME"},
		{in("team-a", "policy", `{"mode":"allow-all"}`), "which is not named:NAME"},
		{in("team-a", "policy", "-"), "which is not named:NAME"},
		{in("team-a", "headers", "@"+headers), "does not have here"},
		{in("team-b", "headers", "named:api"), "does not have here"},
		{in("team-a", "name", "other"), "does not allow here"},
		{in("team-a", "labels", "team=a,team=b"), "does not allow here"},
		{in("team-a", "stack", "none"), "host or guest"},
		{in("team-a", "polcy", "deny-all"), "there is no annotation"},
	} {
		c := e.newContainer("more-"+string(rune('a'+i)), "true", tt.annotations)
		c.refused(tt.why)
		untilNoBox(w, c.id)
	}
	c := e.newContainer("allowed", asks, in("team-a", "policy", "preset:npm", "headers", "named:api", "name", "agent-1", "labels", "team=a"))
	box := c.create()
	var view struct {
		Name          string
		Labels        []string
		NetworkPolicy struct {
			AllowedDomains []string `json:"allowed_domains"`
		} `json:"network_policy"`
	}
	if err := w.Client.Get(t.Context(), "/v2/box/"+box, &view); err != nil || view.Name != "agent-1" || len(view.Labels) != 1 || len(view.NetworkPolicy.AllowedDomains) == 0 {
		t.Errorf("%+v %v", view, err)
	}
}

// A bundle that bypasses the gateway or is malformed is refused.
func TestAttackOddBundles(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	e := newEngine(w, "runc", guarded(t)...)
	wide := int64(8)
	for name, tt := range map[string]struct {
		change func(*specs.Spec)
		why    string
	}{
		"host-net": {func(s *specs.Spec) { dropNamespace(s, specs.NetworkNamespace) }, "network namespace of the host"},
		"host-net-by": {func(s *specs.Spec) {
			namespaceAt(s, specs.NetworkNamespace, fmt.Sprintf("/proc/%d/ns/net", os.Getpid()))
		}, "network namespace of the host"},
		"host-pid":    {func(s *specs.Spec) { dropNamespace(s, specs.PIDNamespace) }, "pid namespace of the host"},
		"host-ipc":    {func(s *specs.Spec) { dropNamespace(s, specs.IPCNamespace) }, "ipc namespace of the host"},
		"host-mounts": {func(s *specs.Spec) { dropNamespace(s, specs.MountNamespace) }, "mount namespace of the host"},
		"two-networks": {func(s *specs.Spec) {
			s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.NetworkNamespace})
		}, "network namespace of the host"},
		"admin":    {func(s *specs.Spec) { s.Process.Capabilities.Bounding = []string{"CAP_NET_ADMIN"} }, "CAP_NET_ADMIN"},
		"unmasked": {func(s *specs.Spec) { s.Linux.MaskedPaths = nil }, "maskedPaths"},
		"devices": {func(s *specs.Spec) {
			s.Linux.Resources.Devices = []specs.LinuxDeviceCgroup{{Allow: true, Access: "rwm"}}
		}, "makes devices"},
		"disk": {func(s *specs.Spec) {
			s.Linux.Resources.Devices = []specs.LinuxDeviceCgroup{{Allow: true, Type: "b", Major: &wide, Minor: new(int64), Access: "rwm"}}
		}, "makes devices"},
		"false-device": {func(s *specs.Spec) { s.Linux.Devices = []specs.LinuxDevice{{Path: "/dev/fuse", Type: "b", Major: 8}} }, "not the one of that name"},
		"kernel": {func(s *specs.Spec) {
			s.Mounts = append(s.Mounts, specs.Mount{Destination: "/x", Type: "bind", Source: "/proc/sys", Options: []string{"rbind"}})
		}, "/proc/sys"},
		"socket": {func(s *specs.Spec) {
			s.Mounts = append(s.Mounts, specs.Mount{Destination: "/x", Source: w.Dir, Options: []string{"rbind"}})
		}, "can leave the gateway"},
		"other-host": {func(s *specs.Spec) {
			s.Mounts = append(s.Mounts, specs.Mount{Destination: "/x", Type: "nfs", Source: "192.0.2.1:/"})
		}, "another host"},
		"root":        {func(s *specs.Spec) { s.Root.Path = "/" }, "files of this host"},
		"link-device": {func(s *specs.Spec) { s.Linux.NetDevices = map[string]specs.LinuxNetDevice{"eth0": {}} }, "netDevices"},
		"large":       {func(s *specs.Spec) { s.Annotations = map[string]string{"x": strings.Repeat("x", 5<<20)} }, "larger than"},
	} {
		c := e.newContainer(name, "true", nil)
		tt.change(&c.spec)
		c.write()
		c.refused(tt.why)
	}
	c := e.newContainer("unknown", "true", nil)
	config := filepath.Join(c.bundle, "config.json")
	text, err := os.ReadFile(config)
	if err == nil {
		err = os.WriteFile(config, []byte(strings.Replace(string(text), `{"ociVersion"`, `{"surprise":1,"ociVersion"`, 1)), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	c.refused("surprise")
	if err := os.Rename(config, config+".real"); err == nil {
		err = os.Symlink(config+".real", config)
	}
	c.refused("config.json")
}

func dropNamespace(s *specs.Spec, kind specs.LinuxNamespaceType) {
	for i, ns := range s.Linux.Namespaces {
		if ns.Type == kind {
			s.Linux.Namespaces = append(s.Linux.Namespaces[:i], s.Linux.Namespaces[i+1:]...)
			return
		}
	}
}

func namespaceAt(s *specs.Spec, kind specs.LinuxNamespaceType, path string) {
	for i, ns := range s.Linux.Namespaces {
		if ns.Type == kind {
			s.Linux.Namespaces[i].Path = path
		}
	}
}

// The links of an image lead nowhere outside of its root, neither for the CA nor for resolv.conf.
func TestAttackLinksInAnImage(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	e := newEngine(w, "runc", guarded(t)...)
	victim := t.TempDir()
	before := []byte("of the host")
	file := filepath.Join(victim, "file")
	if err := os.WriteFile(file, before, 0o644); err != nil {
		t.Fatal(err)
	}
	c := e.newContainer("links", asks, nil)
	root := filepath.Join(c.bundle, "rootfs")
	for name, to := range map[string]string{
		"etc/ssl/certs/ca-certificates.crt": file, "etc/resolv.conf": file, "etc/profile.d": victim, "usr/local/share/ca-certificates": "../../../../../../../../../../.." + victim, "etc/environment": file,
	} {
		if err := os.RemoveAll(filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(to, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	_, _ = c.call("create", "--bundle", c.bundle, c.id) // whether or not it can be created
	entries, err := os.ReadDir(victim)
	if err != nil || len(entries) != 1 {
		t.Errorf("files of the host: %v %v", entries, err)
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != string(before) {
		t.Errorf("a file of the host has %q, %v", text, err)
	}
}

// While the gateway is down no container can be created, and running ones have no network.
func TestAttackContainersWithoutTheGateway(t *testing.T) {
	t.Parallel()
	w := harness.NewStopped(t, lab.Options{})
	e := newEngine(w, "runc", guarded(t)...)
	never := e.newContainer("never", "touch /ran", nil)
	never.refused("")
	w.StartIfStopped()
	const line = `while ! [ -e /go ]; do sleep 0.05; done; curl -sS --max-time 5 -o /dev/null https://api.example.com/echo; echo "status $?" >/closed; while ! [ -e /again ]; do sleep 0.05; done; ` + asks
	c := e.newContainer("exists", line, nil)
	c.create()
	c.start()
	w.Kill()
	order := func(name string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(c.bundle, "rootfs", name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	order("go")
	if got := c.read("closed"); strings.Contains(got, "status 0") {
		t.Errorf("without the gateway: %s", got)
	}
	never.refused("")
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	order("again")
	isGuarded(t, c.read("out"))
	w.Kill()
	if out, code := c.call("delete", "--force", c.id); code != 0 {
		t.Errorf("delete without the gateway: %d %s", code, out)
	}
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	untilNoBox(w, c.id)
	if never.ran("ran") {
		t.Error("a container ran without the gateway")
	}
}

// Of several creations of one ID one succeeds, and has one box. A container that is created, but not by the gateway, does not start.
func TestAttackCreationsOfOneID(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	e := newEngine(w, "runc", guarded(t)...)
	c := e.newContainer("same", asks, nil)
	var won, lost int
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			_, code := c.call("create", "--bundle", c.bundle, c.id)
			mu.Lock()
			defer mu.Unlock()
			if code == 0 {
				won++
			} else {
				lost++
			}
		})
	}
	wg.Wait()
	if got := boxesOf(w, c.id); won != 1 || lost != 3 || len(got) != 1 {
		t.Errorf("%d creations succeeded, %d failed, boxes %v", won, lost, got)
	}
	var state struct{ Pid int }
	out, _ := c.call("state", c.id)
	if err := json.Unmarshal([]byte(out), &state); err != nil {
		t.Fatal(err, out)
	}
	inside := func(args ...string) {
		t.Helper()
		if out, err := exec.Command("nsenter", append([]string{"--net", "--target", fmt.Sprint(state.Pid), "ip", "link"}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("%v %s", err, out)
		}
	}
	inside("add", "other0", "type", "veth", "peer", "name", "other1")
	if out, code := c.call("start", c.id); code == 0 || !strings.Contains(out, "only way out") {
		t.Errorf("start with another interface: %d %s", code, out)
	}
	inside("del", "other0")
	c.start()
	isGuarded(t, c.read("out"))
	other := e.newContainer("other", "touch /ran", nil)
	program := e.program
	e.program = e.runtime
	if out, code := other.call("create", "--bundle", other.bundle, other.id); code != 0 {
		t.Fatalf("the runtime itself: %s", out)
	}
	e.program = program
	if out, code := other.call("start", other.id); code == 0 || !strings.Contains(out, "not created by gateway oci") {
		t.Errorf("start: %d %s", code, out)
	}
	if other.ran("ran") {
		t.Error("it ran")
	}
}

// A container does not act through processes or memory of another container that is not behind the gateway. One of the same box may.
func TestAttackNamespacesOfOtherContainers(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	e := newEngine(w, "runc", guarded(t)...)
	pidOf := func(c *container) int {
		t.Helper()
		var state struct{ Pid int }
		out, _ := c.call("state", c.id)
		if err := json.Unmarshal([]byte(out), &state); err != nil {
			t.Fatal(err, out)
		}
		return state.Pid
	}
	open := e.newContainer("open", "sleep 1000", nil)
	program := e.program
	e.program = e.runtime
	if out, code := open.call("create", "--bundle", open.bundle, open.id); code != 0 {
		t.Fatalf("the runtime itself: %s", out)
	}
	e.program = program
	owner := e.newContainer("owner", "sleep 1000", nil)
	box := owner.create()
	joins := func(id string, kinds map[specs.LinuxNamespaceType]*container) *container {
		t.Helper()
		c := e.newContainer(id, asks, nil)
		for kind, of := range kinds {
			file := map[specs.LinuxNamespaceType]string{specs.NetworkNamespace: "net", specs.PIDNamespace: "pid", specs.IPCNamespace: "ipc"}[kind]
			namespaceAt(&c.spec, kind, fmt.Sprintf("/proc/%d/ns/%s", pidOf(of), file))
		}
		c.write()
		return c
	}
	for id, kinds := range map[string]map[specs.LinuxNamespaceType]*container{
		"pid-of-open": {specs.PIDNamespace: open}, "ipc-of-open": {specs.IPCNamespace: open},
		"member-and-pid-of-open": {specs.NetworkNamespace: owner, specs.PIDNamespace: open},
		"pid-of-owner":           {specs.PIDNamespace: owner},
	} {
		joins(id, kinds).refused("namespace of another one")
	}
	member := joins("member", map[specs.LinuxNamespaceType]*container{specs.NetworkNamespace: owner, specs.PIDNamespace: owner, specs.IPCNamespace: owner})
	if out, code := member.call("create", "--bundle", member.bundle, member.id); code != 0 {
		t.Fatalf("a container of the same box: %s", out)
	}
	member.start()
	isGuarded(t, member.read("out"))
	if got := boxesOf(w, owner.id); len(boxesOf(w, member.id)) != 0 || len(got) != 1 || got[0] != box {
		t.Errorf("boxes: %v", got)
	}
	alone := joins("alone", map[specs.LinuxNamespaceType]*container{specs.NetworkNamespace: open})
	if alone.create() == box {
		t.Error("a container in the network of the engine has the box of another one")
	}
}
