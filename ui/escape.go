package ui

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// unseen are the characters that a browser does not show, or that change how their neighbours are shown: letters and marks
// without a picture, and other spaces. Controls, formats such as the bidirectional ones,
// private and unassigned characters count as well, see [isUnseen].
var unseen = &unicode.RangeTable{
	R16: []unicode.Range16{
		{Lo: 0x00a0, Hi: 0x00a0, Stride: 1}, // no-break space
		{Lo: 0x034f, Hi: 0x034f, Stride: 1}, // combining grapheme joiner
		{Lo: 0x115f, Hi: 0x1160, Stride: 1}, // Hangul fillers
		{Lo: 0x1680, Hi: 0x1680, Stride: 1}, // Ogham space
		{Lo: 0x17b4, Hi: 0x17b5, Stride: 1}, // Khmer inherent vowels
		{Lo: 0x180b, Hi: 0x180f, Stride: 1}, // Mongolian variation selectors
		{Lo: 0x2000, Hi: 0x200f, Stride: 1}, // spaces, joiners, marks
		{Lo: 0x2028, Hi: 0x202f, Stride: 1}, // separators, embeddings
		{Lo: 0x205f, Hi: 0x206f, Stride: 1}, // spaces, operators, isolates
		{Lo: 0x2800, Hi: 0x2800, Stride: 1}, // Braille blank
		{Lo: 0x3000, Hi: 0x3000, Stride: 1}, // ideographic space
		{Lo: 0x3164, Hi: 0x3164, Stride: 1}, // Hangul filler
		{Lo: 0xfe00, Hi: 0xfe0f, Stride: 1}, // variation selectors
		{Lo: 0xffa0, Hi: 0xffa0, Stride: 1}, // halfwidth Hangul filler
		{Lo: 0xfff0, Hi: 0xffff, Stride: 1}, // annotations, replacement
	},
	R32: []unicode.Range32{
		{Lo: 0x1d159, Hi: 0x1d159, Stride: 1}, // null note head
		{Lo: 0xe0000, Hi: 0xe0fff, Stride: 1}, // tags, variation selectors
	},
	LatinOffset: 1,
}

// isUnseen reports whether a character is shown as an escape: it is invisible, changes the direction of text, or has no
// assigned picture.
func isUnseen(r rune) bool {
	return !unicode.IsGraphic(r) || unicode.Is(unseen, r) || unicode.Is(unicode.Co, r)
}

// mostMarks is the number of marks on one character that are shown. More of them cover the lines above and below.
const mostMarks = 4

// Visible returns text from a box or a visitor for a page: characters that are invisible, change the direction of text or
// pile up on another are shown as \u{NNNN}, and bytes that are not UTF-8 as \xNN. It does not escape HTML: templates and
// text nodes do.
func Visible(s string) string {
	if isPlainText(s) {
		return s
	}
	var b strings.Builder
	marks := 0
	for i, r := range s {
		if unicode.Is(unicode.Mn, r) || unicode.Is(unicode.Me, r) {
			marks++
		} else {
			marks = 0
		}
		switch {
		case r == utf8.RuneError && s[i] != "\uFFFD"[0]:
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case isUnseen(r) || marks > mostMarks:
			fmt.Fprintf(&b, `\u{%x}`, r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// isPlainText reports whether s consists of printable ASCII, like nearly every name and path.
func isPlainText(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}
