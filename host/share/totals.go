package share

import "boxgate/quota"

// connectionMemory is the memory of a connection to the admin API with its buffers and request, in bytes.
const connectionMemory = 32 << 10

// Totals returns the totals for all API keys together. Connections and commands come out of the reserve of descriptors: an eighth of it, and
// as many commands, of which each has a few. Bodies and answers have a quarter of the memory, of which boxes have half.
func Totals(d Descriptors, m Memory) quota.Limits {
	connections := max(16, min(int64(d.reserve/8), m.all/16/connectionMemory, 4096))
	var l quota.Limits
	l[quota.Connections], l[quota.Requests] = connections, connections
	l[quota.Memory] = min(m.all/4, 1<<30)
	l[quota.Commands] = max(16, min(int64(d.reserve/8), 2048))
	return l
}
