package command

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"boxgate/cmd/gateway/command/cli"
)

// keySecretAnswer is a secret of an API key as the API returns it.
type keySecretAnswer struct {
	ID        string   `json:"id"`
	Hosts     []string `json:"hosts"`
	Version   uint64   `json:"version"`
	UpdatedAt string   `json:"updated_at"`
}

// newSecretStoreCommand is `gateway secret store`.
func newSecretStoreCommand(o *cli.Options) *cobra.Command {
	var body struct {
		Name  string    `json:"name,omitempty"`
		Value string    `json:"value"`
		Hosts *[]string `json:"hosts,omitempty"`
	}
	var replace bool
	var hosts []string
	cmd := &cobra.Command{
		Use:   "store NAME [--host HOST] [--replace]",
		Short: "Store a secret of this API key, from standard input, for header rules that the key sets",
		Long: `Reads a value from standard input and stores it, encrypted, as a secret of the API key that the command uses. Header rules that the same
key sets can name it. With --replace it takes the place of the old value: every box uses it from its next request on.`,
		Example: "  gateway secret store openai --host api.openai.com < openai.key\n  gateway secret store openai --replace < new.key",
		Args:    cli.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if isTerminal(cmd.InOrStdin()) {
				fmt.Fprintf(cmd.ErrOrStderr(), "Type or paste the value of %s, then a line break and Ctrl-D:\n", args[0])
			}
			data, err := io.ReadAll(io.LimitReader(cmd.InOrStdin(), maxSecret))
			if err != nil {
				return err
			}
			text, cut := bytes.CutSuffix(data, []byte("\n"))
			if cut {
				text = bytes.TrimSuffix(text, []byte("\r"))
			}
			if len(text) == 0 {
				return errors.New("standard input has no value")
			}
			if body.Value = string(text); cmd.Flags().Changed("host") {
				body.Hosts = &hosts
			}
			method, path := "POST", keySecretsPath
			if replace {
				method, path = "PUT", keySecretsPath+"/"+url.PathEscape(args[0])
			} else {
				body.Name = args[0]
			}
			return o.Call(cmd, method, path, body, cli.Decoded(func(w io.Writer, s keySecretAnswer) error {
				_, err := fmt.Fprintf(w, "Secret %s has version %d.\n", s.ID, s.Version)
				return err
			}))
		},
	}
	cli.MapFields(cmd, map[string]string{"/hosts": "--host", "/name": "NAME", "/value": "standard input"})
	cmd.Flags().StringArrayVar(&hosts, "host", nil, "a host that it may be sent to, such as api.openai.com or *.example.com; may be repeated (default: every host of a rule that names it)")
	cmd.Flags().BoolVar(&replace, "replace", false, "replace the value of a stored secret")
	return cmd
}

// keySecretsPath is the path of the secrets of API keys.
const keySecretsPath = "/v2/key-secrets"

// newSecretStoredCommand is `gateway secret stored`.
func newSecretStoredCommand(o *cli.Options) *cobra.Command {
	return &cobra.Command{
		Use: "stored", Short: "List the secrets that this API key has stored; with an admin key, those of all keys; values are never shown", Args: cli.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.Call(cmd, "GET", keySecretsPath, nil, cli.Decoded(printStored))
		},
	}
}

func printStored(w io.Writer, list struct {
	Secrets []keySecretAnswer `json:"key_secrets"`
}) error {
	rows := [][]string{{"ID", "HOSTS", "VERSION", "STORED"}}
	for _, s := range list.Secrets {
		rows = append(rows, []string{s.ID, textOrDash(strings.Join(s.Hosts, ", ")), strconv.FormatUint(s.Version, 10), s.UpdatedAt})
	}
	return cli.Table(w, rows...)
}

// newSecretRemoveCommand is `gateway secret rm`.
func newSecretRemoveCommand(o *cli.Options) *cobra.Command {
	return &cobra.Command{
		Use: "rm NAME", Short: "Delete a secret that this API key has stored, or by its ID that of another key; requests whose rules name it are refused", Args: cli.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.Call(cmd, "DELETE", keySecretsPath+"/"+url.PathEscape(args[0]), nil, cli.Decoded(func(w io.Writer, s keySecretAnswer) error {
				_, err := fmt.Fprintf(w, "Secret %s was deleted: requests of rules that name it are refused, and those in progress were cut.\n", s.ID)
				return err
			}))
		},
	}
}
