package audit

import (
	"crypto/rand"
	"net/netip"
	"strings"
	"sync"
	"time"

	"boxgate/policy"
	"boxgate/policy/name"
)

// Action is how the gateway handled the traffic.
type Action string

// The actions.
const (
	ActionKernel    Action = "kernel"    // forwarded or refused by nftables
	ActionSplice    Action = "splice"    // bytes passed without inspection
	ActionIntercept Action = "intercept" // TLS terminated, requests handled one by one
	ActionBroker    Action = "broker"    // the gateway logged in to the server on behalf of the box
	ActionForward   Action = "forward"   // plain HTTP handled request by request; a DNS query answered; a public URL served
	ActionAnswer    Action = "answer"    // a request to a public URL that the gateway itself answered: a redirect, a page, a sign-in
	ActionSink      Action = "sink"      // a DNS name answered with the sink
	ActionRefuse    Action = "refuse"    // alert, status, reset or drop
)

// Recorder records events. Record never blocks and is safe for concurrent use. [Log] is the implementation that counts
// them.
type Recorder interface {
	Record(Event)
}

// NXDomain is the RCode of a name that does not exist.
const NXDomain = "NXDOMAIN"

// Event is one decision, or the beginning or end of one whose traffic lasts, see [Phase]. The same value feeds the log,
// the stream, the API and the metrics. [Log.Record] and [Line] escape text from a box; the code that fills in the event
// does not.
type Event struct {
	// Seq numbers the events that this [Log] emitted, from 1.
	Seq      uint64          `json:"seq,omitempty"`
	Time     time.Time       `json:"time"`
	Box      policy.BoxID    `json:"box,omitempty"`
	BoxName  string          `json:"box_name,omitempty"` // set only by [Log.Record]
	Stage    policy.Stage    `json:"stage"`
	Protocol policy.Protocol `json:"protocol,omitempty"`
	Name     string          `json:"name,omitempty"`        // SNI, Host or query name in canonical form, else as the box sent it
	Addr     netip.Addr      `json:"addr,omitzero"`         // the address dialled, else the box's destination
	Claimed  netip.Addr      `json:"claimed_addr,omitzero"` // the box's destination, if another address was dialled
	Port     uint16          `json:"port,omitempty"`
	Peer     netip.Addr      `json:"peer,omitzero"` // the client of a public URL
	Method   string          `json:"method,omitempty"`
	Path     string          `json:"path,omitempty"` // without the query
	// Messages names the MCP methods and tools, or the GraphQL operations, that the request asks for, or the model of a metered
	// request. It is empty unless a rule depends on them.
	Messages string `json:"messages,omitempty"`
	// Credential is the kind of credential that admitted a request to a public URL; empty if it was not admitted.
	Credential Credential     `json:"credential,omitempty"`
	Verdict    policy.Verdict `json:"verdict"`
	Action     Action         `json:"action,omitempty"`
	RCode      string         `json:"rcode,omitempty"` // of the answer to a DNS query; empty: NOERROR
	Reason     name.Reason    `json:"reason"`
	Rule       string         `json:"rule,omitempty"`
	Version    uint64         `json:"policy_version,omitempty"`
	Headers    []string       `json:"headers,omitempty"` // names of the headers set, never values
	Login      string         `json:"login,omitempty"`   // where the gateway logged in, and as whom
	Via        string         `json:"via,omitempty"`     // URL of the upstream proxy used, without credentials
	Secret     string         `json:"secret,omitempty"`  // name of the secret that it logged in with, or of the client certificate; never the value
	// Secrets names the secrets of the configuration that were used for the traffic: in the request, for its signature, for
	// a client certificate, or for a login at the server or at the upstream proxy. Of an event that denies, they may have been sent
	// before. Never values. Owners do not modify the list after recording.
	Secrets  []string      `json:"secrets,omitempty"`
	BytesIn  int64         `json:"bytes_in,omitempty"`  // towards the box
	BytesOut int64         `json:"bytes_out,omitempty"` // from the box
	Duration time.Duration `json:"duration_ns,omitempty"`
	Status   int           `json:"status,omitempty"` // HTTP status given to the client
	Count    uint64        `json:"count,omitempty"`  // number of decisions in this event, if more than one
	// Destinations is roughly the number of distinct destinations that the event covers without naming them.
	Destinations uint64 `json:"destinations,omitempty"`
	Phase        Phase  `json:"phase,omitempty"` // empty: the whole decision
	Conn         string `json:"conn,omitempty"`  // links the open and end events of one decision
	Error        string `json:"error,omitempty"`
	SelfTest     bool   `json:"selftest,omitempty"` // caused by `gateway box selftest`; set only by [Log.Record]
	// Seen is the rest of what the decision depends on, for [Options.Observe] only: a [Log] removes it from its events.
	Seen Seen `json:"-"`
	// Answered is set if the peer of a TCP connection forwarded by the kernel completed the handshake. It is not
	// logged; such connections take precedence when not all can be logged.
	Answered bool `json:"-"`
}

// Seen is what the proxy knew about a connection or a request, in addition to the other fields of its event. With it the
// same decision can be asked of another policy. The zero value is an unknown decision.
type Seen struct {
	Known   bool           // the other fields are set
	Opening policy.Opening // the first bytes, or the kind of request
	Source  NameSource     // of the name of the event
	Proxied bool           // the box used the explicit proxy
	Query   string         // of the request as sent, which can contain secrets
}

// NameSource tells where a name of an event comes from.
type NameSource uint8

// The sources of names.
const (
	NameNone   NameSource = iota // there is no name, or none that the policy judges
	NameSent                     // SNI, Host or the authority of a request
	NameBound                    // CONNECT
	NameLooked                   // the only name that DNS answered to the box with the address
	NameGuess                    // one of several names that DNS answered with the address
)

// Credential is the kind of credential that admitted a request to a public URL, never the credential itself.
type Credential string

// The kinds of credentials.
const (
	CredentialNone    Credential = "none" // the URL is open to everyone
	CredentialBearer  Credential = "bearer"
	CredentialBasic   Credential = "basic"
	CredentialSession Credential = "session" // a browser that signed in with a credential of the URL
	CredentialAccount Credential = "account" // a browser that signed in with an account of the identity provider
	CredentialLink    Credential = "link"    // a signed URL
)

// Phase is the part of a decision that an event is about, if not the whole.
type Phase string

// The phases. Both events of a decision carry the same Conn.
const (
	// PhaseOpen is a decision whose traffic continues. It counts as the decision.
	PhaseOpen Phase = "open"
	// PhaseEnd is the end of traffic that an open event began, with bytes and duration. It does not count as a
	// decision, unless it denies traffic that was allowed.
	PhaseEnd Phase = "end"
	// PhaseOngoing is a connection that the gateway found in the kernel's table instead of seeing it begin. It does not
	// count as a decision: it was counted when it began, unless the gateway was not running then.
	PhaseOngoing Phase = "ongoing"
)

// openAfter is how long traffic continues before its decision is recorded without waiting for the end. Shorter traffic
// has a single event.
const openAfter = 250 * time.Millisecond

// started is the epoch of Opening.due: reading the time of day in addition would cost twice as much.
var started = time.Now()

// Opening records a decision while its traffic continues, so that it is not lost if the gateway crashes. It can be
// reused for later decisions. The zero value is ready to use. Safe for concurrent use.
type Opening struct {
	mu       sync.Mutex
	recorder Recorder
	event    *Event // as decided; nil: already recorded
	timer    *time.Timer
	armed    bool          // the timer runs, perhaps since an earlier decision: restarting it for each would cost more
	waiting  bool          // for due
	due      time.Duration // when to record the event, since started
	conn     string        // Conn of the open event; empty: not recorded
}

// Begin records a copy of e, an allowing decision, with [PhaseOpen] unless End is called within openAfter. When the
// traffic has ended, the caller calls [Opening.End] and then records e itself.
func (o *Opening) Begin(to Recorder, e *Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.conn != "" {
		return // the same decision, such as after a retry
	}
	if o.event == nil {
		o.event = new(Event)
	}
	*o.event = *e
	o.recorder, o.waiting, o.due = to, true, time.Since(started)+openAfter
	if !o.armed {
		o.armLocked(openAfter)
	}
}

func (o *Opening) armLocked(after time.Duration) {
	o.armed = true
	if o.timer == nil {
		o.timer = time.AfterFunc(after, o.recordOpen)
	} else {
		o.timer.Reset(after)
	}
}

// recordOpen records the waiting decision, or restarts the timer if it was started for an earlier one.
func (o *Opening) recordOpen() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.armed = false
	if !o.waiting {
		return
	}
	if left := o.due - time.Since(started); left > 0 {
		o.armLocked(left)
		return
	}
	o.waiting = false
	o.conn = strings.ToLower(rand.Text()[:12])
	e := *o.event
	e.Phase, e.Conn = PhaseOpen, o.conn
	o.recorder.Record(e)
	o.event, o.timer = nil, nil // free the memory: traffic this old may continue for hours
}

// End prepares the event of traffic that has ended for recording: if the open event was recorded, e becomes the
// [PhaseEnd] of the decision, with the time of the end.
func (o *Opening) End(e *Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.waiting = false
	if o.conn == "" {
		return
	}
	e.Phase, e.Conn, e.Time = PhaseEnd, o.conn, e.Time.Add(e.Duration)
	o.conn = ""
}
