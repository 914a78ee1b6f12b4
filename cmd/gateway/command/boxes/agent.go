package boxes

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"boxgate/api"
	"boxgate/cmd/gateway/command/cli"
)

// newAgent is `gateway box agent`.
func newAgent(o *cli.Options) *cobra.Command {
	cmd := cli.Group("agent", "Run the agent of a box, and choose its model and harness")
	cmd.AddCommand(newAgentRun(o), newAgentModel(o), newAgentHarness(o))
	return cmd
}

const optionsHelp = "options of the harness: a JSON or YAML object, @FILE, or - for standard input"

// agentRun holds the flags of `gateway box agent run`.
type agentRun struct {
	o                                          *cli.Options
	folder, schema, options, webhook, webhooks string
	files                                      []string
	timeout                                    time.Duration
}

func newAgentRun(o *cli.Options) *cobra.Command {
	r := agentRun{o: o}
	cmd := &cobra.Command{
		Use: "run BOX PROMPT", Short: "Run the agent of a box and print its answer", Args: cli.ExactArgs(2),
		Long: "Run the agent of a box and print its answer as it is written. Its thoughts and tools are on standard error. PROMPT is the text itself,\n" +
			"@FILE, or - for standard input. With --json, each event is a line. The run continues after Ctrl-C; `gateway box run cancel` ends it.",
		Example: "  gateway box agent run demo 'Fix the failing test'\n  gateway box agent run demo @task.md --schema @answer.json >answer",
		RunE:    r.run,
	}
	f := cmd.Flags()
	f.StringVar(&r.folder, "folder", "", "working directory, absolute or below /workspace/home")
	f.StringVar(&r.schema, "schema", "", "JSON schema of the answer: the schema itself, @FILE, or - for standard input")
	f.StringVar(&r.options, "options", "", optionsHelp)
	f.StringArrayVar(&r.files, "file", nil, "file of this host to attach to the prompt (may be repeated)")
	f.StringVar(&r.webhook, "webhook-url", "", "do not wait: the gateway sends the result there, in a request under the policy of the box")
	f.StringVar(&r.webhooks, "webhook-headers", "", "headers of that request: a JSON or YAML object, @FILE or -")
	cli.Duration(f, &r.timeout, "timeout", 0, timeoutHelp)
	cli.MapFields(cmd, map[string]string{
		"/prompt": "PROMPT", "/json_schema": "--schema", "/agent_options": "--options", "/files": "--file", "/webhook/url": "--webhook-url", "/webhook/headers": "--webhook-headers",
	})
	return cmd
}

func (r *agentRun) run(cmd *cobra.Command, args []string) error {
	body, err := r.body(cmd, args[1])
	if err != nil {
		return err
	}
	if r.webhook != "" {
		return r.o.Call(cmd, "POST", api.BoxPath(args[0], "run"), body, cli.Decoded(func(w io.Writer, run struct {
			RunID string `json:"run_id"`
		}) error {
			_, err := fmt.Fprintln(w, run.RunID)
			return err
		}))
	}
	client, err := r.o.QuietClient()
	if err != nil {
		return err
	}
	data, err := json.Marshal(body)
	if err != nil {
		return err
	}
	resp, err := client.Stream(cmd.Context(), http.MethodPost, api.BoxPath(args[0], "run/stream"), "application/json", bytes.NewReader(data))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	t := &transcript{out: cmd.OutOrStdout(), notes: cmd.ErrOrStderr(), asJSON: r.o.JSON}
	err = t.end(cmd.Context(), args[0], readEvents(resp.Body, t.print))
	if t.failed == "" {
		return err
	}
	return cli.StatusError{Status: failedStatus(cmd.Context(), client, args[0], t.run), Err: err}
}

// failedStatus returns the exit status for a run that has failed: its harness's own, unless that is unknown or 0.
func failedStatus(ctx context.Context, client *api.Client, box, run string) int {
	var r runAnswer
	if client.Get(ctx, runPath([]string{box, run}), &r) != nil || r.ExitCode == nil || *r.ExitCode == 0 {
		return cli.ExitFailed
	}
	return *r.ExitCode
}

// end returns the error of a run whose stream has ended with err.
func (t *transcript) end(ctx context.Context, box string, err error) error {
	if t.column && !t.asJSON {
		fmt.Fprintln(t.out)
	}
	by, interrupted := errors.AsType[cli.Interrupted](context.Cause(ctx))
	hint := fmt.Sprintf("`gateway box run get %s %s` shows it", box, t.run)
	switch {
	case t.failed != "":
		return fmt.Errorf("the run failed: %s", t.failed)
	case t.answered:
		return nil
	case interrupted && t.run != "":
		return cli.StatusError{Status: by.Status(), Err: fmt.Errorf("interrupted; the run continues in the box, and `gateway box run cancel %s %s` ends it", box, t.run)}
	case t.run == "" && err != nil:
		return fmt.Errorf("the run did not start: %w", err)
	case err != nil:
		return fmt.Errorf("the connection broke before the run ended: %w; %s", err, hint)
	}
	return fmt.Errorf("the run ended without an answer; %s", hint)
}

// body returns the request.
func (r *agentRun) body(cmd *cobra.Command, arg string) (map[string]any, error) {
	if err := CheckTimeout(cmd, r.timeout); err != nil {
		return nil, err
	}
	if r.webhooks != "" && r.webhook == "" {
		return nil, cli.Usagef("--webhook-headers needs --webhook-url")
	}
	in := NewInput(cmd)
	prompt, err := in.Text("PROMPT", arg)
	if err != nil {
		return nil, err
	}
	body := set(map[string]any{"prompt": prompt}, map[string]string{"folder": r.folder})
	if r.timeout != 0 {
		body["timeout"] = milliseconds(r.timeout)
	}
	for _, doc := range []struct{ member, flag, arg, form string }{
		{"json_schema", "--schema", r.schema, "a schema"}, {"agent_options", "--options", r.options, "an object of options"},
	} {
		text, err := in.Document(doc.flag, doc.arg, doc.form)
		if err != nil {
			return nil, err
		}
		if text != nil {
			body[doc.member] = text
		}
	}
	headers, err := in.Document("--webhook-headers", r.webhooks, "an object of headers")
	if err != nil {
		return nil, err
	}
	if r.webhook != "" {
		hook := map[string]any{"url": r.webhook}
		if headers != nil {
			hook["headers"] = headers
		}
		body["webhook"] = hook
	}
	if len(r.files) > 0 {
		body["files"], err = attached(r.files)
	}
	return body, err
}

// attachment is a file of a prompt, as the API takes it.
type attachment struct {
	Data      string `json:"data"`
	MediaType string `json:"media_type"`
	Filename  string `json:"filename"`
}

// attached reads the files of a prompt. Together they have at most maxText bytes.
func attached(names []string) ([]attachment, error) {
	var all []attachment
	room := int64(maxText)
	for _, name := range names {
		fi, err := os.Stat(name)
		if err != nil {
			return nil, cli.FileError(err)
		}
		if fi.IsDir() {
			return nil, cli.Usagef("--file: %s is a directory", name)
		}
		data, err := readFile(name, room+1)
		if err != nil {
			return nil, cli.FileError(err)
		}
		if room -= int64(len(data)); room < 0 {
			return nil, cli.Usagef("--file: the files have more than %d bytes together; copy them with `gateway box cp`", maxText)
		}
		kind := mime.TypeByExtension(filepath.Ext(name))
		if kind == "" {
			kind = http.DetectContentType(data)
		}
		all = append(all, attachment{base64.StdEncoding.EncodeToString(data), kind, filepath.Base(name)})
	}
	return all, nil
}

func newAgentModel(o *cli.Options) *cobra.Command {
	var agent, key, base string
	cmd := &cobra.Command{
		Use: "model BOX MODEL", Short: "Replace the model of a box, and if given its harness, the server and the key of the model", Args: cli.ExactArgs(2),
		Example: "  gateway box agent model demo anthropic/claude-sonnet-4-5 --api-key-file key",
		RunE: func(cmd *cobra.Command, args []string) error {
			secret, err := NewInput(cmd).Secret("--api-key-file", key)
			if err != nil {
				return err
			}
			body := set(map[string]any{"model": args[1]}, map[string]string{"agent": agent, "agent_api_key": secret})
			if cmd.Flags().Changed("agent-base-url") {
				body["agent_base_url"] = base
			}
			return o.Call(cmd, "PUT", api.BoxPath(args[0], "config/model"), body, cli.Decoded(func(w io.Writer, a struct {
				Model    string
				Warnings []cli.Warning
			}) error {
				cli.PrintWarnings(cmd, a.Warnings)
				_, err := fmt.Fprintln(w, word(a.Model))
				return err
			}))
		},
	}
	f := cmd.Flags()
	f.StringVar(&agent, "agent", "", "harness: claude-code, codex or opencode (default: unchanged)")
	f.StringVar(&key, "api-key-file", "", apiKeyHelp)
	f.StringVar(&base, "agent-base-url", "", "server of the model; empty: the provider's own")
	offer(cmd, "agent", harnesses...)
	cli.MapFields(cmd, map[string]string{"/model": "MODEL", "/agent_api_key": "--api-key-file"})
	return cmd
}

// harnesses are the built-in harnesses, for completion.
var harnesses = []string{"claude-code", "codex", "opencode"}

const apiKeyHelp = "file with the key of the model, or - for standard input; it becomes a header rule, and the box does not have it"

func newAgentHarness(o *cli.Options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "harness BOX -- COMMAND [ARG...]", Short: "Replace the command of a custom harness", Args: cli.MinArgs(2),
		Example: "  gateway box agent harness demo -- node /workspace/home/harness.mjs",
		RunE: func(cmd *cobra.Command, args []string) error {
			body := map[string]any{"custom_runner": runner(args[1], args[2:])}
			return o.Call(cmd, "PUT", api.BoxPath(args[0], "config/custom-runner"), body, cli.Decoded(func(w io.Writer, a struct {
				CustomRunner struct {
					Command string
					Args    []string
				} `json:"custom_runner"`
			}) error {
				_, err := fmt.Fprintln(w, escape(strings.Join(append([]string{a.CustomRunner.Command}, a.CustomRunner.Args...), " "), maxMessage))
				return err
			}))
		},
	}
	cli.MapFields(cmd, map[string]string{"/custom_runner": "COMMAND", "/custom_runner/args": "ARG"})
	return cmd
}

// runner returns a custom harness as the API takes it.
func runner(command string, args []string) map[string]any {
	return map[string]any{"command": command, "args": append([]string{}, args...), "protocol": "box-sse-v1"}
}
