package command

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"boxgate/api"
	"boxgate/audit"
	"boxgate/cmd/gateway/command/cli"
	"boxgate/policy"
	"boxgate/policy/dialect"
)

const policyHistoryHelp = `List the versions of a box's policy, the latest first: who set each, when and by what, and when it was in force.

The numbers are those of "policy_version" in decisions. BOX is the name or the ID of a box; of a deleted box, its ID. A version that was
rolled back or interrupted may have decided for a moment.`

// newPolicyHistory is `gateway policy history`.
func newPolicyHistory(o *cli.Options) *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use: "history BOX", Short: "List the versions of a box's policy: who set each, when and by what", Long: policyHistoryHelp, Args: cli.ExactArgs(1),
		Example: "  gateway policy history web-1\n  gateway policy show web-1@7\n  gateway policy diff web-1@7 web-1@9",
		RunE: func(cmd *cobra.Command, args []string) error {
			if limit < 1 {
				return cli.Usagef("--limit must be at least 1")
			}
			client, err := o.Client()
			if err != nil {
				return err
			}
			list, err := readVersions(cmd.Context(), client, args[0], limit)
			if err != nil {
				return err
			}
			if o.JSON {
				return cli.WriteJSON(cmd.OutOrStdout(), list)
			}
			return printVersions(cmd.OutOrStdout(), list)
		},
	}
	cmd.Flags().IntVar(&limit, "limit", 100, "at most so many versions, the latest")
	return cmd
}

// readVersions fetches the latest versions of the policy of a box, page by page.
func readVersions(ctx context.Context, client *api.Client, box string, most int) (list api.PolicyVersions, err error) {
	query := url.Values{}
	for {
		query.Set("limit", strconv.Itoa(min(most-len(list.Versions), 500)))
		var page api.PolicyVersions
		if err := client.Get(ctx, api.BoxPath(box, "egress/policy-history")+"?"+query.Encode(), &page); err != nil {
			return list, err
		}
		page.Versions = append(list.Versions, page.Versions...)
		if list = page; !list.More || len(list.Versions) >= most || len(list.Versions) == 0 {
			return list, nil
		}
		query.Set("before", strconv.FormatUint(list.Versions[len(list.Versions)-1].Version, 10))
	}
}

func printVersions(w io.Writer, list api.PolicyVersions) error {
	rows := [][]string{{"VERSION", "IN FORCE SINCE", "BY", "WHO", "FROM", "FOLLOWS"}}
	for _, v := range list.Versions {
		since := strings.ReplaceAll(v.Result, "_", " ")
		if !v.Since.IsZero() {
			since = v.Since.Local().Format(time.DateTime)
		}
		rows = append(rows, []string{
			strconv.FormatUint(v.Version, 10), textOrDash(since), causeText(v.Cause), textOrDash(whoText(v.Key, v.KeyID)), textOrDash(audit.Escape(v.Remote, 60)), textOrDash(audit.Escape(v.Named, 64)),
		})
	}
	if err := cli.Table(w, rows...); err != nil {
		return err
	}
	if list.Dropped > 0 {
		fmt.Fprintf(w, "%s missing: the history is bounded.\n", cli.Count(int(list.Dropped), "version is", "versions are"))
	}
	if list.More {
		fmt.Fprintln(w, "There are older versions: --limit shows more.")
	}
	if !list.DeletedAt.IsZero() {
		fmt.Fprintf(w, "The box was deleted at %s.\n", list.DeletedAt.Local().Format(time.DateTime))
	}
	return nil
}

// causeText is the cause of a version for people.
func causeText(cause string) string { return strings.ReplaceAll(cause, "_", " ") }

// whoText is the name of an API key, or its ID if it has none.
func whoText(key, id string) string { return audit.Escape(cmp.Or(key, id), 64) }

// boxVersion is an argument such as web-1@7.
type boxVersion struct {
	box     string
	version uint64 // 0: the current one
}

// path is the API path of the version.
func (v boxVersion) path() string {
	return api.BoxPath(v.box, "egress/policy-history/"+strconv.FormatUint(v.version, 10))
}

// parseBoxVersion parses an argument that names a box, and may name a version of its policy. It reports whether it names a
// version.
func parseBoxVersion(arg string) (v boxVersion, versioned bool) {
	box, number, found := strings.Cut(arg, "@")
	if !found || box == "" {
		return boxVersion{box: arg}, false
	}
	n, err := strconv.ParseUint(number, 10, 64)
	if err != nil || n == 0 || number != strconv.FormatUint(n, 10) {
		return boxVersion{box: arg}, false
	}
	return boxVersion{box, n}, true
}

// timeLayouts are the forms of --at besides those that the API takes. They are in local time.
var timeLayouts = []string{"2006-01-02T15:04", "2006-01-02 15:04", "2006-01-02T15:04:05", time.DateTime, time.DateOnly}

// parseAt parses the value of --at.
func parseAt(text string) (time.Time, error) {
	for _, layout := range timeLayouts {
		if t, err := time.ParseInLocation(layout, text, time.Local); err == nil {
			return t, nil
		}
	}
	t, err := api.ParseSince(text, time.Now())
	if err != nil {
		return t, cli.Usagef("--at: %q is not a time (2026-01-02T15:04, 2026-01-02T15:04:05Z), a date (2026-01-02), or a duration back from now (10m, 7d)", text)
	}
	return t, nil
}

const policyShowHelp = `Show one version of a box's policy, as it was set, and what decided along with it: temporary entries, header rules without their
values, and the ceiling.

BOX@7 is the version that decisions call "policy_version": 7. --at shows the version that was in force at a time.`

// newPolicyShow is `gateway policy show`.
func newPolicyShow(o *cli.Options) *cobra.Command {
	var at string
	cmd := &cobra.Command{
		Use: "show BOX[@VERSION]", Short: "Show one version of a box's policy, who set it, and what decided along with it", Long: policyShowHelp, Args: cli.ExactArgs(1),
		Example: "  gateway policy show web-1@7\n  gateway policy show web-1 --at 2026-11-29T10:00",
		RunE: func(cmd *cobra.Command, args []string) error {
			which, versioned := parseBoxVersion(args[0])
			if box, number, found := strings.Cut(args[0], "@"); found && !versioned {
				return cli.Usagef("%q is not a version of a policy: after @ belongs a number from 1 on, such as %s@7", number, box)
			}
			if at != "" && versioned {
				return cli.Usagef("give a version or --at, not both")
			}
			client, err := o.Client()
			if err != nil {
				return err
			}
			when := time.Now()
			if at != "" {
				if when, err = parseAt(at); err != nil {
					return err
				}
			}
			if !versioned {
				if which.version, err = versionAt(cmd.Context(), client, which.box, when); err != nil {
					return err
				}
			}
			doc, err := readVersion(cmd.Context(), client, which)
			if err != nil {
				return err
			}
			if o.JSON {
				return cli.WriteJSON(cmd.OutOrStdout(), doc)
			}
			return printVersion(cmd.OutOrStdout(), which.box, doc)
		},
	}
	cmd.Flags().StringVar(&at, "at", "", "the version in force at a time (2026-01-02T15:04), a date, or a duration back from now (10m, 7d)")
	return cmd
}

// versionAt returns the number of the version that was in force at a time.
func versionAt(ctx context.Context, client *api.Client, box string, at time.Time) (uint64, error) {
	query := url.Values{"at": {at.UTC().Format(time.RFC3339)}}
	var list api.PolicyVersions
	if err := client.Get(ctx, api.BoxPath(box, "egress/policy-history")+"?"+query.Encode(), &list); err != nil {
		return 0, err
	}
	if len(list.Versions) == 0 {
		return 0, fmt.Errorf("the history of the policy of %s has no version that was in force at %s; see `gateway policy history %s`", box, at.Local().Format(time.DateTime), box)
	}
	return list.Versions[0].Version, nil
}

// readVersion fetches one version of a policy.
func readVersion(ctx context.Context, client *api.Client, which boxVersion) (doc api.PolicyDocument, err error) {
	err = client.Get(ctx, which.path(), &doc)
	return doc, err
}

// readVersionSpec fetches the policy of one version.
func readVersionSpec(ctx context.Context, client *api.Client, which boxVersion) (policy.Spec, error) {
	var doc struct{ Policy json.RawMessage }
	if err := client.Get(ctx, which.path(), &doc); err != nil {
		return policy.Spec{}, err
	}
	spec, err := dialect.ParseSpec(doc.Policy) // strict, as in readPolicy
	if err != nil {
		return spec, fmt.Errorf("this program does not understand all of version %d; use the version that the gateway has: %w", which.version, err)
	}
	return spec, nil
}

// printVersion prints who made a version, its policy, and what decided along with it.
func printVersion(w io.Writer, box string, doc api.PolicyDocument) error {
	fmt.Fprintf(w, "Version %d of the policy of %s: %s\n", doc.Version, audit.Escape(box, 64), forceText(doc.PolicyVersion))
	by := []string{causeText(doc.Cause)}
	if who := whoText(doc.Key, doc.KeyID); who != "" {
		by = append(by, "by "+who)
	}
	if doc.Role != "" {
		by = append(by, "("+audit.Escape(doc.Role, 32)+")")
	}
	if doc.Remote != "" {
		by = append(by, "from "+audit.Escape(doc.Remote, 60))
	}
	if doc.Named != "" {
		by = append(by, "following "+audit.Escape(doc.Named, 64))
	}
	fmt.Fprintf(w, "%s, at %s\n", strings.Join(by, " "), doc.MadeAt.Local().Format(time.DateTime))
	text, err := json.Marshal(doc.Policy)
	if err != nil {
		return err
	}
	if err := cli.Indented(w, text); err != nil {
		return err
	}
	for _, e := range doc.Entries {
		fmt.Fprintf(w, "temporary: %s until %s\n", audit.Escape(strings.TrimSpace(e.Action+" "+e.Entry), 300), e.ExpiresAt.Local().Format(time.DateTime))
	}
	printRules(w, "header rules", doc.HeaderRules)
	printRules(w, "header rules of all boxes", doc.GlobalRules)
	for _, c := range doc.Ceilings {
		text, err := json.Marshal(c.Policy)
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "ceiling, since %s: %s\n", c.Since.Local().Format(time.DateTime), audit.Escape(string(text), 2000))
	}
	return nil
}

// printRules prints a line for each version of header rules: the hosts with the kinds of their rules.
func printRules(w io.Writer, what string, list []api.PastRules) {
	for _, version := range list {
		var hosts []string
		for _, r := range version.Rules {
			kinds := map[string]json.RawMessage{}
			_ = json.Unmarshal(r.Effects.RawMessage, &kinds) // empty for a rule that denies
			names := slices.Sorted(maps.Keys(kinds))
			if r.Deny {
				names = append(names, "deny")
			}
			hosts = append(hosts, audit.Escape(r.Host, 300)+" ("+audit.Escape(strings.Join(names, ", "), 100)+")")
		}
		fmt.Fprintf(w, "%s, since %s: %s\n", what, version.Since.Local().Format(time.DateTime), cmp.Or(strings.Join(hosts, ", "), "none"))
	}
}

// forceText tells when a version was in force.
func forceText(v api.PolicyVersion) string {
	switch {
	case v.Since.IsZero():
		return cmp.Or(strings.ReplaceAll(v.Result, "_", " "), "not in force yet")
	case v.Until.IsZero():
		return "in force since " + v.Since.Local().Format(time.DateTime)
	}
	return "in force from " + v.Since.Local().Format(time.DateTime) + " to " + v.Until.Local().Format(time.DateTime)
}
