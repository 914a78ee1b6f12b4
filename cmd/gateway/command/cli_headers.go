package command

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"boxgate/api"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
)

// newHeadersCommand is `gateway headers`; without --box it applies to the rules of every box.
func newHeadersCommand(o *globalOptions) *cobra.Command {
	var box string
	path := func() string {
		if box == "" {
			return "/v2/box/settings/attach-headers"
		}
		return api.BoxPath(box, "config/attach-headers")
	}
	cmd := group("headers", "List and change header rules: of one box with --box, else those of every box")
	cmd.PersistentFlags().StringVar(&box, "box", "", "ID or name of a box")
	cmd.AddCommand(newHeadersList(o, path), newHeadersSet(o, path), newHeadersRemove(o, path))
	return cmd
}

func newHeadersList(o *globalOptions, path func() string) *cobra.Command {
	return &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "Show hosts, header names, placeholders and the names of secrets; values are never shown",
		Args: exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.call(cmd, "GET", path(), nil, decoded(renderHeaders))
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
  gateway headers set '*.example.com' --header X-Key=@/etc/boxgate/example.key

A file in the full form:
  api.openai.com:
    headers:
      Authorization: {secret: openai, prefix: "Bearer "}
    placeholders:
      OPENAI_API_KEY: {secret: openai}
    scrub: true`

// hostRule holds the flags of `gateway headers set HOST`.
type hostRule struct {
	headers, secrets, placeholders []string
	scrub                          bool
}

func newHeadersSet(o *globalOptions, path func() string) *cobra.Command {
	var rule hostRule
	cmd := &cobra.Command{
		Use: "set RULES | HOST", Short: "Replace all rules, or set the rule of one host", Long: headersSetHelp, Example: headersSetExample,
		Args: exactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			method, rules := "PUT", json.RawMessage(nil)
			var err error
			if isHost(args[0]) {
				method = "PATCH"
				rules, err = rule.document(args[0], cmd.InOrStdin())
			} else if rule.given() {
				err = usageError{errors.New("flags are for the rule of one HOST; a whole set of rules takes none")}
			} else {
				rules, err = document(args[0], cmd.InOrStdin())
			}
			if err != nil {
				return err
			}
			return o.call(cmd, method, path(), map[string]any{"attach_headers": rules}, decoded(func(w io.Writer, a headersAnswer) error {
				warningsOf(cmd, a.Warnings)
				return renderHeaders(w, a)
			}))
		},
	}
	f := cmd.Flags()
	f.StringArrayVar(&rule.headers, "header", nil, "NAME=VALUE, NAME=@FILE or NAME=- (standard input)")
	f.StringArrayVar(&rule.secrets, "secret", nil, "NAME=SECRET or 'NAME=text {SECRET} text': a header from a secret of the gateway's configuration")
	f.StringArrayVar(&rule.placeholders, "placeholder", nil, "VARIABLE=SECRET: the box sees a token, the host gets the secret")
	f.BoolVar(&rule.scrub, "scrub", false, "mask the rule's secrets in responses")
	return cmd
}

func newHeadersRemove(o *globalOptions, path func() string) *cobra.Command {
	return &cobra.Command{
		Use: "rm [HOST...]", Short: "Remove the rules of hosts, or all rules",
		Example: "  gateway headers rm --box demo api.openai.com\n  gateway headers rm --box demo",
		Args:    minArgs(0),
		RunE: func(cmd *cobra.Command, hosts []string) error {
			method, gone := "PUT", map[string]any{}
			for _, h := range hosts {
				method, gone[h] = "PATCH", nil
			}
			return o.call(cmd, method, path(), map[string]any{"attach_headers": gone}, silent)
		},
	}
}

// isHost tells a host from a set of rules.
func isHost(arg string) bool {
	return arg != "" && arg != "-" && arg[0] != '@' && !strings.ContainsAny(arg, "{}\n ")
}

func (r *hostRule) given() bool {
	return len(r.headers)+len(r.secrets)+len(r.placeholders) > 0 || r.scrub
}

// document is the rule of one host in the full form.
func (r *hostRule) document(host string, stdin io.Reader) (json.RawMessage, error) {
	if !r.given() {
		return nil, usageError{fmt.Errorf("no rule given for %q: use --header, --secret or --placeholder (--help has examples)", host)}
	}
	headers, placeholders := map[string]any{}, map[string]any{}
	for _, arg := range r.headers {
		name, text, err := assignment("--header", arg)
		if err != nil {
			return nil, err
		}
		if headers[name], err = literal(text, stdin); err != nil {
			return nil, err
		}
	}
	for _, arg := range r.secrets {
		name, text, err := assignment("--secret", arg)
		if err != nil {
			return nil, err
		}
		if _, twice := headers[name]; twice {
			return nil, usageError{fmt.Errorf("the header %q is given twice", name)}
		}
		headers[name] = secretValue(text)
	}
	for _, arg := range r.placeholders {
		variable, secret, err := assignment("--placeholder", arg)
		if err != nil {
			return nil, err
		}
		placeholders[variable] = map[string]string{"secret": secret}
	}
	return json.Marshal(map[string]any{host: map[string]any{"headers": headers, "placeholders": placeholders, "scrub": r.scrub}})
}

func assignment(flag, arg string) (name, text string, err error) {
	name, text, ok := strings.Cut(arg, "=")
	if !ok || name == "" || text == "" {
		return "", "", usageError{fmt.Errorf("%s wants NAME=…, with something on either side of '='", flag)} // arg may be a value
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
	return strings.TrimRight(string(data), "\r\n"), err
}

// secretValue reads "SECRET" or "text {SECRET} text".
func secretValue(text string) map[string]string {
	prefix, rest, ok := strings.Cut(text, "{")
	if !ok {
		return map[string]string{"secret": text}
	}
	name, suffix, _ := strings.Cut(rest, "}")
	value := map[string]string{"secret": name}
	if prefix != "" {
		value["prefix"] = prefix
	}
	if suffix != "" {
		value["suffix"] = suffix
	}
	return value
}

// document returns a set of rules as JSON. It may be given as JSON or YAML: inline, from @FILE or from standard input.
func document(arg string, stdin io.Reader) (json.RawMessage, error) {
	data := []byte(arg)
	var err error
	if arg == "-" {
		data, err = io.ReadAll(stdin)
	} else if strings.HasPrefix(arg, "@") {
		data, err = os.ReadFile(arg[1:])
	}
	if err != nil {
		return nil, err
	}
	if json.Valid(data) {
		return data, nil // including duplicate keys, for the gateway to refuse
	}
	var doc any
	if yaml.Unmarshal(data, &doc) == nil {
		if out, err := json.Marshal(doc); err == nil && out[0] == '{' {
			return out, nil
		}
	}
	return nil, usageError{errors.New("this is not a set of rules in JSON or YAML; give the text itself, @FILE, or - for standard input")}
}

// headersAnswer is a set of header rules as the API shows it.
type headersAnswer struct {
	Rules map[string]struct {
		Headers []struct{ Name, Secret string }
		// Placeholders are variables of the box.
		Placeholders []struct{ Variable, Secret string }
		Scrub        bool
	}
	Warnings []problem
}

func renderHeaders(w io.Writer, a headersAnswer) error {
	var rows [][]string
	for host, rule := range a.Rules {
		var headers, placeholders []string
		for _, h := range rule.Headers {
			headers = append(headers, withSecret(h.Name, h.Secret))
		}
		for _, p := range rule.Placeholders {
			placeholders = append(placeholders, withSecret(p.Variable, p.Secret))
		}
		scrub := "no"
		if rule.Scrub {
			scrub = "yes"
		}
		rows = append(rows, []string{host, orDash(headers), orDash(placeholders), scrub})
	}
	slices.SortFunc(rows, slices.Compare[[]string])
	return table(w, append([][]string{{"HOST", "HEADERS", "PLACEHOLDERS", "SCRUB"}}, rows...)...)
}

func withSecret(name, secret string) string {
	if secret == "" {
		return name
	}
	return name + " (" + secret + ")"
}

func orDash(list []string) string {
	if len(list) == 0 {
		return "-"
	}
	return strings.Join(list, ", ")
}
