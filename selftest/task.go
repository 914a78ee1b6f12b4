package selftest

import (
	"net/netip"
	"time"
)

// kind says how a task is sent.
type kind string

const (
	overTCP kind = "tcp"   // connect, send, read what comes
	overUDP kind = "udp"   // send, read what comes
	asFrame kind = "frame" // a whole packet, put on the link as it is
)

// task is what the probing process is told to do. It says nothing of why, and holds no secret.
type task struct {
	ID        int            `json:"id"`
	Kind      kind           `json:"kind"`
	After     time.Duration  `json:"after"` // since the start
	To        netip.AddrPort `json:"to"`
	Data      [][]byte       `json:"data,omitempty"` // written one by one; for frames: the packets
	EtherType uint16         `json:"ether_type,omitempty"`
	Token     []byte         `json:"token,omitempty"` // what an answer to a frame quotes
}

// plan is all tasks of one process.
type plan struct {
	Raw   bool   `json:"raw"` // the tasks are frames
	Tasks []task `json:"tasks"`
}

// outcome is what became of a task.
type outcome string

const (
	outRefused outcome = "refused" // a reset, or an ICMP error
	outSilent  outcome = "silent"  // no answer within the time
	outClosed  outcome = "closed"  // connected, then closed or reset without a word
	outOpen    outcome = "open"    // connected, and silent
	outAnswer  outcome = "answer"  // data came
	outFailed  outcome = "failed"  // could not be tried
)

// answer is what the probing process reports of a task.
type answer struct {
	ID      int     `json:"id"`
	Outcome outcome `json:"outcome"`
	Data    []byte  `json:"data,omitempty"` // the first bytes that came
	Error   string  `json:"error,omitempty"`
}

// report is all a probing process says.
type report struct {
	Answers []answer `json:"answers"`
}

// wait is how long a task waits for each answer.
const wait = 900 * time.Millisecond
