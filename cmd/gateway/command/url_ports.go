package command

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"boxgate/api"
	"boxgate/cmd/gateway/command/cli"
)

// newURLPortsCommand is `gateway url ports`.
func newURLPortsCommand(o *cli.Options) *cobra.Command {
	cmd := cli.Group("ports", "Share all TCP ports of a box at their host names")
	cmd.AddCommand(newURLPortsShareCommand(o),
		&cobra.Command{
			Use: "get BOX", Short: "Show how the ports of a box are shared", Args: cli.ExactArgs(1),
			RunE: func(cmd *cobra.Command, args []string) error {
				return o.Call(cmd, "GET", api.BoxPath(args[0], "config/ports"), nil, cli.Decoded(renderPorts))
			},
		},
		&cobra.Command{
			Use: "rm BOX", Short: "End the sharing and cut its connections; public URLs stay", Args: cli.ExactArgs(1),
			RunE: func(cmd *cobra.Command, args []string) error {
				return o.Call(cmd, "DELETE", api.BoxPath(args[0], "config/ports"), nil, cli.Silent)
			},
		},
	)
	return cmd
}

// newURLPortsShareCommand is `gateway url ports share`.
func newURLPortsShareCommand(o *cli.Options) *cobra.Command {
	var public, keep bool
	var except, https []int
	var host string
	cmd := &cobra.Command{
		Use: "share BOX", Short: "Share all TCP ports of a box; the token is shown only once, and replaces the earlier one", Args: cli.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			body := map[string]any{}
			if public {
				body["access"] = "public"
			}
			if keep {
				body["keep_token"] = true
			}
			if len(except) > 0 {
				body["except"] = except
			}
			if host != "" {
				body["host"] = host
			}
			if len(https) > 0 {
				body["https_ports"] = https
			}
			return o.Call(cmd, "PUT", api.BoxPath(args[0], "config/ports"), body, cli.Decoded(renderPorts))
		},
	}
	cli.MapFields(cmd, map[string]string{"/access": "--public", "/https_ports": "--https-port"})
	cmd.Flags().BoolVar(&public, "public", false, "let everybody visit them, without a token (needs ingress.public_ports)")
	cmd.Flags().BoolVar(&keep, "keep-token", false, "keep the token that they have")
	cmd.Flags().IntSliceVar(&except, "except", nil, "a port that is not shared (repeatable)")
	cmd.Flags().StringVar(&host, "host", "", "the Host field that applications get, such as 'localhost:${PORT}' (default: the visitor's)")
	cmd.Flags().IntSliceVar(&https, "https-port", nil, "a port whose application speaks HTTPS (repeatable)")
	return cmd
}

// portsAnswer are shared ports, with their token if it is new.
type portsAnswer struct {
	URL, Access, Token, Host string
	TokenHeaders             []string `json:"token_headers"`
	Fingerprint              string   `json:"token_fingerprint"`
	Except                   []int
	HTTPSPorts               []int `json:"https_ports"`
}

func renderPorts(w io.Writer, p portsAnswer) error {
	rows := [][]string{{"url", p.URL}, {"access", p.Access}}
	for _, row := range [][]string{
		{"token", p.Token}, {"fingerprint", p.Fingerprint}, {"token headers", strings.Join(p.TokenHeaders, ", ")}, {"except", portsText(p.Except)}, {"host", p.Host}, {"https ports", portsText(p.HTTPSPorts)},
	} {
		if row[1] != "" {
			rows = append(rows, row)
		}
	}
	if err := cli.Table(w, rows...); err != nil {
		return fmt.Errorf("printing the shared ports: %w", err)
	}
	return nil
}

// portsText returns a list of ports as text.
func portsText(ports []int) string {
	slices.Sort(ports)
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(ports), " ", ", "), "[]")
}
