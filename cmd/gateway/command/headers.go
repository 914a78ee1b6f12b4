package command

import (
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"boxgate/api"
	"boxgate/cmd/gateway/command/cli"
	"boxgate/policy/document"
	"boxgate/policy/match"
	"boxgate/rule"
	"boxgate/rule/kinds"
)

// newHeadersCommand is `gateway headers`; without --box it applies to the rules of every box, of this host or with --fleet of all.
func newHeadersCommand(o *cli.Options) *cobra.Command {
	var box string
	var fleet bool
	path := func() string {
		switch {
		case fleet:
			return "/v2/box/settings/attach-headers?fleet=true"
		case box == "":
			return "/v2/box/settings/attach-headers"
		}
		return api.BoxPath(box, "config/attach-headers")
	}
	cmd := cli.Group("headers", "List and change header rules: of one box with --box, of every host with --fleet, else those of every box")
	cmd.PersistentFlags().StringVar(&box, "box", "", "ID or name of a box")
	cmd.PersistentFlags().BoolVar(&fleet, "fleet", false, "the rules of the fleet, for the boxes of all its hosts")
	cmd.MarkFlagsMutuallyExclusive("box", "fleet")
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

// hostRule holds the flags of `gateway headers set HOST`.
type hostRule struct {
	scrub bool
	flags []*kindFlag // of all kinds, grouped by kind
}

// kindFlag is a flag of a kind of rules, with its arguments.
type kindFlag struct {
	rule.Flag
	key  string // of the kind
	add  func(member any, a rule.Argument) (any, error)
	list []string // if arguments have names
	text string   // if not
	on   bool     // of a switch
}

func (r *hostRule) register(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&r.scrub, "scrub", false, "mask the rule's secrets in responses")
	for _, k := range kinds.All {
		flagged, ok := k.(rule.Flagged)
		if !ok {
			continue
		}
		for _, flag := range flagged.Flags() {
			f := &kindFlag{Flag: flag, key: k.Key(), add: flagged.FromFlag}
			r.flags = append(r.flags, f)
			switch {
			case f.Switch:
				cmd.Flags().BoolVar(&f.on, f.Name, false, f.Usage)
			case f.Names != "":
				cmd.Flags().StringArrayVar(&f.list, f.Name, nil, f.Usage)
			default:
				cmd.Flags().StringVar(&f.text, f.Name, "", f.Usage)
			}
		}
	}
}

// uses returns the arguments of the flag. An empty text is ignored.
func (f *kindFlag) uses() []string {
	switch {
	case f.on:
		return []string{""}
	case f.Names == "" && f.text != "":
		return []string{f.text}
	}
	return f.list
}

// change returns the request for what `gateway headers set` is given: a whole set of rules, or a host, whose rule is in
// the flags.
func (r *hostRule) change(arg string, stdin io.Reader) (method string, rules json.RawMessage, err error) {
	switch {
	case isHost(arg):
		rules, err = r.document(arg, stdin)
		return "PATCH", rules, err
	case r.given():
		return "", nil, cli.Usagef("flags are for the rule of one HOST; a whole set of rules takes none")
	default:
		rules, err = cli.RulesArgument(arg, stdin)
		return "PUT", rules, err
	}
}

// isHost tells a host from a set of rules.
func isHost(arg string) bool {
	return arg != "" && arg != "-" && arg[0] != '@' && !strings.ContainsAny(arg, "{}\n ")
}

func (r *hostRule) given() bool {
	return r.scrub || slices.ContainsFunc(r.flags, func(f *kindFlag) bool { return len(f.uses()) > 0 })
}

// flagNames lists the flags that make a rule; a command needs at least one of them.
func (r *hostRule) flagNames() string {
	names := make([]string, len(r.flags))
	for i, f := range r.flags {
		names[i] = "--" + f.Name
	}
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " or " + names[last]
}

// document is the rule of one host in the full form.
func (r *hostRule) document(host string, stdin io.Reader) (json.RawMessage, error) {
	if !r.given() {
		return nil, cli.Usagef("no rule given for %q: use %s (--help has examples)", host, r.flagNames())
	}
	entry := map[string]any{"scrub": r.scrub}
	for _, f := range r.flags {
		for _, text := range f.uses() {
			arg, err := f.argument(text, stdin)
			if err != nil {
				return nil, err
			}
			if entry[f.key], err = f.add(entry[f.key], arg); err != nil {
				return nil, cli.Usagef("%s", err)
			}
		}
	}
	return json.Marshal(map[string]any{host: entry})
}

// argument reads one use of the flag.
func (f *kindFlag) argument(text string, stdin io.Reader) (a rule.Argument, err error) {
	a = rule.Argument{Flag: f.Name, Text: text}
	if f.Names != "" {
		if a.Name, a.Text, err = assignment("--"+f.Name, text); err != nil {
			return a, err
		}
	}
	if f.Readable {
		a.Text, err = literal(a.Text, stdin)
	}
	return a, err
}

// explain prepares the refusal of a host's rule for [cli.Explain]: it maps pointers into the rule to flags, and where a secret is
// unknown it adds the corrected flag if the header or variable and the secret were swapped.
func (r *hostRule) explain(cmd *cobra.Command, o *cli.Options, host string, err error) {
	refused, ok := errors.AsType[*api.ResponseError](err)
	if !ok {
		return
	}
	at := document.Pointer("/attach_headers", host)
	sent := map[string]string{at: "HOST", at + "/scrub": "--scrub"}
	swapped := map[string]func() string{} // pointer to a secret → hint with the correct syntax
	for _, f := range r.flags {
		if f.Names == "" {
			sent[document.Pointer(at, f.key)] = "--" + f.Name
			continue
		}
		for _, arg := range f.uses() {
			named, _, _ := strings.Cut(arg, "=")
			sent[document.Pointer(at, f.key)] = "--" + f.Name + "=" // of a name that the gateway does not repeat whole
			pointer := document.Pointer(document.Pointer(at, f.key), named)
			sent[pointer], sent[pointer+"/secret"] = "--"+f.Name+" "+named, "--"+f.Name+" "+named // without the value: it may be the secret itself
			if f.Secret {
				swapped[pointer+"/secret"] = func() string { return f.secretHint(cmd, o, named) }
			}
		}
	}
	cli.MapFields(cmd, sent)
	for i, p := range refused.Problems {
		if hint, ok := swapped[p.Pointer]; ok {
			refused.Problems[i].Message += hint()
		}
	}
}

// secretHint returns the syntax of the flag, corrected if named is the name of a secret.
func (f *kindFlag) secretHint(cmd *cobra.Command, o *cli.Options, named string) string {
	var known struct{ Secrets []secretAnswer }
	client, err := o.Client()
	if err == nil {
		err = client.Get(cmd.Context(), "/v2/secrets", &known)
	}
	if err == nil && slices.ContainsFunc(known.Secrets, func(s secretAnswer) bool { return s.Name == named }) {
		return "; " + named + " is one, so did you mean --" + f.Name + " " + f.Names + "=" + named + "?"
	}
	return "; --" + f.Name + " takes " + f.Names + "=SECRET, and `gateway secret list` has the names"
}

func assignment(flag, arg string) (name, text string, err error) {
	name, text, ok := strings.Cut(arg, "=")
	if !ok || name == "" || text == "" {
		return "", "", cli.Usagef("%s wants NAME=…, with something on either side of '='", flag) // arg may be a value
	}
	return name, text, nil
}

// literal is the value of a header: the text itself, or the content of a file or standard input, without a trailing
// line break.
func literal(text string, stdin io.Reader) (string, error) {
	var data []byte
	var err error
	switch {
	case text == "-":
		data, err = io.ReadAll(stdin)
	case strings.HasPrefix(text, "@"):
		data, err = os.ReadFile(text[1:])
	default:
		return text, nil
	}
	return strings.TrimRight(string(data), "\r\n"), cli.FileError(err)
}
