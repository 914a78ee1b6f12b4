package cni

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"boxgate/config"
)

// clusterTools has the programs that `make kubernetes` builds.
const clusterTools = "/var/lib/boxgate/kubernetes"

// The addresses of the API server and of its store, in the network namespace of the gateway.
const (
	serverAddr = "127.0.0.1:6443"
	storeAddr  = "http://127.0.0.1:2379"
	peerAddr   = "http://127.0.0.1:2380"
)

// adminToken is the token of an administrator of the cluster.
const adminToken = "cluster-admin"

// cluster is Kubernetes' API server with etcd on the host of a world's gateway.
type cluster struct {
	n      *network
	dir    string
	client *http.Client
	server *exec.Cmd
}

// newClusterFiles makes the directory of a cluster, with the certificate of its API server.
func newClusterFiles(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{dir: t.TempDir()}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "apiserver"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{"ca.crt": {Type: "CERTIFICATE", Bytes: der}, "key.pem": {Type: "EC PRIVATE KEY", Bytes: keyDER}} {
		c.write(t, name, pem.EncodeToMemory(block))
	}
	c.write(t, "tokens.csv", []byte(adminToken+`,admin,admin,"system:masters"`+"\n"))
	c.write(t, "token", []byte("none yet"))
	return c
}

func (c *cluster) write(t *testing.T, name string, data []byte) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(c.dir, name), data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// configure has a gateway follow the cluster.
func (c *cluster) configure(conf *config.Config) {
	conf.Kubernetes = config.Kubernetes{Policies: true, Server: "https://" + serverAddr, TokenFile: filepath.Join(c.dir, "token"), CAFile: filepath.Join(c.dir, "ca.crt")}
	conf.Attach.CNI = config.AttachRules{{Namespace: "listed", Policies: []string{"resource:*"}}, {Namespace: "starred", Policies: []string{"*"}}, {Policies: []string{"*", "resource:*"}}}
}

// start starts etcd and the API server on the host of the gateway of n, and waits until they serve.
func (c *cluster) start(n *network) {
	n.T.Helper()
	for _, program := range []string{"etcd", "kube-apiserver"} {
		if _, err := os.Stat(filepath.Join(clusterTools, program)); err != nil {
			n.T.Fatalf("%v; make kubernetes builds it", err)
		}
	}
	c.n = n
	roots := x509.NewCertPool()
	ca, err := os.ReadFile(filepath.Join(c.dir, "ca.crt"))
	if err != nil || !roots.AppendCertsFromPEM(ca) {
		n.T.Fatal(err)
	}
	c.client = &http.Client{Timeout: time.Minute, Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		DialContext: func(_ context.Context, network, addr string) (conn net.Conn, err error) {
			errDo := n.Net.Gateway().Do(func() error { conn, err = net.Dial(network, addr); return nil })
			if errDo != nil {
				return nil, errDo
			}
			return conn, err
		},
	}}
	n.T.Cleanup(c.client.CloseIdleConnections)
	c.run("etcd", "--data-dir="+filepath.Join(c.dir, "etcd"), "--listen-client-urls="+storeAddr, "--advertise-client-urls="+storeAddr, "--listen-peer-urls="+peerAddr,
		"--initial-advertise-peer-urls="+peerAddr, "--initial-cluster=default="+peerAddr, "--unsafe-no-fsync")
	c.serve()
}

// serve starts the API server, which may have been stopped.
func (c *cluster) serve() {
	c.n.T.Helper()
	key := filepath.Join(c.dir, "key.pem")
	c.server = c.run("kube-apiserver", "--etcd-servers="+storeAddr, "--bind-address=127.0.0.1", "--advertise-address=192.0.2.1", "--secure-port=6443", "--endpoint-reconciler-type=none",
		"--tls-cert-file="+filepath.Join(c.dir, "ca.crt"), "--tls-private-key-file="+key, "--service-cluster-ip-range=10.96.0.0/16", "--authorization-mode=RBAC",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+key, "--service-account-signing-key-file="+key, "--token-auth-file="+filepath.Join(c.dir, "tokens.csv"))
	c.n.Until("the API server serves", func() bool {
		code, _ := c.ask(adminToken, "GET", "/readyz", "")
		return code == http.StatusOK
	})
}

// run starts a program of the cluster, which ends with the test.
func (c *cluster) run(program string, args ...string) *exec.Cmd {
	c.n.T.Helper()
	log, err := os.Create(filepath.Join(c.dir, program+".log"))
	if err != nil {
		c.n.T.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(filepath.Join(clusterTools, program), args...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := c.n.Net.Gateway().Start(cmd); err != nil {
		c.n.T.Fatal(err)
	}
	c.n.T.Cleanup(func() {
		c.end(cmd)
		if text, err := os.ReadFile(log.Name()); err == nil && c.n.T.Failed() {
			c.n.T.Logf("%s: %s", program, text[max(0, len(text)-3000):])
		}
	})
	return cmd
}

// end kills a program. Further calls have no effect.
func (c *cluster) end(cmd *exec.Cmd) {
	if cmd.ProcessState == nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
}

// ask calls the API server, with a body in JSON or YAML.
func (c *cluster) ask(token, method, path, body string) (int, []byte) {
	c.n.T.Helper()
	r, err := http.NewRequestWithContext(context.Background(), method, "https://"+serverAddr+path, strings.NewReader(body))
	if err != nil {
		c.n.T.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set("Content-Type", "application/yaml")
	r.Header.Set("Accept", "application/json")
	answer, err := c.client.Do(r)
	if err != nil {
		return 0, []byte(err.Error())
	}
	defer answer.Body.Close()
	data, err := io.ReadAll(answer.Body)
	if err != nil {
		return 0, []byte(err.Error())
	}
	return answer.StatusCode, data
}

// must calls the API server as its administrator.
func (c *cluster) must(method, path, body string) []byte {
	c.n.T.Helper()
	code, data := c.ask(adminToken, method, path, body)
	if code < 200 || code > 299 {
		c.n.T.Fatalf("%s %s: %d %s", method, path, code, data)
	}
	return data
}

// install applies the manifest of BoxgatePolicies, and gives the gateway the token of its account.
func (c *cluster) install() {
	c.n.T.Helper()
	c.must("POST", "/api/v1/namespaces", `{"metadata": {"name": "boxgate-system"}}`)
	c.must("POST", "/api/v1/namespaces/boxgate-system/serviceaccounts", `{"metadata": {"name": "boxgate"}}`)
	manifest, err := os.ReadFile("../../dist/kubernetes/boxgatepolicy.yaml")
	if err != nil {
		c.n.T.Fatal(err)
	}
	paths := map[string]string{
		"CustomResourceDefinition": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
		"ClusterRole":              "/apis/rbac.authorization.k8s.io/v1/clusterroles", "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
	}
	for _, document := range bytes.Split(manifest, []byte("\n---\n")) {
		_, kind, _ := bytes.Cut(document, []byte("\nkind: "))
		kind, _, _ = bytes.Cut(kind, []byte("\n"))
		c.must("POST", paths[string(kind)], string(document))
	}
	var request struct{ Status struct{ Token string } }
	data := c.must("POST", "/api/v1/namespaces/boxgate-system/serviceaccounts/boxgate/token", `{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}`)
	if err := json.Unmarshal(data, &request); err != nil || request.Status.Token == "" {
		c.n.T.Fatal(err)
	}
	c.write(c.n.T, "token", []byte(request.Status.Token+"\n"))
	c.n.Until("the resource is served", func() bool {
		code, _ := c.ask(adminToken, "GET", policiesIn("default"), "")
		return code == http.StatusOK
	})
}

// policiesIn is the path of the resources of a namespace.
func policiesIn(namespace string) string {
	return "/apis/boxgate.dev/v1alpha1/namespaces/" + namespace + "/boxgatepolicies"
}

// put makes or replaces a resource.
func (c *cluster) put(namespace, name, spec string) {
	c.n.T.Helper()
	body := fmt.Sprintf(`{"apiVersion": "boxgate.dev/v1alpha1", "kind": "BoxgatePolicy", "metadata": {"name": %q}, "spec": %s}`, name, spec)
	if code, _ := c.ask(adminToken, "GET", policiesIn(namespace)+"/"+name, ""); code == http.StatusNotFound {
		c.must("POST", policiesIn(namespace), body)
		return
	}
	// As `kubectl patch --type=json` does.
	r, err := http.NewRequestWithContext(context.Background(), "PATCH", "https://"+serverAddr+policiesIn(namespace)+"/"+name, strings.NewReader(`[{"op": "replace", "path": "/spec", "value": `+spec+`}]`))
	if err != nil {
		c.n.T.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+adminToken)
	r.Header.Set("Content-Type", "application/json-patch+json")
	answer, err := c.client.Do(r)
	if err != nil {
		c.n.T.Fatal(err)
	}
	defer answer.Body.Close()
	if text, _ := io.ReadAll(answer.Body); answer.StatusCode != http.StatusOK {
		c.n.T.Fatalf("%d %s", answer.StatusCode, text)
	}
}

// policyStatus is the status of a resource.
type policyStatus struct {
	Metadata struct{ Generation int64 }
	Status   struct {
		Conditions []struct {
			Type, Status, Reason, Message string
			ObservedGeneration            int64
		}
		Problems []struct{ Node, Message string }
	}
}

// awaitStatus waits until the verdict about the current version of a resource has a status, and returns it.
func (c *cluster) awaitStatus(namespace, name, want string) (s policyStatus) {
	c.n.T.Helper()
	c.n.Until("the status of "+namespace+"/"+name+" is "+want, func() bool {
		s = policyStatus{}
		if err := json.Unmarshal(c.must("GET", policiesIn(namespace)+"/"+name, ""), &s); err != nil {
			c.n.T.Fatal(err)
		}
		return len(s.Status.Conditions) == 1 && s.Status.Conditions[0].ObservedGeneration == s.Metadata.Generation && s.Status.Conditions[0].Status == want
	})
	return s
}

// accountToken returns the token of the gateway's account.
func (c *cluster) accountToken() string {
	c.n.T.Helper()
	token, err := os.ReadFile(filepath.Join(c.dir, "token"))
	if err != nil {
		c.n.T.Fatal(err)
	}
	return strings.TrimSpace(string(token))
}
