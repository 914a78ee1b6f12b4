package solo

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"boxgate/cmd/gateway/command/cli"
)

// Values are header rules with their values in place, and where those came from.
type Values struct {
	Rules     json.RawMessage
	Files     []string // absolute
	Variables []string
}

// ResolveValues replaces values of header rules that are @FILE or env:NAME: wherever a literal may stand. {"value": "@…"} is a
// literal as it is. Errors name no value.
func ResolveValues(rules json.RawMessage, getenv func(string) string) (Values, error) {
	var doc map[string]any
	if err := json.Unmarshal(rules, &doc); err != nil {
		return Values{Rules: rules}, nil //nolint:nilerr // whoever parses the rules says what is wrong
	}
	v := Values{}
	for host, entry := range doc {
		list, several := entry.([]any)
		if !several {
			list = []any{entry}
		}
		for _, e := range list {
			if err := v.entry(e, getenv); err != nil {
				return v, fmt.Errorf("%s: %w", host, err)
			}
		}
	}
	if len(v.Files)+len(v.Variables) == 0 {
		return Values{Rules: rules}, nil // with duplicate keys, for the parser to refuse
	}
	var err error
	v.Rules, err = json.Marshal(doc)
	return v, err
}

// entry resolves the values of one entry: of the compact form, or of the parts of the full one that have values.
func (v *Values) entry(entry any, getenv func(string) string) error {
	e, ok := entry.(map[string]any)
	if !ok {
		return nil
	}
	for _, part := range []string{"headers", "placeholders", "query"} {
		if inner, ok := e[part].(map[string]any); ok {
			if err := v.each(inner, getenv); err != nil {
				return err
			}
		}
	}
	return v.each(e, getenv)
}

func (v *Values) each(values map[string]any, getenv func(string) string) error {
	for name, value := range values {
		text, ok := value.(string)
		if !ok {
			continue
		}
		resolved, err := v.resolve(text, getenv)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		values[name] = resolved
	}
	return nil
}

func (v *Values) resolve(text string, getenv func(string) string) (string, error) {
	if name, ok := strings.CutPrefix(text, "env:"); ok {
		value := getenv(name)
		if value == "" {
			return "", fmt.Errorf("the variable %s is not set; with sudo: sudo --preserve-env=%s gateway run …", name, name)
		}
		v.Variables = append(v.Variables, name)
		return value, nil
	}
	name, ok := strings.CutPrefix(text, "@")
	if !ok {
		return text, nil
	}
	path, err := filepath.Abs(name)
	if err != nil {
		return "", err
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return "", cli.FileError(err)
	}
	v.Files = append(v.Files, path)
	return strings.TrimRight(string(data), "\r\n"), nil
}
