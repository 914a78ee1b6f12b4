package cni

import (
	"errors"
	"maps"
	"os"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"golang.org/x/sys/unix"
)

const oneAnnotation = `{"name":"n","cniVersion":"1.1.0","namespaces":["sandboxes"],"runtimeConfig":{"io.kubernetes.cri.pod-annotations":{"boxgate.dev/policy":"named:web","x":"y"}}}`

func TestParseArgs(t *testing.T) {
	for text, want := range map[string]map[string]string{
		"":                                    {},
		"IgnoreUnknown=1;K8S_POD_NAMESPACE=a": {"IgnoreUnknown": "1", "K8S_POD_NAMESPACE": "a"},
		"K=a=b":                               {"K": "a=b"},
		"K=":                                  {"K": ""},
		"K8S_POD_NAMESPACE=a;K8S_POD_NAMESPACE=b": nil,
		"K=a;;L=b":                          nil,
		"=a":                                nil,
		"K=a\nb":                            nil,
		strings.Repeat("a", maxArgs) + "=b": nil,
	} {
		got, err := parseArgs(text)
		if (err == nil) != (want != nil) || err == nil && !maps.Equal(got, want) {
			t.Errorf("%.60q: %v %v", text, got, err)
		}
	}
}

func TestSelected(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		conf, args     string
		selected, fail bool
	}{
		"annotated":               {oneAnnotation, "K8S_POD_NAMESPACE=other", true, false},
		"annotated, no namespace": {oneAnnotation, "", true, false},
		"unknown annotation":      {`{"name":"n","runtimeConfig":{"io.kubernetes.cri.pod-annotations":{"boxgate.dev/polcy":""}}}`, "", true, false},
		"namespace":               {`{"name":"n","namespaces":["sandboxes"]}`, "K8S_POD_NAMESPACE=sandboxes", true, false},
		"another namespace":       {`{"name":"n","namespaces":["sandboxes"]}`, "K8S_POD_NAMESPACE=sandbox", false, false},
		"unknown namespace":       {`{"name":"n","namespaces":["sandboxes"]}`, "", false, true},
		"all":                     {`{"name":"n","pods":"all"}`, "", true, false},
		"other annotation":        {`{"name":"n","runtimeConfig":{"io.kubernetes.cri.pod-annotations":{"a.boxgate.dev/policy":""}}}`, "", false, false},
	} {
		r, err := readRequest(&skel.CmdArgs{StdinData: []byte(c.conf), Args: c.args}, true)
		if err != nil {
			t.Fatal(name, err)
		}
		if got, err := r.selected(); got != c.selected || (err != nil) != c.fail {
			t.Errorf("%s: %v %v", name, got, err)
		}
	}
}

// A resource is one of the pod's own namespace, whatever its name is.
func TestResourcesOfThePodsNamespace(t *testing.T) {
	t.Parallel()
	for chosen, want := range map[string]string{
		"": "", "deny-all": "deny-all", "named:web": "named:web", "resource:web": "named:team.web", "resource:other.web": "named:team.other.web", "resource:../other/web": "named:team.../other/web",
	} {
		if got, err := (pod{namespace: "team", name: "agent"}).named(chosen); got != want || err != nil {
			t.Errorf("%q: %q %v", chosen, got, err)
		}
	}
	for _, p := range []pod{{}, {name: "agent"}, {namespace: "team"}} {
		if got, err := p.named("resource:web"); err == nil {
			t.Errorf("%+v has %q", p, got)
		}
	}
}

func TestCheckAnnotations(t *testing.T) {
	t.Parallel()
	for text, ok := range map[string]bool{"boxgate.dev/policy=named:web": true, "boxgate.dev/stack=guest": true, "boxgate.dev/stack=": false, "boxgate.dev/name=x": false} {
		key, value, _ := strings.Cut(text, "=")
		p := pod{annotations: map[string]string{key: value}}
		if err := p.checkAnnotations(); (err == nil) != ok {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// A record outlives its call only if it was written and not removed.
func TestRecord(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	open := func() *record {
		t.Helper()
		r, err := openRecord(dir, "n/c/eth0")
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	count := func(want int) {
		t.Helper()
		if entries, err := os.ReadDir(dir); err != nil || len(entries) != want {
			t.Errorf("%v %v; want %d", entries, err, want)
		}
	}
	r := open()
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	count(0)
	r = open()
	r.Ref, r.Removed = "n/c/eth0", []string{"10.88.0.2/16"}
	if err := r.write(); err != nil {
		t.Fatal(err)
	}
	other, err := os.Open(r.path)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := unix.Flock(int(other.Fd()), unix.LOCK_SH|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) {
		t.Errorf("the record is not locked: %v", err)
	}
	next := make(chan *record)
	go func() { // waits for the first one
		n, err := openRecord(dir, "n/c/eth0")
		if err != nil {
			t.Error(err)
		}
		next <- n
	}()
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	r = <-next
	if len(r.Removed) != 1 || r.Ref != "n/c/eth0" {
		t.Errorf("read again: %+v", r)
	}
	if refs, err := recordsOf(dir, "n"); err != nil || len(refs) != 1 {
		t.Error(refs, err)
	}
	if refs, err := recordsOf(dir, "other"); err != nil || len(refs) != 0 {
		t.Error(refs, err)
	}
	if err := r.remove(); err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	count(0)
}

// Whatever a runtime passes is read or refused. A pod with an annotation of the gateway is never left alone.
func FuzzRequest(f *testing.F) {
	f.Add([]byte(oneAnnotation), "IgnoreUnknown=1;K8S_POD_NAMESPACE=default")
	f.Add([]byte(`{"name":"n","cniVersion":"1.0.0","prevResult":{"cniVersion":"1.0.0","interfaces":[{"name":"bg0123456789ab"}],"ips":[{"address":"10.0.0.1/24","interface":7}]}}`), "")
	f.Add([]byte(`{"name":"n","cniVersion":"0.3.1","prevResult":{"cniVersion":"0.2.0","ip4":{"ip":"10.0.0.1/24"}}}`), "a=b;a=c")
	f.Fuzz(func(t *testing.T, conf []byte, args string) {
		r, err := readRequest(&skel.CmdArgs{StdinData: conf, Args: args}, true)
		if err != nil {
			return
		}
		ours, err := r.selected()
		if len(r.pod.annotations) > 0 && (!ours || err != nil) {
			t.Errorf("left alone: %v", err)
		}
		_ = r.attached()
		_ = r.pod.checkAnnotations()
	})
}
