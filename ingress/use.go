package ingress

// Use is the use of one bounded resource.
type Use struct{ Taken, Most int }

// Uses returns the current use of the resources that all visitors share, by name: forwarded requests, forwarded requests of
// boxes, requests to applications that speak HTTP/2, code exchanges at the identity provider, and idle connections to boxes.
func (g *Ingress) Uses() map[string]Use {
	return map[string]Use{
		"url_requests": g.places.use(), "url_requests_of_boxes": g.inside.use(), "url_http2_requests": g.http2Places.use(),
		"url_sign_ins": g.exchanges.use(), "url_idle_upstreams": g.upstreams.use(),
	}
}

func (p *places) use() Use {
	p.mu.Lock()
	defer p.mu.Unlock()
	return Use{p.taken, p.most}
}

func (p *upstreams) use() Use { return Use{p.Stats().Idle, p.Idle} }
