package preview

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"boxgate/policy/document"
)

// SourceLine is a line of a text with the notes about it.
type SourceLine struct {
	Number int // from 1
	Text   string
	Notes  []Note
}

// Note is a problem of a text, or a finding about it.
type Note struct {
	Pointer string // RFC 6901
	Message string
	Problem bool // else it is a finding
}

// Source returns the lines of a text, with each note at the line of its pointer; at the first one if the text has no such place.
func Source(text string, notes []Note) []SourceLine {
	text = strings.ReplaceAll(text, "\r\n", "\n")
	lines := []SourceLine{}
	for line := range strings.SplitSeq(text, "\n") {
		lines = append(lines, SourceLine{Number: len(lines) + 1, Text: line})
	}
	places := placesOf([]byte(text))
	for _, n := range notes {
		at := n.Pointer
		for places[at] == 0 && at != "" { // such as a missing member
			at = at[:max(0, strings.LastIndexByte(at, '/'))]
		}
		line := max(1, places[at])
		lines[line-1].Notes = append(lines[line-1].Notes, n)
	}
	return lines
}

// NotesOf returns the notes about a change.
func NotesOf(c *Change) (notes []Note) {
	for _, p := range c.Problems {
		notes = append(notes, Note{p.Pointer, p.Message, true})
	}
	for _, f := range c.Lint {
		notes = append(notes, Note{f.Pointer, f.Entry + ": " + f.Text, false})
	}
	for _, w := range c.Replay.Warnings {
		notes = append(notes, Note{w.Pointer, w.Message, false})
	}
	return slices.Clip(notes)
}

// placesOf returns the line, from 1, of each value of a JSON text by its pointer, as far as the text is valid. Where it is not is the
// place of the empty pointer.
func placesOf(text []byte) map[string]int {
	p := placer{text: text, tokens: json.NewDecoder(bytes.NewReader(text)), line: 1, at: map[string]int{}}
	if err := p.value("", 0); err != nil {
		if flaw, ok := errors.AsType[*json.SyntaxError](json.Unmarshal(text, new(json.RawMessage))); ok {
			p.at[""] = 1 + bytes.Count(text[:max(0, min(flaw.Offset-1, int64(len(text))))], []byte("\n"))
		}
	}
	return p.at
}

// placer finds the lines of the values of a JSON text.
type placer struct {
	text   []byte
	tokens *json.Decoder
	offset int64 // line is that of text[offset]
	line   int
	at     map[string]int
}

// value notes the place of the next value, and of all in it.
func (p *placer) value(pointer string, depth int) error {
	token, err := p.tokens.Token()
	if err != nil || depth > 32 {
		return cmp.Or(err, errors.New("is nested too deeply"))
	}
	p.line += bytes.Count(p.text[p.offset:p.tokens.InputOffset()], []byte("\n"))
	p.offset = p.tokens.InputOffset()
	p.at[pointer] = p.line
	open, isDelim := token.(json.Delim)
	for i := 0; isDelim && p.tokens.More(); i++ {
		below := document.Element(pointer, i)
		if open == '{' {
			key, err := p.tokens.Token()
			name, isText := key.(string)
			if err != nil || !isText {
				return cmp.Or(err, errors.New("is not valid JSON"))
			}
			below = document.Pointer(pointer, name)
		}
		if err := p.value(below, depth+1); err != nil {
			return err
		}
	}
	if isDelim {
		_, err = p.tokens.Token()
	}
	return err
}

// Bounds of [Excerpt].
const (
	wholeText = 80 // lines up to which a text is shown in full
	around    = 1  // lines around each line with notes
)

// Excerpt returns the lines to show: all of a short text, else those with notes and their neighbours.
func Excerpt(lines []SourceLine) []SourceLine {
	if len(lines) <= wholeText {
		return lines
	}
	var out []SourceLine
	for i := range lines {
		for j := max(0, i-around); j <= min(len(lines)-1, i+around); j++ {
			if len(lines[j].Notes) > 0 {
				out = append(out, lines[i])
				break
			}
		}
	}
	return out
}
