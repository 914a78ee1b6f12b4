package probe

import (
	"net/netip"
	"time"
)

// Kind says how a task is sent.
type Kind string

// The kinds.
const (
	TCP   Kind = "tcp"   // connect, send, read what comes
	UDP   Kind = "udp"   // send, read what comes
	Frame Kind = "frame" // a whole packet, put on the link as it is
)

// Task is what the probing process is told to do. It does not say why, and contains no secrets.
type Task struct {
	ID        int            `json:"id"`
	Kind      Kind           `json:"kind"`
	After     time.Duration  `json:"after"` // since the start
	To        netip.AddrPort `json:"to"`
	Data      [][]byte       `json:"data,omitempty"` // written one by one; for frames: the packets
	EtherType uint16         `json:"ether_type,omitempty"`
	Token     []byte         `json:"token,omitempty"` // what an answer to a frame quotes
}

// Plan is all tasks of one process.
type Plan struct {
	Raw   bool   `json:"raw"` // the tasks are frames
	Tasks []Task `json:"tasks"`
}

// Outcome is what became of a task.
type Outcome string

// The outcomes.
const (
	Refused  Outcome = "refused" // a reset, or an ICMP error
	Silent   Outcome = "silent"  // no answer within the time
	Closed   Outcome = "closed"  // connected, then closed or reset without data
	Open     Outcome = "open"    // connected, and silent
	Answered Outcome = "answer"  // data came
	Failed   Outcome = "failed"  // could not be tried
)

// Answer is what the probing process reports of a task.
type Answer struct {
	ID      int     `json:"id"`
	Outcome Outcome `json:"outcome"`
	Data    []byte  `json:"data,omitempty"` // the first bytes that came
	Error   string  `json:"error,omitempty"`
}

// Report is all a probing process says.
type Report struct {
	Answers []Answer `json:"answers"`
}

// wait is how long a task waits for each answer.
const wait = 900 * time.Millisecond
