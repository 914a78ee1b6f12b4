package websocket

import (
	"slices"
	"strconv"
	"strings"
	"time"
)

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
