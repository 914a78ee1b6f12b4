package command

import (
	"fmt"
	"io"

	"boxgate/cmd/gateway/command/cli"
)

// boxBody is the request for a new box.
type boxBody map[string]any

// sentByBox maps members of the request for a new box to flags, for commands that create boxes.
var sentByBox = map[string]string{"/network_policy": "--policy", "/attach_headers": "--headers", "/source_addresses": "--source", "/limits": "--limit=", "/labels": "--label"}

// setText sets the fields that are not empty.
func (b boxBody) setText(fields map[string]string) {
	for key, value := range fields {
		if value != "" {
			b[key] = value
		}
	}
}

// sourceHelp is the help text of --source.
const sourceHelp = "address from network.sources that its traffic leaves from; once for IPv4, once for IPv6"

// setSources sets the source addresses, if the command line contains any.
func (b boxBody) setSources(list []string) {
	if len(list) > 0 {
		b["source_addresses"] = list
	}
}

// labelHelp is the help text of --label of commands that create boxes.
const labelHelp = "label such as team=x, up to 5 (may be repeated); commands with --label select boxes by it"

// setLabels sets the labels, if the command line contains any.
func (b boxBody) setLabels(list []string) {
	if len(list) > 0 {
		b["labels"] = list
	}
}

// setLimits sets the limits, if the command line contains any.
func (b boxBody) setLimits(args []string) error {
	limits, err := limitsOf(args)
	if len(limits) > 0 {
		b["limits"] = limits
	}
	return err
}

// setNetwork sets the policy and the header rules, if the command line contains them.
func (b boxBody) setNetwork(policy, headers string, stdin io.Reader) error {
	if policy != "" {
		data, err := cli.PolicyArgument(policy, cli.BoxPolicyHelp, stdin)
		if err != nil {
			return fmt.Errorf("--policy: %w", err)
		}
		b["network_policy"] = data
	}
	if headers != "" {
		data, err := cli.RulesArgument(headers, stdin)
		if err != nil {
			return fmt.Errorf("--headers: %w", err)
		}
		b["attach_headers"] = data
	}
	return nil
}
