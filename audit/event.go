package audit

import (
	"net/netip"
	"time"

	"boxgate/policy"
)

// Action says what was done with the traffic that was decided.
type Action string

// The actions.
const (
	ActionKernel    Action = "kernel"    // forwarded or refused by nftables
	ActionSplice    Action = "splice"    // bytes passed unread
	ActionIntercept Action = "intercept" // TLS terminated, requests handled one by one
	ActionForward   Action = "forward"   // plain HTTP handled request by request; a DNS query answered; a public URL served
	ActionSink      Action = "sink"      // a DNS name answered with the sink
	ActionRefuse    Action = "refuse"    // alert, status, reset or drop
)

// Recorder takes the events. Record never blocks and is safe for concurrent use; [Log] is the one that counts.
type Recorder interface {
	Record(Event)
}

// Event is one decision, or where its traffic goes on for a while the beginning or the end of one: see [Phase]. The same value feeds the log, the stream, the API and the metrics. Text that a box supplied is
// escaped by [Log.Record] and [Line], not by whoever fills the event.
type Event struct {
	// Seq numbers the events that were told, from 1 on, since this [Log] was made.
	Seq      uint64          `json:"seq,omitempty"`
	Time     time.Time       `json:"time"`
	Box      policy.BoxID    `json:"box,omitempty"`
	Stage    policy.Stage    `json:"stage"`
	Protocol policy.Protocol `json:"protocol,omitempty"`
	Name     string          `json:"name,omitempty"`        // SNI, Host or query name in canonical form, else as the box sent it
	Addr     netip.Addr      `json:"addr,omitzero"`         // what was dialled; of what was not, where the box was going
	Claimed  netip.Addr      `json:"claimed_addr,omitzero"` // where the box was going, if another address was dialled
	Port     uint16          `json:"port,omitempty"`
	Peer     netip.Addr      `json:"peer,omitzero"` // who it was, where that is a stranger at a public URL who has asked for nothing yet
	Method   string          `json:"method,omitempty"`
	Path     string          `json:"path,omitempty"` // without the query
	Verdict  policy.Verdict  `json:"verdict"`
	Action   Action          `json:"action,omitempty"`
	Reason   policy.Reason   `json:"reason"`
	Rule     string          `json:"rule,omitempty"`
	Version  uint64          `json:"policy_version,omitempty"`
	Headers  []string        `json:"headers,omitempty"`   // names of the headers set, never values
	BytesIn  int64           `json:"bytes_in,omitempty"`  // towards the box
	BytesOut int64           `json:"bytes_out,omitempty"` // from the box
	Duration time.Duration   `json:"duration_ns,omitempty"`
	Status   int             `json:"status,omitempty"` // HTTP status given to the client
	Count    uint64          `json:"count,omitempty"`  // decisions this one stands for, when more than one
	// Destinations is about how many different destinations an event leaves unnamed that stands for flows to many.
	Destinations uint64 `json:"destinations,omitempty"`
	Phase        Phase  `json:"phase,omitempty"` // empty: the whole of it
	Conn         string `json:"conn,omitempty"`  // what the open and the end of one decision have in common
	Error        string `json:"error,omitempty"`
	SelfTest     bool   `json:"selftest,omitempty"` // caused by `gateway box selftest`; set by [Log.Record] alone
	// Answered says of a TCP connection of the kernel that the other side has completed the handshake. It is not told; such
	// connections come before others where not all can be.
	Answered bool `json:"-"`
}
