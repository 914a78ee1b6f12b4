package cni

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"boxgate/api"
)

// plugin calls the plugin itself, without cnitool.
func (n *network) plugin(stdin []byte, env ...string) (string, int) {
	n.T.Helper()
	cmd := exec.Command(filepath.Join(n.dir, "bin", "boxgate-cni"))
	cmd.Env = append(append(os.Environ(), "CNI_PATH=/nowhere", "CNI_IFNAME=eth0", "CNI_CONTAINERID=attack"), env...)
	cmd.Stdin = bytes.NewReader(stdin)
	return n.onHost(cmd)
}

// boxes returns the number of boxes.
func (n *network) boxes() int {
	n.T.Helper()
	var boxes []struct{ Attached *api.Attached }
	if err := n.Client.Get(n.T.Context(), api.BoxesPath(""), &boxes); err != nil {
		n.T.Fatal(err)
	}
	return len(boxes)
}

// A pod gets no more than the operator allows: it is refused, not given another policy or left alone.
func TestAttackPodAsksForMore(t *testing.T) {
	t.Parallel()
	n := newNetwork(t, true, nil)
	for annotation, text := range map[string]string{
		"boxgate.dev/policy=named:" + secretPolicy:    "does not allow here",
		"boxgate.dev/policy=allow-all":                "does not allow here",
		"boxgate.dev/policy=":                         "is empty",
		"boxgate.dev/policy={\"mode\":\"allow-all\"}": "which is not named:NAME",
		"boxgate.dev/policy=@/etc/shadow":             "which is not named:NAME",
		"boxgate.dev/policy=named:web\nnamed:all":     "which is not named:NAME",
		"boxgate.dev/policy=named:../settings":        "which is not named:NAME",
		"boxgate.dev/polcy=named:web":                 "unknown annotation",
		"boxgate.dev/headers=named:keys":              "does not have here",
		"boxgate.dev/labels=team=x,team=y":            "does not allow here",
		"boxgate.dev/stack=none":                      "use host or guest",
		"boxgate.dev/\x1b[2J=x":                       "unknown annotation",
	} {
		key, value, _ := strings.Cut(annotation, "=")
		p := n.newPod(map[string]string{key: value})
		p.fails("add", text)
		out, _ := p.tool("add")
		if strings.Contains(out, "\x1b") {
			t.Errorf("%q: the error has control characters: %q", annotation, out)
		}
		p.must("del")
	}
	if n.boxes() != 0 {
		t.Error("there are boxes")
	}
	other := n.webPod()
	other.fails("add", "K8S_POD_NAMESPACE", "CNI_ARGS=K8S_POD_NAMESPACE=sandboxes;K8S_POD_NAMESPACE=default")
	second := n.webPod()
	second.fails("add", "the interface of a pod is eth0", "CNI_IFNAME=net1")
}

// Variables and configurations that no runtime sends are refused, and DEL of them succeeds or says why.
func TestAttackHostileCalls(t *testing.T) {
	t.Parallel()
	n := newNetwork(t, false, nil)
	p := n.webPod()
	conf := []byte(`{"cniVersion":"1.1.0","name":"` + n.name + `","type":"boxgate-cni","pods":"all","config":"` + n.Config + `","stateDir":"` + n.records() + `"}`)
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(unix.Mkfifo(path("fifo"), 0o600), os.WriteFile(path("file"), nil, 0o600), os.Symlink("/proc/self/ns/net", path("self")),
		os.Symlink(n.Net.Gateway().Path(), path("host")), os.Symlink("/proc/self/ns/mnt", path("mnt")), os.Symlink(path("loop"), path("loop"))); err != nil {
		t.Fatal(err)
	}
	for name, netns := range map[string]string{
		"fifo": path("fifo"), "file": path("file"), "own namespace": path("self"), "host's namespace": path("host"), "mount namespace": path("mnt"),
		"loop": path("loop"), "missing": path("missing"), "directory": dir, "relative": "netns", "device": "/dev/zero", "gateway's process": "/proc/1/root",
	} {
		if out, code := n.plugin(conf, "CNI_COMMAND=ADD", "CNI_NETNS="+netns); code == 0 || !strings.Contains(out, `"code"`) {
			t.Errorf("ADD, %s: %d %s", name, code, out)
		}
	}
	for name, env := range map[string]string{
		"container ID": "CNI_CONTAINERID=../../etc", "no container ID": "CNI_CONTAINERID=", "interface": "CNI_IFNAME=../eth0", "arguments": "CNI_ARGS=" + strings.Repeat("K=V;", 10000),
		"pairs": "CNI_ARGS=K8S_POD_NAMESPACE", "control characters": "CNI_ARGS=K8S_POD_NAME=\x1b[2J", "long ID": "CNI_CONTAINERID=" + strings.Repeat("a", 4096),
	} {
		if out, code := n.plugin(conf, "CNI_COMMAND=ADD", "CNI_NETNS="+p.path, env); code == 0 || !strings.Contains(out, `"code"`) {
			t.Errorf("ADD, %s: %d %.300s", name, code, out)
		}
	}
	large := append(bytes.TrimSuffix(conf, []byte("}")), []byte(`,"x":"`+strings.Repeat("x", 10<<20)+`"}`)...)
	for name, conf := range map[string][]byte{"10 MB": large, "no JSON": []byte("{"), "empty": nil, "pods": bytes.Replace(conf, []byte(`"all"`), []byte(`"al"`), 1),
		"deep": bytes.Repeat([]byte(`{"a":`), 20000), "version": bytes.Replace(conf, []byte("1.1.0"), []byte("9.0.0"), 1), "name": bytes.Replace(conf, []byte(n.name), []byte("../x"), 1),
		"configuration": bytes.Replace(conf, []byte(n.Config), []byte("/dev/zero/x"), 1)} {
		if out, code := n.plugin(conf, "CNI_COMMAND=ADD", "CNI_NETNS="+p.path); code == 0 || !strings.Contains(out, `"code"`) {
			t.Errorf("ADD, configuration %s: %d %.300s", name, code, out)
		}
	}
	if out, code := n.plugin(conf, "CNI_COMMAND=DEL", "CNI_NETNS="+path("missing"), "CNI_ARGS=;;"); code != 0 {
		t.Errorf("DEL of what is not there: %d %s", code, out)
	}
	if links := p.links(); len(links) != 1 || n.boxes() != 0 {
		t.Errorf("interfaces of the pod: %q, boxes: %d", links, n.boxes())
	}
	if entries, _ := os.ReadDir(n.records()); len(entries) != 0 {
		t.Errorf("records: %v", entries)
	}
}

// ADD and DEL of one ID at the same time leave the pod attached, with its box, or without either.
func TestAttackAddAndDelOfOneID(t *testing.T) {
	t.Parallel()
	n := newNetwork(t, false, nil)
	before := n.trace()
	p := n.webPod()
	for range 5 {
		var all sync.WaitGroup
		for range 2 {
			all.Go(func() { _, _ = p.tool("add") })
			all.Go(func() { p.must("del") })
		}
		all.Wait()
		if has, boxes := len(p.links()) > 1, n.boxes(); has != (boxes == 1) || boxes > 1 {
			t.Errorf("the pod has an interface: %v; boxes: %d", has, boxes)
		}
	}
	p.must("del")
	if after := n.trace(); after != before {
		t.Errorf("left:\n%s\nbefore:\n%s", after, before)
	}
}
