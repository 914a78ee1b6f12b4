package cni

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/e2e/harness"
	"boxgate/internal/nightly"
)

// ociClass is the runtime class of `gateway oci`, as docs/attach/containerd.md has it.
const ociClass = `    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.boxgate-oci]
      runtime_type = "io.containerd.runc.v2"
      pod_annotations = ["boxgate.dev/*"]
      container_annotations = ["boxgate.dev/*"]
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.boxgate-oci.options]
        BinaryName = "%s"
`

// ociProgram writes a program that is `gateway oci runc` for the gateway of the network, with a header rule, and returns its path.
func (n *network) ociProgram() string {
	n.T.Helper()
	dir := n.T.TempDir() // not that of the network, whose .json files containerd reads
	headers, program := filepath.Join(dir, "headers.json"), filepath.Join(dir, "gateway-oci-runc")
	cmd := n.Command(n.T.Context(), "oci", "--headers", "@"+headers, dockerRoot+"/usr/bin/runc")
	quote := func(word string) string { return " '" + strings.ReplaceAll(word, "'", `'\''`) + "'" }
	text := "#!/bin/sh\nexec env -i" // without BOXGATE_ variables of the tests
	for _, word := range slices.Concat(cmd.Env, cmd.Args) {
		text += quote(word)
	}
	for path, text := range map[string]string{headers: `{"api.example.com":{"X-Key":"` + harness.Canary + `"}}`, program: text + " \"$@\"\n"} {
		if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
			n.T.Fatal(err)
		}
	}
	return program
}

// containerBoxes returns the boxes of containers of `gateway oci`.
func (n *network) containerBoxes() (found []string) {
	n.T.Helper()
	var all []struct {
		ID          string
		NamedPolicy string `json:"named_policy"`
		Attached    *api.Attached
	}
	if err := n.Client.Get(n.T.Context(), api.BoxesPath(""), &all); err != nil {
		n.T.Fatal(err)
	}
	for _, b := range all {
		if b.Attached != nil && b.Attached.Kind == api.AttachOCI {
			found = append(found, b.NamedPolicy+" "+b.Attached.Ref)
		}
	}
	return found
}

// The containers of a pod whose runtime class is `gateway oci` share the box of its sandbox, whatever network the pod has, over restarts of
// containerd and the gateway. Pods of other classes keep their network.
func TestPodsOfTheRuntimeClassOfGatewayOCI(t *testing.T) {
	nightly.Only(t)
	t.Parallel()
	n := newNetwork(t, true, nil)
	n.writeList(map[string]any{"cniVersion": "1.0.0", "name": n.name, "disableCheck": true, "plugins": []map[string]any{n.bridge()}})
	c := newContainerd(n, fmt.Sprintf(ociClass, n.ociProgram()))
	other, _ := c.run("other", "runc", nil, roleServe)
	before := n.trace()
	sandbox, pod := c.run("classed", "boxgate-oci", webAnnotation, roleServe, rolePause)
	want := webPolicy + " " + sandbox
	confined := func(when string) {
		t.Helper()
		for _, container := range pod {
			if out, ok := c.fetches(container, "http://127.0.0.1:8080/"); !ok || !strings.Contains(out, "the other container") {
				t.Errorf("%s: loopback: %s", when, out)
			}
			if out, ok := c.fetches(container, "https://api.example.com/echo"); !ok || !strings.Contains(out, harness.Canary) {
				t.Errorf("%s: %s", when, out)
			}
			for _, denied := range []string{"https://evil.example.net/", "http://10.88.0.1/", "http://169.254.169.254/"} {
				if out, ok := c.fetches(container, denied); ok && !strings.Contains(out, "403") {
					t.Errorf("%s: %s is reached: %s", when, denied, out)
				}
			}
		}
		if got := n.containerBoxes(); len(got) != 1 || got[0] != want {
			t.Errorf("%s: boxes %q, want %q", when, got, want)
		}
	}
	confined("after its start")
	if out, err := c.crictl("runp", "--runtime", "boxgate-oci", c.podConfig("greedy", map[string]string{"boxgate.dev/policy": "named:" + secretPolicy})); err == nil || !strings.Contains(out, "does not allow here") {
		t.Errorf("a pod that asks for more: %s", out)
	}
	c.stop()
	n.Kill()
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.start()
	confined("after restarts")
	n.Kill()
	if out, err := c.crictl("runp", "--runtime", "boxgate-oci", c.podConfig("late", webAnnotation)); err == nil {
		t.Errorf("a pod without a gateway: %s", out)
	}
	if out, ok := c.fetches(pod[0], "https://api.example.com/"); ok {
		t.Errorf("a pod whose gateway is down: %s", out)
	}
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.remove(sandbox)
	for _, left := range strings.Fields(must(c.crictl("pods", "-q", "--state", "notready"))) { // of failed calls
		c.remove(left)
	}
	if got := n.containerBoxes(); len(got) != 0 {
		t.Errorf("boxes after the removal of the pod: %q", got)
	}
	if after := n.trace(); after != before {
		t.Errorf("left:\n%s\nbefore:\n%s", after, before)
	}
	c.remove(other)
}
