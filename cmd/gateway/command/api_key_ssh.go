package command

import (
	"fmt"
	"io"
	"net/url"
	"os"

	"github.com/spf13/cobra"

	"boxgate/audit"
	"boxgate/cmd/gateway/command/cli"
)

// newSSHKeyCommand is `gateway api-key ssh-key`.
func newSSHKeyCommand(o *cli.Options) *cobra.Command {
	cmd := cli.Group("ssh-key", "Manage the public keys that log in to boxes over SSH with the permissions of an API key")
	cmd.AddCommand(newSSHKeyAddCommand(o), newSSHKeyListCommand(o), newSSHKeyRemoveCommand(o))
	return cmd
}

// sshKey is a public key as the API returns it.
type sshKey struct {
	ID          string `json:"id"`
	Name        string `json:"name"`
	Type        string `json:"type"`
	Fingerprint string `json:"fingerprint"`
	AddedAt     string `json:"added_at"`
}

// sshKeysPath returns the path of the public keys of an API key.
func sshKeysPath(key string) string { return "/v2/api-keys/" + url.PathEscape(key) + "/ssh-keys" }

// maxKeyFile bounds the file with a public key.
const maxKeyFile = 16 << 10

// readKeyFile reads a file with a public key; - is standard input.
func readKeyFile(cmd *cobra.Command, path string) (string, error) {
	in := cmd.InOrStdin()
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return "", err
		}
		defer f.Close()
		in = f
	}
	text, err := io.ReadAll(io.LimitReader(in, maxKeyFile))
	return string(text), err
}

func newSSHKeyAddCommand(o *cli.Options) *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:   "add KEY FILE",
		Short: "Add the public key in a .pub file to an API key; - reads standard input",
		Args:  cli.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			text, err := readKeyFile(cmd, args[1])
			if err != nil {
				return err
			}
			body := map[string]string{"public_key": text}
			if name != "" {
				body["name"] = name
			}
			return o.Call(cmd, "POST", sshKeysPath(args[0]), body, cli.Decoded(func(w io.Writer, k sshKey) error {
				_, err := fmt.Fprintf(w, "The public key %s (%s) logs in with the permissions of the API key %s.\n", k.Fingerprint, k.ID, args[0])
				return err
			}))
		},
	}
	cli.MapFields(cmd, map[string]string{"/public_key": "FILE", "/name": "--name"})
	cmd.Flags().StringVar(&name, "name", "", "what the key is called (default: the comment in the file)")
	return cmd
}

func newSSHKeyListCommand(o *cli.Options) *cobra.Command {
	return &cobra.Command{
		Use:   "list KEY",
		Short: "List the public keys of an API key",
		Args:  cli.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.Call(cmd, "GET", sshKeysPath(args[0]), nil, cli.Decoded(func(w io.Writer, answer struct {
				Keys []sshKey `json:"ssh_keys"`
			}) error {
				rows := [][]string{{"ID", "NAME", "TYPE", "FINGERPRINT", "ADDED"}}
				for _, k := range answer.Keys {
					rows = append(rows, []string{k.ID, textOrDash(audit.Escape(k.Name, 40)), k.Type, k.Fingerprint, k.AddedAt})
				}
				return cli.Table(w, rows...)
			}))
		},
	}
}

func newSSHKeyRemoveCommand(o *cli.Options) *cobra.Command {
	return &cobra.Command{
		Use:   "rm KEY ID",
		Short: "Remove a public key of an API key; its open connections are cut",
		Args:  cli.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.Call(cmd, "DELETE", sshKeysPath(args[0])+"/"+url.PathEscape(args[1]), nil, cli.Decoded(func(w io.Writer, k sshKey) error {
				_, err := fmt.Fprintf(w, "The public key %s (%s) is removed.\n", k.Fingerprint, k.ID)
				return err
			}))
		},
	}
}
