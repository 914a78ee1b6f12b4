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
	OnEnd     string `json:"on_end"`
}) error {
	if is.ExpiresAt == 0 {
		_, err := fmt.Fprintln(w, "the box has no end")
		return err
	}
	what := "deleted"
	if is.OnEnd == api.EndPause {
		what = "paused"
	}
	_, err := fmt.Fprintf(w, "the box is %s at %s, in %v\n", what, clockTime(is.ExpiresAt), time.Duration(is.TTL)*time.Second)
	return err
}

const boxOnEndHelp = `Sets what happens at the end of a box: it is deleted, or paused until it is resumed, which gives it a new end, as far off
as the last one it was given. With --auto-resume any use resumes it, such as a command or a request to a public URL. A paused box keeps
its disk, and is deleted after launcher.max_paused.`

// newBoxOnEnd is `gateway box on-end`.
func newBoxOnEnd(o *cli.Options) *cobra.Command {
	var auto bool
	cmd := &cobra.Command{
		Use: "on-end BOX delete|pause", Short: "Set whether a box is deleted or paused at its end", Long: boxOnEndHelp,
		Example: "  gateway box on-end demo pause --auto-resume", Args: cli.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.Call(cmd, "PUT", api.BoxPath(args[0], "config/on-end"), map[string]any{"on_end": args[1], "auto_resume": auto}, cli.Decoded(printOnEnd))
		},
	}
	cmd.Flags().BoolVar(&auto, "auto-resume", false, "any use resumes the paused box, not only a call of resume")
	cli.MapFields(cmd, map[string]string{"/on_end": "delete|pause", "/auto_resume": "--auto-resume"})
	return cmd
}

func printOnEnd(w io.Writer, is struct {
	OnEnd      string `json:"on_end"`
	AutoResume bool   `json:"auto_resume"`
}) error {
	text := "the box is deleted at its end"
	switch {
	case is.AutoResume:
		text = "the box is paused at its end, and resumed by any use"
	case is.OnEnd == api.EndPause:
		text = "the box is paused at its end, and resumed by `gateway box resume`"
	}
	_, err := fmt.Fprintln(w, text)
	return err
}
