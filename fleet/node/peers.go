package node

import (
	"cmp"
	"context"
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"

	"boxgate/fleet"
	"boxgate/fleet/directory"
	"boxgate/fleet/pki"
)

// Peers verifies other hosts by the authority and the directory. A host that is fenced trusts no other: it may not know yet that one has left.
func (n *Node) Peers() pki.Peers {
	return pki.Peers{Authority: n.authority, Known: func(host string) ([]byte, bool) {
		if n.Fenced() {
			return nil, false
		}
		return n.hosts.fingerprint(host)
	}}
}

// VisitorPeers is [Node.Peers] by the last known directory, also while this host is fenced: for connections that end with the visitors whom they
// carry, at public URLs. A host that has left since may still claim addresses of visitors, which opens no URL.
func (n *Node) VisitorPeers() pki.Peers {
	return pki.Peers{Authority: n.authority, Known: n.hosts.fingerprint}
}

// Member returns a host of the fleet. ok is false for an unknown ID, and for all while this host is fenced.
func (n *Node) Member(id string) (h fleet.Host, ok bool) {
	if n.Fenced() {
		return fleet.Host{}, false
	}
	return n.hosts.get(id)
}

// Members returns the hosts of the fleet, this one included, by their IDs; empty while this host is fenced.
func (n *Node) Members() []fleet.Host {
	if n.Fenced() {
		return nil
	}
	return n.hosts.all()
}

// LastMembers is [Node.Members] as last known, also while this host is fenced. It is no reason to trust one of them.
func (n *Node) LastMembers() []fleet.Host { return n.hosts.all() }

// Directory returns the directory of boxes, which this host changes while it has its lease.
func (n *Node) Directory() directory.Directory {
	return directory.Directory{Client: n.client, Keys: fleet.KeysOf(n.Fleet), Host: n.Identity.Host, Guard: n.session.Guard}
}

// Epoch identifies a time in which this host has held one lease and followed etcd without a gap. Between two of them, another history of etcd,
// such as a restored backup, may have begun.
type Epoch struct {
	Lease    clientv3.LeaseID
	Listings int // of the directory of hosts
}

// Epoch returns the present epoch.
func (n *Node) Epoch() Epoch { return Epoch{n.session.Lease(), n.follower.State().Listings} }

// maxPresences is the number of presences in one request.
const maxPresences = 100

// Presences returns the presences of hosts whose gateways run, by ID. A presence that cannot be read is left out.
func (n *Node) Presences(ctx context.Context, hosts ...string) (map[string]fleet.Presence, error) {
	out, keys := map[string]fleet.Presence{}, fleet.KeysOf(n.Fleet)
	for part := range slices.Chunk(hosts, maxPresences) {
		var reads []clientv3.Op
		for _, host := range part {
			reads = append(reads, clientv3.OpGet(keys.Presence(host)))
		}
		answer, err := n.client.Txn(ctx).Then(reads...).Commit()
		if err != nil {
			return nil, fleet.Unreachable(ctx, err)
		}
		for i, host := range part {
			for _, kv := range answer.Responses[i].GetResponseRange().Kvs {
				if p, err := fleet.Decode[fleet.Presence](kv.Value); err == nil {
					out[host] = p
				}
			}
		}
	}
	return out, nil
}

// advertise writes the address of this host into its record, if the directory has another.
func (n *Node) advertise(ctx context.Context) error {
	if own, ok := n.Member(n.Identity.Host); !ok || own.Address == n.Address {
		return nil
	}
	return n.roster.Advertise(ctx, n.Identity.Host, n.Address, n.session.Guard)
}

// all returns the hosts by their IDs.
func (d *hosts) all() (list []fleet.Host) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	for _, h := range d.known {
		list = append(list, h)
	}
	slices.SortFunc(list, func(a, b fleet.Host) int { return cmp.Compare(a.ID, b.ID) })
	return list
}
