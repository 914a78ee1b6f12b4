package command

import (
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"strconv"

	"boxgate/api"

	"github.com/spf13/cobra"
)

// newPolicyCommand is `gateway policy`.
func newPolicyCommand(o *globalOptions) *cobra.Command {
	cmd := group("policy", "Show, replace and query the network policy of a box")
	cmd.AddCommand(
		&cobra.Command{
			Use: "get BOX", Short: "Show the policy in force", Args: exactArgs(1),
			RunE: func(cmd *cobra.Command, args []string) error {
				return o.call(cmd, "GET", api.BoxPath(args[0], "config/network-policy"), nil, indented)
			},
		},
		&cobra.Command{
			Use: "set BOX POLICY", Short: "Replace the policy: JSON, @FILE, -, allow-all or deny-all", Args: exactArgs(2),
			RunE: func(cmd *cobra.Command, args []string) error {
				data, err := argument(args[1], cmd.InOrStdin())
				if err != nil {
					return err
				}
				return o.call(cmd, "PUT", api.BoxPath(args[0], "config/network-policy"), data, func(w io.Writer, answer json.RawMessage) error {
					var state struct{ Warnings []problem }
					if err := json.Unmarshal(answer, &state); err == nil {
						warningsOf(cmd, state.Warnings)
					}
					return indented(w, answer)
				})
			},
		},
		newPolicyExplain(o),
	)
	return cmd
}

func newPolicyExplain(o *globalOptions) *cobra.Command {
	var protocol, method, path string
	var port uint16
	cmd := &cobra.Command{
		Use:   "explain BOX HOST|IP",
		Short: "Say how the policy would decide; nothing is sent",
		Args:  exactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			body := map[string]any{"host": args[1], "port": port, "protocol": protocol}
			if _, err := netip.ParseAddr(args[1]); err == nil {
				delete(body, "host")
				body["ip"] = args[1]
			}
			if method != "" {
				body["method"] = method
			}
			if path != "" {
				body["path"] = path
			}
			return o.call(cmd, "POST", api.BoxPath(args[0], "egress/explain"), body, indented)
		},
	}
	f := cmd.Flags()
	f.StringVar(&protocol, "protocol", "tcp", "tcp, udp or icmp")
	f.Uint16Var(&port, "port", 443, "destination port")
	f.StringVar(&method, "method", "", "HTTP method")
	f.StringVar(&path, "path", "", "HTTP path")
	return cmd
}

// newURLCommand is `gateway url`.
func newURLCommand(o *globalOptions) *cobra.Command {
	cmd := group("url", "Create, list and remove the public URLs of a box")
	var bearer, basic bool
	create := &cobra.Command{
		Use: "create BOX PORT", Short: "Create the public URL of a port; credentials are shown only once", Args: exactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			port, err := strconv.ParseUint(args[1], 10, 16)
			if err != nil || port == 0 {
				return usageError{fmt.Errorf("%q is not a port", args[1])}
			}
			body := map[string]any{"port": port, "bearer_token": bearer, "basic_auth": basic}
			return o.call(cmd, "POST", api.BoxPath(args[0], "preview"), body, decoded(renderURL))
		},
	}
	create.Flags().BoolVar(&bearer, "bearer", false, "open it with a bearer token")
	create.Flags().BoolVar(&basic, "basic", false, "open it with a user name and password")
	cmd.AddCommand(create,
		&cobra.Command{
			Use: "list BOX", Aliases: []string{"ls"}, Short: "List the public URLs of a box", Args: exactArgs(1),
			RunE: func(cmd *cobra.Command, args []string) error {
				return o.call(cmd, "GET", api.BoxPath(args[0], "preview"), nil, indented)
			},
		},
		&cobra.Command{
			Use: "rm BOX PORT", Short: "Delete a public URL and cut its connections", Args: exactArgs(2),
			RunE: func(cmd *cobra.Command, args []string) error {
				return o.call(cmd, "DELETE", api.BoxPath(args[0], "preview", args[1]), nil, silent)
			},
		},
	)
	return cmd
}

// urlAnswer is a public URL with its credentials, which are only shown at its creation.
type urlAnswer struct {
	URL, Token, Username, Password string
}

func renderURL(w io.Writer, u urlAnswer) error {
	rows := [][]string{{"url", u.URL}}
	for _, field := range [][]string{{"token", u.Token}, {"username", u.Username}, {"password", u.Password}} {
		if field[1] != "" {
			rows = append(rows, field)
		}
	}
	if err := table(w, rows...); err != nil {
		return fmt.Errorf("printing the URL: %w", err)
	}
	return nil
}
