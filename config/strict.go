package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// The file is parsed strictly: an unknown key is an error that suggests the nearest known one.

// parseStrict decodes YAML strictly onto cfg.
func parseStrict(data []byte, cfg *Config) error {
	var tree map[string]any
	if err := yaml.NewDecoder(bytes.NewReader(data)).Decode(&tree); err != nil && !errors.Is(err, io.EOF) {
		return yamlError(err)
	}
	unknown := errors.Join(unknownKeys(tree, reflect.TypeFor[Config](), "")...)
	if len(tree) == 0 {
		return nil
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	dec.KnownFields(unknown == nil) // the decoder would report unknown keys again and hide other mistakes
	if err := dec.Decode(cfg); err != nil {
		return errors.Join(unknown, yamlError(err))
	}
	if unknown != nil {
		return unknown
	}
	if err := dec.Decode(&struct{}{}); !errors.Is(err, io.EOF) {
		return errors.New("the file holds more than one YAML document; keep the first")
	}
	return nil
}

// yamlError describes mistakes in terms of the file, each with its line.
func yamlError(err error) error {
	if mistakes, ok := errors.AsType[*yaml.TypeError](err); ok {
		var errs []error
		for _, mistake := range mistakes.Errors {
			errs = append(errs, errors.New(typeMistake(mistake)))
		}
		return errors.Join(errs...)
	}
	line := strings.TrimPrefix(strings.Join(strings.Fields(err.Error()), " "), "yaml: ")
	// The decoder quotes the text after a '*', which may be a secret that should have been quoted.
	if line, _, alias := strings.Cut(line, "unknown anchor"); alias {
		return errors.New(line + "a value that begins with '*' must be quoted")
	}
	return errors.New(line)
}

// typeMismatch matches the decoder's error about a value of a wrong type: line, tag, value, Go type.
var typeMismatch = regexp.MustCompile("(?s)^(line [0-9]+): cannot unmarshal (!![a-z]+)(?: `.*`)? into (.+)$")

// typeMistake describes the expected type. It does not quote the value, which may be a secret.
func typeMistake(text string) string {
	m := typeMismatch.FindStringSubmatch(text)
	if m == nil {
		return text
	}
	is := map[string]string{
		"!!str": "text", "!!int": "a number", "!!float": "a number", "!!bool": "true or false", "!!map": "a section of keys", "!!seq": "a list", "!!timestamp": "a date",
	}[m[2]]
	wants := map[string]string{
		"string": "text", "bool": "true or false", "int": "a whole number", "time.Duration": "a duration such as 30m", "[]string": "a list",
	}[m[3]]
	return m[1] + ": " + cmp.Or(is, "this") + " is given where " + cmp.Or(wants, "a section of keys") + " belongs"
}

// unknownKeys returns an error for every key of tree without a field in t.
func unknownKeys(tree map[string]any, t reflect.Type, prefix string) []error {
	known := map[string]reflect.Type{}
	for f := range t.Fields() {
		known[yamlKey(f)] = f.Type
	}
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(tree)) {
		value := tree[key]
		field, ok := known[key]
		if !ok {
			errs = append(errs, fmt.Errorf("unknown key %q; did you mean %q?", prefix+key, prefix+nearest(key, known)))
			continue
		}
		if sub, isMap := value.(map[string]any); isMap && hasKeys(field) {
			errs = append(errs, unknownKeys(sub, field, prefix+key+".")...)
		}
	}
	return errs
}

// yamlKey returns the key of a field.
func yamlKey(f reflect.StructField) string {
	key, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
	return key
}

// hasKeys reports whether a type is a section whose keys are its fields.
func hasKeys(t reflect.Type) bool {
	return t.Kind() == reflect.Struct && !parsesItself(t)
}

// Nearest returns the entry of a list with the smallest edit distance to key.
func Nearest(key string, list []string) string {
	known := map[string]reflect.Type{}
	for _, k := range list {
		known[k] = nil
	}
	return nearest(key, known)
}

// nearest returns the known key with the smallest edit distance to key.
func nearest(key string, known map[string]reflect.Type) string {
	best, bestDistance := "", 1<<30
	for k := range known {
		if d := editDistance(key, k); d < bestDistance || d == bestDistance && k < best {
			best, bestDistance = k, d
		}
	}
	return best
}

// editDistance is the Levenshtein distance.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}

// MinMemory is the minimum memory of a gateway in bytes.
const MinMemory = 128 << 20

// Size is a number of bytes, written with a unit in the configuration: 64MiB.
type Size int64

var sizeUnits = []struct {
	name  string
	bytes Size
}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}}

// UnmarshalText implements [encoding.TextUnmarshaler].
func (s *Size) UnmarshalText(text []byte) error {
	number, unit := strings.TrimSpace(string(text)), Size(1)
	for _, u := range sizeUnits {
		if n, ok := strings.CutSuffix(number, u.name); ok {
			number, unit = strings.TrimSpace(n), u.bytes
			break
		}
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n < 0 || n > math.MaxInt64/int64(unit) {
		return fmt.Errorf("%q is not a size; use one such as 256MiB", text)
	}
	*s = Size(n) * unit
	return nil
}

// MarshalText implements [encoding.TextMarshaler].
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// String formats a size with the largest unit that divides it.
func (s Size) String() string {
	for _, u := range sizeUnits {
		if s >= u.bytes && s%u.bytes == 0 {
			return fmt.Sprintf("%d%s", s/u.bytes, u.name)
		}
	}
	return strconv.FormatInt(int64(s), 10)
}
