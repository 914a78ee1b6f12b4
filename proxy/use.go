package proxy

// Use is how many places of a kind all boxes hold, and how many there are for them; 0: there is no limit.
type Use struct{ Taken, Most int }

// Uses returns what the boxes hold of the proxy at the moment, by kind: their connections, connections to servers for their HTTP
// requests, and pipes of tunnels.
func (p *Proxy) Uses() map[string]Use {
	return map[string]Use{
		"box_connections":    {p.live.Open(), p.cfg.MaxAllConns},
		"server_connections": {p.core.Origins.Open(), p.cfg.MaxAllUpstreams},
		"tunnel_pipes":       {p.core.Tunnels.Pipes(), p.cfg.MaxPipes},
	}
}
