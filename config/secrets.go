package config

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"boxgate/policy/name"
	"boxgate/secrets"
)

// Secrets is the section "secrets": name → source. It parses its own YAML, because the decoder's errors quote the text
// that they cannot parse, which may be a secret.
type Secrets struct {
	File    string // the configuration file; may be ""
	Sources map[string]secrets.Source
	errs    []error // parse errors, reported by validate
}

// scalarKeys are the keys of a source with a single value or a list of arguments: the keys that variables may set, and
// the literal. secretKeys are all keys.
var (
	scalarKeys = []string{"value", "file", "env", "command", "credential", "document", "refresh", "timeout"}
	secretKeys = slices.Concat(scalarKeys, secrets.RemoteKinds())
)

// IsZero omits an empty section from YAML.
func (c Secrets) IsZero() bool { return len(c.Sources) == 0 && len(c.errs) == 0 }

// MarshalYAML encodes the section without the values of literals.
func (c Secrets) MarshalYAML() (any, error) {
	out := map[string]map[string]any{}
	for name, s := range c.Sources {
		entry := map[string]any{}
		for key, v := range map[string]any{"file": s.File, "env": s.Env, "credential": s.Credential} {
			if v != "" {
				entry[key] = v
			}
		}
		if s.Remote != nil {
			entry[s.Kind] = s.Remote // contains only names of other secrets, no values
		}
		if s.Document {
			entry["document"] = true
		}
		if s.Command != nil {
			entry["command"] = s.Command
		}
		if s.Value.Reveal() != "" {
			entry["value"] = s.Value // encoded as "[redacted]"
		}
		for key, d := range map[string]time.Duration{"refresh": s.Refresh, "timeout": s.Timeout} {
			if d != 0 {
				entry[key] = d.String()
			}
		}
		out[name] = entry
	}
	return out, nil
}

// UnmarshalYAML parses the section strictly. Errors are kept for validate, so that they do not hide other mistakes.
func (c *Secrets) UnmarshalYAML(node *yaml.Node) error {
	c.Sources, c.errs = map[string]secrets.Source{}, nil
	if isNull(node) {
		return nil
	}
	if node.Kind != yaml.MappingNode {
		c.fail("secrets", node, "use a map of name to source, such as openai: {file: /etc/boxgate/openai.key}")
		return nil
	}
	for i := 0; i+1 < len(node.Content); i += 2 {
		key := node.Content[i].Value
		c.Sources[key] = c.readSource("secrets."+name.ShownSecretName(key), resolveAlias(node.Content[i+1]))
	}
	return nil
}

func (c *Secrets) fail(key string, node *yaml.Node, remedy string) {
	c.errs = append(c.errs, fmt.Errorf("%s: line %d: %s", key, node.Line, remedy))
}

// resolveAlias returns the target of an alias, or the node itself.
func resolveAlias(node *yaml.Node) *yaml.Node {
	if node.Kind == yaml.AliasNode {
		return node.Alias
	}
	return node
}

func isNull(node *yaml.Node) bool { return node.Kind == yaml.ScalarNode && node.Tag == "!!null" }

func (c *Secrets) readSource(at string, node *yaml.Node) (s secrets.Source) {
	if node.Kind != yaml.MappingNode {
		c.fail(at, node, "use one of {value: …}, {file: …}, {env: …} and {command: […]}")
		return s
	}
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i].Value, resolveAlias(node.Content[i+1])
		c.readKey(at, key, value, &s)
	}
	return s
}

func (c *Secrets) readKey(at, key string, node *yaml.Node, s *secrets.Source) {
	if !slices.Contains(secretKeys, key) {
		c.errs = append(c.errs, fmt.Errorf("unknown key %q; did you mean %q?", at+"."+name.ShownSecretName(key), at+"."+Nearest(key, secretKeys)))
		return
	}
	at += "." + key
	if remote := secrets.NewRemote(key); remote != nil {
		if s.Remote != nil {
			c.fail(at, node, "is a second source; keep one")
			return
		}
		s.Kind, s.Remote = key, remote
		c.readRemote(at, node, remote)
		return
	}
	if key == "command" {
		c.readCommand(at, node, s)
		return
	}
	if node.Kind != yaml.ScalarNode || node.Value == "" || isNull(node) {
		c.fail(at, node, "use a single value that is not empty")
		return
	}
	if err := setSecretKey(s, key, node.Value); err != nil {
		c.fail(at, node, err.Error())
	}
}

// setSecretKey sets one key of a source from its text. The error does not quote the text.
func setSecretKey(s *secrets.Source, key, text string) (err error) {
	switch key {
	case "value":
		s.Value = name.NewSecret(text)
	case "file":
		s.File = text
	case "env":
		s.Env = text
	case "credential":
		s.Credential = text
	case "document":
		if s.Document = text == "true"; !s.Document && text != "false" {
			return errors.New("use true or false")
		}
	case "refresh":
		s.Refresh, err = parseDuration(text)
	case "timeout":
		s.Timeout, err = parseDuration(text)
	}
	return err
}

func parseDuration(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d == 0 {
		return 0, errors.New("use a duration such as 1m")
	}
	return d, nil
}

func (c *Secrets) readCommand(at string, node *yaml.Node, s *secrets.Source) {
	if node.Kind != yaml.SequenceNode {
		c.fail(at, node, "use a list of the program and its arguments; there is no shell")
		return
	}
	s.Command = []string{}
	for _, element := range node.Content {
		if element = resolveAlias(element); element.Kind != yaml.ScalarNode {
			c.fail(at, element, "each argument is one value")
			return
		}
		s.Command = append(s.Command, element.Value)
	}
}

// readRemote parses a source that is fetched over the network.
func (c *Secrets) readRemote(at string, node *yaml.Node, remote any) {
	var tree map[string]any
	if node.Kind != yaml.MappingNode || node.Decode(&tree) != nil {
		c.fail(at, node, "use a map of its settings")
		return
	}
	if unknown := unknownKeys(tree, reflect.TypeOf(remote).Elem(), at+"."); len(unknown) > 0 {
		c.errs = append(c.errs, unknown...)
		return
	}
	if err := node.Decode(remote); err != nil { // the error quotes values
		c.fail(at, node, "one of its settings has the wrong type: use texts, numbers, lists and durations such as 15m as documented")
	}
}

// validate returns the parse errors, else the problems of the values.
func (c *Secrets) validate() error {
	if len(c.errs) > 0 {
		return errors.Join(c.errs...) // other errors would follow from these
	}
	return secrets.Validate(c.Sources)
}

// secretsPrefix is the prefix of the section's variables: BOXGATE_SECRETS_{NAME}_{KEY}.
const secretsPrefix = EnvironmentPrefix + "SECRETS_"

// setFromEnvironment sets a key of the source that a variable names. {NAME} is a source of the file whose name matches
// in capitals with '_' for '.' and '-', else a new source with the name in lower case. If the file has another kind of
// source under that name, the variable replaces it.
func (c *Secrets) setFromEnvironment(variable, text string) error {
	middle, key := cutLast(strings.TrimPrefix(variable, secretsPrefix), "_")
	key = strings.ToLower(key)
	switch {
	case middle == "" || !slices.Contains(scalarKeys, key):
		return fmt.Errorf("unknown variable %s; use %s{NAME}_ and FILE, ENV, COMMAND, CREDENTIAL, DOCUMENT, REFRESH or TIMEOUT; "+
			"sources that are fetched over the network can only be set in the file", variable, secretsPrefix)
	case key == "value":
		return fmt.Errorf("%s: put the value into a variable of its own, and that variable's name into %sENV", variable,
			strings.TrimSuffix(variable, "VALUE"))
	}
	if c.Sources == nil {
		c.Sources = map[string]secrets.Source{}
	}
	name := c.sourceNamed(middle)
	s := c.Sources[name]
	if key == "file" || key == "env" || key == "command" || key == "credential" {
		s = secrets.Source{Document: s.Document, Refresh: s.Refresh, Timeout: s.Timeout}
	}
	if key == "command" {
		s.Command = splitList(text)
	} else if err := setSecretKey(&s, key, text); err != nil {
		return fmt.Errorf("%s: %w", variable, err)
	}
	c.Sources[name] = s
	return nil
}

// sourceNamed returns the name of the source for the middle part of a variable's name.
func (c *Secrets) sourceNamed(middle string) string {
	fold := strings.NewReplacer(".", "_", "-", "_")
	for _, name := range slices.Sorted(maps.Keys(c.Sources)) {
		if strings.ToUpper(fold.Replace(name)) == middle {
			return name
		}
	}
	return strings.ToLower(middle)
}

func cutLast(s, sep string) (before, after string) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return "", s
	}
	return s[:i], s[i+len(sep):]
}

// Exposed returns an error if the configuration file contains a literal and is accessible to everybody.
func (c *Secrets) Exposed() error {
	literal := false
	for _, s := range c.Sources {
		literal = literal || s.Value.Reveal() != ""
	}
	if !literal || c.File == "" {
		return nil
	}
	info, err := os.Stat(c.File)
	if err != nil {
		return err
	}
	if mode := info.Mode().Perm(); mode&0o007 != 0 {
		return fmt.Errorf("secrets: %s is readable or writable by everybody, and contains the value of a secret (mode %04o): run chmod o= %s",
			c.File, mode, c.File)
	}
	return nil
}
