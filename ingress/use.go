package ingress

// Use is how many places of a kind are taken, and how many there are.
type Use struct{ Taken, Most int }

// Uses returns what visitors and boxes hold at the moment, by kind: requests that are forwarded, those of them that boxes
// make, requests to applications that speak HTTP/2, questions to the identity provider, and connections to boxes that are kept for
// later.
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

func (p *pool) use() Use {
	p.mu.Lock()
	defer p.mu.Unlock()
	return Use{p.n, p.most}
}
