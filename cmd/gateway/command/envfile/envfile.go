// Package envfile parses files of environment variables like systemd's EnvironmentFile=, without expansion or execution.
package envfile

import (
	"regexp"
	"strings"
)

// Variable is one assignment.
type Variable struct{ Name, Value string }

var isName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

const blank = " \t\r"

// Parse returns the assignments in order. Comments and lines without an assignment are skipped; see systemd.exec(5).
func Parse(text string) (all []Variable) {
	for text != "" {
		text = strings.TrimLeft(text, blank+"\n")
		end := strings.IndexAny(text, "=\n")
		if end < 0 || strings.HasPrefix(text, "#") || strings.HasPrefix(text, ";") || text[end] == '\n' {
			_, text, _ = strings.Cut(text, "\n")
			continue
		}
		name := strings.TrimRight(text[:end], blank)
		var value string
		value, text = parseValue(text[end+1:])
		if isName.MatchString(name) {
			all = append(all, Variable{name, value})
		}
	}
	return all
}

// parseValue returns a value and the text after its line. As in systemd, quotes count only at its beginning and after
// other quotes.
func parseValue(text string) (value, rest string) {
	var out strings.Builder
	for {
		text = strings.TrimLeft(text, blank)
		switch {
		case strings.HasPrefix(text, `'`):
			literal, after, _ := strings.Cut(text[1:], `'`)
			out.WriteString(literal)
			text = after
		case strings.HasPrefix(text, `"`):
			text = parseQuoted(&out, text[1:])
		default:
			return out.String() + parseBare(&text), text
		}
	}
}

// parseQuoted appends the text up to the closing double quote and returns the rest.
func parseQuoted(out *strings.Builder, text string) (rest string) {
	for i := 0; i < len(text); i++ {
		c := text[i]
		if c == '"' {
			return text[i+1:]
		}
		if c == '\\' && i+1 < len(text) {
			i++
			if c = text[i]; c == '\n' {
				continue
			}
			if !strings.ContainsRune("\"\\`$", rune(c)) {
				out.WriteByte('\\')
			}
		}
		out.WriteByte(c)
	}
	return ""
}

// parseBare returns the unquoted text up to the end of the line.
func parseBare(text *string) string {
	var out []byte
	keep, i := 0, 0 // blanks after keep are trailing
	for ; i < len(*text) && (*text)[i] != '\n'; i++ {
		c := (*text)[i]
		if c == '\\' && i+1 < len(*text) {
			i++
			if (*text)[i] == '\n' {
				continue
			}
			out = append(out, (*text)[i])
			keep = len(out)
			continue
		}
		out = append(out, c)
		if !strings.ContainsRune(blank, rune(c)) {
			keep = len(out)
		}
	}
	*text = (*text)[min(i+1, len(*text)):]
	return string(out[:keep])
}
