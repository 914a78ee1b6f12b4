package report

import (
	"testing"

	"github.com/mdlayher/netlink"

	"boxgate/audit"
	"boxgate/firewall/flow"
)

// A connection is recorded when it begins and when it ends, not at every other change.
func TestEventsOfConnections(t *testing.T) {
	t.Parallel()
	message := make([]byte, flow.HeaderLen)
	for what, c := range map[string]struct {
		kind  netlink.HeaderType
		flags netlink.HeaderFlags
		data  []byte
		phase audit.Phase
	}{
		"it begins":                  {flow.MessageNew, netlink.Create | netlink.Excl, message, audit.PhaseOpen},
		"it ends":                    {flow.MessageDelete, 0, message, audit.PhaseEnd},
		"it is confirmed":            {flow.MessageNew, 0, message, ""},
		"it is as the table says":    {flow.MessageNew, netlink.Multi, message, ""},
		"it begins, and no more":     {flow.MessageNew, netlink.Create | netlink.Excl, message[1:], ""},
		"it is asked for":            {flow.MessageNew | 1, 0, message, ""},
		"it is none":                 {netlink.Error, 0, message, ""},
		"it ends, and nothing is it": {flow.MessageDelete, 0, nil, ""},
	} {
		if _, phase := decodeFlow(netlink.Message{Header: netlink.Header{Type: c.kind, Flags: c.flags}, Data: c.data}); phase != c.phase {
			t.Errorf("%s: %q", what, phase)
		}
	}
}
