package host

import (
	"crypto/rand"
	"encoding/hex"
	"regexp"
)

// looksLikeID matches what [randomHex] makes for IDs: as a name it would be found in the place of a deleted box.
var looksLikeID = regexp.MustCompile(`^[0-9a-f]{16}$`)

// randomHex returns n random bytes in hexadecimal.
func randomHex(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails (crypto/rand)
	return hex.EncodeToString(b)
}
