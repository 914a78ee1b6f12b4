package report

import (
	"github.com/mdlayher/netlink"

	"boxgate/audit"
	"boxgate/firewall/flow"
)

// decodeFlow decodes an event about a connection. phase is empty if the event is neither its beginning nor its end.
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
