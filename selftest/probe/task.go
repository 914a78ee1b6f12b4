package probe

import (
	"net/netip"
	"time"
)

// Kind is the way a task sends its data.
type Kind string

// The kinds.
const (
	TCP   Kind = "tcp"   // connect, send, read the answer
	UDP   Kind = "udp"   // send, read the answer
	Frame Kind = "frame" // whole packets, written to the link unchanged
)

// Task is one order for the probing process. It contains neither its purpose nor secrets.
type Task struct {
	ID        int            `json:"id"`
	Kind      Kind           `json:"kind"`
	After     time.Duration  `json:"after"` // since the start
	To        netip.AddrPort `json:"to"`
	Data      [][]byte       `json:"data,omitempty"` // written one by one; for frames: the packets
	EtherType uint16         `json:"ether_type,omitempty"`
	Token     []byte         `json:"token,omitempty"` // marks an answer to a frame
}

// Plan is the list of tasks of one process.
type Plan struct {
	Raw   bool   `json:"raw"` // the tasks are frames
	Tasks []Task `json:"tasks"`
}

// Outcome is the result of a task.
type Outcome string

// The outcomes.
const (
	Refused  Outcome = "refused" // a reset, or an ICMP error
	Silent   Outcome = "silent"  // no answer within the time
	Closed   Outcome = "closed"  // connected, then closed or reset without data
	Open     Outcome = "open"    // connected, and silent
	Answered Outcome = "answer"  // received data
	Failed   Outcome = "failed"  // could not be run
)

// Answer is the probing process's report on a task.
type Answer struct {
	ID      int     `json:"id"`
	Outcome Outcome `json:"outcome"`
	Data    []byte  `json:"data,omitempty"` // first bytes received
	Error   string  `json:"error,omitempty"`
}

// Report is the complete output of a probing process.
type Report struct {
	Answers []Answer `json:"answers"`
}

// wait is how long a task waits for each answer.
const wait = 900 * time.Millisecond
