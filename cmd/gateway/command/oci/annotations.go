package oci

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"

	"boxgate/api"
	"boxgate/cmd/gateway/command/cli"
	"boxgate/config"
)

// The annotations of a container that the gateway reads. An image, or the author of a pod, may have written them: they choose among the
// values that the operator's rules allow, and contain no secrets.
const (
	annotationPrefix  = "boxgate.dev/"
	annotationPolicy  = annotationPrefix + "policy"
	annotationHeaders = annotationPrefix + "headers"
	annotationName    = annotationPrefix + "name"
	annotationLabels  = annotationPrefix + "labels"
	annotationStack   = annotationPrefix + "stack"
)

// namespaceAnnotations are set by containerd's CRI plugin and by CRI-O.
var namespaceAnnotations = []string{"io.kubernetes.cri.sandbox-namespace", "io.kubernetes.pod.namespace"}

// asked are the values of the annotations of a container.
type asked struct {
	Policy, Headers, Name, Labels, Stack string
}

// readAnnotations returns the values of annotations. An unknown one of the gateway's is an error: it may be meant to restrict.
func readAnnotations(all map[string]string) (asked, error) {
	var a asked
	known := map[string]*string{annotationPolicy: &a.Policy, annotationHeaders: &a.Headers, annotationName: &a.Name, annotationLabels: &a.Labels, annotationStack: &a.Stack}
	for key, value := range all {
		if !strings.HasPrefix(key, annotationPrefix) {
			continue
		}
		to := known[key]
		if to == nil {
			return a, fmt.Errorf("there is no annotation %.100q; the gateway reads %s", key, strings.Join([]string{annotationPolicy, annotationHeaders, annotationName, annotationLabels, annotationStack}, ", "))
		}
		*to = value
	}
	return a, nil
}

// namespaceOf returns the Kubernetes namespace of a container, "" outside of Kubernetes. Where the engine sets one of the annotations, the
// author of a pod may have set the other: they must not differ.
func namespaceOf(annotations map[string]string) (namespace string, err error) {
	for _, key := range namespaceAnnotations {
		switch value := annotations[key]; {
		case value != "" && namespace != "" && value != namespace:
			return "", fmt.Errorf("the annotations %s name different namespaces", strings.Join(namespaceAnnotations, " and "))
		case value != "":
			namespace = value
		}
	}
	return namespace, nil
}

// body returns the request to attach a container, within the bounds of a rule. policy and headers are the operator's, of the command
// line, for containers without annotations.
func (a asked) body(rule config.AttachRule, policy, headers, stack string) (map[string]any, error) {
	chosen, err := rule.Policy(a.Policy)
	if err != nil {
		return nil, err
	}
	if a.Policy == "" {
		chosen = cmp.Or(policy, chosen)
	}
	file, err := rule.HeaderFile(a.Headers)
	if err != nil {
		return nil, err
	}
	if file != "" {
		headers = "@" + file
	}
	body := map[string]any{"stack": cmp.Or(a.Stack, stack)}
	if s := body["stack"]; s != api.StackHost && s != api.StackGuest {
		return nil, fmt.Errorf("the annotation %s is host or guest, not %.100q", annotationStack, s)
	}
	if a.Name != "" {
		if err := rule.CheckName(a.Name); err != nil {
			return nil, err
		}
		body["name"] = a.Name
	}
	if a.Labels != "" {
		labels := strings.Split(a.Labels, ",")
		for _, label := range labels {
			if err := rule.CheckLabel(label); err != nil {
				return nil, err
			}
		}
		body["labels"] = labels
	}
	return body, setNetwork(body, chosen, headers)
}

// setNetwork adds a policy and header rules, in the forms of the command line, to a request.
func setNetwork(body map[string]any, policy, headers string) error {
	if policy != "" {
		data, err := cli.PolicyArgument(policy, cli.BoxPolicyHelp, strings.NewReader(""))
		if err != nil {
			return fmt.Errorf("the policy of the container: %w", err)
		}
		body["network_policy"] = data
	}
	if headers != "" {
		var data json.RawMessage
		data, err := cli.RulesArgument(headers, strings.NewReader(""))
		if err != nil {
			return fmt.Errorf("the header rules of the container: %w", err)
		}
		body["attach_headers"] = data
	}
	return nil
}
