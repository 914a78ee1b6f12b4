// Package probe is the process that asks a server for a diagnosis. It runs in the network namespace of the way that it tries,
// without privileges, and holds no secrets. Its report comes from the server: it is bounded here, and escaped by package doctor.
package probe

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/doctor/cause"
)

// Plan is the order for one process.
type Plan struct {
	Host string `json:"host"`
	Port uint16 `json:"port"`
	Path string `json:"path"`
	// Addrs are the addresses to connect to. If the list is empty, DNS is asked for the addresses of Host.
	Addrs []netip.Addr   `json:"addrs,omitempty"`
	DNS   netip.AddrPort `json:"dns,omitzero"`
	// Roots are trusted, in PEM; System adds those of the host.
	Roots  []byte `json:"roots"`
	System bool   `json:"system"`
	// Plain skips TLS.
	Plain bool `json:"plain,omitempty"`
	// Idle is how long an idle connection is watched; 0: not at all.
	Idle time.Duration `json:"idle"`
}

// Attempt is a connection to one address.
type Attempt struct {
	Addr  netip.Addr `json:"addr"`
	Error string     `json:"error,omitempty"`
}

// Client is the view of one client.
type Client struct {
	Name    string `json:"name"`
	Error   string `json:"error,omitempty"` // of the connection, the handshake or the response; "": there was a whole response
	Version string `json:"version,omitempty"`
	Suite   string `json:"suite,omitempty"`
	Group   string `json:"group,omitempty"`
	ALPN    string `json:"alpn,omitempty"`
	Proto   string `json:"proto,omitempty"`
	Status  int    `json:"status,omitempty"`
	// Framing is how the end of the content is found: length, chunked or close; HTTP/2 has its own.
	Framing string            `json:"framing,omitempty"`
	Fields  map[string]string `json:"fields,omitempty"`  // of [comparedFields]
	Bytes   int               `json:"bytes"`             // of the content, at most [maxContent]
	Digest  string            `json:"digest,omitempty"`  // SHA-256 of it
	Refusal string            `json:"refusal,omitempty"` // of the gateway instead of a response
}

// The names of clients.
const (
	Strict  = "strict"  // net/http and crypto/tls, HTTP/2 if the server has it
	Lenient = "lenient" // accepts old TLS, any certificate and malformed responses, HTTP/1.1
)

// Report is the complete output of a process.
type Report struct {
	Lookup   string     `json:"lookup,omitempty"` // error of the look-up
	Attempts []Attempt  `json:"attempts"`
	Causes   []cause.ID `json:"causes"`
	Offer    string     `json:"offer,omitempty"`   // parameters of TLS that no connection could use
	Subject  string     `json:"subject,omitempty"` // common name of the certificate, with that of its issuer
	Clients  []Client   `json:"clients"`
	Plain    string     `json:"plain,omitempty"` // first bytes of a server without TLS
	// Idle is how a connection ended after its response: kept, closed after some time, or closed with it; "" if it was not watched.
	Idle string `json:"idle,omitempty"`
}

const (
	maxPlan    = 2 << 20
	maxRead    = 1 << 20   // bytes of one response
	maxContent = 256 << 10 // bytes that are compared
	maxText    = 400       // bytes of one text
)

// Serve is the probing process: it reads a plan from in, and writes a report to out.
func Serve(in io.Reader, out io.Writer) error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("giving up privileges: %w", err)
	}
	var p Plan
	if err := json.NewDecoder(io.LimitReader(in, maxPlan)).Decode(&p); err != nil {
		return fmt.Errorf("cannot parse the plan: %w", err)
	}
	report, err := Run(p)
	return errors.Join(err, json.NewEncoder(out).Encode(report))
}

// clip bounds a text.
func clip(text string) string { return text[:min(len(text), maxText)] }
