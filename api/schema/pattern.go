package schema

import (
	"maps"
	"regexp"
	"regexp/syntax"
	"slices"
)

// Bounds of the regular expressions of a schema. A short text can be a large program: (?:x?y?…){1000} in 1 KiB has a million
// instructions, which take 40 MiB, and as long for each byte of a text.
const (
	maxPattern = 1024    // bytes of an expression
	maxSize    = 1 << 12 // of an expression
	maxSizes   = 1 << 14 // of all expressions together
)

// pattern is a regular expression.
type pattern struct {
	*regexp.Regexp
	size int // about the number of its instructions
}

// collect adds the texts of the regular expressions of a schema to found, and returns it.
func collect(v any, found map[string]bool) map[string]bool {
	switch v := v.(type) {
	case []any:
		for _, item := range v {
			collect(item, found)
		}
	case map[string]any:
		if text, ok := v["pattern"].(string); ok {
			found[text] = true
		}
		if named, ok := v["patternProperties"].(map[string]any); ok {
			for text := range named {
				found[text] = true
			}
		}
		for _, item := range v {
			collect(item, found)
		}
	}
	return found
}

// compile compiles expressions, within the bounds.
func compile(texts map[string]bool) map[string]pattern {
	compiled, room := map[string]pattern{}, maxSizes
	for _, text := range slices.Sorted(maps.Keys(texts)) {
		if len(text) > maxPattern {
			continue
		}
		parsed, err := syntax.Parse(text, syntax.Perl)
		if err != nil {
			continue
		}
		size := sizeOf(parsed)
		if size > min(maxSize, room) {
			continue
		}
		if re, err := regexp.Compile(text); err == nil {
			compiled[text] = pattern{re, size}
			room -= size
		}
	}
	return compiled
}

// runesPerSize is how many runes of a class of characters count as an instruction.
const runesPerSize = 32

// sizeOf returns about how many instructions a parsed expression has when its repetitions are written out, or a number above maxSize.
func sizeOf(re *syntax.Regexp) int {
	size := 1
	switch re.Op {
	case syntax.OpLiteral:
		size += len(re.Rune)
	case syntax.OpCharClass:
		size += len(re.Rune) / runesPerSize
	}
	for _, part := range re.Sub {
		size += sizeOf(part)
	}
	if re.Op == syntax.OpRepeat {
		size *= max(re.Max, re.Min+1)
	}
	return min(size, maxSizes+1)
}
