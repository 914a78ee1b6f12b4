package config

import (
	"strings"
	"testing"
)

// A sandbox gets a policy that the first rule of its namespace allows, or an error.
func TestPoliciesOfAttachRules(t *testing.T) {
	t.Parallel()
	cfg, err := Parse("f", []byte(`attach: {cni: [{namespace: team-a, policies: ["named:a"]}, {namespace: none}, {namespace: own, default: "resource:base", policies: ["resource:*"]}, {namespace: star, policies: ["*"]}, {namespace: both, policies: ["*", "resource:*"]}, {default: "named:web", policies: ["named:web", "named:git"]}]}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		namespace, asked, want string
		ok                     bool
	}{
		{"default", "", "named:web", true},
		{"default", "named:web", "named:web", true},
		{"default", "named:git", "named:git", true},
		{"default", "deny-all", "deny-all", true},
		{"default", "named:a", "", false},
		{"default", "named:", "", false},
		{"default", "web", "", false},
		{"default", "allow-all", "", false},
		{"default", "@/etc/shadow", "", false},
		{"default", `{"mode":"allow-all"}`, "", false},
		{"default", "named:web\nnamed:a", "", false},
		{"", "named:git", "named:git", true},
		{"team-a", "", "", true}, // policy.default
		{"team-a", "named:a", "named:a", true},
		{"team-a", "named:web", "", false},
		{"none", "named:web", "", false},
		{"none", "resource:web", "", false},
		{"default", "resource:web", "", false},
		{"own", "", "resource:base", true},
		{"own", "resource:web", "resource:web", true},
		{"own", "resource:", "", false},
		{"own", "named:own.web", "", false},
		{"own", "named:web", "", false},
		{"star", "named:web", "named:web", true},
		{"star", "preset:npm", "preset:npm", true},
		{"star", "allow-all", "allow-all", true},
		{"star", "resource:web", "", false}, // a configuration from before there were resources
		{"star", "resource:*", "", false},
		{"both", "resource:web", "resource:web", true},
		{"both", "named:web", "named:web", true},
	} {
		got, err := cfg.Attach.CNI.For(c.namespace).Policy(c.asked)
		if got != c.want || (err == nil) != c.ok {
			t.Errorf("%s asks for %q: %q %v", c.namespace, c.asked, got, err)
		}
	}
	if _, err := (AttachRules{}).For("default").Policy("named:web"); err == nil {
		t.Error("allowed without a rule")
	}
}

func TestMistakesInAttach(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`attach: {cni: [{default: web}]}`:             "attach.cni[0].default: ",
		`attach: {oci: [{}, {policies: ["x y"]}]}`:    "attach.oci[1].policies: ",
		`attach: {cni: [{headers: {a: rules.json}}]}`: "attach.cni[0].headers: ",
		`attach: {cni: [{names: ["["]}]}`:             "attach.cni[0].names: ",
		`attach: {cni: [{polices: [x]}]}`:             "polices",
		`attach: {docker: []}`:                        "attach.docker",
		`attach: {oci: [{policies: ["resource:*"]}]}`: "attach.oci[0]: ",
		`attach: {oci: [{default: "resource:web"}]}`:  "attach.oci[0]: ",
	} {
		if _, err := Parse("f", []byte(text), nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
	if _, err := Parse("", nil, []string{"BOXGATE_ATTACH_CNI=a"}); err == nil {
		t.Error("rules were set by a variable")
	}
}

// The API server is named, or that of the cluster whose pod the gateway is; its token goes nowhere but there.
func TestKubernetes(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`kubernetes: {policies: true}`:                                        "",
		`kubernetes: {server: "x y"}`:                                         "",
		`kubernetes: {policies: true, server: "https://10.96.0.1:443"}`:       "",
		`kubernetes: {policies: true, server: "http://10.96.0.1:443"}`:        "kubernetes.server: ",
		`kubernetes: {policies: true, server: "https://a@10.96.0.1"}`:         "kubernetes.server: ",
		`kubernetes: {policies: true, server: "https://10.96.0.1/api"}`:       "kubernetes.server: ",
		`kubernetes: {policies: true, server: "10.96.0.1:443"}`:               "kubernetes.server: ",
		`kubernetes: {policies: true, token_file: token, ca_file: ""}`:        "kubernetes.token_file: ",
		`kubernetes: {policies: true, ca_file: ca.crt, token_file: "/token"}`: "kubernetes.ca_file: ",
	} {
		if _, err := Parse("f", []byte(text), nil); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
	for want, k := range map[string]struct{ server, host, port string }{
		"https://api:6443":      {"https://api:6443", "10.96.0.1", "443"},
		"https://10.96.0.1:443": {"", "10.96.0.1", "443"},
		"https://[fd00::1]:443": {"", "fd00::1", "443"},
		"":                      {"", "evil.example.net", "443"},
	} {
		variables := map[string]string{"KUBERNETES_SERVICE_HOST": k.host, "KUBERNETES_SERVICE_PORT": k.port}
		if got := (Kubernetes{Server: k.server}).URL(func(name string) string { return variables[name] }); got != want {
			t.Errorf("%+v: %q", k, got)
		}
	}
}
