package report

import (
	"github.com/mdlayher/netlink"

	"boxgate/audit"
	"boxgate/firewall/flow"
)

// decodeFlow reads an event about a connection. The phase is empty if it is no beginning and no end of one.
func decodeFlow(m netlink.Message) (e flow.Entry, phase audit.Phase) {
	const created = netlink.Create | netlink.Excl
	switch {
	case m.Header.Type == flow.MessageNew && m.Header.Flags&created == created:
		phase = audit.PhaseOpen
	case m.Header.Type == flow.MessageDelete:
		phase = audit.PhaseEnd
	default:
		return e, ""
	}
	e, ok := flow.Parse(m.Data)
	if !ok {
		return e, ""
	}
	return e, phase
}
