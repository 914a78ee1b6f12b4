package command

import (
	"fmt"
	"io"
	"net/url"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"boxgate/cmd/gateway/command/cli"
	"boxgate/policy/name"
	"boxgate/secrets"
)

// secretAnswer is a secret as the API returns it.
type secretAnswer struct {
	Name      string    `json:"name"`
	Source    string    `json:"source"`
	Valid     bool      `json:"valid"`
	Stale     bool      `json:"stale"`
	ReadAt    time.Time `json:"read_at"`
	ExpiresAt time.Time `json:"expires_at"`
	Error     string    `json:"error"`
}

// newSecretCommand is `gateway secret`.
func newSecretCommand(o *cli.Options) *cobra.Command {
	cmd := cli.Group("secret", "Show the state of the configured secrets, and store those of an API key")
	cmd.AddCommand(&cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the secrets with their sources and ages; values are never shown", Args: cli.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.Call(cmd, "GET", "/v2/secrets", nil, cli.Decoded(printSecrets))
		},
	}, &cobra.Command{
		Use: "refresh NAME", Short: "Discard the value of a secret, cut the connections that carry it, and read it again", Args: cli.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.Call(cmd, "POST", "/v2/secrets/"+url.PathEscape(args[0])+"/refresh", nil, cli.Decoded(printRefreshed))
		},
	}, newSecretUsedCommand(o), newSecretReplaceCommand(o), newSecretStoreCommand(o), newSecretStoredCommand(o), newSecretRemoveCommand(o))
	return cmd
}

// maxSecret bounds the value that is read, in bytes.
const maxSecret = 1 << 20

// newSecretReplaceCommand is `gateway secret replace`.
func newSecretReplaceCommand(o *cli.Options) *cobra.Command {
	return &cobra.Command{
		Use:   "replace NAME",
		Short: "Replace the value of a secret by standard input, for every box, and cut the connections that carry the old one",
		Long: `Reads the new value from standard input, writes it into the file of the secret, and has the gateway use it: the next
request of every box has the new value, requests in progress with the old one are cut, and secrets that are made with it are made
again. Then revoke the old value where it was issued.`,
		Example: "  gateway secret replace openai < new.key",
		Args:    cli.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			n := args[0]
			client, err := o.Client()
			if err != nil {
				return err
			}
			var known struct{ Secrets []secretAnswer }
			if err := client.Get(cmd.Context(), "/v2/secrets", &known); err != nil { // before anything is written
				return err
			}
			cfg, err := o.Load()
			if err != nil {
				return err
			}
			source, ok := cfg.Secrets.Sources[n]
			if !ok || !slices.ContainsFunc(known.Secrets, func(s secretAnswer) bool { return s.Name == n }) {
				return fmt.Errorf("the configuration has no secret %q; see `gateway secret list`", name.ShownSecretName(n))
			}
			if isTerminal(cmd.InOrStdin()) && source.File != "" {
				fmt.Fprintf(cmd.ErrOrStderr(), "Type or paste the new value of %s, then a line break and Ctrl-D:\n", n)
			}
			var value []byte
			if source.File != "" {
				if value, err = io.ReadAll(io.LimitReader(cmd.InOrStdin(), maxSecret)); err != nil {
					return err
				}
			}
			if err := secrets.Replace(cfg.Secrets.Sources, n, value); err != nil {
				return fmt.Errorf("secret %s is unchanged: %w", n, err)
			}
			return o.Call(cmd, "POST", "/v2/secrets/"+url.PathEscape(n)+"/refresh", nil, cli.Decoded(printReplaced))
		},
	}
}

// printReplaced prints that a secret was replaced. It returns an error if the gateway could not read the new value.
func printReplaced(w io.Writer, s secretAnswer) error {
	if err := printRefreshed(io.Discard, s); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "Secret %s has the new value: every box uses it from its next request on, and requests with the old one were cut. Revoke the old value where it was issued.\n", s.Name)
	return err
}

// firstReadPending reports whether the first read of a secret is still in progress.
func (s secretAnswer) firstReadPending() bool { return !s.Valid && s.Error == "" && s.ReadAt.IsZero() }

func printSecrets(w io.Writer, list struct{ Secrets []secretAnswer }) error {
	rows := [][]string{{"NAME", "SOURCE", "STATE", "READ", "EXPIRES", "ERROR"}}
	for _, s := range list.Secrets {
		state := "valid"
		switch {
		case s.firstReadPending():
			state = "being read"
		case !s.Valid:
			state = "unavailable"
		case s.Stale:
			state = "stale"
		}
		rows = append(rows, []string{s.Name, s.Source, state, timeOrDash(s.ReadAt), timeOrDash(s.ExpiresAt), s.Error})
	}
	return cli.Table(w, rows...)
}

// printRefreshed prints that a secret was read. It returns an error if the source failed.
func printRefreshed(w io.Writer, s secretAnswer) error {
	if s.firstReadPending() {
		return fmt.Errorf("secret %s is still being read, and requests that need it wait; to see how that ends: gateway secret list", s.Name)
	}
	if !s.Valid {
		return fmt.Errorf("secret %s is not available, and requests that need it are refused: %s; once that is fixed: gateway secret refresh %s", s.Name, textOrDash(s.Error), s.Name)
	}
	_, err := fmt.Fprintf(w, "Secret %s was read again.\n", s.Name)
	return err
}

func timeOrDash(at time.Time) string {
	if at.IsZero() {
		return "-"
	}
	return at.UTC().Format(time.RFC3339)
}
