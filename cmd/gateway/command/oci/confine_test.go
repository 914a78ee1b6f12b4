package oci

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// usual returns the configuration of a usual container.
func usual(t testing.TB) *bundle {
	t.Helper()
	b := &bundle{dir: t.TempDir(), spec: specs.Spec{
		Process: &specs.Process{}, Root: &specs.Root{Path: t.TempDir()},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"}, {Destination: "/dev", Type: "tmpfs", Options: []string{"nosuid", "size=65536k"}},
			{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "ro"}}, {Destination: "/sys/fs/cgroup", Type: "cgroup", Options: []string{"ro"}},
		},
		Linux: &specs.Linux{MaskedPaths: []string{"/proc/kcore"}, ReadonlyPaths: []string{"/proc/sys", "/proc/sysrq-trigger"}},
	}}
	for _, kind := range []specs.LinuxNamespaceType{specs.NetworkNamespace, specs.PIDNamespace, specs.IPCNamespace, specs.MountNamespace, specs.UTSNamespace} {
		b.spec.Linux.Namespaces = append(b.spec.Linux.Namespaces, specs.LinuxNamespace{Type: kind})
	}
	return b
}

// A container whose root could write to the kernel's files, and so act on the host, is refused.
func TestAttackKernelFilesOfAContainer(t *testing.T) {
	if err := usual(t).refuse(); err != nil {
		t.Fatal(err)
	}
	mount := func(m specs.Mount) func(*specs.Spec) {
		return func(s *specs.Spec) { s.Mounts = append(s.Mounts, m) }
	}
	for name, tt := range map[string]struct {
		change func(*specs.Spec)
		why    string
	}{
		"writable sysctls": {func(s *specs.Spec) { s.Linux.ReadonlyPaths = []string{"/proc/sysrq-trigger"} }, "/proc/sys"},
		"writable sysrq":   {func(s *specs.Spec) { s.Linux.ReadonlyPaths = []string{"/proc/sys"} }, "sysrq-trigger"},
		"second proc":      {mount(specs.Mount{Destination: "/x", Type: "proc", Source: "proc"}), "host's kernel"},
		"writable sysfs":   {mount(specs.Mount{Destination: "/sys", Type: "sysfs", Options: []string{"ro", "rw"}}), "host's kernel"},
		"sysfs elsewhere":  {mount(specs.Mount{Destination: "/x", Type: "sysfs"}), "host's kernel"},
		"remount":          {mount(specs.Mount{Destination: "/proc/sys", Type: "tmpfs", Options: []string{"remount", "rw"}}), "remount"},
		"other's mounts": {func(s *specs.Spec) {
			for i, ns := range s.Linux.Namespaces {
				if ns.Type == specs.MountNamespace {
					s.Linux.Namespaces[i].Path = "/proc/self/ns/pid" // not that of the host
				}
			}
		}, "not checked"},
	} {
		b := usual(t)
		tt.change(&b.spec)
		if err := b.refuse(); err == nil || !strings.Contains(err.Error(), tt.why) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The author of a pod does not choose the namespace whose rules apply, by the annotation that the engine does not set.
func TestAttackNamespaceOfAnotherEngine(t *testing.T) {
	for _, tt := range []struct {
		containerd, crio, want string
		refused                bool
	}{
		{"", "", "", false}, {"team-a", "", "team-a", false}, {"", "team-a", "team-a", false}, {"team-a", "team-a", "team-a", false}, {"team-b", "team-a", "", true},
	} {
		got, err := namespaceOf(map[string]string{"io.kubernetes.cri.sandbox-namespace": tt.containerd, "io.kubernetes.pod.namespace": tt.crio})
		if got != tt.want || (err != nil) != tt.refused {
			t.Errorf("%+v: %q %v", tt, got, err)
		}
	}
}

// The runtime reads the same configuration that was checked.
func FuzzParseSpec(f *testing.F) {
	text, err := json.Marshal(usual(f).spec)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte(`{"process":{},"root":{"path":"r"},"linux":{"namespaces":[{"type":"network","path":"/proc/1/ns/net"}]},"linux":{}}`))
	f.Add([]byte(`{"Root":{"PATH":"/"},"root":null}`))
	f.Add([]byte(`{} {}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		spec, err := parseSpec(data)
		if err != nil {
			return
		}
		b := &bundle{dir: "/bundle", spec: spec}
		b.absolute()
		_ = b.refuseCapabilities()
		_ = b.refuseDevices()
		_, _ = readAnnotations(b.spec.Annotations)
		b.takeDockerHooks()
		b.mountOver("/etc/resolv.conf", "/x")
		b.joins("/checked")
		written, err := json.Marshal(b.spec)
		if err != nil {
			return // the container is not created
		}
		again, err := parseSpec(written)
		if err != nil {
			t.Fatalf("%s: what was written cannot be read: %v", written, err)
		}
		for _, ns := range again.Linux.Namespaces {
			if ns.Type == specs.NetworkNamespace && ns.Path != "/checked" {
				t.Fatalf("the network namespace is %q", ns.Path)
			}
		}
	})
}

// run has no moment between the hooks and the start in which interfaces could be checked, so it takes no hooks but Docker's.
func TestRunRefusesHooksBeforeTheStart(t *testing.T) {
	hook := []specs.Hook{{Path: "/usr/bin/plug"}}
	for _, hooks := range []*specs.Hooks{{Prestart: hook}, {CreateRuntime: hook}, {CreateContainer: hook}} { //nolint:staticcheck // engines still use Prestart
		b := usual(t)
		b.spec.Hooks = hooks
		if _, _, err := (Line{Command: "run"}).prepare(t.Context(), Gateway{}, call{}, b, &record{}); err == nil || !strings.Contains(err.Error(), "use create and start") {
			t.Errorf("%+v: %v", hooks, err)
		}
	}
	b := usual(t)
	if b.spec.Hooks = nil; b.hasNetworkHooks() {
		t.Error("a container without hooks is refused")
	}
}
