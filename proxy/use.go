package proxy

// Use is the use of one bounded resource; a limit of 0 is none.
type Use struct{ Taken, Most int }

// Uses returns the current use of resources that all boxes share, by name: their connections, connections to servers for HTTP requests,
// attempts to connect beside another one of the same connection, and pipes of tunnels.
func (p *Proxy) Uses() map[string]Use {
	return map[string]Use{
		"box_connections":    {p.live.Open(), p.cfg.MaxAllConns},
		"server_connections": {p.core.Origins.Open(), p.cfg.MaxAllUpstreams},
		"extra_attempts":     {p.core.Origins.Extra(), p.cfg.MaxExtraAttempts},
		"tunnel_pipes":       {p.core.Tunnels.Pipes(), p.cfg.MaxPipes},
	}
}
