package websocket

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

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
