package config

import (
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"boxgate/internal/lazyregexp"
)

// Attach configures the containers that launchers of others attach by themselves.
type Attach struct {
	// OCI are the rules for containers of `gateway oci`; the first one of a container's namespace applies.
	OCI AttachRules `yaml:"oci,omitempty"`
	// CNI are the rules for pods of `gateway cni`. Pods cannot name their boxes.
	CNI AttachRules `yaml:"cni,omitempty"`
}

// AttachRules are bounds of the annotations of containers, in order.
type AttachRules []AttachRule

// AttachRule bounds the annotations of the containers of a namespace. The zero value allows no annotation.
type AttachRule struct {
	// Namespace is a Kubernetes namespace; empty: all, and containers without one.
	Namespace string `yaml:"namespace,omitempty"`
	// Policies may be named by the annotation boxgate.dev/policy: named:NAME, preset:NAME, resource:NAME or a mode; "*" for all of these
	// except resources, and "resource:*" for all resources of the pod's namespace.
	Policies []string `yaml:"policies,omitempty"`
	// Default is the policy of a container without the annotation, in the same forms; empty: policy.default.
	Default string `yaml:"default,omitempty"`
	// Headers maps names for the annotation boxgate.dev/headers (named:NAME) to files with header rules.
	Headers map[string]string `yaml:"headers,omitempty"`
	// Names are patterns (path.Match) of the names that containers may give their boxes by boxgate.dev/name.
	Names []string `yaml:"names,omitempty"`
	// Labels may be given by boxgate.dev/labels; "*" allows all.
	Labels []string `yaml:"labels,omitempty"`
}

// For returns the rule for a namespace, which is empty for a container without one. Without a matching rule it is the zero value.
func (rules AttachRules) For(namespace string) AttachRule {
	for _, r := range rules {
		if r.Namespace == "" || r.Namespace == namespace {
			return r
		}
	}
	return AttachRule{}
}

// Policy returns the policy of a container whose annotation asks for one; "" means that it asks for none. deny-all may always be asked
// for. A result of "" is the gateway's policy.default.
func (r AttachRule) Policy(asked string) (string, error) {
	switch {
	case asked == "":
		return r.Default, nil
	case !isAnnotatedPolicy(asked):
		return "", fmt.Errorf("the annotation asks for the policy %.200q, which is not %s", asked, annotatedPolicies)
	case asked == "deny-all" || slices.Contains(r.Policies, asked):
		return asked, nil
	}
	all := "*"
	if strings.HasPrefix(asked, ResourcePolicy) { // written by others in the cluster: "*" has the operator's policies alone
		all = ResourcePolicy + "*"
	}
	if slices.Contains(r.Policies, all) {
		return asked, nil
	}
	return "", fmt.Errorf("the annotation asks for the policy %.200q, which the gateway's configuration does not allow here: add it to policies of a rule of attach", asked)
}

// HeaderFile returns the file with the header rules that an annotation asks for; "" asks for none.
func (r AttachRule) HeaderFile(asked string) (string, error) {
	if asked == "" {
		return "", nil
	}
	name, ok := strings.CutPrefix(asked, "named:")
	if file := r.Headers[name]; ok && file != "" {
		return file, nil
	}
	return "", fmt.Errorf("the annotation asks for the header rules %.200q, which the gateway's configuration does not have here: add named:NAME to headers of a rule of attach", asked)
}

// CheckName returns an error for a name that the rule does not allow.
func (r AttachRule) CheckName(name string) error {
	if slices.ContainsFunc(r.Names, func(pattern string) bool { ok, err := path.Match(pattern, name); return ok && err == nil }) {
		return nil
	}
	return fmt.Errorf("the annotation asks for the name %.200q, which the gateway's configuration does not allow here: add it to names of a rule of attach", name)
}

// CheckLabel returns an error for a label that the rule does not allow.
func (r AttachRule) CheckLabel(label string) error {
	if slices.Contains(r.Labels, label) || slices.Contains(r.Labels, "*") {
		return nil
	}
	return fmt.Errorf("the annotation asks for the label %.200q, which the gateway's configuration does not allow here: add it to labels of a rule of attach", label)
}

// annotatedPolicies are the forms of a policy in an annotation: never a file, and never a document, which no list could bound.
const annotatedPolicies = "named:NAME, resource:NAME, preset:NAME,…, allow-all or deny-all"

// ResourcePolicy precedes the name of a BoxgatePolicy of the pod's namespace.
const ResourcePolicy = "resource:"

var annotatedPolicy = lazyregexp.New(`^(allow-all|deny-all|(named|preset|resource):[A-Za-z0-9*][A-Za-z0-9._,*:/-]{0,500})$`)

func isAnnotatedPolicy(text string) bool { return annotatedPolicy.MatchString(text) }

func (a Attach) check(fail func(key, format string, args ...any)) {
	a.OCI.check("attach.oci", fail)
	a.CNI.check("attach.cni", fail)
}

func (rules AttachRules) check(section string, fail func(key, format string, args ...any)) {
	for i, r := range rules {
		key := fmt.Sprintf("%s[%d]", section, i)
		if isResource := func(p string) bool { return strings.HasPrefix(p, ResourcePolicy) }; section != "attach.cni" && (isResource(r.Default) || slices.ContainsFunc(r.Policies, isResource)) {
			fail(key, "%sNAME is for pods of attach.cni alone, whose namespace is known", ResourcePolicy)
		}
		for _, p := range r.Policies {
			if p != "*" && !isAnnotatedPolicy(p) {
				fail(key+".policies", "%q is not %s or *", p, annotatedPolicies)
			}
		}
		if r.Default != "" && !isAnnotatedPolicy(r.Default) {
			fail(key+".default", "%q is not %s", r.Default, annotatedPolicies)
		}
		for _, pattern := range r.Names {
			if _, err := path.Match(pattern, ""); err != nil {
				fail(key+".names", "%q is not a pattern such as agent-*", pattern)
			}
		}
		for name, file := range r.Headers {
			if name == "" || !filepath.IsAbs(file) {
				fail(key+".headers", "%q: %q is not an absolute path of a file with header rules", name, file)
			}
		}
	}
}
