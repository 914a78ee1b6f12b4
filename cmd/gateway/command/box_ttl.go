package command

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"boxgate/api"
	"boxgate/cmd/gateway/command/cli"
)

const boxTTLHelp = `Sets the time at which a box is deleted to TTL from now, earlier or later than before. --extend postpones the present one,
and "never" removes it. The limit is 72h from now. A key for one box can only bring the end forward.`

// newBoxTTL is `gateway box ttl`.
func newBoxTTL(o *cli.Options) *cobra.Command {
	var extend time.Duration
	cmd := &cobra.Command{
		Use: "ttl BOX [TTL|never]", Short: "Move the time at which a box is deleted, or remove it", Long: boxTTLHelp,
		Example: "  gateway box ttl demo 2h\n  gateway box ttl demo --extend 30m\n  gateway box ttl demo never",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 && !cmd.Flags().Changed("extend") {
				return cli.Usagef("give the time from now, as in `gateway box ttl %s 2h`, or never, or --extend", args[0])
			}
			if len(args) == 2 && cmd.Flags().Changed("extend") {
				return cli.Usagef("--extend counts from the present end; leave out %s", args[1])
			}
			if len(args) == 1 {
				return nil
			}
			return cli.ExactArgs(2)(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			body, err := ttlBody(args[1:], extend)
			if err != nil {
				return err
			}
			return o.Call(cmd, "PUT", api.BoxPath(args[0], "config/ttl"), body, cli.Decoded(printTTL))
		},
	}
	cli.Duration(cmd.Flags(), &extend, "extend", 0, "postpone the present end by this duration, such as 30m")
	cli.MapFields(cmd, map[string]string{"/ttl": "TTL", "/extend": "--extend"})
	return cmd
}

// ttlBody returns the body of a change, from the time in args or from --extend. Fractions of a second are rounded up.
func ttlBody(args []string, extend time.Duration) (map[string]any, error) {
	seconds := func(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }
	if len(args) == 0 {
		return map[string]any{"extend": seconds(extend)}, nil
	}
	if args[0] == "never" {
		return map[string]any{"ttl": nil}, nil
	}
	d, err := api.ParseDuration(args[0])
	if err != nil {
		return nil, cli.Usagef("%q is %w; or write never", args[0], err)
	}
	return map[string]any{"ttl": seconds(d)}, nil
}

func printTTL(w io.Writer, is struct {
	ExpiresAt int64 `json:"expires_at"`
	TTL       int64
}) error {
	if is.ExpiresAt == 0 {
		_, err := fmt.Fprintln(w, "the box has no end")
		return err
	}
	_, err := fmt.Fprintf(w, "the box is deleted at %s, in %v\n", clockTime(is.ExpiresAt), time.Duration(is.TTL)*time.Second)
	return err
}
