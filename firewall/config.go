package firewall

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"time"

	"github.com/vishvananda/netns"
	"go.uber.org/zap"

	"boxgate/firewall/flow"
	"boxgate/firewall/link"
	"boxgate/firewall/network"
	"boxgate/firewall/nft"
	"boxgate/firewall/report"
	"boxgate/policy"
	"boxgate/policy/name"
)

// Config configures a Firewall: the addresses of boxes and the ports of the gateway. The fields before LogGroup are
// required.
type Config struct {
	PoolV4, PoolV6       netip.Prefix // every box has one address of each
	GatewayV4, GatewayV6 netip.Addr   // the gateway's own addresses inside the pools, put on lo
	SinkV4, SinkV6       netip.Addr   // returned by DNS for names that a box may not reach; inside the pools, on no interface

	// The gateway's listeners must have IP_TRANSPARENT, which distinguishes them from another program's.
	DNSPort      uint16 // UDP and TCP on the gateway addresses; port 53 of any server is redirected here
	ProxyPort    uint16 // transparent TCP listener on 127.0.0.1 and ::1
	ExplicitPort uint16 // explicit HTTP proxy on the gateway addresses

	LogGroup uint16 // NFLOG group for refused packets; 0 means the default

	// FlowLimit is how many connections of one box the kernel forwards concurrently, and separately how many connections it
	// may have to the gateway; 0 means the default, 16384. More are refused with reason limit. The host's connection table
	// (net.netfilter.nf_conntrack_max) must be large enough for all boxes that are busy at the same time.
	FlowLimit uint32

	// OneList makes the kernel count the connections of a box in one list, as without the module nft_numgen. New connections
	// of a box with many live ones then take longer.
	OneList bool

	// SendRate and ReceiveRate are how many bytes per second a box without its own Rates may send and receive, all traffic
	// counted; 0 means no limit. Packets from the box that exceed the rate for longer than a second are dropped. Packets to
	// the box are queued, and dropped when the queue is full.
	SendRate, ReceiveRate uint64

	// Sources are the host's addresses that plans may use as their Source. Packets from a source address that the host has
	// lost are dropped.
	Sources []netip.Addr

	// Explain returns the policy's decision about a refused or forwarded packet, for the rule and reason of the event. It
	// does not affect packets. It may be nil.
	Explain func(policy.Request) policy.Decision
	// Names returns the names that DNS resolved to the address for the box, the latest first. Events about refused packets
	// contain the first one. It may be nil.
	Names func(policy.BoxID, netip.Addr) []name.Name

	// LastRun is the last known time at which an earlier run reported flows. Flows that began before it are not reported
	// again. Zero: there was no earlier run, or the time is unknown.
	LastRun time.Time

	Audit Recorder    // receives refusals and forwarded flows; nil: no events
	Log   *zap.Logger // nil: no log
}

// Types of the parts that are used in the API.
type (
	// Attachment is the network attachment of one box.
	Attachment = link.Attachment
	// Tap is the interface of a virtual machine.
	Tap = link.Tap
	// Rates limit how much one box may send and receive.
	Rates = link.Rates
	// Flow is one connection that the kernel forwards for a box, as seen by the box.
	Flow = flow.Flow
	// Recorder receives events. Record must not block.
	Recorder = report.Recorder
)

const (
	defaultLogGroup  = 4517
	defaultFlowLimit = 16384
)

// complete sets defaults and returns all errors.
func (c *Config) complete() error {
	if c.Log == nil {
		c.Log = zap.NewNop()
	}
	if c.LogGroup == 0 {
		c.LogGroup = defaultLogGroup
	}
	if c.FlowLimit == 0 {
		c.FlowLimit = defaultFlowLimit
	}
	var errs []error
	c.PoolV4, c.PoolV6 = c.PoolV4.Masked(), c.PoolV6.Masked()
	if !c.PoolV4.IsValid() || !c.PoolV4.Addr().Is4() {
		errs = append(errs, errors.New("the IPv4 pool is missing"))
	}
	if !c.PoolV6.IsValid() || !c.PoolV6.Addr().Is6() || c.PoolV6.Addr().Is4In6() {
		errs = append(errs, errors.New("the IPv6 pool is missing"))
	}
	for _, a := range []netip.Addr{c.GatewayV4, c.SinkV4} {
		if !c.PoolV4.Contains(a) {
			errs = append(errs, fmt.Errorf("%v is not in the pool %v", a, c.PoolV4))
		}
	}
	for _, a := range []netip.Addr{c.GatewayV6, c.SinkV6} {
		if !c.PoolV6.Contains(a) {
			errs = append(errs, fmt.Errorf("%v is not in the pool %v", a, c.PoolV6))
		}
	}
	if c.DNSPort == 0 || c.ProxyPort == 0 || c.ExplicitPort == 0 {
		errs = append(errs, errors.New("the ports of DNS, proxy and explicit proxy must be given"))
	}
	return errors.Join(errs...)
}

// addresses returns the addresses that all parts use.
func (c *Config) addresses() network.Addresses {
	return network.Addresses{PoolV4: c.PoolV4, PoolV6: c.PoolV6, GatewayV4: c.GatewayV4, GatewayV6: c.GatewayV6, SinkV4: c.SinkV4,
		SinkV6: c.SinkV6}
}

// table returns the configuration of the table.
func (c *Config) table() nft.Config {
	return nft.Config{Addresses: c.addresses(), DNSPort: c.DNSPort, ProxyPort: c.ProxyPort, ExplicitPort: c.ExplicitPort,
		LogGroup: c.LogGroup, FlowLimit: c.FlowLimit, OneList: c.OneList, SendRate: c.SendRate, Sources: c.Sources, Log: c.Log}
}

// chooseLists makes the kernel count connections in one list if it lacks the module for more.
func (c *Config) chooseLists(ns netns.NsHandle) error {
	has, err := nft.HasNumgen(ns)
	if err == nil && !has && !c.OneList {
		c.OneList = true
		c.Log.Warn("the kernel lacks nft_numgen: new connections of a box with thousands of live ones take longer")
	}
	return err
}

var boxIDForm = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,31}$`)

func (c *Config) checkAttachment(a Attachment) error {
	if !boxIDForm.MatchString(string(a.Box)) {
		return fmt.Errorf("box ID %q: want 1 to 32 lower-case letters, digits or dashes", string(a.Box))
	}
	if a.NetNS == "" {
		return fmt.Errorf("box %s: the path of its network namespace is missing", a.Box)
	}
	if a.Tap != nil {
		if err := link.CheckTapName(a.Tap.Name); err != nil {
			return fmt.Errorf("box %s: tap: %w", a.Box, err)
		}
	}
	for _, p := range []struct {
		addr       netip.Addr
		pool       netip.Prefix
		gate, sink netip.Addr
	}{{a.V4, c.PoolV4, c.GatewayV4, c.SinkV4}, {a.V6, c.PoolV6, c.GatewayV6, c.SinkV6}} {
		if !p.pool.Contains(p.addr) || p.addr == p.gate || p.addr == p.sink {
			return fmt.Errorf("box %s: %v is not a free address of the pool %v", a.Box, p.addr, p.pool)
		}
	}
	return nil
}
