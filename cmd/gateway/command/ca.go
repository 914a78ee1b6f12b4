package command

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"boxgate/api"
	"boxgate/cmd/gateway/command/cli"
	"boxgate/launcher"
)

// caAnswer is what `gateway ca --json` prints.
type caAnswer struct {
	PEM      string    `json:"pem"` // with --bundle also the public roots, before the CA
	Subject  string    `json:"subject"`
	SHA256   string    `json:"sha256"` // of the CA alone: what tools show as its fingerprint
	NotAfter time.Time `json:"not_after"`
}

// newCACommand is `gateway ca`.
func newCACommand(o *cli.Options) *cobra.Command {
	var box string
	var bundle bool
	cmd := &cobra.Command{
		Use:   "ca [--box B] [--bundle]",
		Short: "Print the CA certificate of the public URLs, or the interception CA of one box",
		Args:  cli.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			answer, err := fetchCA(cmd.Context(), o, box)
			if err != nil {
				return err
			}
			if bundle {
				roots, err := launcher.PublicRoots()
				if err != nil {
					return err
				}
				answer.PEM = string(roots) + answer.PEM
			}
			if o.JSON {
				return cli.WriteJSON(cmd.OutOrStdout(), answer)
			}
			_, err = cmd.OutOrStdout().Write([]byte(answer.PEM))
			return err
		},
	}
	cmd.Flags().StringVar(&box, "box", "", "ID or name of a box")
	cmd.Flags().BoolVar(&bundle, "bundle", false, "include the public roots of this host, for variables that replace a program's own roots")
	return cmd
}

// fetchCA asks for the CA of a box, or of the public URLs if box is empty.
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
	return describeCA(ca)
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
