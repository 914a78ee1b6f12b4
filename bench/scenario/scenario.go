// Package scenario says what is measured: the scenarios with their cases, the programs that take part, and how they take
// turns.
package scenario

import (
	"fmt"
	"time"

	"boxgate/bench/load"
	"boxgate/bench/peer"
)

// Form is how much is measured.
type Form struct {
	Name         string
	Rounds       int
	Warm, Window time.Duration
	Names        int64         // fresh names of one measurement
	Idle         int           // idle connections
	Rest         time.Duration // before memory is read
	MemoryRounds int
	Boxes        int // attached, where their number matters
	Puts         int // policies put in one measurement
	Limit        time.Duration
}

// The forms. Tiny is for trying the bench itself.
var (
	Tiny  = Form{"tiny", 2, 50 * time.Millisecond, 150 * time.Millisecond, 20, 40, 200 * time.Millisecond, 1, 4, 3, 10 * time.Minute}
	Short = Form{"short", 5, 150 * time.Millisecond, 300 * time.Millisecond, 200, 600, time.Second, 1, 50, 20, 10 * time.Minute}
	Long  = Form{"long", 6, 700 * time.Millisecond, 3 * time.Second, 1000, 5000, 5 * time.Second, 2, 1000, 100, 75 * time.Minute}
)

// Scenario is a kind of work with its cases.
type Scenario struct {
	ID, Title string
	Cost      string // the unit of the costs
	Note      string
	Cases     []Case
	Targets   []Goal
}

// Goal is the ratio of boxgate's cost to a peer's that is aimed at or, without a peer, the cost itself.
type Goal struct {
	Case, Peer string // an empty case is every case
	Most       float64
}

// Case is one measurement.
type Case struct {
	Name    string
	Cost    string  // the unit, if it is not that of the scenario
	X       float64 // where it is on a plot; 0: not plotted
	Role    peer.Role
	Only    []string // the programs that can do it, but for boxgate; nil: all that play the role
	Restart bool     // each program is measured right after its start, by itself
	Set     func(*load.Options, int)
	Own     func(Turn) ([]Sample, error) // in the place of a load: boxgate only
}

// Sample is the result of one program in one round.
type Sample struct {
	Scenario, Case, Program string
	Round                   int
	Cost                    float64 // CPU time or memory, in the scenario's unit
	Rate                    float64 // units per second; of bytes, millions
	P50, P99                float64 // µs
	Client                  float64 // CPU of the generator per unit, µs
	Conns                   float64 `json:",omitempty"` // where memory was read
	Error                   string  `json:",omitempty"` // why it does not count
}

const (
	perRequest = "µs of CPU a request"
	perConn    = "µs of CPU a connection"
	perByte    = "s of CPU a GB"
	perQuery   = "µs of CPU a query"
	memoryConn = "KB a connection"
	perPut     = "ms of CPU a PUT"
	perStart   = "ms of CPU a start"
)

// All returns the scenarios in the order of their worth.
func All(f Form) []Scenario {
	return []Scenario{
		intercept(f), interceptHTTP2(f), newConnections(f), splice(f), names6(f), publicURL(f), memory(f), bulk(f), policyPut(f), start(f),
	}
}

// window returns the options of a case that is measured for a time.
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
		Note: "Intercept, verify the upstream, set one header, 1 KiB of answer; the upstream is kept alive. The certificates of HAProxy, nginx and net/http are fixed; the others make one for the name. mitmproxy cannot be told to use AES-128, and uses AES-256.",
		Targets: []Goal{
			{connections(32), "HAProxy", 1}, {connections(256), "HAProxy", 1},
			{connections(32), "goproxy", 0.4}, {connections(256), "goproxy", 0.4}, {connections(32), "mitmproxy", 0.02}, {connections(256), "mitmproxy", 0.02},
		},
	}
	for _, n := range []int{1, 32, 256} {
		s.Cases = append(s.Cases, Case{Name: connections(n), X: float64(n), Role: peer.Intercept, Set: window(f, load.KeepAlive, n, 0)})
	}
	return s
}

func interceptHTTP2(f Form) Scenario {
	return Scenario{
		ID: "S1b", Title: "Intercepted requests, HTTP/2 on both sides", Cost: perRequest,
		Note: "4 connections with 32 streams each. nginx speaks HTTP/2 to servers for gRPC only.",
		Cases: []Case{
			{Name: "requests", Role: peer.InterceptH2, Set: window(f, load.HTTP2, 4, 32)},
			{Name: "gRPC unary", Role: peer.GRPC, Set: window(f, load.GRPC, 4, 32)},
		},
		Targets: []Goal{{"", "HAProxy", 1.2}, {"", "net/http", 0.3}},
	}
}

func newConnections(f Form) Scenario {
	return Scenario{
		ID: "S2", Title: "New intercepted connections", Cost: perConn,
		Note: "A TLS connection for each request, 8 at a time. Fresh names: each connection is to a host never seen before, so that a certificate is made for it; only programs that make certificates take part. boxgate has been asked for the addresses of these names beforehand, as by any client.",
		Cases: []Case{
			{Name: "full handshake", Role: peer.Intercept, Set: window(f, load.Fresh, 8, 0)},
			{Name: "resumed", Role: peer.Intercept, Only: []string{"HAProxy", "nginx", "net/http", Direct}, Set: resumed(f)},
			{Name: "fresh names", Role: peer.Intercept, Only: []string{"goproxy"}, Set: freshNames(f)},
		},
		Targets: []Goal{{"full handshake", "HAProxy", 0.8}, {"resumed", "HAProxy", 0.8}, {"full handshake", "goproxy", 0.85}, {"fresh names", "goproxy", 0.85}},
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
		Note: "New: a ClientHello, 1 KiB of answer without TLS, 16 at a time. Bulk: 64 MiB over TLS, 2 at a time.",
		Cases: []Case{
			{Name: "new", Role: peer.Splice, Set: window(f, load.Tunnel, 16, 0)},
			{Name: "bulk", Cost: perByte, Role: peer.SpliceBulk, Set: download(f)},
		},
		Targets: []Goal{{"", "HAProxy", 1}, {"", "nginx", 1}},
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
		Note: "1,000 names; 8 sockets with 12 queries each. Refused: names that may not be asked for, which boxgate answers with the address of its sink and the others deny. Forwarded: every name is new.",
		Cases: []Case{
			{Name: "cached", Role: peer.Resolve, Set: cached("n%04d.bench.test", 1000, false)},
			{Name: "refused", Role: peer.Resolve, Set: cached("n%04d.denied.test", 1000, true)},
			{Name: "forwarded", Role: peer.Resolve, Set: forwarded},
		},
		Targets: []Goal{
			{"cached", "unbound", 1.2}, {"refused", "unbound", 1.2}, {"cached", "CoreDNS", 0.4}, {"refused", "CoreDNS", 0.4}, {"forwarded", "dnsmasq", 0.5},
		},
	}
}

func publicURL(f Form) Scenario {
	s := Scenario{
		ID: "S7", Title: "Public URLs with a bearer token", Cost: perRequest,
		Note:    "TLS in front, a bearer check, a plain HTTP/1.1 server behind, which for boxgate is inside the box.",
		Targets: []Goal{{connections(32), "Caddy", 0.7}, {connections(256), "Caddy", 0.7}, {connections(32), "HAProxy", 1.3}, {connections(256), "HAProxy", 1.3}},
	}
	for _, n := range []int{1, 32, 256} {
		s.Cases = append(s.Cases, Case{Name: connections(n), X: float64(n), Role: peer.Public, Set: window(f, load.KeepAlive, n, 0)})
	}
	s.Cases = append(s.Cases, Case{Name: "new connections", Role: peer.Public, Set: window(f, load.Fresh, 8, 0)})
	return s
}

func memory(f Form) Scenario {
	idle := func(o *load.Options, _ int) {
		o.Kind, o.Window, o.Steps = load.Idle, f.Rest, []int{f.Idle / 4, f.Idle / 2, f.Idle}
		if o.Path == "/open/64m" {
			o.Path = "/open/1k"
		}
	}
	return Scenario{
		ID: "S5", Title: "Memory of idle connections", Cost: memoryConn,
		Note: fmt.Sprintf("%d connections, each after one request, both sides kept open; the growth of the whole process since its start. Every program is started afresh.", f.Idle),
		Cases: []Case{
			{Name: "intercepted", Role: peer.Intercept, Only: []string{"HAProxy", "nginx", "net/http", "goproxy"}, Restart: true, Set: idle},
			{Name: "passed on", Role: peer.SpliceBulk, Only: []string{"HAProxy", "nginx"}, Restart: true, Set: idle},
		},
		Targets: []Goal{{"intercepted", "", 16}, {"passed on", "", 6}},
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
		ID: "S3", Title: "Large intercepted bodies", Cost: perByte, Note: "64 MiB a body, 2 at a time.",
		Cases: []Case{
			{Name: "down", Role: peer.Intercept, Only: []string{"HAProxy", "nginx", "net/http", "goproxy", Direct}, Set: down},
			{Name: "up", Role: peer.Upload, Set: upload},
		},
		Targets: []Goal{{"", "HAProxy", 1}},
	}
}

func policyPut(f Form) Scenario {
	s := Scenario{
		ID: "S9", Title: "Policy updates", Cost: perPut,
		Note: fmt.Sprintf("PUT of a policy until it is in force, with %d boxes attached.", f.Boxes),
	}
	for _, rules := range []int{10, 100, 1000} {
		s.Cases = append(s.Cases, Case{Name: fmt.Sprintf("%d rules", rules), Own: put(f, rules)})
	}
	return s
}

func start(f Form) Scenario {
	return Scenario{
		ID: "S12", Title: "Start", Cost: perStart,
		Note:  fmt.Sprintf("From the start of the process until it is ready, with %d boxes attached.", f.Boxes),
		Cases: []Case{{Name: fmt.Sprintf("%d boxes", f.Boxes), Own: restart(f)}},
	}
}
