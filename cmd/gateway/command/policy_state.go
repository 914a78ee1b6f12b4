package command

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"

	"boxgate/api"
	"boxgate/cmd/gateway/command/cli"
	"boxgate/policy"
	"boxgate/policy/dialect"
)

// policyState is the policy of a box as the API returns it.
type policyState struct {
	spec     policy.Spec
	named    string // the named policy that the box follows, if any
	version  json.Number
	warnings []cli.Warning
	leases   json.RawMessage // unparsed; nil if there are no leases
	answer   json.RawMessage // the whole answer
}

// readPolicy fetches the policy of a box.
func readPolicy(ctx context.Context, client *api.Client, box string) (policyState, error) {
	var answer json.RawMessage
	if err := client.Get(ctx, api.BoxPath(box, "config/network-policy"), &answer); err != nil {
		return policyState{}, err
	}
	return parsePolicyState(answer)
}

// parsePolicyState parses an answer that contains a policy.
func parsePolicyState(answer json.RawMessage) (policyState, error) {
	s := policyState{answer: answer}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(answer, &fields); err != nil {
		return s, fmt.Errorf("cannot parse the gateway's answer: %w", err)
	}
	_ = json.Unmarshal(fields["version"], &s.version)
	_ = json.Unmarshal(fields["warnings"], &s.warnings)
	_ = json.Unmarshal(fields["named"], &s.named)
	s.leases = fields["leases"]
	delete(fields, "named")
	delete(fields, "leases")
	delete(fields, "version")
	delete(fields, "warnings")
	doc, err := json.Marshal(fields)
	if err != nil {
		return s, err
	}
	// Strict parsing: a change based on a partly understood policy would lose the rest.
	if s.spec, err = dialect.ParseSpec(doc); err != nil {
		return s, fmt.Errorf("this program does not understand all of the gateway's policy; use the version that the gateway has: %w", err)
	}
	return s, nil
}

// entryAt returns the allowed entry at the pointer of a warning, or "" for other pointers.
func (s policyState) entryAt(pointer string) string {
	for list, entries := range map[string][]string{"/allowed_domains/": s.spec.AllowedDomains, "/allowed_cidrs/": s.spec.AllowedCIDRs} {
		index, ok := strings.CutPrefix(pointer, list)
		if i, err := strconv.Atoi(index); ok && err == nil && i >= 0 && i < len(entries) {
			return entries[i]
		}
	}
	return ""
}

// readOwnPolicy fetches the policy of a box in order to change it. It fails if the box follows a named policy, which
// other boxes may share.
func readOwnPolicy(ctx context.Context, client *api.Client, box string) (policyState, error) {
	s, err := readPolicy(ctx, client, box)
	if err == nil && s.named != "" {
		err = fmt.Errorf("the box follows the named policy %q, as others may. Change it for all of them with `gateway policy named set %s POLICY`, "+
			"allow or deny for a time with `gateway policy allow --for 1h` or `deny --for 1h`, or give the box a policy of its own with `gateway policy set %s POLICY`", s.named, s.named, box)
	}
	return s, err
}

// writePolicy replaces the policy of a box, provided it is still at the version that was read, and keeps its temporary
// entries. At a different version the policy stays and the error is a *[api.ResponseError] with status 412.
func writePolicy(ctx context.Context, client *api.Client, box string, spec policy.Spec, read policyState) (policyState, error) {
	body := struct {
		policy.Spec
		Version json.Number     `json:"version"` // like If-Match
		Leases  json.RawMessage `json:"leases,omitempty"`
	}{spec, read.version, read.leases}
	var answer json.RawMessage
	if err := client.Do(ctx, "PUT", api.BoxPath(box, "config/network-policy"), body, &answer); err != nil {
		return policyState{}, err
	}
	return parsePolicyState(answer)
}

// policyArgument parses and validates the policy in an argument, in any dialect.
func policyArgument(arg string, stdin io.Reader) (policy.Spec, error) {
	data, err := cli.PolicyArgument(arg, cli.BoxPolicyHelp, stdin)
	if err != nil {
		return policy.Spec{}, err
	}
	return dialect.ParseSpec(data)
}
