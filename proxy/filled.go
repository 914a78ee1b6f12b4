package proxy

import "boxgate/policy"

// Filled returns how much of each of its limits a box uses, from 0 to 1, by the limit's name in the configuration.
func (p *Proxy) Filled(box policy.BoxID) map[string]float64 {
	filled := map[string]float64{"connections": 0, "interceptions": 0, "streams": 0}
	if u := p.usages.Find(box); u != nil {
		filled["connections"] = fraction(int64(p.live.Count(box)), u.Limit(policy.LimitConnections, p.cfg.MaxConns))
		filled["interceptions"] = fraction(u.Interceptions.Load(), u.Limit(policy.LimitInterceptions, p.cfg.MaxInterceptions))
		filled["streams"] = fraction(u.Streams.Load(), u.Limit(policy.LimitStreams, p.cfg.MaxStreams))
	}
	return filled
}

// fraction returns used as a fraction of limit, or 0 without a limit.
func fraction(used int64, limit int) float64 {
	if limit <= 0 {
		return 0
	}
	return float64(used) / float64(limit)
}
