package command

import (
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"strings"

	"github.com/spf13/cobra"

	"boxgate/api"
	"boxgate/audit"
	"boxgate/cmd/gateway/command/cli"
	"boxgate/cmd/gateway/command/remedy"
	"boxgate/policy"
	"boxgate/policy/name"
)

// newPolicyCommand is `gateway policy`.
func newPolicyCommand(o *cli.Options) *cobra.Command {
	cmd := cli.Group("policy", "Show, change and query the network policy of a box")
	cmd.AddCommand(
		&cobra.Command{
			Use: "get BOX", Short: "Show the active policy", Args: cli.ExactArgs(1),
			RunE: func(cmd *cobra.Command, args []string) error {
				return o.Call(cmd, "GET", api.BoxPath(args[0], "config/network-policy"), nil, cli.Indented)
			},
		},
		newPolicySet(o), newPolicyAmend(o, "allow"), newPolicyAmend(o, "deny"), newPolicyLeases(o), newPolicyEnd(o), newPolicyDiff(o), newPolicyEdit(o),
		newPolicyExplain(o), newPolicyPresets(o), newPolicyNamed(o), newPolicyConvert(),
	)
	return cmd
}

func newPolicyExplain(o *cli.Options) *cobra.Command {
	var protocol, method, path, query, content string
	var port uint16
	var headers []string
	var resolve bool
	cmd := &cobra.Command{
		Use:   "explain BOX HOST|IP",
		Short: "Show how the policy would decide, without connecting",
		Long: `Shows how the policy would decide, and what would change that. The gateway looks up a name as it would for the box, so that
protected addresses and names that do not exist are shown, but connects to nothing; --resolve=false asks about the name alone.`,
		Args: cli.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			body := map[string]any{"port": port, "protocol": protocol}
			if _, err := netip.ParseAddr(args[1]); err == nil {
				body["ip"] = args[1]
			} else {
				body["host"] = args[1]
				body["resolve"] = resolve
			}
			if method != "" {
				body["method"] = method
			}
			if path != "" {
				body["path"] = path
			}
			if cmd.Flags().Changed("query") {
				body["query"] = query
			}
			if cmd.Flags().Changed("header") {
				named := map[string]string{}
				for _, h := range headers {
					name, value, _ := strings.Cut(h, ":")
					named[name] = strings.TrimSpace(value)
				}
				body["headers"] = named
			}
			if cmd.Flags().Changed("body") {
				body["body"] = content
			}
			return o.Call(cmd, "POST", api.BoxPath(args[0], "egress/explain"), body, func(w io.Writer, answer json.RawMessage) error {
				defer advise(cmd, o, args[0], args[1], answer)
				return cli.Indented(w, answer)
			})
		},
	}
	cli.MapFields(cmd, map[string]string{"/host": "HOST", "/ip": "IP", "/headers": "--header="})
	f := cmd.Flags()
	f.StringVar(&protocol, "protocol", "tcp", "tcp, udp or icmp")
	f.Uint16Var(&port, "port", 443, "destination port")
	f.BoolVar(&resolve, "resolve", true, "look a name up as for the box")
	f.StringVar(&method, "method", "", "HTTP method")
	f.StringVar(&path, "path", "", "HTTP path")
	f.StringVar(&query, "query", "", "HTTP query, without the question mark")
	f.StringVar(&content, "body", "", "body of an HTTP request, for rules on MCP and GraphQL messages; its Content-Type is JSON unless --header gives it")
	f.StringArrayVar(&headers, "header", nil, `HTTP header, as "Name: value"; give all that the rules depend on (may be repeated)`)
	return cmd
}

// advise prints the remedy for a denial to standard error.
func advise(cmd *cobra.Command, o *cli.Options, box, host string, answer json.RawMessage) {
	var e audit.Event
	var looked struct {
		LookupError string `json:"lookup_error"`
		Addresses   []struct {
			Address netip.Addr
			Verdict policy.Verdict
			Reason  name.Reason
		}
	}
	if json.Unmarshal(answer, &e) != nil || json.Unmarshal(answer, &looked) != nil || e.Verdict != policy.Deny {
		return
	}
	asked := cmd.Flags()
	port, _ := asked.GetUint16("port")
	protocol, _ := asked.GetString("protocol")
	e.BoxName, e.Box, e.Stage, e.Port, e.Protocol = box, policy.BoxID(box), policy.StageConn, port, policy.Protocol(protocol)
	if a, err := netip.ParseAddr(host); err == nil {
		e.Addr = a
	} else {
		e.Name = host
	}
	for _, a := range looked.Addresses {
		if a.Verdict == policy.Deny && a.Reason == e.Reason && e.Reason != name.ReasonNotAllowed {
			e.Addr = a.Address
			break
		}
	}
	text := remedy.For(e)
	var near nearMisses
	if client, err := o.Client(); err == nil {
		if miss := near.of(cmd.Context(), client, e); miss != "" {
			text = miss + "; " + text
		}
	}
	if looked.LookupError != "" && e.Reason == name.ReasonUnresolved {
		text = "the policy allows the name, but " + looked.LookupError + ": check its spelling, and dns.upstreams of the configuration"
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "%s: %s\n", e.Reason, text)
}
