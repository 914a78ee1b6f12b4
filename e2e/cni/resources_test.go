package cni

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"boxgate/internal/nightly"
)

// The policies of the tests, as specs of resources.
const (
	webSpec   = `{"mode": "custom", "allowed_domains": ["api.example.com"]}`
	closeSpec = `{"mode": "deny-all"}`
)

// podOf makes a pod of a namespace with a policy.
func (n *network) podOf(namespace, policy string) *pod {
	n.T.Helper()
	p := n.newPod(map[string]string{"boxgate.dev/policy": policy})
	p.env[0] = "CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=" + namespace + ";K8S_POD_NAME=agent"
	return p
}

// opens reports whether the policy web is in force in a pod.
func (p *pod) opens() bool {
	p.n.T.Helper()
	_, code := p.sh("curl -sS -k --max-time 20 https://api.example.com/echo")
	return code == 0
}

// A gateway without a cluster's real API server, which the nightly tier has: the resource of a list is the policy of pods of its namespace
// alone, until a later list is without it.
func TestPodsFollowAResource(t *testing.T) {
	t.Parallel()
	c := newClusterFiles(t)
	n := newNetwork(t, false, nil, c.configure)
	deleted := make(chan struct{})
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch items := ""; {
		case r.URL.Query().Get("watch") != "":
			select {
			case <-deleted:
			case <-r.Context().Done():
			}
			w.WriteHeader(http.StatusGone) // as when its version is too old: the next list follows soon
		case r.Method == http.MethodGet:
			select {
			case <-deleted:
			default:
				items = `{"metadata": {"namespace": "default", "name": "web", "generation": 1, "resourceVersion": "7"}, "spec": ` + webSpec + `}`
			}
			fmt.Fprintf(w, `{"metadata": {"resourceVersion": "7"}, "items": [%s]}`, items)
		}
	})}
	var ln net.Listener
	if err := n.Net.Gateway().Do(func() (err error) { ln, err = net.Listen("tcp", serverAddr); return err }); err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.ServeTLS(ln, filepath.Join(c.dir, "ca.crt"), filepath.Join(c.dir, "key.pem"))
	}()
	t.Cleanup(func() { _ = server.Close(); <-served })
	n.Until("the policy exists", func() bool { return strings.Contains(n.names(), "default.web") })
	p := n.podOf("default", "resource:web")
	p.must("add")
	p.reaches("a pod of the namespace")
	n.podOf("other", "named:default.web").fails("add", "for pods of its namespace alone")
	n.podOf("other", "resource:web").fails("add", "there is no named policy")
	if out, code := n.onHost(n.Command(t.Context(), "upgrade")); code != 0 {
		t.Fatal(out)
	}
	p.reaches("under the next process")
	close(deleted)
	n.Until("the pod is closed", func() bool { return !p.opens() })
	n.podOf("default", "resource:web").fails("add", "was deleted")
}

// newCluster starts a gateway that follows a cluster, and the cluster.
func newCluster(t *testing.T) (*network, *cluster) {
	t.Helper()
	nightly.Root(t)
	c := newClusterFiles(t)
	n := newNetwork(t, false, nil, c.configure)
	c.start(n)
	c.install()
	return n, c
}

// A resource is the policy of pods of its namespace: its changes, mistakes and end take effect in running pods, with Kubernetes' own API
// server, account and permissions.
func TestBoxgatePoliciesOfPods(t *testing.T) {
	nightly.Only(t)
	t.Parallel()
	n, c := newCluster(t)
	c.put("default", "web", webSpec)
	if s := c.awaitStatus("default", "web", "True"); len(s.Status.Problems) != 0 {
		t.Errorf("%+v", s)
	}
	p := n.podOf("default", "resource:web")
	p.must("add")
	p.reaches("a new pod")

	c.put("default", "web", `{"mode": "custom", "allowed_domains": ["api.example.com"], "denied_domainz": ["x.example.com"], "allowed_cidrs": ["300.0.0.0/8"]}`)
	s := c.awaitStatus("default", "web", "False").Status.Conditions[0]
	if s.Reason != "Invalid" || !strings.Contains(s.Message, "denied_domainz") || !strings.Contains(s.Message, "300.0.0.0/8") {
		t.Errorf("the status of a policy with two mistakes: %+v", s)
	}
	p.reaches("after a change with mistakes")

	c.put("default", "web", closeSpec)
	n.Until("the pod is closed", func() bool { return !p.opens() })
	c.awaitStatus("default", "web", "True")
	c.put("default", "web", webSpec)
	n.Until("the pod is open again", p.opens)

	c.must("DELETE", policiesIn("default")+"/web", "")
	n.Until("the pod is closed by the deletion", func() bool { return !p.opens() })
	late := n.podOf("default", "resource:web")
	late.fails("add", "was deleted")
	c.put("default", "web", webSpec)
	n.Until("the pod is open after the resource was made again", p.opens)
	late.must("add")
	late.must("del")
	p.must("del")
	c.must("DELETE", policiesIn("default")+"/web", "")
	n.Until("no policy is left", func() bool { return !strings.Contains(n.names(), "default.web") })
	n.NoInternalErrors()
}

// names lists the named policies of the gateway.
func (n *network) names() string {
	n.T.Helper()
	var list []struct{ Name string }
	if err := n.Client.Get(n.T.Context(), "/v2/box/settings/network-policies", &list); err != nil {
		n.T.Fatal(err)
	}
	data, err := json.Marshal(list)
	if err != nil {
		n.T.Fatal(err)
	}
	return string(data)
}

// Without the API server the last policies stay, also for a gateway that starts; a deletion that it has missed takes effect when the API
// server is back.
func TestBoxgatePoliciesWithoutAPIServer(t *testing.T) {
	nightly.Only(t)
	t.Parallel()
	n, c := newCluster(t)
	c.put("default", "web", webSpec)
	c.put("default", "kept", webSpec)
	c.awaitStatus("default", "web", "True")
	c.awaitStatus("default", "kept", "True")
	p, kept := n.podOf("default", "resource:web"), n.podOf("default", "resource:kept")
	p.must("add")
	kept.must("add")
	n.Kill()
	c.must("DELETE", policiesIn("default")+"/web", "")
	c.end(c.server)
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.Until("the gateway misses the API server", func() bool { return strings.Contains(n.LogText(), "cannot be followed") })
	p.reaches("without the API server")
	c.serve()
	n.Until("the missed deletion takes effect", func() bool { return !p.opens() })
	kept.reaches("after the API server is back")
	c.put("default", "kept", closeSpec)
	n.Until("changes take effect again", func() bool { return !kept.opens() })
}

// A tenant of the cluster has its policies in its own namespace, up to their number, and the gateway's account has no other permissions.
func TestAttackBoxgatePoliciesOfTenants(t *testing.T) {
	nightly.Only(t)
	t.Parallel()
	n, c := newCluster(t)
	c.must("POST", "/api/v1/namespaces", `{"metadata": {"name": "other"}}`)
	c.must("POST", "/api/v1/namespaces", `{"metadata": {"name": "listed"}}`)
	c.put("other", "all", `{"mode": "allow-all"}`)
	c.put("listed", "web", webSpec)
	c.awaitStatus("other", "all", "True")
	c.awaitStatus("listed", "web", "True")
	foreign := n.podOf("default", "named:other.all")
	foreign.fails("add", "for pods of its namespace alone")
	n.podOf("default", "resource:all").fails("add", "there is no named policy")
	n.podOf("default", "resource:../other/all").fails("add", "")
	n.podOf("listed", "named:other.all").fails("add", "does not allow here")
	n.podOf("starred", "resource:web").fails("add", "does not allow here") // "*" has the operator's policies alone
	own := n.podOf("listed", "resource:web")
	own.must("add")
	own.reaches("a pod of the namespace")
	if err := n.Client.Do(t.Context(), "PUT", "/v2/box/settings/network-policies/other.all", map[string]string{"mode": "deny-all"}, nil); err == nil {
		t.Error("the API replaced the policy of a resource")
	}

	for i := range 80 {
		c.put("other", fmt.Sprintf("flood-%02d", i), closeSpec)
	}
	n.Until("one namespace has its share of policies", func() bool { return strings.Count(n.names(), `"other.`) == 64 })
	c.put("default", "web", webSpec)
	c.awaitStatus("default", "web", "True")
	n.Until("further ones have a problem", func() bool {
		var list struct{ Items []policyStatus }
		if err := json.Unmarshal(c.must("GET", policiesIn("other"), ""), &list); err != nil {
			t.Fatal(err)
		}
		refused := 0
		for _, item := range list.Items {
			if len(item.Status.Problems) == 1 && strings.Contains(item.Status.Problems[0].Message, "at most 64") {
				refused++
			}
		}
		return refused == 81-64
	})

	token := c.accountToken()
	for _, call := range [][2]string{
		{"GET", "/api/v1/secrets"}, {"GET", "/api/v1/pods"}, {"DELETE", policiesIn("other") + "/all"}, {"POST", policiesIn("other")}, {"PUT", policiesIn("other") + "/all"},
	} {
		if code, answer := c.ask(token, call[0], call[1], `{"apiVersion": "boxgate.dev/v1alpha1", "kind": "BoxgatePolicy", "metadata": {"name": "all"}, "spec": `+closeSpec+`}`); code != http.StatusForbidden {
			t.Errorf("the gateway's account, %s %s: %d %s", call[0], call[1], code, answer)
		}
	}
	n.NoInternalErrors()
}
