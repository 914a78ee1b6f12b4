package solo

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"boxgate/cmd/gateway/command/cli"
)

// Values are header rules with resolved values, and the sources of these values.
type Values struct {
	Rules     json.RawMessage
	Files     []string // absolute
	Variables []string
}

// ResolveValues replaces values of the form @FILE or env:NAME in header rules, wherever a literal is allowed. {"value":
// "@…"} is taken literally. Errors never contain a value.
func ResolveValues(rules json.RawMessage, getenv func(string) string) (Values, error) {
	var doc map[string]any
	if err := json.Unmarshal(rules, &doc); err != nil {
		return Values{Rules: rules}, nil //nolint:nilerr // reported by the parser of the rules
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
		return Values{Rules: rules}, nil // unchanged, so that the parser can reject duplicate keys
	}
	var err error
	v.Rules, err = json.Marshal(doc)
	return v, err
}

// entry resolves the values of one entry, in the compact form or in the sections of the full form.
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
