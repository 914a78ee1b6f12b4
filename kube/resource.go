package kube

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"boxgate/internal/lazyregexp"
	"boxgate/policy"
	"boxgate/policy/dialect"
	"boxgate/policy/document"
)

// mostSpec is the largest policy of a resource, in bytes of JSON.
const mostSpec = 64 << 10

// resource is a BoxgatePolicy.
type resource struct {
	Metadata metadata        `json:"metadata"`
	Spec     json.RawMessage `json:"spec"`
	Status   status          `json:"status"`
}

// metadata are the fields of metadata that the controller needs.
type metadata struct {
	Namespace       string `json:"namespace"`
	Name            string `json:"name"`
	UID             string `json:"uid"`
	ResourceVersion string `json:"resourceVersion"`
	Generation      int64  `json:"generation"`
}

// The forms of the names of namespaces (RFC 1123 labels), which the API server checks, and of resources, which the definition of the
// resource limits further.
var (
	namespaceForm = lazyregexp.New(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
	nameForm      = lazyregexp.New(`^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$`)
)

// ref returns NAMESPACE/NAME.
func (r *resource) ref() string { return r.Metadata.Namespace + "/" + r.Metadata.Name }

// parseResource reads a resource. The error is for one that has no name to report anything about.
func parseResource(data []byte) (*resource, error) {
	var r resource
	if err := json.Unmarshal(data, &r); err != nil {
		// A status that others wrote must not hide the resource.
		var without struct {
			Metadata metadata        `json:"metadata"`
			Spec     json.RawMessage `json:"spec"`
		}
		if err := json.Unmarshal(data, &without); err != nil {
			return nil, fmt.Errorf("a resource cannot be read: %w", err)
		}
		r = resource{Metadata: without.Metadata, Spec: without.Spec}
	}
	if !namespaceForm.MatchString(r.Metadata.Namespace) || !nameForm.MatchString(r.Metadata.Name) {
		return nil, fmt.Errorf("the resource %.80q of the namespace %.80q has another form of names", r.Metadata.Name, r.Metadata.Namespace)
	}
	return &r, nil
}

// parseSpec reads the policy of a resource. It has every field of a policy in the admin API's form, and no other. The error lists all
// problems.
func (r *resource) parseSpec() (policy.Spec, error) {
	var form struct {
		Mode json.RawMessage `json:"mode"`
	}
	switch {
	case len(r.Spec) > mostSpec:
		return policy.Spec{}, invalid("/spec", "has %d bytes; a policy has at most %d", len(r.Spec), mostSpec)
	case json.Unmarshal(r.Spec, &form) != nil || form.Mode == nil: // the forms of other products have no mode
		return policy.Spec{}, invalid("/spec/mode", "is missing; use allow-all, deny-all or custom")
	}
	return dialect.ParseSpec(r.Spec)
}

func invalid(pointer, format string, args ...any) error {
	var ps document.Problems
	ps.Add(pointer, format, args...)
	return ps.Err()
}

// mostMessage is the longest message in a status, in bytes.
const mostMessage = 2000

// messageOf describes an error in a status.
func messageOf(err error) string {
	text := err.Error()
	if broken, ok := errors.AsType[*document.InvalidError](err); ok {
		var lines []string
		for _, p := range broken.Problems {
			lines = append(lines, strings.TrimSpace(p.Pointer+" "+p.Message))
		}
		text = strings.Join(lines, "; ")
	}
	text = strings.ToValidUTF8(text, "?")
	if len(text) > mostMessage {
		text = strings.ToValidUTF8(text[:mostMessage], "") + "…"
	}
	return text
}

// isInvalid reports whether an error is a mistake in the policy, on every gateway, and not a problem of this one.
func isInvalid(err error) bool {
	_, ok := errors.AsType[*document.InvalidError](err)
	return ok
}

// status is the status of a resource.
type status struct {
	Conditions []condition `json:"conditions,omitempty"`
	Problems   []problem   `json:"problems,omitempty"`
}

// condition is a condition of Kubernetes' API conventions.
type condition struct {
	Type               string `json:"type"`
	Status             string `json:"status"`
	ObservedGeneration int64  `json:"observedGeneration,omitempty"`
	LastTransitionTime string `json:"lastTransitionTime"`
	Reason             string `json:"reason"`
	Message            string `json:"message"`
}

// problem is the reason why the gateway of a node does not apply the policy.
type problem struct {
	Node       string `json:"node"`
	Generation int64  `json:"generation"`
	Message    string `json:"message"`
}

// The condition of the verdict about a policy.
const (
	conditionAccepted = "Accepted"
	reasonValid       = "Valid"
	reasonInvalid     = "Invalid"
	messageValid      = "the policy is valid"
	keepsLast         = ". The last valid version stays in force, if there was one"
)

// mostProblems is the maximum number of nodes in a status.
const mostProblems = 64

// next returns the status after a gateway has tried to apply the policy, with its error, and whether it differs. A gateway that accepts a
// generation overrules one of another version or configuration that does not, never the reverse.
func (s status) next(generation int64, node, now string, err error) (status, bool) {
	next := status{Conditions: slices.Clone(s.Conditions)}
	verdict := condition{Type: conditionAccepted, Status: "True", Reason: reasonValid, Message: messageValid, ObservedGeneration: generation, LastTransitionTime: now}
	if err != nil && isInvalid(err) {
		verdict.Status, verdict.Reason, verdict.Message = "False", reasonInvalid, messageOf(err)+keepsLast
	}
	changed, found := false, slices.IndexFunc(next.Conditions, func(c condition) bool { return c.Type == conditionAccepted })
	switch {
	case found < 0:
		next.Conditions, changed = append(next.Conditions, verdict), true
	case next.Conditions[found].ObservedGeneration != generation, verdict.Status == "True" && next.Conditions[found].Status != "True":
		if next.Conditions[found].Status == verdict.Status {
			verdict.LastTransitionTime = next.Conditions[found].LastTransitionTime
		}
		next.Conditions[found], changed = verdict, true
	}
	mine := problem{Node: node, Generation: generation}
	if accepted := changed || next.Conditions[found].Status == verdict.Status; err != nil && (!isInvalid(err) || !accepted) {
		mine.Message = messageOf(err)
	}
	noted := false
	for _, p := range s.Problems {
		switch {
		case p.Generation != generation:
			changed = true // of an earlier policy
		case p.Node != node:
			next.Problems = append(next.Problems, p)
		case p == mine:
			next.Problems, noted = append(next.Problems, p), true
		default:
			changed = true // solved, or another one
		}
	}
	if mine.Message != "" && !noted && len(next.Problems) < mostProblems {
		next.Problems, changed = append(next.Problems, mine), true
	}
	return next, changed
}
