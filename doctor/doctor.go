// Package doctor explains why a host works directly, spliced or intercepted, and why not.
//
// [Diagnose] makes the same requests on each way, by processes in the network namespace of each ([boxgate/doctor/probe]), and
// compares their reports. The properties of servers that it knows are in [boxgate/doctor/cause].
package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"boxgate/doctor/cause"
	"boxgate/doctor/probe"
	"boxgate/policy/name"
	selftest "boxgate/selftest/probe"
)

// Box is a box through which a host is asked.
type Box struct {
	NetNS string         // path of its network namespace
	Roots []byte         // trusted there besides the host's roots, in PEM
	DNS   netip.AddrPort // resolver
}

// Config configures [Diagnose]. All fields are required except Idle and Inside.
type Config struct {
	Box     string // name of the box that the diagnosis is for, or its ID
	Host    string
	Port    uint16
	Path    string
	Addrs   []netip.Addr // addresses of the host that the policy allows
	Refused []Refused    // and the refused ones
	Roots   []byte       // trusted besides the host's roots, in PEM
	Idle    time.Duration
	Now     Current
	// Inside asks the host from the box itself, with a program that is there; nil: none.
	Inside    func(ctx context.Context) *Client
	Spliced   Box
	Intercept Box
	// Ease adds options to the rule of the intercepting box.
	Ease func(ctx context.Context, options []cause.Option) error
	// Command starts this program so that it calls [Probe].
	Command []string
}

// Current is how the gateway treats the box's own connections to the host.
type Current struct {
	Verdict     string         `json:"verdict" enum:"allow deny"`
	Reason      string         `json:"reason"`
	Rule        string         `json:"rule,omitempty"`
	Options     []cause.Option `json:"options,omitempty" doc:"of the box's rule for the host, which the intercepted way has too"`
	Intercepted bool           `json:"intercepted" doc:"a header rule or request rule covers the host and port"`
}

// Refused is an address that the gateway does not connect to.
type Refused struct {
	Address netip.Addr `json:"address,omitzero" doc:"absent: the name is not looked up"`
	Reason  string     `json:"reason"`
}

// The names of ways.
const (
	Direct      = "direct"
	Spliced     = "spliced"
	Intercepted = "intercepted"
	Eased       = "with options"
)

// Diagnose asks the host on each way, and compares the results. It takes some seconds. An error means that there is no
// diagnosis; a host that does not work is one.
func Diagnose(ctx context.Context, c Config) (Diagnosis, error) {
	d := Diagnosis{Box: c.Box, Host: c.Host, Port: c.Port, Path: c.Path, Now: c.Now, Refused: c.Refused}
	start := time.Now()
	direct, err := c.run(ctx, Box{Roots: c.Roots}, true, c.Port == name.HTTPPort)
	if err != nil {
		return d, err
	}
	d.plain = slices.Contains(direct.Causes, cause.NoTLS)
	var spliced, intercepted probe.Report
	group, both := errgroup.WithContext(ctx)
	group.Go(func() (err error) { spliced, err = c.run(both, c.Spliced, true, d.plain); return err })
	group.Go(func() (err error) { intercepted, err = c.run(both, c.Intercept, false, d.plain); return err })
	if err := group.Wait(); err != nil {
		return d, err
	}
	if c.Inside != nil {
		if d.Inside = c.Inside(ctx); d.Inside != nil {
			d.Inside.Error, d.Inside.Proto = shown(d.Inside.Error), shown(d.Inside.Proto)
		}
	}
	d.add(Direct, direct)
	d.add(Spliced, spliced)
	d.add(Intercepted, intercepted)
	if options := d.options(direct.Causes); len(options) > 0 && d.fails(Intercepted) && d.way(Direct).Reachable() {
		if err := c.Ease(ctx, options); err != nil {
			return d, err
		}
		eased, err := c.run(ctx, c.Intercept, false, d.plain)
		if err != nil {
			return d, err
		}
		d.Options = options
		d.add(Eased, eased)
	}
	d.conclude(direct)
	d.Millis = time.Since(start).Milliseconds()
	return d, nil
}

// run runs a process on one way. system adds the host's roots.
func (c *Config) run(ctx context.Context, b Box, system, plain bool) (r probe.Report, err error) {
	p := probe.Plan{Host: c.Host, Port: c.Port, Path: c.Path, Roots: b.Roots, System: system, DNS: b.DNS, Idle: c.Idle, Plain: plain}
	if b.NetNS == "" {
		p.Addrs = c.Addrs
	}
	in, err := json.Marshal(p)
	if err != nil {
		return r, err
	}
	// With the variable, a negative serial number is reported instead of an error of the handshake.
	out, err := selftest.Execute(ctx, selftest.Process{NetNS: b.NetNS, Command: c.Command, Env: []string{"GODEBUG=x509negativeserial=1"}, In: in})
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(out, &r); err != nil {
		return r, fmt.Errorf("cannot parse the report of the probing process: %w", err)
	}
	return r, nil
}
