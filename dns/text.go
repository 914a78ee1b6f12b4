package dns

import (
	"context"
	"fmt"
	"strings"
	"time"

	mdns "github.com/miekg/dns"

	"boxgate/policy/name"
)

// LookupText returns the TXT records of n, following CNAMEs. The strings of each record are joined. A name that does
// not exist has no records, which is not an error. This is the gateway's own lookup: it applies no policy and does not
// use the boxes' cache. The caller bounds the number of concurrent lookups. A lookup is bounded by the same timeout as
// a box's.
func (s *Server) LookupText(ctx context.Context, n name.Name) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	seen := map[name.Name]bool{n: true}
	for range maxQuestions {
		m, err := s.cache.upstream.exchange(ctx, n.String()+".", mdns.TypeTXT)
		if err != nil {
			return nil, fmt.Errorf("resolve %s: %w", n, err)
		}
		a, err := digest(m, n, mdns.TypeTXT, time.Now())
		if err != nil {
			return nil, fmt.Errorf("resolve %s: %w", n, err)
		}
		for _, target := range a.targets {
			if seen[target] || len(seen) > maxChain {
				return nil, fmt.Errorf("%w: %s", errChain, n)
			}
			seen[target] = true
			n = target
		}
		if a.incomplete {
			continue
		}
		var texts []string
		for _, rr := range a.records {
			if txt, ok := rr.(*mdns.TXT); ok {
				texts = append(texts, strings.Join(txt.Txt, ""))
			}
		}
		return texts, nil
	}
	return nil, fmt.Errorf("%w: %s", errChain, n)
}
