package peerapi

import (
	"context"
	"math/rand/v2"
	"slices"

	"boxgate/api"
	"boxgate/fleet"
)

// mostPlaces is the number of hosts that are tried for a new box.
const mostPlaces = 4

// Place implements [boxgate/api/server.Elsewhere]: of two random hosts that take new boxes the one with fewer comes first, then the other one,
// and then the next two.
func (c *Client) Place(ctx context.Context) (hosts []string, err error) {
	candidates := slices.DeleteFunc(c.fleet.Members(), func(h fleet.Host) bool {
		return h.Cordoned || h.Address == "" && h.ID != c.fleet.Identity.Host
	})
	rand.Shuffle(len(candidates), func(i, j int) { candidates[i], candidates[j] = candidates[j], candidates[i] })
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	for pair := range slices.Chunk(candidates, 2) { // further ones, if no gateway runs on the first
		var ids []string
		for _, h := range pair {
			ids = append(ids, h.ID)
		}
		present, err := c.fleet.Presences(ctx, ids...)
		if err != nil {
			return nil, &api.Error{Kind: api.ErrUnavailable, Cause: err, Message: "no host was chosen for the box, because the directory of the fleet does not answer"}
		}
		ids = slices.DeleteFunc(ids, func(id string) bool { p, ok := present[id]; return !ok || p.Cordoned })
		slices.SortStableFunc(ids, func(a, b string) int { return present[a].Boxes - present[b].Boxes })
		if hosts = append(hosts, ids...); len(hosts) >= mostPlaces {
			break
		}
	}
	if len(hosts) == 0 {
		return nil, api.Errorf(api.ErrUnavailable, "no host of the fleet takes new boxes: they are cordoned or away, or this one is cut off; `gateway fleet status` has their states")
	}
	for i, id := range hosts {
		if id == c.fleet.Identity.Host {
			hosts[i] = ""
		}
	}
	return hosts, nil
}
