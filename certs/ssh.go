package certs

import (
	"crypto"

	"boxgate/policy"
)

// SSHKey returns the key by which a box knows the gateway as an SSH server. It is that of its authority, so whatever makes a
// box trust the one makes it trust the other, and neither outlives the other. No signature of SSH can be taken for one of a
// certificate: what SSH signs is a hash (RFC 4253, 8), shorter than any certificate.
func (m *Minter) SSHKey(box policy.BoxID) (crypto.Signer, error) {
	ca, err := m.Authority(box)
	if err != nil {
		return nil, err
	}
	return ca.key, nil
}
