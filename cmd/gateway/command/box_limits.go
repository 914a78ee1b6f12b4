package command

import (
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"boxgate/api"
	"boxgate/cmd/gateway/command/cli"
	"boxgate/config"
	"boxgate/policy"
)

// limitHelp is the help text of --limit.
const limitHelp = "LIMIT=NUMBER for this box, such as connections=100 or memory=64MiB; may be repeated (docs/limits.md)"

// newBoxLimits is `gateway box limits`.
func newBoxLimits(o *cli.Options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "limits BOX [LIMIT=NUMBER...]",
		Short: "Show or change the limits of a box; LIMIT=default restores the configured one",
		Args:  cli.MinArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			set, err := limitsOf(args[1:])
			if err != nil {
				return err
			}
			path := api.BoxPath(args[0], "config", "limits")
			if len(set) == 0 {
				return o.Call(cmd, "GET", path, nil, cli.Decoded(printLimits))
			}
			return o.Call(cmd, "PATCH", path, map[string]any{"limits": set}, cli.Decoded(printLimits))
		},
	}
	cli.MapFields(cmd, map[string]string{"/limits": "LIMIT="})
	return cmd
}

// limitsOf parses LIMIT=NUMBER arguments. Limits in bytes may have a unit, as in the configuration.
func limitsOf(args []string) (map[string]any, error) {
	set := map[string]any{}
	for _, arg := range args {
		name, text, ok := strings.Cut(arg, "=")
		limit, known := policy.LimitNamed(name)
		switch {
		case !ok:
			return nil, cli.Usagef("%q is not LIMIT=NUMBER", arg)
		case !known:
			return nil, cli.Usagef("%q is no limit that a box can have of its own; there are %s", name, policy.LimitNames())
		case text == "default":
			set[name] = nil
			continue
		}
		var n config.Size
		if limit.Bytes() {
			if err := n.UnmarshalText([]byte(text)); err != nil {
				return nil, cli.Usagef("%s: %v", name, err)
			}
		} else {
			count, err := strconv.ParseInt(text, 10, 64)
			if err != nil {
				return nil, cli.Usagef("%s: %q is not a whole number", name, text)
			}
			n = config.Size(count)
		}
		set[name] = int64(n)
	}
	return set, nil
}

func printLimits(w io.Writer, a struct{ Limits, Operator, Own map[string]int64 }) error {
	rows := [][]string{{"LIMIT", "VALUE", "SET BY"}}
	for _, limit := range policy.AllLimits() {
		name := limit.String()
		by := "configuration"
		if n, ok := a.Operator[name]; ok && n == a.Limits[name] {
			by = "operator"
		}
		if n, ok := a.Own[name]; ok && n == a.Limits[name] {
			by = "key"
		}
		rows = append(rows, []string{name, shownLimit(limit, a.Limits[name]), by})
	}
	return cli.Table(w, rows...)
}

func shownLimit(limit policy.Limit, n int64) string {
	switch {
	case n == 0:
		return "none"
	case limit.Bytes():
		return config.Size(n).String()
	}
	return strconv.FormatInt(n, 10)
}
