package certs

import (
	"crypto"

	"boxgate/policy"
)

// SSHKey returns the host key of the gateway's SSH server for a box. It is the key of the box's authority, so trust in
// the two begins and ends together. An SSH signature cannot be mistaken for a certificate's: SSH signs a hash (RFC
// 4253, section 8), which is shorter than any certificate.
func (m *Minter) SSHKey(box policy.BoxID) (crypto.Signer, error) {
	ca, err := m.Authority(box)
	if err != nil {
		return nil, err
	}
	return ca.key, nil
}
