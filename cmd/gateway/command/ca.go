package command

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"io"
	"time"

	"github.com/spf13/cobra"

	"boxgate/api"
	"boxgate/cmd/gateway/command/cli"
	"boxgate/host"
	"boxgate/launcher"
)

// caAnswer is the output of `gateway ca --json`.
type caAnswer struct {
	PEM      string    `json:"pem"` // with --bundle, preceded by the public roots
	Subject  string    `json:"subject"`
	SHA256   string    `json:"sha256"` // fingerprint of the CA certificate alone
	NotAfter time.Time `json:"not_after"`
	// KnownHosts is the line for ssh_known_hosts that identifies the gateway to a box; empty for the CA of the public
	// URLs.
	KnownHosts string `json:"known_hosts,omitempty"`
}

// newCACommand is `gateway ca`.
func newCACommand(o *cli.Options) *cobra.Command {
	var box string
	var bundle, ssh bool
	cmd := &cobra.Command{
		Use:   "ca [--box B] [--bundle | --ssh]",
		Short: "Print the CA certificate of the public URLs, or the interception CA of one box",
		Args:  cli.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if ssh && (box == "" || bundle) {
				return cli.Usagef("--ssh needs --box, and no --bundle")
			}
			answer, err := fetchCA(cmd.Context(), o, box)
			if err != nil {
				return err
			}
			return printCA(cmd.OutOrStdout(), o, answer, bundle, ssh)
		},
	}
	cmd.Flags().StringVar(&box, "box", "", "ID or name of a box")
	cmd.Flags().BoolVar(&bundle, "bundle", false, "include this host's public roots and those of proxy.upstream_ca_files, for environment variables that replace a program's roots")
	cmd.Flags().BoolVar(&ssh, "ssh", false, "print the line for ssh_known_hosts that identifies the gateway to the box, instead of the certificate")
	return cmd
}

// addedRoots returns the roots of proxy.upstream_ca_files, if the gateway is on this host.
func addedRoots(o *cli.Options) ([]byte, error) {
	if o.Admin != "" {
		return nil, nil
	}
	cfg, err := o.Load()
	if err != nil {
		return nil, err
	}
	return host.AddedRoots(cfg.Proxy.UpstreamCAFiles)
}

// printCA prints a CA in the requested form.
func printCA(w io.Writer, o *cli.Options, answer caAnswer, bundle, ssh bool) error {
	if bundle {
		roots, err := launcher.PublicRoots()
		if err != nil {
			return err
		}
		added, err := addedRoots(o)
		if err != nil {
			return err
		}
		answer.PEM = string(roots) + string(added) + answer.PEM
	}
	text := answer.PEM
	switch {
	case o.JSON:
		return cli.WriteJSON(w, answer)
	case ssh:
		text = answer.KnownHosts
	}
	_, err := io.WriteString(w, text)
	return err
}

// fetchCA fetches the CA of a box, or of the public URLs if box is empty.
func fetchCA(ctx context.Context, o *cli.Options, box string) (caAnswer, error) {
	path := "/v2/ca"
	if box != "" {
		path = api.BoxPath(box, "ca")
	}
	client, err := o.Client()
	if err != nil {
		return caAnswer{}, err
	}
	var ca []byte
	if err := client.Get(ctx, path, &ca); err != nil {
		return caAnswer{}, err
	}
	answer, err := describeCA(ca)
	if err != nil || box == "" {
		return answer, err
	}
	lines, err := launcher.KnownHosts(ca)
	answer.KnownHosts = string(lines)
	return answer, err
}

// describeCA parses a certificate of the gateway.
func describeCA(ca []byte) (caAnswer, error) {
	block, _ := pem.Decode(ca)
	if block == nil {
		return caAnswer{}, errors.New("the gateway's answer is not a certificate")
	}
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return caAnswer{}, err
	}
	sum := sha256.Sum256(c.Raw)
	return caAnswer{PEM: string(ca), Subject: c.Subject.String(), SHA256: hex.EncodeToString(sum[:]), NotAfter: c.NotAfter}, nil
}
