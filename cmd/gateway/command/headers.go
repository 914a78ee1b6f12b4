package command

import (
	"encoding/json"
	"errors"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"boxgate/api"
	"boxgate/cmd/gateway/command/cli"
	"boxgate/policy/match"
	"boxgate/rule"
	"boxgate/rule/kinds"
)

// newHeadersCommand is `gateway headers`; without --box it applies to the rules of every box.
func newHeadersCommand(o *cli.Options) *cobra.Command {
	var box string
	path := func() string {
		if box == "" {
			return "/v2/box/settings/attach-headers"
		}
		return api.BoxPath(box, "config/attach-headers")
	}
	cmd := cli.Group("headers", "List and change header rules: of one box with --box, else those of every box")
	cmd.PersistentFlags().StringVar(&box, "box", "", "ID or name of a box")
	cmd.AddCommand(newHeadersList(o, path), newHeadersSet(o, path), newHeadersRemove(o, path))
	return cmd
}

func newHeadersList(o *cli.Options, path func() string) *cobra.Command {
	return &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "Show hosts, header names, placeholders and the names of secrets; values are never shown",
		Args: cli.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.Call(cmd, "GET", path(), nil, cli.Decoded(renderHeaders))
		},
	}
}

const headersSetHelp = `Replace all rules, or set the rule of one host.

RULES is the whole set: {"host": {"Name": "value"}} or the full form, as JSON or YAML, @FILE, or - for standard input.
With HOST the other hosts keep their rules, and flags say what its rule is. Values on a command line are seen by
everybody who may list processes: give secrets by name (--secret, --placeholder), from a file, or by standard input.`

const headersSetExample = `  gateway headers set --box demo @rules.yaml
  gateway headers set --box demo '{"api.example.com": {"X-Team": "blue"}}'
  gateway headers set --box demo api.openai.com --secret 'Authorization=Bearer {openai}' --scrub
  gateway headers set --box demo api.github.com --placeholder GITHUB_TOKEN=github
  gateway headers set --box demo api.example.com --forward-url https://proxy.example.net/sandbox
  gateway headers set '*.example.com' --header X-Key=@/etc/boxgate/example.key

A file in the full form:
  api.openai.com:
    headers:
      Authorization: {secret: openai, prefix: "Bearer "}
    placeholders:
      OPENAI_API_KEY: {secret: openai}
    scrub: true`

func newHeadersSet(o *cli.Options, path func() string) *cobra.Command {
	var rule hostRule
	cmd := &cobra.Command{
		Use: "set RULES | HOST", Short: "Replace all rules, or set the rule of one host", Long: headersSetHelp, Example: headersSetExample,
		Args: cli.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			method, rules, err := rule.change(args[0], cmd.InOrStdin())
			if err != nil {
				return err
			}
			err = o.Call(cmd, method, path(), map[string]any{"attach_headers": rules}, cli.Decoded(func(w io.Writer, a headersAnswer) error {
				cli.PrintWarnings(cmd, a.Warnings)
				return renderHeaders(w, a)
			}))
			if method == "PATCH" {
				rule.explain(cmd, o, args[0], err)
			}
			return err
		},
	}
	rule.register(cmd)
	return cmd
}

func newHeadersRemove(o *cli.Options, path func() string) *cobra.Command {
	return &cobra.Command{
		Use: "rm [HOST...]", Short: "Remove the rules of hosts, or all rules",
		Example: "  gateway headers rm --box demo api.openai.com\n  gateway headers rm --box demo",
		Args:    cli.MinArgs(0),
		RunE: func(cmd *cobra.Command, hosts []string) error {
			method, gone := "PUT", map[string]any{}
			for _, h := range hosts {
				method, gone[h] = "PATCH", nil
			}
			return o.Call(cmd, method, path(), map[string]any{"attach_headers": gone}, cli.Silent)
		},
	}
}

// headersAnswer is a set of header rules as the API shows it.
type headersAnswer struct {
	Rules    map[string]headerRules
	Warnings []cli.Warning
}

// headerRules are the entry of a host, or its alternatives.
type headerRules struct {
	headerEntry
	Alternatives []headerEntry
}

// UnmarshalJSON reads both.
func (r *headerRules) UnmarshalJSON(data []byte) error {
	several := struct{ Alternatives *[]headerEntry }{&r.Alternatives}
	return errors.Join(json.Unmarshal(data, &r.headerEntry), json.Unmarshal(data, &several))
}

// headerEntry is one entry of a host.
type headerEntry struct {
	Match       match.Match
	Scrub, Deny bool
	// effects are all members, from which the kinds take theirs.
	effects map[string]json.RawMessage
}

// UnmarshalJSON also keeps all members for the kinds.
func (e *headerEntry) UnmarshalJSON(data []byte) error {
	type plain headerEntry
	return errors.Join(json.Unmarshal(data, (*plain)(e)), json.Unmarshal(data, &e.effects))
}

func renderHeaders(w io.Writer, a headersAnswer) error {
	rows := [][]string{{"HOST", "MATCH", "HEADERS", "PLACEHOLDERS", "SCRUB"}}
	for _, host := range slices.Sorted(maps.Keys(a.Rules)) {
		rule := a.Rules[host]
		entries := rule.Alternatives
		if len(entries) == 0 {
			entries = []headerEntry{rule.headerEntry}
		}
		for _, e := range entries {
			rows = append(rows, append([]string{host}, e.row()...))
		}
	}
	return cli.Table(w, rows...)
}

// row returns the cells of an entry.
func (e headerEntry) row() []string {
	var headers, placeholders []string
	if e.Deny { // then there are no effects
		headers = append(headers, "(denied)")
	}
	for _, kind := range kinds.Shown() {
		lines := kinds.Lines(kind, e.effects)
		if _, variables := kind.(rule.Variables); variables {
			placeholders = append(placeholders, lines...)
		} else {
			headers = append(headers, lines...)
		}
	}
	match, scrub := "-", "no"
	if !e.Match.IsZero() {
		match = e.Match.String()
	}
	if e.Scrub {
		scrub = "yes"
	}
	return []string{match, orDash(headers), orDash(placeholders), scrub}
}

func orDash(list []string) string {
	if len(list) == 0 {
		return "-"
	}
	return strings.Join(list, ", ")
}
