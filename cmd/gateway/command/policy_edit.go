package command

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"boxgate/api"
	"boxgate/cmd/gateway/command/cli"
	"boxgate/cmd/gateway/command/terminal"
	"boxgate/policy"
	"boxgate/policy/amend"
	"boxgate/policy/dialect"
)

// newPolicyEdit is `gateway policy edit`.
func newPolicyEdit(o *cli.Options) *cobra.Command {
	return &cobra.Command{
		Use: "edit BOX", Short: "Edit the policy in $VISUAL or $EDITOR",
		Long: `Opens the policy in $VISUAL, $EDITOR or vi. The edited policy replaces it as a whole if it is valid and no other client has
changed the policy in the meantime. Otherwise the policy stays unchanged, and the command prints where the edited file is.`,
		Args: cli.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := o.Client()
			if err != nil {
				return err
			}
			e := policyEdit{cmd: cmd, client: client, box: args[0], json: o.JSON}
			return e.run(context.WithoutCancel(cmd.Context()))
		},
	}
}

// policyEdit is one edit of a box's policy.
type policyEdit struct {
	cmd    *cobra.Command
	client *api.Client
	box    string
	json   bool
	file   string
	before policyState
	text   []byte // contents of the file before the edit
}

// run edits the policy. The file is kept if the edit would otherwise be lost.
func (e *policyEdit) run(ctx context.Context) error {
	var err error
	if e.before, err = readOwnPolicy(ctx, e.client, e.box); err != nil {
		return err
	}
	if e.text, err = json.MarshalIndent(e.before.spec, "", "  "); err != nil {
		return err
	}
	e.text = append(e.text, '\n')
	dir, err := os.MkdirTemp("", "boxgate-policy-")
	if err != nil {
		return err
	}
	e.file = filepath.Join(dir, "policy.json")
	if err := os.WriteFile(e.file, e.text, 0o600); err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	next, err := e.edited(ctx)
	if err == nil && next != nil {
		err = e.apply(ctx, *next)
	}
	if after, _ := os.ReadFile(e.file); err != nil && !bytes.Equal(after, e.text) {
		return fmt.Errorf("%w\nThe policy was not changed. What you wrote is in %s", err, e.file)
	}
	return errors.Join(err, os.RemoveAll(dir))
}

// edited runs the editor and returns the new policy, or nil if it was not changed. At a terminal, an invalid policy can
// be edited again.
func (e *policyEdit) edited(ctx context.Context) (*policy.Spec, error) {
	for {
		if err := e.openEditor(ctx); err != nil {
			return nil, err
		}
		data, err := os.ReadFile(e.file)
		if err != nil {
			return nil, err
		}
		spec, err := dialect.ParseSpec(data)
		switch {
		case bytes.Equal(data, e.text) || err == nil && len(amend.Diff(e.before.spec, spec)) == 0:
			return nil, e.print("Nothing was changed.")
		case err == nil:
			return &spec, nil
		case !e.confirmEdit(err):
			return nil, err
		}
	}
}

// openEditor runs the editor. Like git, it allows arguments in the variable.
func (e *policyEdit) openEditor(ctx context.Context) error {
	editor := os.Getenv("VISUAL")
	if editor == "" {
		editor = os.Getenv("EDITOR")
	}
	if editor == "" {
		editor = "vi"
	}
	signals := make(chan os.Signal, 1) // so that Ctrl-C only reaches the editor
	signal.Notify(signals, os.Interrupt, syscall.SIGQUIT)
	defer signal.Stop(signals)
	run := exec.CommandContext(ctx, "sh", "-c", editor+` "$1"`, editor, e.file)
	run.Stdin, run.Stdout, run.Stderr = e.cmd.InOrStdin(), e.cmd.OutOrStdout(), e.cmd.ErrOrStderr()
	if e.json {
		run.Stdout = e.cmd.ErrOrStderr()
	}
	if err := run.Run(); err != nil {
		return fmt.Errorf("the editor %q failed (%w); set EDITOR to another one", editor, err)
	}
	return nil
}

// confirmEdit prints the mistake and asks at a terminal whether to edit again.
func (e *policyEdit) confirmEdit(flaw error) bool {
	if terminal.Of(e.cmd.InOrStdin()) == nil {
		return false
	}
	fmt.Fprintf(e.cmd.ErrOrStderr(), "%v\nEdit again? [Y/n] ", flaw)
	answer, err := bufio.NewReader(e.cmd.InOrStdin()).ReadString('\n')
	return err == nil && !strings.HasPrefix(strings.ToLower(strings.TrimSpace(answer)), "n")
}

// apply replaces the policy.
func (e *policyEdit) apply(ctx context.Context, next policy.Spec) error {
	after, err := writePolicy(ctx, e.client, e.box, next, e.before)
	if refused, ok := errors.AsType[*api.ResponseError](err); ok && refused.Status == http.StatusPreconditionFailed {
		return fmt.Errorf("somebody else changed the policy while you edited it; see `gateway policy diff %s @%s`", e.box, e.file)
	}
	if err != nil {
		return err
	}
	if e.json {
		_, err := fmt.Fprintln(e.cmd.OutOrStdout(), string(after.answer))
		return err
	}
	cli.PrintWarnings(e.cmd, after.warnings)
	if err := printDiff(e.cmd.OutOrStdout(), amend.Diff(e.before.spec, after.spec)); err != nil {
		return err
	}
	return e.print("Version " + after.version.String() + " of the policy is in force.")
}

// print prints a sentence, unless the output is JSON.
func (e *policyEdit) print(text string) error {
	out := e.cmd.OutOrStdout()
	if e.json {
		out = io.Discard
	}
	_, err := fmt.Fprintln(out, text)
	return err
}
