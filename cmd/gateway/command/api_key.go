package command

import (
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"boxgate/api"
	"boxgate/cmd/gateway/command/cli"
	"boxgate/config"
	"boxgate/llm"
	"boxgate/quota"
)

// newAPIKeyCommand is `gateway api-key`.
func newAPIKeyCommand(o *cli.Options) *cobra.Command {
	cmd := cli.Group("api-key", "Manage the keys of the admin API")
	cmd.AddCommand(newAPIKeyCreateCommand(o), newAPIKeyListCommand(o), newAPIKeySetCommand(o), newAPIKeyRemoveCommand(o), newAPIKeyRotateCommand(o), newSSHKeyCommand(o))
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

	Quotas map[string]int64 `json:"quotas"`
	Use    map[string]struct {
		Used  int64 `json:"used"`
		Limit int64 `json:"limit"`
	} `json:"use"`

	Model    *llm.Limit  `json:"model"`
	ModelUse *modelUsage `json:"model_use"`
}

func newAPIKeyCreateCommand(o *cli.Options) *cobra.Command {
	var body struct {
		Name      string `json:"name"`
		Role      string `json:"role"`
		Box       string `json:"box,omitempty"`
		ExpiresIn string `json:"expires_in,omitempty"`

		Quotas map[string]int64 `json:"quotas,omitempty"`
		Model  *llm.Limit       `json:"model,omitempty"`
	}
	var quotas []string
	var model string
	var expires time.Duration
	cmd := &cobra.Command{
		Use:   "create --name NAME --role ROLE [--box BOX] [--expires 90d] [--quota commands=32] [--model 5usd/day]",
		Short: "Make an API key with a role, and print it; it is not shown again",
		Args:  cli.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if body.Name == "" || body.Role == "" {
				return cli.Usagef("--name and --role are required; the roles are admin, box-creator, read-only, one-box and auditor")
			}
			if cmd.Flags().Changed("expires") {
				body.ExpiresIn = expires.String()
			}
			var err error
			if body.Quotas, err = parseQuotas(quotas); err != nil {
				return err
			}
			if cmd.Flags().Changed("model") {
				if body.Model, err = parseModelLimit(model); err != nil {
					return err
				}
			}
			return o.Call(cmd, "POST", "/v2/api-keys", body, cli.Decoded(func(w io.Writer, k apiKey) error { return printKey(cmd, w, k) }))
		},
	}
	cli.MapFields(cmd, map[string]string{"/expires_in": "--expires", "/quotas": "--quota=", "/model": "--model"})
	f := cmd.Flags()
	f.StringVar(&body.Name, "name", "", "what the key is for, such as ci; unique")
	f.StringVar(&body.Role, "role", "", "admin, box-creator, read-only, one-box or auditor")
	f.StringVar(&body.Box, "box", "", "with the role one-box: ID or name of the box")
	f.StringArrayVar(&quotas, "quota", nil, "a quota for this key, such as commands=32 or memory=64MiB; may be repeated")
	f.StringVar(&model, "model", "", modelHelp)
	cli.Duration(f, &expires, "expires", 0, "how long the key remains valid, such as 90d or 12h (default: until it is revoked)")
	_ = cmd.RegisterFlagCompletionFunc("role", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		var roles []string
		for _, r := range api.Roles {
			roles = append(roles, string(r))
		}
		return roles, cobra.ShellCompDirectiveNoFileComp
	})
	return cmd
}

// parseQuotas parses quotas of the form NAME=NUMBER. Quotas in bytes may have a unit.
func parseQuotas(list []string) (map[string]int64, error) {
	if len(list) == 0 {
		return nil, nil
	}
	out := map[string]int64{}
	for _, text := range list {
		name, value, ok := strings.Cut(text, "=")
		kind, known := quota.KindByName(name)
		if !ok || !known {
			return nil, cli.Usagef("--quota %q is not NAME=NUMBER; the names are %s", text, strings.Join(quota.Names(), ", "))
		}
		var size config.Size
		if err := size.UnmarshalText([]byte(value)); err != nil {
			return nil, cli.Usagef("--quota %s: %v", name, err)
		}
		if !kind.InBytes() && value != strconv.FormatInt(int64(size), 10) {
			return nil, cli.Usagef("--quota %s: %q is not a whole number", name, value)
		}
		out[name] = int64(size)
	}
	return out, nil
}

func newAPIKeySetCommand(o *cli.Options) *cobra.Command {
	var quotas []string
	var model string
	cmd := &cobra.Command{
		Use:   "set KEY [--quota commands=32] [--model 5usd/day]",
		Short: "Change the quotas of an API key, by its name or ID",
		Args:  cli.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			set, err := parseQuotas(quotas)
			body := map[string]any{}
			if len(set) > 0 {
				body["quotas"] = set
			}
			if err == nil && cmd.Flags().Changed("model") {
				body["model"], err = parseModelLimit(model)
			}
			if err == nil && len(body) == 0 {
				err = cli.Usagef("--quota is required, such as --quota commands=32, or --model")
			}
			if err != nil {
				return err
			}
			return o.Call(cmd, "PATCH", "/v2/api-keys/"+url.PathEscape(args[0]), body, cli.Decoded(func(w io.Writer, k apiKey) error {
				own := "no quotas of its own"
				if len(k.Quotas) > 0 {
					own = "quotas of its own: " + writtenQuotas(k.Quotas)
				}
				if k.Model != nil {
					own += ", and for models " + k.Model.String()
				}
				_, err := fmt.Fprintf(w, "API key %s (%s) has %s.\n", k.Name, k.ID, own)
				return err
			}))
		},
	}
	cli.MapFields(cmd, map[string]string{"/quotas": "--quota=", "/model": "--model"})
	cmd.Flags().StringVar(&model, "model", "", modelHelp)
	cmd.Flags().StringArrayVar(&quotas, "quota", nil, "a quota, such as commands=32 or memory=64MiB; 0 restores the configured quota; may be repeated")
	return cmd
}

// writtenQuotas formats quotas in the order of the documentation.
func writtenQuotas(set map[string]int64) string {
	var parts []string
	for _, k := range quota.Kinds() {
		if n, ok := set[k.String()]; ok {
			parts = append(parts, k.String()+" "+k.Amount(n))
		}
	}
	return strings.Join(parts, ", ")
}

// use formats the usage of a key's quotas: those with a usage above zero, and those set for this key.
func (k apiKey) use() string {
	var parts []string
	for _, kind := range quota.Kinds() {
		u, own := k.Use[kind.String()], k.Quotas[kind.String()] != 0
		if u.Used == 0 && !own {
			continue
		}
		limit := ""
		if u.Limit != 0 {
			limit = "/" + kind.Amount(u.Limit)
		}
		parts = append(parts, kind.String()+" "+kind.Amount(u.Used)+limit)
	}
	if k.ModelUse != nil {
		parts = append(parts, "models "+k.ModelUse.short())
	}
	return strings.Join(parts, ", ")
}

// printKey prints the key alone to standard output, so that it can be piped, and its description to standard error.
func printKey(cmd *cobra.Command, w io.Writer, k apiKey) error {
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
		Short: "List the API keys with their roles, expiries, latest uses and usage of their quotas",
		Args:  cli.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.Call(cmd, "GET", "/v2/api-keys", nil, cli.Decoded(func(w io.Writer, answer struct {
				Keys []apiKey `json:"api_keys"`
			}) error {
				rows := [][]string{{"ID", "NAME", "ROLE", "BOX", "EXPIRES", "LAST USED", "USE"}}
				for _, k := range answer.Keys {
					rows = append(rows, []string{k.ID, k.Name, k.Role, textOrDash(k.BoxID), textOrDash(k.ExpiresAt), textOrDash(k.LastUsed), textOrDash(k.use())})
				}
				return cli.Table(w, rows...)
			}))
		},
	}
}

func textOrDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

func newAPIKeyRemoveCommand(o *cli.Options) *cobra.Command {
	return &cobra.Command{
		Use:     "rm KEY",
		Aliases: []string{"revoke"},
		Short:   "Revoke an API key, by its name or ID; its running requests are ended",
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
		Short: "Replace an API key and print the new one; without KEY, the one in {state_dir}/api-key",
		Args:  cli.MaxArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if grace > 30*24*time.Hour {
				return cli.Usagef("--grace must be at most 30d")
			}
			if len(args) == 0 {
				return changeKeys(cmd, o, apiKeyChange(grace))
			}
			body := map[string]string{"grace": grace.String()}
			return o.Call(cmd, "POST", "/v2/api-keys/"+url.PathEscape(args[0])+"/rotate", body, cli.Decoded(func(w io.Writer, k apiKey) error { return printKey(cmd, w, k) }))
		},
	}
	cli.Duration(cmd.Flags(), &grace, "grace", 0, "how long the old key remains valid, such as 10m or 1d")
	return cmd
}
