package selftest

import (
	"net/netip"

	"boxgate/audit"
	"boxgate/policy"
)

// atAddress selects the decisions about an address and, unless it is 0, a port.
func atAddress(to netip.AddrPort) func(audit.Event) bool {
	return func(e audit.Event) bool {
		return e.Addr.Unmap() == to.Addr().Unmap() && (to.Port() == 0 || e.Port == to.Port())
	}
}

// inKernel selects the kernel's decisions about an address and, unless it is 0, a port. The proxy's decisions do not
// count: they do not prove that the kernel's rule works.
func inKernel(proto policy.Protocol, to netip.AddrPort) func(audit.Event) bool {
	at := atAddress(to)
	return func(e audit.Event) bool { return e.Stage == policy.StageKernel && e.Protocol == proto && at(e) }
}

// aboutName selects the decisions about a name at a stage.
func aboutName(name string, stages ...policy.Stage) func(audit.Event) bool {
	return func(e audit.Event) bool {
		for _, s := range stages {
			if e.Stage == s && e.Name == name {
				return true
			}
		}
		return false
	}
}

// atAddressOrName selects the decisions about an address and port, or a name.
func atAddressOrName(to netip.AddrPort, name string) func(audit.Event) bool {
	at := atAddress(to)
	return func(e audit.Event) bool { return at(e) || name != "" && e.Name == name || e.Name == to.Addr().String() }
}
