package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"boxgate/policy"
	"boxgate/policy/dialect"
	"boxgate/policy/document"
)

// Policies are the operator's policies.
type Policies struct {
	// Default is the policy of a box that is created without one.
	Default PolicyDocument `yaml:"default"`
	// Ceiling limits the policy of every box; empty: no ceiling.
	Ceiling PolicyDocument `yaml:"ceiling"`
	// Audit is the least powerful role of API keys that may have a policy audited instead of enforced; see [AuditBy].
	Audit string `yaml:"audit"`
}

// AuditBy lists the values of policy.audit: roles of API keys, from the most to the least powerful one.
var AuditBy = []string{"off", "admin", "box-creator", "one-box"}

// PolicyDocument is a policy in the configuration: a mode, or a document as in the admin API.
type PolicyDocument struct {
	Spec policy.Spec // as far as it could be parsed; zero if not set
	err  error       // reported by validate, so that it does not hide other mistakes
}

func defaultPolicies() Policies {
	return Policies{Default: PolicyDocument{Spec: policy.Spec{Mode: policy.ModeAllowAll}}, Audit: "box-creator"}
}

// UnmarshalYAML parses a mode, a policy, or null for no policy.
func (d *PolicyDocument) UnmarshalYAML(node *yaml.Node) error {
	var tree any
	if err := node.Decode(&tree); err != nil {
		return err
	}
	data, err := json.Marshal(tree)
	if err != nil {
		d.err = errors.New("is no policy")
		return nil //nolint:nilerr // validate reports it
	}
	d.parse(data)
	return nil
}

// UnmarshalText parses a mode, a policy in JSON, or an empty text for no policy.
func (d *PolicyDocument) UnmarshalText(text []byte) error {
	if len(text) > 0 && text[0] != '{' {
		text, _ = json.Marshal(string(text))
	}
	d.parse(text)
	return nil
}

// MarshalYAML encodes the policy in the form that UnmarshalYAML parses.
func (d PolicyDocument) MarshalYAML() (any, error) {
	if d.Spec.Mode == "" {
		return nil, nil
	}
	data, err := json.Marshal(d.Spec)
	if err != nil {
		return nil, err
	}
	var tree any
	err = json.Unmarshal(data, &tree)
	return tree, err
}

func (d *PolicyDocument) parse(data []byte) {
	*d = PolicyDocument{}
	if len(data) == 0 || string(data) == "null" || string(data) == `""` {
		return
	}
	var headers []policy.HeaderRule
	if d.Spec, headers, d.err = dialect.Parse(data); d.err == nil && len(headers) > 0 {
		d.err = errors.New("transforms belong in the policies of boxes, or in the header rules of all boxes")
	}
}

// CompileCeiling returns the compiled ceiling, nil if not set.
func (p Policies) CompileCeiling() (*policy.Ceiling, error) {
	if p.Ceiling.Spec.Mode == "" {
		return nil, nil
	}
	return policy.NewCeiling(p.Ceiling.Spec)
}

func (p Policies) check(fail func(key, format string, args ...any)) {
	report := func(key string, err error) {
		var invalid *document.InvalidError
		if !errors.As(err, &invalid) {
			fail(key, "%v", err)
			return
		}
		for _, problem := range invalid.Problems {
			fail(key, "%s", formatProblem(problem))
		}
	}
	switch {
	case p.Default.err != nil:
		report("policy.default", p.Default.err)
	case p.Default.Spec.Mode == "":
		fail("policy.default", `is empty; use allow-all, deny-all or a policy`)
	default:
		if _, err := policy.Compile(p.Default.Spec, policy.Options{Version: 1}); err != nil {
			report("policy.default", err)
		}
	}
	if !slices.Contains(AuditBy, p.Audit) {
		fail("policy.audit", "must be one of %s", strings.Join(AuditBy, ", "))
	}
	if p.Ceiling.err != nil {
		report("policy.ceiling", p.Ceiling.err)
	} else if _, err := p.CompileCeiling(); err != nil {
		report("policy.ceiling", err)
	}
}

// formatProblem formats a problem of a document as one line.
func formatProblem(p document.Problem) string {
	if p.Pointer == "" {
		return p.Message
	}
	return fmt.Sprintf("%s %s", p.Pointer, p.Message)
}

// parsesItself reports whether a type parses its own part of the file and its own variables.
func parsesItself(t reflect.Type) bool {
	return t == reflect.TypeFor[Secrets]() || t == reflect.TypeFor[PolicyDocument]()
}

// Approvals lets boxes ask for access that their policies deny.
type Approvals struct {
	// Enabled is false if no box can ask.
	Enabled bool `yaml:"enabled"`
	// EveryBox lets all boxes ask that have no setting of their own.
	EveryBox bool `yaml:"every_box"`
	// FourEyes refuses answers by the API key that created the box, and by keys for that box alone.
	FourEyes bool `yaml:"four_eyes"`
	// Automatic approves each request that the ceiling permits, for a time.
	Automatic bool     `yaml:"automatic"`
	Reviewer  Reviewer `yaml:"reviewer"`
}

// Reviewer is a server that answers requests of boxes before a person does.
type Reviewer struct {
	URL string `yaml:"url"`
	// Secret is the name of the secret with the signing keys.
	Secret string `yaml:"secret"`
}

// check reports mistakes. An automatic approval is bounded by the ceiling only.
func (a *Approvals) check(ceiling PolicyDocument, secrets Secrets, fail func(key, format string, args ...any)) {
	if a.Automatic && ceiling.Spec.Mode == "" {
		fail("approvals.automatic", "needs policy.ceiling, which limits what is approved automatically")
	}
	if a.Automatic && a.FourEyes {
		fail("approvals.automatic", "does not go with approvals.four_eyes")
	}
	u, err := url.Parse(a.Reviewer.URL)
	if a.Reviewer.URL != "" && (err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil || u.Fragment != "") {
		fail("approvals.reviewer.url", "%q is not an https URL without user information and fragment", a.Reviewer.URL)
	}
	if _, known := secrets.Sources[a.Reviewer.Secret]; a.Reviewer.URL != "" && !known {
		fail("approvals.reviewer.secret", "is not the name of an entry of secrets; add one with the signing keys, such as secrets: {reviewer: {file: /etc/boxgate/reviewer}}, and use its name")
	}
}
