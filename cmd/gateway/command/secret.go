package command

import (
	"fmt"
	"io"
	"net/url"
	"time"

	"github.com/spf13/cobra"

	"boxgate/cmd/gateway/command/cli"
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
	cmd := cli.Group("secret", "Show the state of the configured secrets, and read them again")
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
	})
	return cmd
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
