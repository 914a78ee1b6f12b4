// Package scenario defines the measurements: the scenarios with their cases, the participating programs, and their
// order.
package scenario

import (
	"fmt"
	"time"

	"boxgate/bench/load"
	"boxgate/bench/peer"
)

// Form is the size of a run.
type Form struct {
	Name         string
	Rounds       int
	Warm, Window time.Duration
	Names        int64         // fresh names per measurement
	Idle         int           // idle connections
	Rest         time.Duration // wait before memory is read
	MemoryRounds int
	Boxes        int // attached boxes where their number matters
	Few          int // attached boxes where there should be few
	Puts         int // policies replaced per measurement
	Cut          int // open connections that a policy change cuts
	Visitors     int // open connections to a public URL from one address
	Creates      int // boxes created per measurement
	Limit        time.Duration
}

// The forms. Tiny is for testing the bench itself.
var (
	Tiny  = Form{"tiny", 2, 50 * time.Millisecond, 150 * time.Millisecond, 20, 40, 200 * time.Millisecond, 1, 8, 4, 3, 20, 20, 1, 10 * time.Minute}
	Short = Form{"short", 5, 300 * time.Millisecond, 500 * time.Millisecond, 200, 5000, 2 * time.Second, 1, 100, 10, 20, 200, 200, 1, 15 * time.Minute}
	Long  = Form{"long", 6, 500 * time.Millisecond, 2 * time.Second, 1000, 5000, 5 * time.Second, 2, 1000, 10, 100, 1000, 1000, 3, 90 * time.Minute}
)

// Scenario is a kind of work with its cases.
type Scenario struct {
	ID, Title string
	Cost      string // unit of the costs
	Note      string
	Cases     []Case
	Targets   []Goal
}

// Measure selects the figure of a measurement that a goal refers to.
type Measure string

// The measures.
const (
	Cost  Measure = ""     // upper bound of the median of the rounds, or of their ratios
	Worst Measure = "most" // upper bound of the highest cost of any round
	P99   Measure = "p99"  // upper bound
	Rate  Measure = "rate" // lower bound
)

// Goal bounds the ratio of a figure of boxgate to that of a peer or of another case. Without either it bounds the
// figure itself.
type Goal struct {
	Case, Peer, Than string // an empty case is every case
	Of               Measure
	Bound            float64
}

// atMost returns a goal for a cost.
func atMost(name, peer string, most float64) Goal { return Goal{Case: name, Peer: peer, Bound: most} }

// Case is one measurement.
type Case struct {
	Name    string
	Cost    string  // unit, if it differs from the scenario's
	Rate    string  // unit of the rate, if it is not units per second
	X       float64 // position on a plot; 0: not plotted
	Role    peer.Role
	Only    []string // the capable programs besides boxgate; nil: all with the role
	Boxes   int      // minimum number of boxes attached to boxgate; 0: any
	Coarse  bool     // the cost is too coarse, or has too little of boxgate's own, to compare two builds
	Restart bool     // each program is measured right after its start, separately
	Set     func(*load.Options, int)
	Own     func(Turn) ([]Sample, error) // instead of a load, for boxgate only
}

// Sample is the result of one program in one round.
type Sample struct {
	Scenario, Case, Program string
	Start                   int `json:",omitempty"` // number of the start of the programs, from 0
	Round                   int
	Cost                    float64 // CPU time or memory, in the scenario's unit
	Rate                    float64 // units per second; for bytes, millions per second
	P50, P99                float64 // µs
	Client                  float64 // CPU of the generator per unit, µs
	Conns                   float64 `json:",omitempty"` // number of connections at which memory was read
	Error                   string  `json:",omitempty"` // the reason why the sample does not count
}

const (
	perRequest = "µs of CPU a request"
	perConn    = "µs of CPU a connection"
	perByte    = "s of CPU a GB"
	perQuery   = "µs of CPU a query"
	memoryConn = "KB a connection"
	perPut     = "ms of CPU a PUT"
	perStart   = "ms of CPU a start"
	perMessage = "µs of CPU a message"
	perPacket  = "µs of softirq a packet"
	untilCut   = "ms until the last is cut"
	perCreate  = "ms until a command has run"
	perStep    = "ms a step"
	perCall    = "ns a call"
	perAlloc   = "allocations a call"
	perSecond  = "ms of CPU a second"
	timesHop   = "times a bare hop"
	megabytes  = "MB a second"
)

// All returns the scenarios in order of importance.
func All(f Form) []Scenario {
	all := []Scenario{
		intercept(f), interceptHTTP2(f), newConnections(f), splice(f), names6(f), publicURL(f), memory(f), bulk(f),
		router(f, "S8", f.Few, 0.97), steering(f), cuts(f), decide(), observations(), through(), start(f), policyPut(f), boxes(f), // S9 leaves policies of many rules, which slow down a start
	}
	if f.Name == Short.Name { // its many boxes are too few to differ from S8
		return all
	}
	return append(all, router(f, "S8b", f.Boxes, 0.95))
}

// window returns the options of a case that is measured for a fixed time.
func window(f Form, kind load.Kind, conns, streams int) func(*load.Options, int) {
	return func(o *load.Options, _ int) {
		o.Kind, o.Conns, o.Streams, o.Warm, o.Window = kind, conns, streams, f.Warm, f.Window
	}
}

func connections(n int) string {
	if n == 1 {
		return "1 connection"
	}
	return fmt.Sprintf("%d connections", n)
}

func intercept(f Form) Scenario {
	s := Scenario{
		ID: "S1", Title: "Intercepted requests, HTTP/1.1 kept alive", Cost: perRequest,
		Note: "A client speaks HTTPS to a server and gets 1 KiB of answer; the program in between ends its TLS, verifies the server, sets one header, and keeps its own connection to the server. The certificates of HAProxy, nginx, net/http and minimal Go are fixed; the others make one for the name. mitmproxy cannot be told to use AES-128, and uses AES-256.",
	}
	for _, n := range []int{32, 256} {
		at := connections(n)
		s.Targets = append(s.Targets, atMost(at, "HAProxy", 1), Goal{Case: at, Peer: "HAProxy", Of: P99, Bound: 1},
			atMost(at, "goproxy", 0.4), atMost(at, "squid", 0.3), atMost(at, "mitmproxy", 0.02))
	}
	for _, n := range []int{1, 32, 256} {
		s.Cases = append(s.Cases, Case{Name: connections(n), X: float64(n), Role: peer.Intercept, Set: window(f, load.KeepAlive, n, 0)})
	}
	return s
}

func interceptHTTP2(f Form) Scenario {
	return Scenario{
		ID: "S1b", Title: "Intercepted requests, HTTP/2 on both sides", Cost: perRequest,
		Note: "The same, with many requests at a time over one connection: 4 connections with 32 streams each. gRPC unary: calls with a message of 100 bytes that comes back. nginx speaks HTTP/2 to servers for gRPC only.",
		Cases: []Case{
			{Name: "requests", Role: peer.InterceptH2, Set: window(f, load.HTTP2, 4, 32)},
			{Name: "first second", Role: peer.InterceptH2, Set: func(o *load.Options, _ int) {
				o.Kind, o.Conns, o.Streams, o.Window = load.HTTP2, 4, 32, time.Second
			}},
			{Name: "gRPC unary", Role: peer.GRPC, Set: window(f, load.GRPC, 4, 32)},
		},
		Targets: []Goal{atMost("", "HAProxy", 1.2), atMost("", "net/http", 0.3)},
	}
}

func newConnections(f Form) Scenario {
	return Scenario{
		ID: "S2", Title: "New intercepted connections", Cost: perConn,
		Note: "A TLS connection for each request, 8 at a time. Fresh names: each connection is to a host never seen before, so that a certificate is made for it; only programs that make certificates take part. boxgate has been asked for the addresses of these names beforehand, as by any client.",
		Cases: []Case{
			{Name: "full handshake", Role: peer.Intercept, Set: window(f, load.Fresh, 8, 0)},
			{Name: "resumed", Role: peer.Intercept, Only: []string{peer.Anchor, "HAProxy", "nginx", "net/http", "squid", Direct}, Set: resumed(f)},
			{Name: "fresh names", Role: peer.Intercept, Only: []string{"goproxy"}, Set: freshNames(f)},
		},
		Targets: []Goal{atMost("full handshake", "HAProxy", 0.8), atMost("resumed", "HAProxy", 0.8), atMost("full handshake", "goproxy", 0.85), atMost("fresh names", "goproxy", 0.85), {Case: "fresh names", Than: "full handshake", Bound: 1.3}},
	}
}

func resumed(f Form) func(*load.Options, int) {
	return func(o *load.Options, round int) {
		window(f, load.Fresh, 8, 0)(o, round)
		o.Resume = true
	}
}

func freshNames(f Form) func(*load.Options, int) {
	return func(o *load.Options, round int) {
		o.Kind, o.Conns, o.Count = load.Fresh, 8, f.Names
		o.Name, o.Names, o.First = "n%07d.fresh.bench.test", f.Names, int64(round)*f.Names
	}
}

func splice(f Form) Scenario {
	return Scenario{
		ID: "S4", Title: "Connections passed on by server name", Cost: perConn,
		Note: "The program reads the server's name from the first message of TLS, decides, and then copies both ways without decrypting anything. New: a ClientHello, 1 KiB of answer without TLS, 16 at a time. Bulk: 64 MiB over TLS, 2 at a time.",
		Cases: []Case{
			{Name: "new", Role: peer.Splice, Only: []string{"HAProxy", "nginx", Direct}, Set: window(f, load.Tunnel, 16, 0)},
			{Name: "bulk", Cost: perByte, Rate: megabytes, Role: peer.SpliceBulk, Only: []string{"HAProxy", "nginx", Direct}, Set: download(f)},
		},
		Targets: []Goal{atMost("", "HAProxy", 1), atMost("", "nginx", 1)},
	}
}

func download(f Form) func(*load.Options, int) {
	return func(o *load.Options, round int) {
		window(f, load.Download, 2, 0)(o, round)
		o.Size = 64 << 20
	}
}

func names6(f Form) Scenario {
	cached := func(name string, names int64, refused bool) func(*load.Options, int) {
		return func(o *load.Options, round int) {
			window(f, load.DNS, 8, 12)(o, round)
			o.Name, o.Names, o.Refused = name, names, refused
		}
	}
	forwarded := func(o *load.Options, round int) {
		cached("f%09d.bench.test", 1<<40, false)(o, round)
		o.First = int64(round) * 100_000_000
	}
	return Scenario{
		ID: "S6", Title: "Name resolution over UDP", Cost: perQuery,
		Note: "The program answers the box's DNS queries. Cached: answers that it has had before, to 1,000 names; 8 sockets with 12 queries each. Refused: names that may not be asked for, which boxgate answers with the address of its sink and the others deny. Forwarded: every name is new.",
		Cases: []Case{
			{Name: "cached", Role: peer.Resolve, Set: cached("n%04d.bench.test", 1000, false)},
			{Name: "refused", Role: peer.Resolve, Set: cached("n%04d.denied.test", 1000, true)},
			{Name: "forwarded", Role: peer.Resolve, Set: forwarded},
		},
		Targets: []Goal{
			atMost("cached", "unbound", 1.2), atMost("refused", "unbound", 1.2), atMost("cached", "CoreDNS", 0.4), atMost("refused", "CoreDNS", 0.4),
			atMost("forwarded", "dnsmasq", 0.5),
		},
	}
}

func publicURL(f Form) Scenario {
	s := Scenario{
		ID: "S7", Title: "Public URLs with a bearer token", Cost: perRequest,
		Note: "The other direction: a server inside the box is published under a URL. TLS in front, a bearer check, a plain HTTP/1.1 server behind, which for boxgate is inside the box. " +
			"HTTP/2: that of the client, 4 connections with 32 streams. WebSocket messages: 100 bytes that come back, over 32 connections.",
		Targets: []Goal{atMost(connections(32), "Caddy", 0.7), atMost(connections(256), "Caddy", 0.7), atMost(connections(32), "HAProxy", 1.3), atMost(connections(256), "HAProxy", 1.3)},
	}
	for _, n := range []int{1, 32, 256} {
		s.Cases = append(s.Cases, Case{Name: connections(n), X: float64(n), Role: peer.Public, Set: window(f, load.KeepAlive, n, 0)})
	}
	s.Cases = append(s.Cases,
		Case{Name: "new connections", Cost: perConn, Role: peer.Public, Set: window(f, load.Fresh, 8, 0)},
		Case{Name: "HTTP/2", Role: peer.PublicH2, Set: window(f, load.HTTP2, 4, 32)},
		Case{Name: "WebSocket messages", Cost: perMessage, Role: peer.WebSocket, Set: window(f, load.WebSocket, 32, 0)})
	s.Targets = append(s.Targets, atMost("WebSocket messages", "HAProxy", 0.8))
	return s
}

func memory(f Form) Scenario {
	idle := func(o *load.Options, _ int) {
		o.Kind, o.Window, o.Steps = load.Idle, f.Rest, []int{f.Idle / 4, f.Idle}
		if o.Path == "/open/64m" {
			o.Path = "/open/1k"
		}
	}
	return Scenario{
		ID: "S5", Title: "Memory of idle connections", Cost: memoryConn,
		Note: fmt.Sprintf("%d connections, each after one request, both sides kept open; the growth of the whole process since its start, once it has rested for %v. Every program is started afresh.", f.Idle, f.Rest),
		Cases: []Case{
			{Name: "intercepted", Role: peer.Intercept, Only: []string{"HAProxy", "nginx", "net/http", "goproxy"}, Restart: true, Set: idle},
			{Name: "passed on", Role: peer.SpliceBulk, Only: []string{"HAProxy", "nginx"}, Restart: true, Set: idle},
		},
		Targets: []Goal{atMost("intercepted", "", 16), atMost("passed on", "", 6)},
	}
}

func bulk(f Form) Scenario {
	upload := func(o *load.Options, round int) {
		window(f, load.Upload, 2, 0)(o, round)
		o.Size = 64 << 20
	}
	down := func(o *load.Options, round int) {
		download(f)(o, round)
		o.Path = "/64m"
	}
	return Scenario{
		ID: "S3", Title: "Large intercepted bodies", Cost: perByte, Note: "As S1, with bodies of 64 MiB, 2 at a time: what decrypting, copying and encrypting costs.",
		Cases: []Case{
			{Name: "down", Rate: megabytes, Role: peer.Intercept, Only: []string{"HAProxy", "nginx", "net/http", "goproxy", Direct}, Set: down},
			{Name: "up", Rate: megabytes, Role: peer.Upload, Set: upload},
		},
		Targets: []Goal{atMost("", "HAProxy", 1)},
	}
}
