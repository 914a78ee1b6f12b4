package share

import "boxgate/quota"

// connectionMemory is the memory of an admin API connection with its buffers and request, in bytes.
const connectionMemory = 32 << 10

// Totals returns the limits for all API keys together. Connections use an eighth of the descriptor reserve; so do
// commands, which use a few descriptors each. Request and response bodies may use a quarter of the memory, in addition to
// the half that is for boxes.
func Totals(d Descriptors, m Memory) quota.Limits {
	connections := max(16, min(int64(d.reserve/8), m.all/16/connectionMemory, 4096))
	var l quota.Limits
	l[quota.Connections], l[quota.Requests] = connections, connections
	l[quota.Memory] = min(m.all/4, 1<<30)
	l[quota.Commands] = max(16, min(int64(d.reserve/8), 2048))
	return l
}
