package command

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/spf13/cobra"

	"boxgate/api"
	"boxgate/cmd/gateway/command/cli"
)

const lifetimeHelp = "how long the token is valid, from 1m to 8760h (default: 720h)"

// newBoxToken is `gateway box token`.
func newBoxToken(o *cli.Options) *cobra.Command {
	var lifetime time.Duration
	var revoke bool
	cmd := &cobra.Command{
		Use: "token BOX", Short: "Give a box that runs elsewhere a new token and print it, or revoke its token; its connections are cut", Args: cli.ExactArgs(1),
		Example: "  gateway box token agent-1 --lifetime 24h\n  gateway box token agent-1 --revoke",
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case revoke && lifetime != 0:
				return cli.Usagef("give --lifetime or --revoke, not both")
			case revoke:
				return o.Call(cmd, "DELETE", api.BoxPath(args[0], "token"), nil, cli.Silent)
			}
			return o.Call(cmd, "POST", api.BoxPath(args[0], "token"), tokenRequest(lifetime), cli.Decoded(printToken))
		},
	}
	cmd.Flags().DurationVar(&lifetime, "lifetime", 0, lifetimeHelp)
	cmd.Flags().BoolVar(&revoke, "revoke", false, "revoke the token, and make no new one")
	cli.MapFields(cmd, map[string]string{"/expires_in": "--lifetime"})
	return cmd
}

// tokenRequest is the body of the request for a token; 0: for the default time.
func tokenRequest(lifetime time.Duration) map[string]any {
	if lifetime == 0 {
		return map[string]any{}
	}
	return map[string]any{"expires_in": int64(lifetime / time.Second)}
}

// tokenAnswer is a token as the API returns it.
type tokenAnswer struct {
	Box, Username, Password, Listen string
	ExpiresAt                       int64 `json:"expires_at"`
}

// printToken prints a token and how clients use it.
func printToken(w io.Writer, t tokenAnswer) error {
	_, port, err := net.SplitHostPort(t.Listen)
	if err != nil {
		return fmt.Errorf("cannot parse the gateway's answer: %w", err)
	}
	if err := cli.Table(w, []string{"user", t.Username}, []string{"password", t.Password}, []string{"expires", time.Unix(t.ExpiresAt, 0).UTC().Format(time.RFC3339)},
		[]string{"HTTPS_PROXY", fmt.Sprintf("https://%s:%s@HOST:%s", t.Username, t.Password, port)}); err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "\nHOST is the name of this gateway in the certificate of remote.tls. The password is not shown again.\n"+
		"The sandbox must trust the CA of the box: gateway ca --box %s --bundle\nNote: %s.\n", t.Box, api.RemoteNote)
	return err
}

// giveToken gives a new remote box its token, and prints both.
func (a *boxAttach) giveToken(cmd *cobra.Command, o *cli.Options, answer json.RawMessage) error {
	var box struct{ ID string }
	if err := json.Unmarshal(answer, &box); err != nil {
		return fmt.Errorf("cannot parse the gateway's answer: %w", err)
	}
	client, err := o.Client()
	if err != nil {
		return err
	}
	var token json.RawMessage
	if err := client.Do(cmd.Context(), "POST", api.BoxPath(box.ID, "token"), tokenRequest(a.lifetime), &token); err != nil {
		return fmt.Errorf("the box %s was made, but has no token (`gateway box token %[1]s` makes one): %w", box.ID, err)
	}
	if o.JSON {
		both, err := json.Marshal(map[string]json.RawMessage{"box": answer, "token": token})
		return errors.Join(err, o.Show(cmd, both, cli.Indented))
	}
	return errors.Join(o.Show(cmd, answer, newBoxAnswer(cmd)), o.Show(cmd, token, cli.Decoded(printToken)))
}
