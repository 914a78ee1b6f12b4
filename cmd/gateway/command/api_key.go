package command

import (
	"fmt"
	"io"
	"net/url"
	"time"

	"github.com/spf13/cobra"

	"boxgate/api"
	"boxgate/cmd/gateway/command/cli"
)

// newAPIKeyCommand is `gateway api-key`.
func newAPIKeyCommand(o *cli.Options) *cobra.Command {
	cmd := cli.Group("api-key", "Manage the keys of the admin API")
	cmd.AddCommand(newAPIKeyCreateCommand(o), newAPIKeyListCommand(o), newAPIKeyRemoveCommand(o), newAPIKeyRotateCommand(o))
	return cmd
}

// apiKey is a key as the API returns it.
type apiKey struct {
	ID        string `json:"id"`
	Name      string `json:"name"`
	Role      string `json:"role"`
	BoxID     string `json:"box_id"`
	ExpiresAt string `json:"expires_at"`
	LastUsed  string `json:"last_used"`
	Key       string `json:"key"`
}

func newAPIKeyCreateCommand(o *cli.Options) *cobra.Command {
	var body struct {
		Name      string `json:"name"`
		Role      string `json:"role"`
		Box       string `json:"box,omitempty"`
		ExpiresIn string `json:"expires_in,omitempty"`
	}
	var expires time.Duration
	cmd := &cobra.Command{
		Use:   "create --name NAME --role ROLE [--box BOX] [--expires 90d]",
		Short: "Make an API key with a role, and print it; it is not shown again",
		Args:  cli.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if body.Name == "" || body.Role == "" {
				return cli.Usagef("--name and --role are required; the roles are admin, box-creator, read-only and one-box")
			}
			if cmd.Flags().Changed("expires") {
				body.ExpiresIn = expires.String()
			}
			return o.Call(cmd, "POST", "/v2/api-keys", body, cli.Decoded(func(w io.Writer, k apiKey) error { return sayKey(cmd, w, k) }))
		},
	}
	f := cmd.Flags()
	f.StringVar(&body.Name, "name", "", "what the key is for, such as ci; unique")
	f.StringVar(&body.Role, "role", "", "admin, box-creator, read-only or one-box")
	f.StringVar(&body.Box, "box", "", "with the role one-box: ID or name of the box")
	cli.Duration(f, &expires, "expires", 0, "how long the key works, such as 90d or 12h (default: until it is revoked)")
	_ = cmd.RegisterFlagCompletionFunc("role", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		var roles []string
		for _, r := range api.Roles {
			roles = append(roles, string(r))
		}
		return roles, cobra.ShellCompDirectiveNoFileComp
	})
	return cmd
}

// sayKey prints a key alone to standard output, so that it can be piped, and what it is to standard error.
func sayKey(cmd *cobra.Command, w io.Writer, k apiKey) error {
	until := "until it is revoked"
	if k.ExpiresAt != "" {
		until = "until " + k.ExpiresAt
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "API key %s (%s, %s) works %s. It is not shown again:\n", k.Name, k.ID, k.Role, until)
	_, err := fmt.Fprintln(w, k.Key)
	return err
}

func newAPIKeyListCommand(o *cli.Options) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the API keys with their roles, expiries and latest uses",
		Args:  cli.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.Call(cmd, "GET", "/v2/api-keys", nil, cli.Decoded(func(w io.Writer, answer struct {
				Keys []apiKey `json:"api_keys"`
			}) error {
				rows := [][]string{{"ID", "NAME", "ROLE", "BOX", "EXPIRES", "LAST USED"}}
				for _, k := range answer.Keys {
					rows = append(rows, []string{k.ID, k.Name, k.Role, dashed(k.BoxID), dashed(k.ExpiresAt), dashed(k.LastUsed)})
				}
				return cli.Table(w, rows...)
			}))
		},
	}
}

func dashed(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

func newAPIKeyRemoveCommand(o *cli.Options) *cobra.Command {
	return &cobra.Command{
		Use:     "rm KEY",
		Aliases: []string{"revoke"},
		Short:   "Revoke an API key, by its name or ID; requests that are under way with it end",
		Args:    cli.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.Call(cmd, "DELETE", "/v2/api-keys/"+url.PathEscape(args[0]), nil, cli.Decoded(func(w io.Writer, k apiKey) error {
				_, err := fmt.Fprintf(w, "API key %s (%s) is revoked.\n", k.Name, k.ID)
				return err
			}))
		},
	}
}

func newAPIKeyRotateCommand(o *cli.Options) *cobra.Command {
	var grace time.Duration
	cmd := &cobra.Command{
		Use:   "rotate [KEY]",
		Short: "Replace an API key and print the new one; without KEY, that in {state_dir}/api-key",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if grace > 30*24*time.Hour {
				return cli.Usagef("--grace must be at most 30d")
			}
			if len(args) == 0 {
				return changeKeys(cmd, o, apiKeyChange(grace))
			}
			body := map[string]string{"grace": grace.String()}
			return o.Call(cmd, "POST", "/v2/api-keys/"+url.PathEscape(args[0])+"/rotate", body, cli.Decoded(func(w io.Writer, k apiKey) error { return sayKey(cmd, w, k) }))
		},
	}
	cli.Duration(cmd.Flags(), &grace, "grace", 0, "how long the old key goes on working, such as 10m or 1d")
	return cmd
}
