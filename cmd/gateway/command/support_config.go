package command

import (
	"errors"
	"regexp"

	"go.yaml.in/yaml/v3"

	"boxgate/config"
)

// shownKeys are the configuration keys whose text is shown even if it is not the default: their values are words of the
// gateway.
var shownKeys = map[string]bool{
	"store.kind": true, "proxy.deny": true, "ingress.names": true, "ingress.tls.mode": true, "launcher.runtime": true, "launcher.disk.mode": true,
	"policy.default": true, "policy.ceiling": true, "log.level": true, "log.format": true,
}

// redactedConfiguration returns the configuration with its numbers, switches and defaults. Any other text is replaced by
// "[set]", and lists and maps of the operator by their length.
func redactedConfiguration(cfg config.Config) (any, error) {
	now, err := asMap(cfg)
	if err != nil {
		return nil, err
	}
	preset, err := asMap(config.Default())
	if err != nil {
		return nil, err
	}
	now["secrets"] = len(cfg.Secrets.Sources)
	return redact("", now, preset), nil
}

// asMap returns a configuration as generic YAML.
func asMap(cfg config.Config) (out map[string]any, err error) {
	text, err := yaml.Marshal(cfg)
	if err != nil {
		return nil, errors.New("the configuration cannot be encoded")
	}
	return out, yaml.Unmarshal(text, &out)
}

// quantity matches durations and sizes.
var quantity = regexp.MustCompile(`^([0-9.]+(ns|µs|ms|s|m|h|d|B|KiB|MiB|GiB|TiB)?)+$`)

// isQuantity reports whether a text is a duration or a size, as its default is.
func isQuantity(text string, preset any) bool {
	before, ok := preset.(string)
	return ok && quantity.MatchString(before) && quantity.MatchString(text)
}

// redact returns the value of a key, given the default.
func redact(key string, value, preset any) any {
	switch v := value.(type) {
	case map[string]any:
		defaults, ok := preset.(map[string]any)
		if !ok || key == "launcher.images" {
			return len(v)
		}
		out := map[string]any{}
		for name, field := range v {
			at := name
			if key != "" {
				at = key + "." + name
			}
			out[name] = redact(at, field, defaults[name])
		}
		return out
	case []any:
		return len(v)
	case string:
		if v == "" || shownKeys[key] || value == preset || isQuantity(v, preset) {
			return v
		}
		return "[set]"
	}
	return value
}
