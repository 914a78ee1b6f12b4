package boxes

import (
	"cmp"
	"context"
	"errors"
	"path"
	"time"

	"github.com/spf13/cobra"

	"boxgate/api"
	"boxgate/cmd/gateway/command/cli"
)

// codeFlags holds the flags of `gateway box code`.
type codeFlags struct {
	o             *cli.Options
	language, dir string
	timeout       time.Duration
}

// newCode is `gateway box code`.
func newCode(o *cli.Options) *cobra.Command {
	c := codeFlags{o: o}
	cmd := &cobra.Command{
		Use: "code BOX [FILE]", Short: "Run source text in a box and exit with its status", Args: cli.MinArgs(1),
		Long: "Run source text in a box and exit with its status: FILE of this host, or standard input. The interpreter reads it from its standard\n" +
			"input, so the program itself has none.",
		Example: "  echo 'print(1 + 2)' | gateway box code demo --language python\n  gateway box code demo script.mjs",
		RunE:    c.run,
	}
	cmd.Flags().StringVar(&c.language, "language", "", "js, ts or python (default: by the name of FILE)")
	cmd.Flags().StringVar(&c.dir, "dir", "", "working directory (default: the home directory)")
	cli.Duration(cmd.Flags(), &c.timeout, "timeout", 0, timeoutHelp)
	offer(cmd, "language", "js", "ts", "python")
	cli.MapFields(cmd, map[string]string{"/folder": "--dir", "/code": "FILE"})
	return cmd
}

const timeoutHelp = "how long it may run, such as 30s or 2h, before it is killed (default: no limit)"

// languages maps extensions of files to languages of the API.
var languages = map[string]string{".js": "js", ".mjs": "js", ".cjs": "js", ".ts": "ts", ".mts": "ts", ".cts": "ts", ".py": "python"}

func (c *codeFlags) run(cmd *cobra.Command, args []string) error {
	if len(args) > 2 {
		return cli.ExactArgs(2)(cmd, args)
	}
	if err := CheckTimeout(cmd, c.timeout); err != nil {
		return err
	}
	from := "-"
	if len(args) == 2 && args[1] != "-" {
		from = "@" + args[1]
	}
	language := cmp.Or(c.language, languages[path.Ext(from)])
	if language == "" {
		return cli.Usagef("give the language: --language js, ts or python")
	}
	text, err := NewInput(cmd).Text("FILE", from)
	if err != nil {
		return err
	}
	client, err := c.o.QuietClient()
	if err != nil {
		return err
	}
	code := api.Code{Code: text, Language: language, Dir: c.dir, Timeout: c.timeout}
	return Ended(cmd.Context())(client.RunCode(cmd.Context(), args[0], code, cmd.OutOrStdout(), cmd.ErrOrStderr()))
}

// Ended returns a function that turns the end of a command in a box into the error of the command line: its exit status, or after an
// interruption that the command continues in the box.
func Ended(ctx context.Context) func(status int, err error) error {
	return func(status int, err error) error {
		if by, ok := errors.AsType[cli.Interrupted](context.Cause(ctx)); ok && err != nil {
			return cli.StatusError{Status: by.Status(), Err: errors.New("interrupted; the command continues in the box. With -i, Ctrl-C reaches the command")}
		}
		if err == nil && status != 0 {
			return cli.CommandExit{Status: status}
		}
		return err
	}
}
