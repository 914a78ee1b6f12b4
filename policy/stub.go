package policy

import (
	"errors"
	"net/netip"
)

var errClosed = errors.New("refused")

// ParseName canonicalises a host name.
func ParseName(s string) (Name, error) { return Name{}, errClosed }

// ParsePattern reads a host pattern.
func ParsePattern(s string) (Pattern, error) { return Pattern{}, errClosed }

// Match reports whether the pattern covers the name and port.
func (p Pattern) Match(n Name, port uint16) bool { return false }

// String returns the pattern in canonical form.
func (p Pattern) String() string { return "" }

// Name returns the name of the pattern.
func (p Pattern) Name() Name { return p.name }

// Port returns the port, 0 if none is given.
func (p Pattern) Port() uint16 { return p.port }

// IsWildcard reports whether the pattern is "*" or "*.name".
func (p Pattern) IsWildcard() bool { return p.wild }

// ParseSpec reads a policy strictly.
func ParseSpec(data []byte) (Spec, error) { return Spec{}, &InvalidError{} }

// ParseVercel reads a policy in the dialect of Vercel Sandbox.
func ParseVercel(data []byte) (Spec, map[string]map[string]string, error) {
	return Spec{}, nil, &InvalidError{}
}

// ParseHeaders reads header rules.
func ParseHeaders(m map[string]map[string]string) ([]HeaderRule, error) {
	return nil, &InvalidError{}
}

// MergeHeaders merges the rules of a box over the global ones.
func MergeHeaders(global, box []HeaderRule) []HeaderRule { return nil }

// Protected is the set of addresses that no policy can open.
type Protected struct{}

// NewProtected makes a set.
func NewProtected(exempt, own []netip.Prefix) *Protected { return nil }

// Contains reports whether a is protected.
func (p *Protected) Contains(a netip.Addr) (rule string, protected bool) { return "", true }

// Compiled is a policy in force.
type Compiled struct {
	spec    Spec
	version uint64
}

// Compile compiles.
func Compile(spec Spec, headers []HeaderRule, protected *Protected, version uint64) (*Compiled, error) {
	return &Compiled{spec: spec, version: version}, nil
}

// Decide decides.
func (c *Compiled) Decide(r Request) Decision { return Decision{Reason: ReasonNoPolicy} }

// Version returns the version.
func (c *Compiled) Version() uint64 { return c.version }

// Spec returns the policy as written.
func (c *Compiled) Spec() Spec { return c.spec }

// Headers returns the rule of the most specific pattern.
func (c *Compiled) Headers(n Name, port uint16) (HeaderRule, bool) { return HeaderRule{}, false }

// Intercepts reports whether a header or request rule covers host and port.
func (c *Compiled) Intercepts(n Name, port uint16) bool { return false }

// ResolvesOthers reports whether dns: resolve is in force.
func (c *Compiled) ResolvesOthers() bool { return false }

// Kernel returns what nftables enforces by itself.
func (c *Compiled) Kernel() KernelPlan { return KernelPlan{} }

// Warnings returns what is allowed but useless.
func (c *Compiled) Warnings() []Problem { return nil }

// PortSet is a set of TCP ports.
type PortSet struct {
	All   bool
	Ports []uint16 // sorted, no duplicates
}

// KernelPlan is what the kernel enforces by itself.
type KernelPlan struct {
	Version      uint64
	DefaultAllow bool
	Allowed      []netip.Prefix
	Denied       []netip.Prefix
	Protected    []netip.Prefix
	SteerAllowed PortSet
	SteerOther   PortSet
	RejectQUIC   bool
}
