package command

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"boxgate/api"
	"boxgate/audit"
	"boxgate/cmd/gateway/command/cli"
	"boxgate/cmd/gateway/command/terminal"
)

// newApprovalsCommand is `gateway approvals`.
func newApprovalsCommand(o *cli.Options) *cobra.Command {
	cmd := cli.Group("approvals", "List and answer the requests of boxes for access")
	cmd.AddCommand(
		newApprovalsListCommand(o), newApprovalsShowCommand(o), newApproveCommand(o), newApprovalsDenyCommand(o),
		newAskingCommand(o, "enable", "Let a box ask for access", true), newAskingCommand(o, "disable", "Stop a box from asking for access", false),
	)
	return cmd
}

// approvalAnswer is a request for access as the API returns it.
type approvalAnswer struct {
	ID, Box, State, Host, Method, Path, Entry, Reason, Obstacle, Barred, Answer string
	Port                                                                        uint16
	BoxName                                                                     string `json:"box_name"`
	ExpiresIn                                                                   int64  `json:"expires_in"`
	NeedsHuman                                                                  string `json:"needs_human"`
	By                                                                          string `json:"answered_by"`
	Until                                                                       int64
	CreatedAt                                                                   int64 `json:"created_at"`
	Candidate                                                                   *struct {
		Digest, Opens, Denied, Before, Mode string
		Headers                             []string
		Rules                               int
		NotAlways                           string `json:"not_always"`
	}
}

// newApprovalsListCommand is `gateway approvals list`.
func newApprovalsListCommand(o *cli.Options) *cobra.Command {
	var box string
	var all bool
	cmd := &cobra.Command{
		Use: "list [--box B] [--all]", Aliases: []string{"ls"}, Short: "List the open requests, oldest first", Args: cli.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			path := "/v2/approvals"
			if box != "" {
				path = api.BoxPath(box, "approvals")
			}
			if !all {
				path += "?" + url.Values{"state": {string(api.ApprovalOpen)}}.Encode()
			}
			return o.Call(cmd, "GET", path, nil, cli.Decoded(printApprovals))
		},
	}
	cmd.Flags().StringVar(&box, "box", "", "only requests of this box, by its ID or name")
	cmd.Flags().BoolVar(&all, "all", false, "answered requests as well")
	return cmd
}

// mostShown is the number of bytes of a box's text in a column.
const mostShown = 60

func printApprovals(w io.Writer, list []approvalAnswer) error {
	if len(list) == 0 {
		_, err := fmt.Fprintln(w, "no open requests")
		return err
	}
	rows := [][]string{{"ID", "BOX", "STATE", "DESTINATION", "ASKED", "REASON"}}
	for _, a := range list {
		rows = append(rows, []string{a.ID, nameOr(a.BoxName, a.Box), stateOf(a), a.Entry, time.Unix(a.CreatedAt, 0).Local().Format(time.DateTime), audit.Escape(oneLine(a.Reason), mostShown)})
	}
	return cli.Table(w, rows...)
}

// oneLine joins the lines of a text.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

func nameOr(name, id string) string {
	if name == "" {
		return id
	}
	return name
}

func stateOf(a approvalAnswer) string {
	if a.State == string(api.ApprovalOpen) && a.NeedsHuman != "" {
		return api.ApprovalNeedsHuman
	}
	return a.State
}

// newApprovalsShowCommand is `gateway approvals show`.
func newApprovalsShowCommand(o *cli.Options) *cobra.Command {
	return &cobra.Command{
		Use: "show ID", Short: "Show a request, and the effect that an approval would have now", Args: cli.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := o.Client()
			if err != nil {
				return err
			}
			path, err := approvalPath(cmd.Context(), client, args[0])
			if err != nil {
				return err
			}
			return o.Call(cmd, "GET", path, nil, cli.Decoded(printApproval))
		},
	}
}

// approvalPath finds the box of a request, and returns the path of the request in the API.
func approvalPath(ctx context.Context, client *api.Client, id string) (string, error) {
	var list []approvalAnswer
	if err := client.Get(ctx, "/v2/approvals", &list); err != nil {
		return "", err
	}
	for _, a := range list {
		if a.ID == id {
			return api.BoxPath(a.Box, "approvals", a.ID), nil
		}
	}
	return "", fmt.Errorf("no request has the ID %q, or it has expired; see `gateway approvals list --all`", id)
}

// printApproval prints a request. Texts of the box are quoted line by line, with characters that a terminal could interpret as
// escapes.
func printApproval(w io.Writer, a approvalAnswer) error {
	rows := [][]string{{"id", a.ID}, {"box", nameOr(a.BoxName, a.Box)}, {"state", stateOf(a)}, {"destination", a.Entry}}
	if a.ExpiresIn > 0 {
		rows = append(rows, []string{"asked for", (time.Duration(a.ExpiresIn) * time.Second).String()})
	}
	if c := a.Candidate; c != nil {
		rows = append(rows, []string{"opens", c.Opens}, []string{"denied now", c.Denied + ", mode " + c.Mode})
		if c.Before != "" {
			rows = append(rows, []string{"before the rule", audit.Escape(c.Before, 1000)})
		}
		if len(c.Headers) > 0 {
			rows = append(rows, []string{"credentials", "the gateway adds headers for " + strings.Join(c.Headers, ", ")})
		}
		if c.Rules > 0 {
			rows = append(rows, []string{"request rules", cli.Count(c.Rules, "rule continues to apply", "rules continue to apply")})
		}
		if c.NotAlways != "" {
			rows = append(rows, []string{"not for good", c.NotAlways})
		}
		rows = append(rows, []string{"candidate", c.Digest})
	}
	for _, field := range [][]string{{"obstacle", a.Obstacle}, {"not by this key", a.Barred}, {"needs a person", audit.Escape(oneLine(a.NeedsHuman), 1000)}, {"answered by", a.By}, {"answer", audit.Escape(oneLine(a.Answer), 1000)}} {
		if field[1] != "" {
			rows = append(rows, field)
		}
	}
	if a.Until != 0 {
		rows = append(rows, []string{"until", time.Unix(a.Until, 0).Local().Format(time.DateTime)})
	}
	if err := cli.Table(w, rows...); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(w, "\nreason, as the box wrote it:"); err != nil {
		return err
	}
	for line := range strings.SplitSeq(a.Reason, "\n") {
		if _, err := fmt.Fprintln(w, "  | "+audit.Escape(line, 1000)); err != nil {
			return err
		}
	}
	return nil
}

// newApproveCommand is `gateway approvals approve`.
func newApproveCommand(o *cli.Options) *cobra.Command {
	var lasts time.Duration
	var always, yes bool
	var reason, candidate string
	cmd := &cobra.Command{
		Use: "approve ID", Short: "Approve a request: for a time, or for good by a change of the policy", Args: cli.ExactArgs(1),
		Long: `Approve a request: for a time, or with --always by a change of the box's policy.

The command shows the request and asks for confirmation. In scripts, --candidate names the candidate that "gateway approvals show" has
printed. Either way, the approval has the effect that was shown or none: if the policy was changed such that the effect differs, the
command fails, and the request stays open.`,
		Example: "  gateway approvals approve k7dm3q2hx4ya --for 2h --reason 'fixtures of the tests'\n  gateway approvals approve k7dm3q2hx4ya --always --reason 'needed by every build' --candidate 3f0c…",
		RunE: func(cmd *cobra.Command, args []string) error {
			if always && cmd.Flags().Changed("for") {
				return cli.Usagef("--always and --for exclude each other")
			}
			body := map[string]any{"answer": string(api.ApprovalOnce), "reason": reason}
			if always {
				body["answer"] = string(api.ApprovalAlways)
			}
			if cmd.Flags().Changed("for") {
				body["expires_in"] = int64(lasts / time.Second)
			}
			return answer(cmd, o, args[0], body, func(a approvalAnswer) error {
				return confirm(cmd, a, body, candidate, yes)
			})
		},
	}
	cli.MapFields(cmd, map[string]string{"/expires_in": "--for", "/reason": "--reason", "/candidate": "--candidate"})
	f := cmd.Flags()
	cli.Duration(f, &lasts, "for", 0, "duration of the access, such as 1h or 7d (default: as the box asks, or 1h)")
	f.BoolVar(&always, "always", false, "add it to the policy")
	f.StringVar(&reason, "reason", "", "reason, for the box and the audit trail (required)")
	f.StringVar(&candidate, "candidate", "", "the candidate to approve, as shown before; approves without asking")
	f.BoolVar(&yes, "yes", false, "approve what is shown without asking")
	return cmd
}

// confirm sets the candidate in the body of an approval: the given one, or the shown one if the user agrees.
func confirm(cmd *cobra.Command, a approvalAnswer, body map[string]any, candidate string, yes bool) error {
	if candidate != "" {
		body["candidate"] = candidate
		return nil
	}
	if a.Candidate == nil {
		return fmt.Errorf("the request cannot be approved: %s", nameOr(a.Obstacle, "it is "+a.State))
	}
	if err := printApproval(cmd.ErrOrStderr(), a); err != nil {
		return err
	}
	body["candidate"] = a.Candidate.Digest
	if yes {
		return nil
	}
	if !terminal.IsOne(os.Stdin) {
		return cli.Usagef("name the candidate that was shown with --candidate, or approve it with --yes")
	}
	fmt.Fprint(cmd.ErrOrStderr(), "\nApprove? [y/N] ")
	line, err := bufio.NewReader(cmd.InOrStdin()).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if answer := strings.ToLower(strings.TrimSpace(line)); answer != "y" && answer != "yes" {
		return errors.New("not approved; the request stays open")
	}
	return nil
}

// answer sends the answer to a request after look has approved of the current request.
func answer(cmd *cobra.Command, o *cli.Options, id string, body map[string]any, look func(approvalAnswer) error) error {
	if body["reason"] == "" {
		return cli.Usagef("give a reason with --reason, for the box and the audit trail")
	}
	client, err := o.Client()
	if err != nil {
		return err
	}
	path, err := approvalPath(cmd.Context(), client, id)
	if err != nil {
		return err
	}
	var current approvalAnswer
	if err := client.Get(cmd.Context(), path, &current); err != nil {
		return err
	}
	if err := look(current); err != nil {
		return err
	}
	return o.Call(cmd, "POST", path, body, cli.Decoded(func(w io.Writer, a approvalAnswer) error {
		until := ""
		if a.Until != 0 {
			until = ", until " + time.Unix(a.Until, 0).Local().Format(time.DateTime)
		}
		_, err := fmt.Fprintf(w, "%s: %s%s\n", a.Entry, a.State, until)
		return err
	}))
}

// newApprovalsDenyCommand is `gateway approvals deny`.
func newApprovalsDenyCommand(o *cli.Options) *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use: "deny ID", Short: "Deny a request", Args: cli.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			body := map[string]any{"answer": string(api.ApprovalDenied), "reason": reason}
			return answer(cmd, o, args[0], body, func(approvalAnswer) error { return nil })
		},
	}
	cli.MapFields(cmd, map[string]string{"/reason": "--reason"})
	cmd.Flags().StringVar(&reason, "reason", "", "reason, for the box and the audit trail (required)")
	return cmd
}

// newAskingCommand is `gateway approvals enable` or `gateway approvals disable`.
func newAskingCommand(o *cli.Options, verb, short string, on bool) *cobra.Command {
	return &cobra.Command{
		Use: verb + " BOX", Short: short, Args: cli.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.Call(cmd, "PUT", api.BoxPath(args[0], "config", "approvals"), map[string]any{"enabled": on}, cli.Silent)
		},
	}
}
