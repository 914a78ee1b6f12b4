package websocket

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Outcomes of a case, in Autobahn's terms.
const (
	OK            = "OK"
	Failed        = "FAILED"
	NonStrict     = "NON-STRICT"    // allowed, though not ideal
	Informational = "INFORMATIONAL" // the behaviour is unspecified
	Unimplemented = "UNIMPLEMENTED" // the extension was not negotiated
)

// Case is one conversation with an echo server and its expected outcome.
type Case struct {
	Number, Title string
	steps         []step
	want          []event   // expected events before the end
	lax           [][]event // accepted alternatives
	end           ending
	codes         []int // accepted close codes, if the server sends one
	open          bool  // any outcome is accepted and recorded
	offer         string
	talk          func(*session) // a longer conversation, instead of steps
}

// step sends frames and then waits.
type step struct {
	frames []out
	chop   int           // bytes written at a time; 0: all frames at once; frameWise: frame by frame
	events int           // wait until this many events have been received in total
	quiet  time.Duration // then wait this long and record whether the connection is still open
}

const frameWise = -1

// out is a frame to send. Large payloads are generated on demand.
type out struct {
	opcode  byte
	rsv     byte
	more    bool // more frames of the message follow
	payload string
	times   int    // repetitions of the payload; 0 means 1
	raw     []byte // sent instead of all fields above
}

// event is a received message or frame, or an observation.
type event struct {
	kind    string // "text", "binary", "pong", "still open"
	payload string
}

func (e event) String() string {
	if len(e.payload) > 24 {
		return fmt.Sprintf("%s(%d octets)", e.kind, len(e.payload))
	}
	return fmt.Sprintf("%s(%q)", e.kind, e.payload)
}

// ending is the required end of the connection.
type ending uint8

const (
	byUs   ending = iota // we close after receiving everything; the server answers with a close frame
	sent                 // the steps themselves send our close frame
	byPeer               // the server fails the connection
)

// numbered numbers cases prefix.1, prefix.2 and so on.
func numbered(prefix string, cases ...Case) []Case {
	for i := range cases {
		cases[i].Number = prefix + "." + strconv.Itoa(i+1)
	}
	return cases
}

// bytes returns the encoded and masked frame.
func (o *out) bytes() []byte {
	if o.raw != nil {
		return o.raw
	}
	payload := make([]byte, 0, len(o.payload)*max(o.times, 1))
	for range max(o.times, 1) {
		payload = append(payload, o.payload...)
	}
	h := head{fin: !o.more, rsv: o.rsv, opcode: o.opcode, masked: true, mask: [4]byte{0x5a, 0xc3, 0x0f, 0x91}, length: uint64(len(payload))}
	h.unmask(payload, 0)
	return append(appendHead(make([]byte, 0, 14+len(payload)), h), payload...)
}

func text(payload string) out { return out{opcode: opText, payload: payload} }
func bin(payload string) out  { return out{opcode: opBinary, payload: payload} }
func ping(payload string) out { return out{opcode: opPing, payload: payload} }

// part returns a non-final frame of a message, last the final one.
func part(payload string) out { return out{opcode: opText, more: true, payload: payload} }
func next(payload string) out { return out{opcode: opContinuation, more: true, payload: payload} }
func last(payload string) out { return out{opcode: opContinuation, payload: payload} }

// closing returns a close frame with exactly this payload.
func closing(payload string) out { return out{opcode: opClose, payload: payload} }

func gotText(payload string) event   { return event{"text", payload} }
func gotBinary(payload string) event { return event{"binary", payload} }
func gotPong(payload string) event   { return event{"pong", payload} }

// echoed returns a case in which the client makes no mistake.
func echoed(title string, want []event, steps ...step) Case {
	return Case{Title: title, want: want, steps: steps}
}

// broken returns a case in which the server must fail the connection. want are the events that it may send before.
func broken(title string, want []event, steps ...step) Case {
	c := Case{Title: title, want: want, steps: steps, end: byPeer, codes: []int{codeProtocol}}
	if len(want) > 0 {
		c.lax = [][]event{nil}
	}
	return c
}

func events(e ...event) []event { return e }

func send(frames ...out) step              { return step{frames: frames} }
func chopped(chop int, frames ...out) step { return step{frames: frames, chop: chop} }

const (
	hello    = "Hello, world!"
	someTime = 100 * time.Millisecond // time for the server to misbehave
)

// Protocol returns the cases of sections 1 to 7 and 10.
func Protocol() []Case {
	return slices.Concat(framing(), pings(), reservedBits(), opcodes(), fragmentation(), utf8Cases(), closeCases(), misc())
}

// framing returns section 1: messages at the sizes where the length encoding changes.
func framing() []Case {
	sizes := func(op out, got func(string) event) (cases []Case) {
		for _, n := range []int{0, 125, 126, 127, 128, 65535, 65536} {
			f := op
			f.payload, f.times = op.payload, n
			if n == 0 {
				f.payload = ""
			}
			cases = append(cases, echoed(strconv.Itoa(n)+" octets", events(got(strings.Repeat(op.payload, n))), send(f)))
		}
		f := op
		f.times = 65536
		return append(cases, echoed("65536 octets, 997 at a time", events(got(strings.Repeat(op.payload, 65536))), chopped(997, f)))
	}
	return slices.Concat(numbered("1.1", sizes(text("*"), gotText)...), numbered("1.2", sizes(bin("\xfe"), gotBinary)...))
}

// pings returns section 2.
func pings() []Case {
	pong := func(payload string) out { return out{opcode: opPong, payload: payload} }
	var ten []out
	var tenPongs []event
	for i := range 10 {
		p := "payload-" + strconv.Itoa(i)
		ten, tenPongs = append(ten, ping(p)), append(tenPongs, gotPong(p))
	}
	full := strings.Repeat("\xfe", 125)
	return numbered("2",
		echoed("ping without payload", events(gotPong("")), send(ping(""))),
		echoed("ping with text", events(gotPong(hello)), send(ping(hello))),
		echoed("ping with octets that are no text", events(gotPong("\x00\xff\xfe\xfd\xfc\xfb\x00\xff")), send(ping("\x00\xff\xfe\xfd\xfc\xfb\x00\xff"))),
		echoed("ping of 125 octets", events(gotPong(full)), send(ping(full))),
		broken("ping of 126 octets", nil, send(ping(full+"\xfe"))),
		echoed("ping of 125 octets, one at a time", events(gotPong(full)), chopped(1, ping(full))),
		echoed("pong nobody asked for", nil, send(pong(""))),
		echoed("pong nobody asked for, with payload", nil, send(pong("unsolicited"))),
		echoed("pong nobody asked for, then a ping", events(gotPong("ping")), send(pong("unsolicited"), ping("ping"))),
		echoed("ten pings", tenPongs, send(ten...)),
		echoed("ten pings, one octet at a time", tenPongs, chopped(1, ten...)),
	)
}

// reservedBits returns section 3.
func reservedBits() []Case {
	with := func(f out, rsv byte) out { f.rsv = rsv; return f }
	one := events(gotText(hello))
	return numbered("3",
		broken("text with RSV 1", nil, send(with(text(hello), 1))),
		broken("a message, then text with RSV 2, then a ping", one, send(text(hello), with(text(hello), 2), ping(""))),
		broken("a message, then text with RSV 3, then a ping, frame by frame", one, chopped(frameWise, text(hello), with(text(hello), 3), ping(""))),
		broken("a message, then text with RSV 4, then a ping, one octet at a time", one, chopped(1, text(hello), with(text(hello), 4), ping(""))),
		broken("octets with RSV 5", nil, send(with(bin("\x00\xff\xfe\xfd\xfc\xfb\x00\xff"), 5))),
		broken("ping with RSV 6", nil, send(with(ping(hello), 6))),
		broken("close with RSV 7", nil, send(with(closing(""), 7))),
	)
}

// opcodes returns section 4.
func opcodes() []Case {
	unknown := func(first byte) []Case {
		frame := func(n byte, payload string) out { return out{opcode: first + n, payload: payload} }
		one := events(gotText(hello))
		title := func(n byte) string { return "opcode " + strconv.Itoa(int(first+n)) }
		return []Case{
			broken(title(0), nil, send(frame(0, ""))),
			broken(title(1)+" with payload", nil, send(frame(1, "reserved opcode payload"))),
			broken("a message, then "+title(2)+", then a ping", one, send(text(hello), frame(2, ""), ping(""))),
			broken("a message, then "+title(3)+" with payload, then a ping", one, send(text(hello), frame(3, hello), ping(""))),
			broken("a message, then "+title(4)+" with payload, then a ping, one octet at a time", one, chopped(1, text(hello), frame(4, hello), ping(""))),
		}
	}
	return slices.Concat(numbered("4.1", unknown(3)...), numbered("4.2", unknown(11)...))
}

// fragmentation returns section 5.
func fragmentation() []Case {
	two, both := []out{part("fragment1"), last("fragment2")}, events(gotText("fragment1fragment2"))
	mixed, answers := []out{part("fragment1"), ping("ping"), last("fragment2")}, events(gotPong("ping"), gotText("fragment1fragment2"))
	stray, strayOpen := []out{last("nothing to continue"), text(hello)}, []out{next("nothing to continue"), text(hello)}
	cut := func(f out) []out { f.more = true; return []out{f, last("fragment2")} }
	again := func(f out) (all []out) {
		for range 2 {
			all = append(all, f, part("fragment2"), last("fragment3"))
		}
		return all
	}
	cases := []Case{
		broken("ping in two fragments", nil, send(cut(ping("fragment1"))...)),
		broken("pong in two fragments", nil, send(cut(out{opcode: opPong, payload: "fragment1"})...)),
	}
	for _, chop := range []int{0, frameWise, 1} {
		cases = append(cases, echoed("text in two fragments"+chopTitle(chop), both, chopped(chop, two...)))
	}
	for _, chop := range []int{0, frameWise, 1} {
		cases = append(cases, echoed("text in two fragments with a ping between"+chopTitle(chop), answers, chopped(chop, mixed...)))
	}
	for _, chop := range []int{0, frameWise, 1} {
		cases = append(cases, broken("last fragment of nothing, then text"+chopTitle(chop), nil, chopped(chop, stray...)))
	}
	for _, chop := range []int{0, frameWise, 1} {
		cases = append(cases, broken("fragment of nothing, then text"+chopTitle(chop), nil, chopped(chop, strayOpen...)))
	}
	cases = append(cases,
		broken("text in two fragments, then a fragment of nothing, then text", both, send(append(two, next("fragment3"), text("fragment4"))...)),
		broken("twice: a fragment of nothing, then text in two", nil, send(again(next("fragment1"))...)),
		broken("twice: a last fragment of nothing, then text in two", nil, send(again(last("fragment1"))...)),
		broken("two fragments, both with opcode text", nil, send(part("fragment1"), text("fragment2"))),
		interrupted(0), interrupted(frameWise),
	)
	return numbered("5", cases...)
}

func chopTitle(chop int) string {
	switch chop {
	case frameWise:
		return ", frame by frame"
	case 1:
		return ", one octet at a time"
	}
	return ""
}

// interrupted returns a message in five fragments with two pings, and a pause until the first pong.
func interrupted(chop int) Case {
	return echoed("five fragments, two pings and a pause"+chopTitle(chop),
		events(gotPong("ping 1"), gotPong("ping 2"), gotText("abcde")),
		step{frames: []out{part("a"), next("b"), ping("ping 1")}, chop: chop, events: 1},
		chopped(chop, next("c"), next("d"), ping("ping 2"), last("e")))
}

// misc returns section 10: a long message in fragments of 1300 bytes.
func misc() []Case {
	whole := strings.Repeat("*", 65536)
	return numbered("10.1", echoed("65536 octets in fragments of 1300", events(gotText(whole)), send(fragments(opText, whole, 1300)...)))
}

// fragments splits a message into frames.
func fragments(opcode byte, message string, size int) []out {
	var all []out
	for first := true; first || message != ""; first = false {
		n := min(size, len(message))
		f := next(message[:n])
		if first {
			f.opcode = opcode
		}
		message = message[n:]
		f.more = message != ""
		all = append(all, f)
	}
	return all
}

// Limits returns section 9: long messages, many fragments, small chunks, many messages. Sizes are divided by shrink; 1
// gives Autobahn's sizes.
func Limits(shrink int) []Case {
	const mib = 1 << 20
	long := func(op out, got func(string) event) (cases []Case) {
		for _, n := range []int{64 << 10, 256 << 10, mib, 4 * mib, 8 * mib, 16 * mib} {
			f := op
			f.times = n / shrink / len(op.payload)
			cases = append(cases, echoed(strconv.Itoa(n/shrink)+" octets", events(got(strings.Repeat(op.payload, f.times))), send(f)))
		}
		return cases
	}
	pieces := func(opcode byte, got func(string) event) (cases []Case) {
		for size := 64; size <= 4*mib; size *= 4 {
			whole := strings.Repeat("*", 4*mib/shrink)
			title := fmt.Sprintf("%d octets in fragments of %d", len(whole), size)
			cases = append(cases, echoed(title, events(got(whole)), send(fragments(opcode, whole, size)...)))
		}
		return cases
	}
	chops := func(op out, got func(string) event) (cases []Case) {
		for chop := 64; chop <= 2048; chop *= 2 {
			f := op
			f.times = mib / shrink / len(op.payload)
			title := fmt.Sprintf("%d octets, %d at a time", f.times*len(op.payload), chop)
			cases = append(cases, echoed(title, events(got(strings.Repeat(op.payload, f.times))), chopped(chop, f)))
		}
		return cases
	}
	many := func(op out, got func(string) event) (cases []Case) {
		for _, n := range []int{0, 16, 64, 256, 1024, 4096} {
			cases = append(cases, turns(op, got, n, 1000/shrink))
		}
		return cases
	}
	return slices.Concat(
		numbered("9.1", long(text("BAsd7&jh23"), gotText)...), numbered("9.2", long(bin("\x00\xfe\x23\xfa\xf0"), gotBinary)...),
		numbered("9.3", pieces(opText, gotText)...), numbered("9.4", pieces(opBinary, gotBinary)...),
		numbered("9.5", chops(text("BAsd7&jh23"), gotText)...), numbered("9.6", chops(bin("\x00\xfe\x23\xfa\xf0"), gotBinary)...),
		numbered("9.7", many(text("*"), gotText)...), numbered("9.8", many(bin("\xfe"), gotBinary)...),
	)
}

// turns sends a message repeatedly, each time after the echo of the previous one.
func turns(op out, got func(string) event, size, times int) Case {
	c := Case{Title: fmt.Sprintf("%d messages of %d octets, one after the other", times, size)}
	f := op
	if f.times = size; size == 0 {
		f.payload = ""
	}
	for range times {
		c.want = append(c.want, got(strings.Repeat(op.payload, size)))
	}
	c.talk = func(s *session) {
		for i := range times {
			s.send(send(f))
			s.wait(i+1, caseTime)
		}
	}
	return c
}

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

// closeCases returns section 7.
func closeCases() []Case {
	bye := closing(string(closePayload(codeNormal, "")))
	return slices.Concat(
		numbered("7.1",
			echoed("a message, then close", events(gotText("Hello World!")), send(text("Hello World!"))),
			closesAfter("two close frames", send(bye, closing(""))),
			closesAfter("a ping behind the close frame", send(bye, ping(""))),
			closesAfter("a message behind the close frame", send(bye, text("Hello World!"))),
			closesAfter("a fragment, close, the last fragment", send(part("fragment1"), bye, last("fragment2"))),
			anyOutcome("256 KiB, a message, close and a ping at once", send(
				out{opcode: opText, payload: "BAsd7&jh23", times: 26215}, text("Hello World!"), bye, ping(""))),
		),
		numbered("7.3",
			closesWith("close without payload", "", codeNormal, codeNone),
			closesWith("close with one octet", "a", codeProtocol),
			closesWith("close with a code", string(closePayload(codeNormal, "")), codeNormal),
			closesWith("close with a code and a reason", string(closePayload(codeNormal, "Hello World!")), codeNormal),
			closesWith("close with the longest reason", string(closePayload(codeNormal, strings.Repeat("*", 123))), codeNormal),
			closesWith("close with a reason that is too long", string(closePayload(codeNormal, strings.Repeat("*", 124))), codeProtocol),
		),
		numbered("7.5", closesWith("close with a reason that is no UTF-8", string(closePayload(codeNormal, greek+"\xed\xa0\x80edited")), codeProtocol, codePayload)),
		numbered("7.7", withCodes("valid", 0, 1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 3000, 3999, 4000, 4999)...),
		numbered("7.9", withCodes("invalid", codeProtocol, 0, 999, 1004, 1005, 1006, 1016, 1100, 2000, 2999)...),
		numbered("7.13",
			anyOutcome("close with code 5000", send(closing("\x13\x88"))),
			anyOutcome("close with code 65535", send(closing("\xff\xff"))),
		),
	)
}

// closesAfter returns a case whose steps close the connection. No further frames may be received.
func closesAfter(title string, steps ...step) Case {
	return Case{Title: title, steps: steps, end: sent}
}

// anyOutcome returns a case without a specified outcome.
func anyOutcome(title string, steps ...step) Case {
	return Case{Title: title, steps: steps, end: sent, open: true}
}

// closesWith sends a close frame. The server must answer with one of the codes; to a bad frame it may answer without
// one.
func closesWith(title, payload string, codes ...int) Case {
	c := Case{Title: title, steps: []step{send(closing(payload))}, end: sent, codes: codes}
	if codes[0] != codeNormal {
		c.end = byPeer
	}
	return c
}

// withCodes sends a close frame with each code. answer is the expected code; 0 means the normal or the same code.
func withCodes(kind string, answer int, codes ...int) []Case {
	var cases []Case
	for _, code := range codes {
		want := []int{answer}
		if answer == 0 {
			want = []int{codeNormal, code}
		}
		payload := string([]byte{byte(code >> 8), byte(code)})
		cases = append(cases, closesWith("close with the "+kind+" code "+strconv.Itoa(code), payload, want...))
	}
	return cases
}

// deflateSizes are pairs of the length of messages and of their fragments; 0 means a single frame.
var deflateSizes = [][2]int{
	{16, 0}, {64, 0}, {256, 0}, {1024, 0}, {4096, 0}, {8192, 0}, {16384, 0}, {32768, 0}, {65536, 0}, {131072, 0},
	{8192, 256}, {16384, 256}, {32768, 256}, {65536, 256}, {131072, 256}, {131072, 1024}, {131072, 4096}, {131072, 32768},
}

const plainOffer = "permessage-deflate; client_no_context_takeover; client_max_window_bits"

// Compression returns sections 12, five kinds of content with the plain offer, and 13, seven sets of parameters. Each
// case sends the given number of messages (Autobahn: 1000), or as many as fit into octets bytes, and at least two.
func Compression(messages, octets int) []Case {
	var all []Case
	for i, c := range contents() {
		all = append(all, compressed("12."+strconv.Itoa(i+1), c, messages, octets, plainOffer)...)
	}
	server := func(params string) string { return plainOffer + params }
	for i, offer := range []string{
		server(""),
		server("; server_no_context_takeover"),
		server("; server_max_window_bits=9"),
		server("; server_max_window_bits=15"),
		server("; server_no_context_takeover; server_max_window_bits=9"),
		server("; server_no_context_takeover; server_max_window_bits=15"),
		server("; server_no_context_takeover; server_max_window_bits=9") + ", " + server("; server_no_context_takeover") + ", " + server(""),
	} {
		all = append(all, compressed("13."+strconv.Itoa(i+1), contents()[0], messages, octets, offer)...)
	}
	return all
}

// content is text to compress. The messages are consecutive pieces of it, wrapping around at the end.
type content struct {
	kind string
	text bool
	data string
}

// contents resemble Autobahn's contents. They are generated deterministically.
func contents() []content {
	r := rand.New(rand.NewPCG(1, 2))
	noise := func(n int) string {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		return string(b)
	}
	var json, html, prose, picture, document strings.Builder
	words := strings.Fields("habe nun ach philosophie juristerei und medizin durchaus studiert mit heissem bemuehn da steh ich nun")
	for i := range 2000 {
		word := words[r.IntN(len(words))]
		fmt.Fprintf(&json, `{"id":%d,"name":"%s","value":%d.%d},`, i, word, r.IntN(1000), r.IntN(100))
		fmt.Fprintf(&html, `<tr class="row%d"><td><a href="/item/%d">%s</a></td></tr>`+"\n", i&1, i, word)
		prose.WriteString(word + strings.Repeat(" ", 1+i%17/16))
		picture.WriteString(strings.Repeat(string([]byte{byte(128 + 100*(i%64)/64)}), 16+r.IntN(64)))
		document.WriteString(strconv.Itoa(i) + " 0 obj stream" + noise(64) + "endstream\n")
	}
	return []content{
		{"JSON", true, json.String()}, {"a picture", false, picture.String()}, {"prose", false, prose.String()},
		{"HTML", true, html.String()}, {"a document", false, document.String()},
	}
}

func compressed(prefix string, c content, messages, octets int, offer string) []Case {
	var cases []Case
	for _, size := range deflateSizes {
		times := min(messages, max(2, octets/size[0]))
		title := fmt.Sprintf("%d messages of %d octets of %s", times, size[0], c.kind)
		if size[1] > 0 {
			title += " in fragments of " + strconv.Itoa(size[1])
		}
		cases = append(cases, deflated(title, offer, c, size[0], size[1], times))
	}
	return numbered(prefix, cases...)
}

// deflated sends compressed messages, each after the echo of the previous one.
func deflated(title, offer string, c content, size, fragment, times int) Case {
	opcode, kind := byte(opBinary), "binary"
	if c.text {
		opcode, kind = opText, "text"
	}
	out := Case{Title: title, offer: offer}
	stock := strings.Repeat(c.data, 2+size/len(c.data))
	for i := range times {
		from := i * size % len(c.data)
		out.want = append(out.want, event{kind, stock[from : from+size]})
	}
	out.talk = func(s *session) {
		d := deflater{forgets: s.a.clientForgets}
		for i, m := range out.want {
			packed, err := d.compress([]byte(m.payload))
			if err != nil {
				return
			}
			n := fragment
			if n == 0 {
				n = len(packed)
			}
			frames := fragments(opcode, string(packed), n)
			frames[0].rsv = 4
			s.send(send(frames...))
			s.wait(i+1, caseTime)
		}
	}
	return out
}
