package roster

import (
	"bytes"
	"context"
	"encoding/json"

	clientv3 "go.etcd.io/etcd/client/v3"

	"boxgate/fleet"
)

// SetIngress sets the address of the public URLs of a member, and its key of agreements, for the other hosts. Without an address the record
// has neither. Fields of the record that this version does not know are kept. guard is as in [Roster.Advertise]: a host that was replaced by
// another with its identity would otherwise lead the visitors of that one to itself. It fails with [ErrNotMember] if the record belongs to
// another membership.
func (r Roster) SetIngress(ctx context.Context, id fleet.Identity, address string, agreement []byte, guard func() clientv3.Cmp) error {
	return r.change(ctx, id.Host, func(text []byte) (string, error) {
		if !isOf(text, id) {
			return "", ErrNotMember
		}
		return withIngress(text, address, agreement)
	}, guard)
}

// withIngress returns the record of a host with other values of these fields.
func withIngress(text []byte, address string, agreement []byte) (string, error) {
	host, err := fleet.Decode[fleet.Host](text)
	if err != nil || host.Ingress == address && bytes.Equal(host.Agreement, agreement) {
		return string(text), err
	}
	fields, err := fleet.Decode[map[string]json.RawMessage](text)
	if err != nil {
		return "", err
	}
	delete(fields, "ingress")
	delete(fields, "agreement")
	if address != "" {
		quoted, err := json.Marshal(address)
		if err != nil {
			return "", err
		}
		fields["ingress"] = quoted
	}
	if len(agreement) > 0 {
		encoded, err := json.Marshal(agreement)
		if err != nil {
			return "", err
		}
		fields["agreement"] = encoded
	}
	return fleet.Encode(fields)
}
