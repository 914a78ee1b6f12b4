package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"boxgate/api"
	"boxgate/policy"
	"boxgate/policy/amend"
	"boxgate/policy/document"
	"boxgate/policy/name"
	"boxgate/policy/preset"
)

// ExactArgs is cobra.ExactArgs with the exit status of a usage error.
func ExactArgs(n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != n {
			return Usagef("%s: %s given, usage: %s", cmd.CommandPath(), Count(len(args), "argument", "arguments"), cmd.UseLine())
		}
		return nil
	}
}

// MaxArgs is cobra.MaximumNArgs with the exit status of a usage error.
func MaxArgs(n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) > n {
			return Usagef("%s: %s given, usage: %s", cmd.CommandPath(), Count(len(args), "argument", "arguments"), cmd.UseLine())
		}
		return nil
	}
}

// MinArgs is cobra.MinimumNArgs with the exit status of a usage error.
func MinArgs(n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < n {
			return Usagef("%s: arguments missing, usage: %s", cmd.CommandPath(), cmd.UseLine())
		}
		return nil
	}
}

// Group returns a command that only has subcommands.
func Group(use, short string) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return UnknownCommand(cmd, args[0])
			}
			return cmd.Help()
		},
	}
}

// PresetPrefix is the prefix of an argument with preset names.
const PresetPrefix = "preset:"

// NamedPrefix is the prefix of an argument with the name of a named policy.
const NamedPrefix = "named:"

// PolicyHelp lists the forms of a policy on the command line.
const PolicyHelp = "JSON, @FILE, -, preset:NAME,…, allow-all or deny-all"

// BoxPolicyHelp lists the forms of a policy for a box of a running gateway.
const BoxPolicyHelp = "JSON, @FILE, -, preset:NAME,…, named:NAME, allow-all or deny-all"

// PolicyArgument parses a network policy on the command line: JSON, which may be inline, from @FILE or from standard
// input ("-"), where it may also be YAML, a list of presets, a named policy, or a mode. forms lists the accepted forms for error messages:
// [PolicyHelp] or [BoxPolicyHelp].
func PolicyArgument(arg, forms string, stdin io.Reader) (json.RawMessage, error) {
	if arg == "allow-all" || arg == "deny-all" {
		return json.Marshal(map[string]string{"mode": arg})
	}
	if names, ok := strings.CutPrefix(arg, PresetPrefix); ok {
		spec, err := presetPolicy(names)
		if err != nil {
			return nil, UsageError(err)
		}
		return json.Marshal(spec)
	}
	if name, ok := strings.CutPrefix(arg, NamedPrefix); ok {
		return json.Marshal(map[string]string{"named": name})
	}
	data, err := content(arg, stdin)
	if err != nil {
		return nil, err
	}
	if json.Valid(data) {
		return data, nil
	}
	if doc := policyYAML(data); doc != nil && (arg == "-" || strings.HasPrefix(arg, "@")) {
		return doc, nil
	}
	if near := nearPolicy(arg); near != "" {
		return nil, Usagef("%q is no policy; did you mean %s? A policy is %s", arg, near, forms)
	}
	if hosts := listedHosts(arg); len(hosts) > 0 {
		doc, err := json.Marshal(policy.Spec{Mode: policy.ModeCustom, AllowedDomains: hosts})
		if err != nil {
			return nil, err
		}
		return nil, Usagef("%q lists hosts, and is no policy; did you mean '%s'? A policy is %s", arg, doc, forms)
	}
	return nil, Usagef("%s; a policy is %s", notJSON(arg, data), forms)
}

// policyYAML converts a policy in YAML, such as the output of `gateway policy learn`, to JSON. It returns nil for other documents. A
// document in braces is JSON with a mistake.
func policyYAML(data []byte) json.RawMessage {
	var doc map[string]any
	if yaml.Unmarshal(data, &doc) != nil || doc["mode"] == nil {
		return nil
	}
	for line := range bytes.Lines(data) {
		if line = bytes.TrimSpace(line); len(line) > 0 && line[0] == '{' {
			return nil
		} else if len(line) > 0 && line[0] != '#' {
			break
		}
	}
	out, err := json.Marshal(doc)
	if err != nil {
		return nil
	}
	return out
}

// presetPolicy returns the policy that allows the hosts of presets and single destinations, in a list separated by commas.
func presetPolicy(list string) (policy.Spec, error) {
	var presets, hosts []string
	for item := range strings.SplitSeq(list, ",") {
		if item = strings.TrimSpace(item); strings.ContainsAny(item, ".:*") {
			hosts = append(hosts, item)
		} else {
			presets = append(presets, item)
		}
	}
	spec := policy.Spec{Mode: policy.ModeDenyAll}
	if len(presets) > 0 {
		var err error
		if spec, err = preset.Policy(strings.Join(presets, ",")); err != nil {
			return spec, err
		}
	}
	for _, host := range hosts {
		e, err := amend.ParseEntry(host)
		if err != nil {
			return spec, err
		}
		c, err := amend.Allow(spec, e)
		if err != nil {
			return spec, err
		}
		spec = c.Spec
	}
	return spec, nil
}

// listedHosts returns the host names of a list of hosts or URLs, separated by commas, or nil if arg is not such a list.
func listedHosts(arg string) (hosts []string) {
	for item := range strings.SplitSeq(arg, ",") {
		item = strings.TrimSpace(item)
		if u, err := url.Parse(item); err == nil && u.Scheme != "" && u.Host != "" {
			item = u.Host
		}
		p, err := name.ParsePattern(item)
		if err != nil || !strings.Contains(p.String(), ".") {
			return nil
		}
		hosts = append(hosts, item)
	}
	return hosts
}

// nearPolicy returns a probable correction of a word that is not a policy, or "".
func nearPolicy(arg string) string {
	if arg == "" || arg == "-" || strings.ContainsAny(arg, "@{}[]\"\n") {
		return ""
	}
	if _, err := preset.Policy(arg); err == nil {
		return PresetPrefix + arg
	}
	if mode := map[string]string{"allow": "allow-all", "deny": "deny-all"}[strings.ToLower(arg)]; mode != "" {
		return mode
	}
	if near := document.Nearest(arg, map[string]bool{"allow-all": true, "deny-all": true}); near != "" {
		return near
	}
	if near := preset.Nearest(arg); near != "" {
		return PresetPrefix + near
	}
	if i := strings.IndexAny(arg, ":="); i > 0 {
		if near := document.Nearest(arg[:i], map[string]bool{"preset": true, "named": true}); near != "" {
			return near + ":" + arg[i+1:]
		}
	}
	if _, err := os.Stat(arg); err == nil {
		return "@" + arg
	}
	return ""
}

// maxShownWord is the longest word that an error repeats: a longer one is hardly a slip.
const maxShownWord = 60

// notJSON describes the first syntax error of a document, with its line and column.
func notJSON(arg string, data []byte) string {
	what := "this"
	if file, ok := strings.CutPrefix(arg, "@"); ok {
		what = file
	}
	flaw, ok := errors.AsType[*json.SyntaxError](json.Unmarshal(data, new(json.RawMessage)))
	if !ok || len(bytes.TrimSpace(data)) == 0 {
		return what + " is empty"
	}
	before := data[:min(max(flaw.Offset-1, 0), int64(len(data)))]
	line := bytes.Count(before, []byte("\n")) + 1
	if line == 1 && !bytes.ContainsAny(data[:min(flaw.Offset, int64(len(data)))], "{[") {
		if what == "this" && arg != "-" && len(arg) <= maxShownWord && !strings.ContainsFunc(arg, name.IsBlank) {
			return fmt.Sprintf("%q is no policy", arg)
		}
		return what + " is not JSON"
	}
	return fmt.Sprintf("%s is not JSON: line %d, column %d", what, line, len(before)-bytes.LastIndexByte(before, '\n'))
}

// RulesArgument parses a set of header rules on the command line and returns it as JSON. The argument is JSON or YAML:
// inline, from @FILE or from standard input ("-").
func RulesArgument(arg string, stdin io.Reader) (json.RawMessage, error) {
	data, err := content(arg, stdin)
	if err != nil {
		return nil, err
	}
	if json.Valid(data) {
		return data, nil // duplicate keys included: the gateway refuses them
	}
	var doc any
	if yaml.Unmarshal(data, &doc) == nil {
		if out, err := json.Marshal(doc); err == nil && out[0] == '{' {
			return out, nil
		}
	}
	return nil, Usagef("this is not a set of rules in JSON or YAML; give the text itself, @FILE, or - for standard input")
}

// content returns the argument itself, the file after "@", or standard input for "-".
func content(arg string, stdin io.Reader) ([]byte, error) {
	if arg == "-" {
		return io.ReadAll(stdin)
	}
	if name, ok := strings.CutPrefix(arg, "@"); ok {
		data, err := os.ReadFile(name)
		return data, FileError(err)
	}
	return []byte(arg), nil
}

// Duration defines a duration flag in the syntax of [api.ParseDuration], such as 10m or 7d.
func Duration(f *pflag.FlagSet, d *time.Duration, name string, preset time.Duration, usage string) {
	*d = preset
	f.Var((*duration)(d), name, usage)
}

// Window holds the flags --since and --until, which select records of the gateway.
type Window struct{ since, until string }

// Times describes the texts that the flags of a [Window] accept.
const Times = "2026-11-01 (a day here), 2026-11-01T15:04:05Z, or how long ago, such as 10m or 7d"

// AddFlags defines the flags. purpose completes "where to begin".
func (w *Window) AddFlags(f *pflag.FlagSet, purpose string) {
	f.StringVar(&w.since, "since", "", "where to begin"+purpose+": "+Times)
	f.StringVar(&w.until, "until", "", "where to end, in the same forms")
}

// Set adds the limits to the query of a request. Times without a zone are those of this machine. A window that must be
// empty is a usage error.
func (w *Window) Set(query url.Values) error {
	parsed, err := api.ParseWindow(w.since, w.until, [2]string{"--since", "--until"}, time.Now())
	if err != nil {
		return Usagef("%v", err)
	}
	for name, at := range map[string]time.Time{"since": parsed.Since, "until": parsed.Until} {
		if !at.IsZero() {
			query.Set(name, at.Format(time.RFC3339Nano))
		}
	}
	return nil
}

type duration time.Duration

// Set implements [pflag.Value].
func (d *duration) Set(text string) error {
	parsed, err := api.ParseDuration(text)
	if err == nil {
		*d = duration(parsed)
	}
	return err
}

// Type implements [pflag.Value].
func (*duration) Type() string { return "duration" }

// String implements [pflag.Value]. It returns "" for zero, so that the help does not show it as the default.
func (d *duration) String() string {
	if *d == 0 {
		return ""
	}
	return time.Duration(*d).String()
}
