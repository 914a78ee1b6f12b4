package websocket

import (
	"fmt"
	"strconv"
	"time"
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
