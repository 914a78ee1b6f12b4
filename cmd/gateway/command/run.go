package command

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"boxgate/cmd/gateway/command/cli"
	"boxgate/cmd/gateway/command/solo"
	"boxgate/enclosure"
	"boxgate/enclosure/inside"
	"boxgate/policy"
	"boxgate/policy/dialect"
	"boxgate/preflight"
	"boxgate/rule"
)

// runCommand holds the flags of `gateway run`.
type runCommand struct {
	o                         *cli.Options
	policy, headers, learn    string
	sockets, allow            []string
	quiet, staged, learnGiven bool
}

const runHelp = `Run one command of this host in a separate network under a policy, and print what it was refused.

The command has the files of the host and runs as the user who called sudo. It reaches the network through a temporary gateway,
which does not change the host's network and needs no daemon. Without --policy everything is refused, and the summary prints the
policy that the command would need.

A host that is refused HTTPS answers with status 403, for which the command trusts the CA of this gateway. With --json, the
summary is one line of JSON on standard error, and denials are not printed before.

Values of --headers may be @FILE or env:NAME; the command does not see that file, nor that variable.
If --policy or --headers is read from standard input, the command's standard input is empty.`

const runExample = `  sudo gateway run -- npm install
  sudo gateway run --allow registry.npmjs.org -- npm install
  sudo gateway run --learn=policy.json -- npm install
  sudo gateway run --policy @policy.json -- npm install
  sudo gateway run --policy preset:github,anthropic --headers '{"api.github.com": {"Authorization": "env:GITHUB_AUTH"}}' -- claude`

// notLearned is the value of --learn without a file.
const notLearned = "-"

// newRunCommand is `gateway run`.
func newRunCommand(o *cli.Options) *cobra.Command {
	r := &runCommand{o: o}
	cmd := &cobra.Command{
		Use: "run [flags] -- COMMAND [ARG...]", Short: "Run one command of this host in a separate network under a policy",
		Long: runHelp, Example: runExample, Args: cli.MinArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			r.learnGiven = cmd.Flags().Changed("learn")
			return r.run(cmd, args)
		},
	}
	f := cmd.Flags()
	f.SetInterspersed(false)
	f.StringVar(&r.policy, "policy", "", "network policy: "+cli.PolicyHelp+" (default: deny-all)")
	f.StringArrayVar(&r.allow, "allow", nil, "HOST[:PORT], *.HOST, address or preset:NAME to allow besides --policy (may be repeated)")
	f.StringVar(&r.headers, "headers", "", `header rules as for "gateway headers set": JSON or YAML, @FILE or -`)
	f.StringVar(&r.learn, "learn", "", "allow everything that is not protected, and print the policy that allows what was used, or write it to FILE (--learn=FILE)")
	f.Lookup("learn").NoOptDefVal = notLearned
	f.StringArrayVar(&r.sockets, "socket", nil, "PATH of a Unix socket of the host that the command may use, such as that of ssh-agent")
	f.BoolVarP(&r.quiet, "quiet", "q", false, "print no denials while the command runs, only the summary")
	f.BoolVar(&r.staged, "staged", false, "")
	_ = f.MarkHidden("staged")
	return cmd
}

// newInsideCommand is the first process in the namespaces of the command.
func newInsideCommand() *cobra.Command {
	return &cobra.Command{
		Use: inside.Command, Short: "Start a command (started by `gateway run`)", Args: cli.ExactArgs(0), Hidden: true,
		RunE: func(*cobra.Command, []string) error { os.Exit(inside.Main()); return nil },
	}
}

func (r *runCommand) run(cmd *cobra.Command, args []string) error {
	if strings.HasPrefix(r.policy, cli.NamedPrefix) {
		return cli.Usagef("--policy: named policies are kept by a running gateway, which this command does without; `gateway policy named get` prints them")
	}
	if err := preflight.NeedRoot(); err != nil {
		return errors.New("gateway run makes namespaces and network rules: run it with sudo; the command runs as you")
	}
	// The command must not inherit descriptors that the caller left open, such as sockets of the host's network.
	if err := unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("closing descriptors: %w", err)
	}
	if !r.staged {
		at := slices.Index(os.Args, "run")
		return solo.Stage(slices.Insert(slices.Clone(os.Args), at+1, "--staged"))
	}
	o, err := r.options(cmd, args)
	if err != nil {
		return err
	}
	learned, err := r.createLearned()
	if err != nil {
		return err
	}
	ctx := context.WithoutCancel(cmd.Context()) // signals are for the command
	status, done, err := solo.Run(ctx, o)
	if failed, ok := errors.AsType[*enclosure.ExitError](err); ok {
		return cli.StatusError{Status: failed.Status, Err: failed}
	}
	switch {
	case done != nil && r.o.JSON:
		done.WriteJSON(status, r.learnGiven)
	case done != nil:
		done.Summarize()
	}
	if err != nil {
		return cli.StatusError{Status: 125, Err: err}
	}
	if r.learnGiven && (learned != nil || !r.o.JSON) { // the report has the policy, too
		if err := writeLearned(learned, done.Learned()); err != nil {
			return err
		}
	}
	if status != 0 {
		return cli.CommandExit{Status: status}
	}
	return nil
}

func (r *runCommand) options(cmd *cobra.Command, args []string) (solo.Options, error) {
	cfg, err := r.o.Load()
	if err != nil {
		return solo.Options{}, err
	}
	sockets, err := realPaths(r.sockets)
	if err != nil {
		return solo.Options{}, fmt.Errorf("--socket: %w", err)
	}
	o := solo.Options{Config: cfg, Args: args, Sockets: sockets, Quiet: r.quiet || r.o.JSON, Errout: cmd.ErrOrStderr(), Log: zap.NewNop()}
	if r.policy != "-" && r.headers != "-" { // otherwise the command could seek back and read the input again, if it is a file
		o.Stdin = os.Stdin
	}
	o.Policy = policy.Spec{Mode: policy.ModeDenyAll}
	switch {
	case r.learnGiven && (r.policy != "" || len(r.allow) > 0):
		return o, cli.Usagef("--learn allows everything: leave --policy and --allow out")
	case r.learnGiven:
		o.Policy = policy.Spec{Mode: policy.ModeCustom, AllowedDomains: []string{"*"}}
	case r.policy != "":
		data, err := cli.PolicyArgument(r.policy, cli.PolicyHelp, cmd.InOrStdin())
		if err != nil {
			return o, fmt.Errorf("--policy: %w", err)
		}
		if o.Policy, o.Headers, err = dialect.Parse(data); err != nil {
			return o, fmt.Errorf("--policy: %w", err)
		}
		if len(o.Headers) > 0 {
			if o.Hidden, err = fileOf(r.policy); err != nil {
				return o, err
			}
		}
	}
	if o.Policy, err = withAllowed(o.Policy, r.allow); err != nil || r.headers == "" {
		return o, err
	}
	data, err := cli.RulesArgument(r.headers, cmd.InOrStdin())
	if err != nil {
		return o, fmt.Errorf("--headers: %w", err)
	}
	values, err := solo.ResolveValues(data, os.Getenv)
	if err != nil {
		return o, fmt.Errorf("--headers: %w", err)
	}
	known := func(name string) bool { _, ok := cfg.Secrets.Sources[name]; return ok }
	rules, err := policy.ParseHeaderRules(values.Rules, rule.Configured(known))
	if err != nil {
		return o, fmt.Errorf("--headers: %w", err)
	}
	given, err := fileOf(r.headers)
	if err != nil {
		return o, err
	}
	o.Headers, o.RemovedVariables, o.Hidden = append(o.Headers, rules...), values.Variables, slices.Concat(o.Hidden, values.Files, given)
	return o, nil
}

// withAllowed returns a policy that also allows the destinations of --allow.
func withAllowed(spec policy.Spec, args []string) (policy.Spec, error) {
	entries, err := amendEntries(args)
	if err != nil {
		return spec, fmt.Errorf("--allow: %w", err)
	}
	spec, _, err = amendSpec(spec, "allow", entries)
	if err != nil {
		return spec, fmt.Errorf("--allow: %w", cli.UsageError(err))
	}
	return spec, nil
}

// fileOf returns the file named by an argument of the form @FILE.
func fileOf(arg string) ([]string, error) {
	name, ok := strings.CutPrefix(arg, "@")
	if !ok {
		return nil, nil
	}
	path, err := filepath.Abs(name)
	return []string{path}, err
}

// realPaths resolves symbolic links.
func realPaths(paths []string) ([]string, error) {
	var out []string
	for _, p := range paths {
		abs, err := filepath.Abs(p)
		if err == nil {
			_, err = os.Stat(abs) // reports loops of links as such
		}
		if err == nil {
			abs, err = filepath.EvalSymlinks(abs)
		}
		if err != nil {
			return nil, cli.FileError(err)
		}
		out = append(out, abs)
	}
	return out, nil
}

// createLearned creates the file for the learned policy as the calling user, before the command could put a link in its
// place.
func (r *runCommand) createLearned() (*os.File, error) {
	if !r.learnGiven || r.learn == notLearned {
		return nil, nil
	}
	u, err := enclosure.CallingUser()
	if err != nil {
		return nil, err
	}
	f, err := u.Create(r.learn)
	if err != nil {
		return nil, fmt.Errorf("--learn: %w", cli.WriteError(r.learn, err))
	}
	return f, nil
}

// writeLearned writes the policy to the file, or to standard error, because standard output belongs to the command.
func writeLearned(f *os.File, spec []byte) error {
	if f == nil {
		_, err := fmt.Fprintf(os.Stderr, "gateway: the policy that allows what was used:\n%s", spec)
		return err
	}
	_, err := f.Write(spec)
	return errors.Join(err, f.Close())
}
