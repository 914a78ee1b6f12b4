package command

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"boxgate/api"
	"boxgate/cmd/gateway/command/cli"
	"boxgate/policy/document"
	"boxgate/rule"
	"boxgate/rule/kinds"
)

// hostRule holds the flags of `gateway headers set HOST`.
type hostRule struct {
	headers, secrets, placeholders []string
	scrub                          bool
	of                             []*kindFlag // what kinds of rules have flags for
}

// kindFlag is the flag of a kind of rules.
type kindFlag struct {
	key, name, text string
	member          func(text string) any
}

func (r *hostRule) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringArrayVar(&r.headers, "header", nil, "NAME=VALUE, NAME=@FILE or NAME=- (standard input)")
	f.StringArrayVar(&r.secrets, "secret", nil, "NAME=SECRET or 'NAME=text {SECRET} text': a header from a secret of the gateway's configuration")
	f.StringArrayVar(&r.placeholders, "placeholder", nil, "VARIABLE=SECRET: the box sees a token, the host gets the secret")
	f.BoolVar(&r.scrub, "scrub", false, "mask the rule's secrets in responses")
	for _, k := range kinds.All {
		if flagged, ok := k.(rule.Flagged); ok {
			name, usage := flagged.Flag()
			of := &kindFlag{key: k.Key(), name: name, member: flagged.FromFlag}
			r.of = append(r.of, of)
			f.StringVar(&of.text, name, "", usage)
		}
	}
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
	return len(r.headers)+len(r.secrets)+len(r.placeholders) > 0 || r.scrub || slices.ContainsFunc(r.of, func(f *kindFlag) bool { return f.text != "" })
}

// flagNames lists the flags that make a rule; a command needs at least one of them.
func (r *hostRule) flagNames() string {
	names := []string{"--header", "--secret", "--placeholder"}
	for _, f := range r.of {
		names = append(names, "--"+f.name)
	}
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " or " + names[last]
}

// document is the rule of one host in the full form.
func (r *hostRule) document(host string, stdin io.Reader) (json.RawMessage, error) {
	if !r.given() {
		return nil, cli.Usagef("no rule given for %q: use %s (--help has examples)", host, r.flagNames())
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
			return nil, cli.Usagef("the header %q is given twice", name)
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
	rule := map[string]any{"headers": headers, "placeholders": placeholders, "scrub": r.scrub}
	for _, f := range r.of {
		if f.text != "" {
			rule[f.key] = f.member(f.text)
		}
	}
	return json.Marshal(map[string]any{host: rule})
}

// explain prepares the refusal of a host's rule for [cli.Explain]: it maps pointers into the rule to flags, and where a secret is
// unknown it adds the corrected flag if the header or variable and the secret were swapped.
func (r *hostRule) explain(cmd *cobra.Command, o *cli.Options, host string, err error) {
	refused, ok := errors.AsType[*api.ResponseError](err)
	if !ok {
		return
	}
	at := document.Pointer("/attach_headers", host)
	sent := map[string]string{at + "/scrub": "--scrub"}
	swapped := map[string]string{} // pointer to a secret → name before the "="
	note := func(flag, part string, args []string) {
		for _, arg := range args {
			named, _, _ := strings.Cut(arg, "=")
			pointer := document.Pointer(at+part, named)
			sent[pointer], sent[pointer+"/secret"] = flag+" "+named, flag+" "+named // without the value: it may be the secret itself
			swapped[pointer+"/secret"] = named
		}
	}
	note("--header", "/headers", r.headers)
	note("--secret", "/headers", r.secrets)
	note("--placeholder", "/placeholders", r.placeholders)
	for _, f := range r.of {
		sent[document.Pointer(at, f.key)] = "--" + f.name
	}
	cli.Sends(cmd, sent)
	for i, p := range refused.Problems {
		if named, ok := swapped[p.Pointer]; ok {
			refused.Problems[i].Message += secretHint(cmd, o, sent[p.Pointer], named)
		}
	}
}

// secretHint returns the syntax of a flag that takes NAME=SECRET, corrected if named is the name of a secret.
func secretHint(cmd *cobra.Command, o *cli.Options, flag, named string) string {
	flag, _, _ = strings.Cut(flag, " ")
	first := map[string]string{"--secret": "HEADER", "--placeholder": "VARIABLE"}[flag]
	var known struct{ Secrets []secretAnswer }
	client, err := o.Client()
	if err == nil {
		err = client.Get(cmd.Context(), "/v2/secrets", &known)
	}
	if err == nil && slices.ContainsFunc(known.Secrets, func(s secretAnswer) bool { return s.Name == named }) {
		return "; " + named + " is one, so did you mean " + flag + " " + first + "=" + named + "?"
	}
	return "; " + flag + " takes " + first + "=SECRET, and `gateway secret list` has the names"
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
