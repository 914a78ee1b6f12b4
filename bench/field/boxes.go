package field

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"

	"boxgate/api"
	"boxgate/bench/load"
	"boxgate/bench/origin"
)

// boxName is the box that generates the load.
const boxName = "load"

// routedName is the box whose traffic the kernel forwards.
const routedName = "routed"

// The policies of the two boxes.
var (
	named  = map[string]any{"mode": "custom", "allowed_domains": []string{"*." + origin.Suffix}}
	routed = map[string]any{"mode": "custom", "allowed_cidrs": []string{origin.Network}}
)

// AttachBoxes attaches the load box and the routed box with the policies and header rules of all scenarios, and opens
// public URLs on the load box.
func (g *Gateway) AttachBoxes(ctx context.Context) (err error) {
	headers := map[string]any{}
	for _, pattern := range []string{"up", "sink", "grpc", "*.fresh"} {
		headers[pattern+"."+origin.Suffix] = map[string]string{origin.Header: origin.Value}
	}
	for _, box := range []map[string]any{
		{"netns": g.Box.Path(), "name": boxName, "attach_headers": headers, "network_policy": named},
		{"netns": g.Routed.Path(), "name": routedName, "network_policy": routed},
	} {
		if err := g.Client.Do(ctx, "POST", "/v2/box/attach", box, nil); err != nil {
			return fmt.Errorf("attaching a box: %w", err)
		}
	}
	if g.URL, err = g.publish(ctx, BackendPort); err != nil {
		return err
	}
	g.Echo, err = g.publish(ctx, EchoPort)
	return err
}

// publish opens a public URL on a port of the box.
func (g *Gateway) publish(ctx context.Context, port int) (Public, error) {
	var opened struct{ URL, Token string }
	if err := g.Client.Do(ctx, "POST", api.BoxPath(boxName, "preview"), map[string]any{"port": port, "bearer_token": true}, &opened); err != nil {
		return Public{}, fmt.Errorf("opening a public URL: %w", err)
	}
	u, err := url.Parse(opened.URL)
	if err != nil {
		return Public{}, err
	}
	return Public{Host: u.Hostname(), Token: opened.Token}, nil
}

// The ports of the servers behind public URLs: one answers requests, one echoes WebSocket messages.
const (
	BackendPort = 8080
	EchoPort    = 8090
)

// AttachMore attaches additional boxes, up to a total of count.
func (g *Gateway) AttachMore(ctx context.Context, count int) error {
	for i := len(g.boxes); i < count; i++ {
		ns, err := g.field.bareNamespace()
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

// PutPolicy replaces the policy of an additional box by another with the given number of rules.
func (g *Gateway) PutPolicy(ctx context.Context, box, rules, seed int) error {
	return g.Client.Do(ctx, "PUT", policyPath(crowdName(box%len(g.boxes))), policy(rules, seed), nil)
}

// Restore restores the policies of the two boxes, and the deleted public URL of the load box.
func (g *Gateway) Restore(ctx context.Context) (err error) {
	g.Echo, err = g.publish(ctx, EchoPort)
	return errors.Join(err,
		g.Client.Do(ctx, "PUT", policyPath(boxName), named, nil), g.Client.Do(ctx, "PUT", policyPath(routedName), routed, nil))
}

// DenyAllChange returns the API call that cuts all connections of the load box, or of the routed one.
func (g *Gateway) DenyAllChange(ofRouted bool) (*load.Change, error) {
	key, err := g.key()
	name := boxName
	if ofRouted {
		name = routedName
	}
	return &load.Change{Socket: g.socket(), Key: key, Method: "PUT", Path: policyPath(name), Body: map[string]any{"mode": "deny-all"}}, err
}

// DeleteURLChange returns the API call that deletes the public URL of the WebSocket server.
func (g *Gateway) DeleteURLChange() (*load.Change, error) {
	key, err := g.key()
	return &load.Change{Socket: g.socket(), Key: key, Method: "DELETE", Path: api.BoxPath(boxName, "preview", strconv.Itoa(EchoPort))}, err
}

func policyPath(box string) string { return api.BoxPath(box, "config", "network-policy") }

// policy returns a policy that allows domains and networks, half of them depending on the seed.
func policy(rules, seed int) map[string]any {
	var domains, networks []string
	for i := range rules / 2 {
		domains = append(domains, fmt.Sprintf("d%d-%d.example.com", seed, i))
		networks = append(networks, fmt.Sprintf("%d.%d.%d.0/24", 20+seed%8, (seed*7+i/250)%250, i%250))
	}
	return map[string]any{"mode": "custom", "allowed_domains": domains, "allowed_cidrs": networks}
}
