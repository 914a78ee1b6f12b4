package websocket

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

const (
	greek  = "\u03ba\u1f79\u03c3\u03bc\u03b5" // code points of two and of three octets
	umlaut = "Hello-µ@ßöäüàá-UTF-8!!"
)

// utf8Cases returns section 6. Its subsections from 5 on follow Markus Kuhn's stress test of UTF-8 decoders.
func utf8Cases() []Case {
	surrogate, beyond := greek+"\xed\xa0\x80edited", greek+"\xf4\x90\x80\x80edited"
	at := len(greek)
	return slices.Concat(
		numbered("6.1",
			echoed("empty text", events(gotText("")), send(text(""))),
			echoed("three empty fragments", events(gotText("")), send(part(""), next(""), last(""))),
			echoed("three fragments, the outer ones empty", events(gotText("middle")), send(part(""), next("middle"), last(""))),
		),
		numbered("6.2",
			echoed("valid text", events(gotText(umlaut)), send(text(umlaut))),
			echoed("valid text in two fragments between code points", events(gotText(umlaut)), send(part(umlaut[:12]), last(umlaut[12:]))),
			echoed("valid text in fragments of one octet", events(gotText(umlaut)), send(fragments(opText, umlaut, 1)...)),
			echoed("valid text of longer code points in fragments of one octet", events(gotText(greek)), send(fragments(opText, greek, 1)...)),
		),
		numbered("6.3", notText("a surrogate", send(text(surrogate))), notText("a surrogate in fragments of one octet", send(fragments(opText, surrogate, 1)...))),
		numbered("6.4",
			failsFast("a code point beyond the last, in the second of three fragments", fragmentAt(beyond, at, at+4)),
			failsFast("the octet that makes it invalid alone in the second fragment", fragmentAt(beyond, at+1, at+2)),
			failsFast("a code point beyond the last, in the second part of one frame", frameAt(beyond, at, at+4)),
			failsFast("the octet that makes it invalid alone in the second part of one frame", frameAt(beyond, at+1, at+2)),
		),
		sequences(),
	)
}

// notText returns a case with invalid text.
func notText(title string, steps ...step) Case {
	c := broken(title, nil, steps...)
	c.codes = []int{codePayload}
	return c
}

// failsFast sends a message in three parts. The second part makes it invalid, so the server should not wait for the
// third.
func failsFast(title string, parts [3]out) Case {
	c := notText(title,
		step{frames: parts[:1], quiet: someTime},
		step{frames: parts[1:2], quiet: 10 * someTime},
		send(parts[2]))
	c.want, c.lax = events(event{kind: "still open"}), [][]event{{{kind: "still open"}, {kind: "still open"}}}
	return c
}

func fragmentAt(s string, first, second int) [3]out {
	return [3]out{part(s[:first]), next(s[first:second]), last(s[second:])}
}

// frameAt returns one frame, sent in three parts.
func frameAt(s string, first, second int) [3]out {
	whole := text(s)
	raw := whole.bytes()
	from := len(raw) - len(s)
	return [3]out{{raw: raw[:from+first]}, {raw: raw[from+first : from+second]}, {raw: raw[from+second:]}}
}

// sequences returns 6.5 and up: each sequence as a separate message.
func sequences() []Case {
	var all []Case
	for i, group := range [][]string{
		{"hello$world", "hello\u00a2world", "hello\u20acworld", "hello\U00024b62world", greek},
		prefixes(greek),
		{"\x00", "\u0080", "\u0800", "\U00010000"},                               // first of each length
		{"\xf8\x88\x80\x80\x80", "\xfc\x84\x80\x80\x80\x80"},                     // of five and six octets
		{"\x7f", "\u07ff", "\uffff", "\U0010ffff"},                               // last of each length
		{"\xf7\xbf\xbf\xbf", "\xfb\xbf\xbf\xbf\xbf", "\xfd\xbf\xbf\xbf\xbf\xbf"}, // beyond the last
		{"\ud7ff", "\ue000", "\ufffd", "\U0010ffff", "\xf4\x90\x80\x80"},         // at the bounds
		append(continuations("\x80", "\xbf"), span(0x80, 0xbf, "")),              // without a first byte
		{span(0xc0, 0xdf, " "), span(0xe0, 0xef, " "), span(0xf0, 0xf7, " "), span(0xf8, 0xfb, " "), span(0xfc, 0xfd, " ")},
		unfinished(),
		{strings.Join(unfinished(), "")},
		{"\xfe", "\xff", "\xfe\xfe\xff\xff"},
		{"\xc0\xaf", "\xe0\x80\xaf", "\xf0\x80\x80\xaf", "\xf8\x80\x80\x80\xaf", "\xfc\x80\x80\x80\x80\xaf"},
		{"\xc1\xbf", "\xe0\x9f\xbf", "\xf0\x8f\xbf\xbf", "\xf8\x87\xbf\xbf\xbf", "\xfc\x83\xbf\xbf\xbf\xbf"},
		{"\xc0\x80", "\xe0\x80\x80", "\xf0\x80\x80\x80", "\xf8\x80\x80\x80\x80", "\xfc\x80\x80\x80\x80\x80"},
		{"\xed\xa0\x80", "\xed\xad\xbf", "\xed\xae\x80", "\xed\xaf\xbf", "\xed\xb0\x80", "\xed\xbe\x80", "\xed\xbf\xbf"},
		pairs(),
		nonCharacters(),
		{"\ufff9", "\ufffa", "\ufffb", "\ufffc", "\ufffd", "\ufffe", "\uffff"},
	} {
		var cases []Case
		for _, s := range group {
			if utf8.ValidString(s) {
				cases = append(cases, echoed(fmt.Sprintf("valid: %x", s), events(gotText(s)), send(text(s))))
			} else {
				cases = append(cases, notText(fmt.Sprintf("not valid: %x", s), send(text(s))))
			}
		}
		all = append(all, numbered("6."+strconv.Itoa(5+i), cases...)...)
	}
	return all
}

func prefixes(s string) (all []string) {
	for i := range len(s) {
		all = append(all, s[:i+1])
	}
	return all
}

// continuations returns continuation bytes without a first byte: each alone, then two to six of them alternating.
func continuations(a, b string) []string {
	all := []string{a, b}
	for n := 2; n <= 6; n++ {
		all = append(all, strings.Repeat(a+b, 3)[:n])
	}
	return all
}

// span returns the bytes from from to to-1, each followed by after.
func span(from, to int, after string) string {
	var s strings.Builder
	for c := from; c < to; c++ {
		s.WriteByte(byte(c))
		s.WriteString(after)
	}
	return s.String()
}

// unfinished returns the first and the last sequence of each length, truncated by a byte.
func unfinished() []string {
	return []string{
		"\xc0", "\xe0\x80", "\xf0\x80\x80", "\xf8\x80\x80\x80", "\xfc\x80\x80\x80\x80",
		"\xdf", "\xef\xbf", "\xf7\xbf\xbf", "\xfb\xbf\xbf\xbf", "\xfd\xbf\xbf\xbf\xbf",
	}
}

// pairs returns surrogates paired as in UTF-16.
func pairs() (all []string) {
	for _, high := range []string{"\xed\xa0\x80", "\xed\xad\xbf", "\xed\xae\x80", "\xed\xaf\xbf"} {
		all = append(all, high+"\xed\xb0\x80", high+"\xed\xbf\xbf")
	}
	return all
}

// nonCharacters returns the last two code points of each plane, which are noncharacters but valid.
func nonCharacters() (all []string) {
	for plane := rune(0); plane <= 16; plane++ {
		all = append(all, string(plane<<16|0xfffe), string(plane<<16|0xffff))
	}
	return all
}
