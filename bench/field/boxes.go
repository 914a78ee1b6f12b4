package field

import (
	"context"
	"fmt"
	"net/url"

	"boxgate/api"
	"boxgate/bench/origin"
)

// boxName is the box that the load comes from.
const boxName = "load"

// Furnish attaches the box that the load comes from, with the policy and the header rules of all scenarios, and opens a
// public URL on it.
func (g *Gateway) Furnish(ctx context.Context) error {
	headers := map[string]any{}
	for _, pattern := range []string{"up", "sink", "grpc", "*.fresh"} {
		headers[pattern+"."+origin.Suffix] = map[string]string{origin.Header: origin.Value}
	}
	err := g.Client.Do(ctx, "POST", "/v2/box/attach", map[string]any{
		"netns": g.Box.Path(), "name": boxName, "attach_headers": headers,
		"network_policy": map[string]any{"mode": "custom", "allowed_domains": []string{"*." + origin.Suffix}},
	}, nil)
	if err != nil {
		return fmt.Errorf("attaching the box: %w", err)
	}
	var opened struct{ URL, Token string }
	if err := g.Client.Do(ctx, "POST", api.BoxPath(boxName, "preview"), map[string]any{"port": BackendPort, "bearer_token": true}, &opened); err != nil {
		return fmt.Errorf("opening a public URL: %w", err)
	}
	u, err := url.Parse(opened.URL)
	if err != nil {
		return err
	}
	g.URL = Public{Host: u.Hostname(), Token: opened.Token}
	return nil
}

// BackendPort is the port of the server behind public URLs.
const BackendPort = 8080

// Populate attaches further boxes, up to so many.
func (g *Gateway) Populate(ctx context.Context, count int) error {
	for i := len(g.boxes); i < count; i++ {
		ns, err := g.field.Namespace(ctx)
		if err != nil {
			return err
		}
		body := map[string]any{"netns": ns.Path(), "name": crowdName(i), "network_policy": policy(10, i)}
		if err := g.Client.Do(ctx, "POST", "/v2/box/attach", body, nil); err != nil {
			return fmt.Errorf("attaching box %d: %w", i, err)
		}
		g.boxes = append(g.boxes, ns)
	}
	return nil
}

func crowdName(i int) string { return fmt.Sprintf("crowd%d", i) }

// PutPolicy replaces the policy of one of the further boxes by another of so many rules.
func (g *Gateway) PutPolicy(ctx context.Context, box, rules, seed int) error {
	return g.Client.Do(ctx, "PUT", api.BoxPath(crowdName(box%len(g.boxes)), "config", "network-policy"), policy(rules, seed), nil)
}

// policy allows domains and networks, half of each, that another seed does not.
func policy(rules, seed int) map[string]any {
	var domains, networks []string
	for i := range rules / 2 {
		domains = append(domains, fmt.Sprintf("d%d-%d.example.com", seed, i))
		networks = append(networks, fmt.Sprintf("%d.%d.%d.0/24", 20+seed%8, (seed*7+i/250)%250, i%250))
	}
	return map[string]any{"mode": "custom", "allowed_domains": domains, "allowed_cidrs": networks}
}
