package dns

import (
	"slices"
	"strings"

	mdns "github.com/miekg/dns"
)

// detours are the parameters of HTTPS and SVCB records (RFC 9460) that would let a client bypass the gateway: ECH keys
// hide the name that the policy needs, and address hints bypass the A and AAAA queries, whose answers the policy checks.
var detours = []mdns.SVCBKey{mdns.SVCB_ECHCONFIG, mdns.SVCB_IPV4HINT, mdns.SVCB_IPV6HINT}

// withoutDetours returns rr without the detours and without HTTP/3, whose QUIC packets show no name that the proxy
// could read. It returns nil if no other protocol is left in rr. Other types are returned unchanged.
func withoutDetours(rr mdns.RR) mdns.RR {
	switch rr := rr.(type) {
	case *mdns.HTTPS:
		out := mdns.Copy(rr).(*mdns.HTTPS)
		if params, ok := stripDetours(out.Value); ok {
			out.Value = params
			return out
		}
		return nil
	case *mdns.SVCB:
		out := mdns.Copy(rr).(*mdns.SVCB)
		if params, ok := stripDetours(out.Value); ok {
			out.Value = params
			return out
		}
		return nil
	}
	return rr
}

// stripDetours removes the detours from a record's parameters, and reports whether any protocol is left.
func stripDetours(params []mdns.SVCBKeyValue) (left []mdns.SVCBKeyValue, ok bool) {
	var mandatory *mdns.SVCBMandatory
	noDefault, protocols, gone := false, true, slices.Clone(detours)
	for _, p := range params {
		switch v := p.(type) {
		case *mdns.SVCBMandatory:
			mandatory = v
		case *mdns.SVCBNoDefaultAlpn:
			noDefault = true
		case *mdns.SVCBAlpn:
			v.Alpn = slices.DeleteFunc(v.Alpn, isHTTP3)
			protocols = len(v.Alpn) > 0
		}
	}
	if !protocols {
		gone = append(gone, mdns.SVCB_ALPN)
	}
	removed := func(k mdns.SVCBKey) bool { return slices.Contains(gone, k) }
	if mandatory != nil {
		// A client must ignore a record with a mandatory key that is missing (RFC 9460, section 8).
		mandatory.Code = slices.DeleteFunc(mandatory.Code, removed)
		if len(mandatory.Code) == 0 {
			gone = append(gone, mdns.SVCB_MANDATORY)
		}
	}
	left = slices.DeleteFunc(params, func(p mdns.SVCBKeyValue) bool { return removed(p.Key()) })
	return left, protocols || !noDefault
}

func isHTTP3(alpn string) bool { return alpn == "h3" || strings.HasPrefix(alpn, "h3-") }
