package host

import (
	"crypto/rand"
	"encoding/hex"
	"regexp"

	"boxgate/host/change"
	"boxgate/policy"
)

// looksLikeID matches what [lifecycle.newID] makes: as a name it would be found in the place of a deleted box.
var looksLikeID = regexp.MustCompile(`^[0-9a-f]{16}$`)

// newID returns the ID of a new box: six digits of the host, and ten at random.
func (l *lifecycle) newID() (policy.BoxID, error) {
	host, err := l.store.HostID()
	if err != nil {
		return "", change.NotStored(l.log, "the host has no ID yet, nothing was made", err)
	}
	return policy.BoxID(host + randomHex(5)), nil
}

// randomHex returns n random bytes in hexadecimal.
func randomHex(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails (crypto/rand)
	return hex.EncodeToString(b)
}
