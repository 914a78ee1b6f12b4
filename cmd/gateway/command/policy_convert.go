package command

import (
	"encoding/json"
	"io"
	"os"

	"github.com/spf13/cobra"

	"boxgate/cmd/gateway/command/cli"
	"boxgate/policy/dialect"
)

// maxPolicyFile bounds the size of a policy to convert, in bytes.
const maxPolicyFile = 8 << 20

// newPolicyConvert is `gateway policy convert`. It needs no running gateway.
func newPolicyConvert() *cobra.Command {
	var from, to string
	cmd := &cobra.Command{
		Use:   "convert --from DIALECT --to DIALECT [FILE]",
		Short: "Convert a policy of another product to the dialect of boxgate, or the reverse",
		Long: `Reads a policy from FILE or standard input and writes it in another dialect, with the values of its headers.
The dialects are boxgate (also that of Upstash Box: a policy, or network_policy and attach_headers), vercel (the network
policy of Vercel Sandbox) and e2b (the network options of E2B). A policy that the other dialect cannot express is an error.`,
		Example: "  gateway policy convert --from e2b --to boxgate network.json",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return cli.ExactArgs(1)(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			in := cmd.InOrStdin()
			if len(args) == 1 && args[0] != "-" {
				f, err := os.Open(args[0])
				if err != nil {
					return cli.FileError(err)
				}
				defer f.Close()
				in = f
			}
			data, err := io.ReadAll(io.LimitReader(in, maxPolicyFile))
			if err != nil {
				return err
			}
			out, err := dialect.Convert(data, dialect.Dialect(from), dialect.Dialect(to))
			if err != nil {
				return err
			}
			return cli.Indented(cmd.OutOrStdout(), json.RawMessage(out))
		},
	}
	cmd.Flags().StringVar(&from, "from", string(dialect.Boxgate), "dialect of FILE: boxgate, vercel or e2b")
	cmd.Flags().StringVar(&to, "to", string(dialect.Boxgate), "dialect to write")
	return cmd
}
