package command

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"boxgate/api"
	"boxgate/cmd/gateway/command/cli"
)

// newURLCommand is `gateway url`.
func newURLCommand(o *cli.Options) *cobra.Command {
	cmd := cli.Group("url", "Create, list and remove the public URLs of a box")
	cmd.AddCommand(newURLCreateCommand(o), newURLSignCommand(o), newURLPortsCommand(o),
		&cobra.Command{
			Use: "list BOX", Aliases: []string{"ls"}, Short: "List the public URLs of a box", Args: cli.ExactArgs(1),
			RunE: func(cmd *cobra.Command, args []string) error {
				return o.Call(cmd, "GET", api.BoxPath(args[0], "preview"), nil, cli.Indented)
			},
		},
		&cobra.Command{
			Use: "rm BOX PORT", Short: "Delete a public URL and cut its connections", Args: cli.ExactArgs(2),
			RunE: func(cmd *cobra.Command, args []string) error {
				return o.Call(cmd, "DELETE", api.BoxPath(args[0], "preview", args[1]), nil, cli.Silent)
			},
		},
	)
	return cmd
}

// newURLCreateCommand is `gateway url create`.
func newURLCreateCommand(o *cli.Options) *cobra.Command {
	var bearer, basic bool
	var hostnames []string
	var protocol string
	var expires time.Duration
	var origins []string
	oidc := map[string]*[]string{"emails": new([]string), "domains": new([]string), "groups": new([]string)}
	create := &cobra.Command{
		Use: "create BOX PORT", Short: "Create the public URL of a port; credentials are shown only once", Args: cli.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			port, err := strconv.ParseUint(args[1], 10, 16)
			if err != nil || port == 0 {
				return cli.Usagef("%q is not a port: give a number from 1 to 65535", args[1])
			}
			body := map[string]any{"port": port, "bearer_token": bearer, "basic_auth": basic}
			if len(hostnames) > 0 {
				body["hostnames"] = hostnames
			}
			if protocol != "" {
				body["protocol"] = protocol
			}
			if cmd.Flags().Changed("expires-in") {
				body["expires_in"] = int64(expires / time.Second)
			}
			accounts := map[string]any{}
			for key, list := range oidc {
				if len(*list) > 0 {
					accounts[key] = *list
				}
			}
			if len(accounts) > 0 {
				body["oidc"] = accounts
			}
			if len(origins) > 0 {
				body["origins"] = origins
			}
			return o.Call(cmd, "POST", api.BoxPath(args[0], "preview"), body, cli.Decoded(renderURL))
		},
	}
	cli.MapFields(create, map[string]string{
		"/port": "PORT", "/bearer_token": "--bearer", "/basic_auth": "--basic", "/hostnames": "--hostname", "/origins": "--origin",
		"/oidc/emails": "--oidc-email", "/oidc/domains": "--oidc-domain", "/oidc/groups": "--oidc-group",
	})
	create.Flags().BoolVar(&bearer, "bearer", false, "open it with a bearer token")
	create.Flags().BoolVar(&basic, "basic", false, "open it with a user name and password")
	create.Flags().StringVar(&protocol, "protocol", "", "protocol of the application: auto (the default), http1, h2c, or tcp for raw TCP inside TLS")
	create.Flags().StringArrayVar(&hostnames, "hostname", nil, "additional domain for it, such as app.example.org; may be repeated. Prints the TXT record that proves your control of the domain")
	cli.Duration(create.Flags(), &expires, "expires-in", 0, "time after which it is closed, such as 24h or 7d (default: never)")
	create.Flags().StringSliceVar(oidc["emails"], "oidc-email", nil, "open it with the account of this e-mail address at the identity provider (repeatable)")
	create.Flags().StringSliceVar(oidc["domains"], "oidc-domain", nil, "open it with accounts of e-mail addresses of this domain (repeatable)")
	create.Flags().StringSliceVar(oidc["groups"], "oidc-group", nil, "open it with accounts in this group (repeatable)")
	create.Flags().StringSliceVar(&origins, "origin", nil, "another origin whose pages may use the password or sign-in that a browser keeps for it (repeatable)")
	return create
}

// urlAnswer is a public URL with its credentials, which are only returned on creation.
type urlAnswer struct {
	URL, Token, Username, Password string
	Hostnames                      []string
	Pending                        []struct{ Hostname, Record, Value string } `json:"pending_hostnames"`
}

func renderURL(w io.Writer, u urlAnswer) error {
	rows := [][]string{{"url", u.URL}}
	for _, name := range u.Hostnames {
		rows = append(rows, []string{"hostname", name})
	}
	for _, field := range [][]string{{"token", u.Token}, {"username", u.Username}, {"password", u.Password}} {
		if field[1] != "" {
			rows = append(rows, field)
		}
	}
	if err := cli.Table(w, rows...); err != nil {
		return fmt.Errorf("printing the URL: %w", err)
	}
	if len(u.Pending) == 0 {
		return nil
	}
	records := [][]string{}
	for _, p := range u.Pending {
		records = append(records, []string{p.Record + ".", "TXT", strconv.Quote(p.Value)})
	}
	_, err := fmt.Fprintln(w, "\nNot served yet: publish these records, which show that the names are yours. `gateway url list` looks for them again.")
	if err == nil {
		err = cli.Table(w, records...)
	}
	if err != nil {
		return fmt.Errorf("printing the records to publish: %w", err)
	}
	return nil
}

// newURLSignCommand is `gateway url sign`.
func newURLSignCommand(o *cli.Options) *cobra.Command {
	var expires time.Duration
	var path string
	var methods []string
	cmd := &cobra.Command{
		Use: "sign BOX PORT", Short: "Sign a link to a public URL; it needs no other credential", Args: cli.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			for i := range methods {
				methods[i] = strings.ToUpper(methods[i])
			}
			body := map[string]any{"expires_in": int64(expires / time.Second), "path_prefix": path, "methods": methods}
			return o.Call(cmd, "POST", api.BoxPath(args[0], "preview", args[1], "sign"), body, cli.Decoded(renderURL))
		},
	}
	cli.MapFields(cmd, map[string]string{"/path_prefix": "--path", "/methods": "--method"})
	cli.Duration(cmd.Flags(), &expires, "expires-in", time.Hour, "validity, such as 10m or 7d")
	cmd.Flags().StringVar(&path, "path", "/", "the permitted path, including everything below it")
	cmd.Flags().StringSliceVar(&methods, "method", []string{"GET", "HEAD"}, "a permitted method (repeatable)")
	return cmd
}
