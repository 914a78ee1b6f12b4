package proxy

// Use is the use of one bounded resource. A limit of 0 means unlimited.
type Use struct{ Taken, Most int }

// Uses returns the use of the resources that all boxes share, by name: their connections, connections to servers for HTTP
// requests, parallel connection attempts, and pipes of tunnels.
func (p *Proxy) Uses() map[string]Use {
	return map[string]Use{
		"box_connections":    {p.live.Open(), p.cfg.MaxAllConns},
		"server_connections": {p.core.Origins.Open(), p.cfg.MaxAllUpstreams},
		"extra_attempts":     {p.core.Origins.Extra(), p.cfg.MaxExtraAttempts},
		"tunnel_pipes":       {p.core.Tunnels.Pipes(), p.cfg.MaxPipes},
	}
}
