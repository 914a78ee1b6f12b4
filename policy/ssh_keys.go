package policy

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"boxgate/policy/name"
)

// HostKey is a public key in the form of RFC 4253, 6.6.
type HostKey struct {
	Authority bool // signs the certificates of hosts; it is no host's own key
	Blob      string
}

// authorityMark stands before the key of an authority, as in known_hosts (sshd(8)).
const authorityMark = "@cert-authority"

// hostKeyTypes are the types of keys that servers may prove themselves with, and for each how long the last part of a key is;
// 0: that varies.
var hostKeyTypes = map[string]int{
	"ssh-ed25519": 32, "ecdsa-sha2-nistp256": 65, "ecdsa-sha2-nistp384": 97, "ecdsa-sha2-nistp521": 133, "ssh-rsa": 0,
}

// minRSAModulus is the length of the modulus of an RSA key with 2048 bits.
const minRSAModulus = 256

var (
	errHostKeyForm = errors.New(`is no public key; want a type and the key, as in "ssh-ed25519 AAAA…"`)
	errHostKeyBlob = errors.New("has a key that is cut short or not of its type")
)

// ParseHostKey reads a public key as it stands in known_hosts after the names of hosts, perhaps with the mark of an authority
// before it. A comment is left out.
func ParseHostKey(line string) (HostKey, error) {
	fields := strings.Fields(line)
	k := HostKey{}
	if len(fields) > 0 && fields[0] == authorityMark {
		k.Authority, fields = true, fields[1:]
	}
	if len(fields) > 2 && !isHostKeyType(fields[0]) && isHostKeyType(fields[1]) {
		return HostKey{}, fmt.Errorf("begins with the name of a host; use %s", name.Quote(strings.Join(fields[1:3], " ")))
	}
	if len(fields) < 2 {
		return HostKey{}, errHostKeyForm
	}
	if !isHostKeyType(fields[0]) {
		return HostKey{}, fmt.Errorf("%s is no type of a host's key; use ssh-ed25519, ecdsa-sha2-nistp256, -384 or -521, or ssh-rsa", name.Quote(fields[0]))
	}
	blob, err := base64.StdEncoding.DecodeString(fields[1])
	if err != nil || !isKeyBlob(fields[0], blob) {
		return HostKey{}, errHostKeyBlob
	}
	k.Blob = string(blob)
	return k, nil
}

func isHostKeyType(s string) bool {
	_, ok := hostKeyTypes[s]
	return ok
}

// isKeyBlob reports whether a blob is laid out like a key of its type.
func isKeyBlob(kind string, blob []byte) bool {
	var parts [][]byte
	for len(blob) >= 4 {
		n := binary.BigEndian.Uint32(blob)
		if blob = blob[4:]; uint64(n) > uint64(len(blob)) {
			return false
		}
		parts, blob = append(parts, blob[:n]), blob[n:]
	}
	if len(blob) > 0 || len(parts) < 2 || string(parts[0]) != kind {
		return false
	}
	last := len(parts[len(parts)-1])
	switch curve, isECDSA := strings.CutPrefix(kind, "ecdsa-sha2-"); {
	case isECDSA:
		return len(parts) == 3 && string(parts[1]) == curve && last == hostKeyTypes[kind]
	case kind == "ssh-rsa":
		return len(parts) == 3 && last >= minRSAModulus && last <= 8*minRSAModulus
	default:
		return len(parts) == 2 && last == hostKeyTypes[kind]
	}
}

// String returns the key as ParseHostKey reads it.
func (k HostKey) String() string {
	kind := ""
	if n := len(k.Blob); n > 4 {
		kind = k.Blob[4:min(n, 4+int(binary.BigEndian.Uint32([]byte(k.Blob[:4]))))]
	}
	text := kind + " " + base64.StdEncoding.EncodeToString([]byte(k.Blob))
	if k.Authority {
		text = authorityMark + " " + text
	}
	return text
}
