package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Difference is a key with different values in two configurations, as YAML. Values of secrets are not shown.
type Difference struct {
	Key string `json:"key"`
	Old string `json:"old"`
	New string `json:"new"`
}

// String returns the difference in one line.
func (d Difference) String() string { return fmt.Sprintf("%s: %s -> %s", d.Key, d.Old, d.New) }

// Diff returns the differences between two configurations, sorted by key.
func Diff(old, new Config) ([]Difference, error) {
	was, is := map[string]string{}, map[string]string{}
	for _, side := range []struct {
		cfg Config
		to  map[string]string
	}{{old, was}, {new, is}} {
		data, err := yaml.Marshal(side.cfg)
		if err != nil {
			return nil, err
		}
		var tree map[string]any
		if err := yaml.Unmarshal(data, &tree); err != nil {
			return nil, err
		}
		flatten(tree, "", side.to)
	}
	keys := slices.Collect(maps.Keys(was))
	for k := range is {
		if _, both := was[k]; !both {
			keys = append(keys, k)
		}
	}
	for name, source := range new.Secrets.Sources {
		if k := "secrets." + name + ".value"; !source.Value.Equal(old.Secrets.Sources[name].Value) {
			keys, was[k], is[k] = append(keys, k), "old", "new"
		}
	}
	slices.Sort(keys)
	out := []Difference{}
	for _, k := range slices.Compact(keys) {
		if was[k] != is[k] {
			out = append(out, Difference{k, displayValue(k, was[k]), displayValue(k, is[k])})
		}
	}
	return out, nil
}

// flatten fills out with every value that is not a map, by its path.
func flatten(tree map[string]any, prefix string, out map[string]string) {
	for k, v := range tree {
		if below, ok := v.(map[string]any); ok {
			flatten(below, prefix+k+".", out)
			continue
		}
		data, err := yaml.Marshal(v)
		if err != nil {
			continue
		}
		out[prefix+k] = strings.ReplaceAll(strings.TrimSpace(string(data)), "\n", " ")
	}
}

// displayValue returns a value for display.
func displayValue(key, value string) string {
	switch {
	case value == "":
		return "(none)"
	case strings.HasPrefix(key, "secrets."):
		return "(not shown)"
	}
	return value
}
