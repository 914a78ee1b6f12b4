package firewall

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"strings"

	"boxgate/policy"
)

// tableName is the one nftables table (family inet) that boxgate owns.
const tableName = "boxgate"

// linkGroup is the device group of every host-side interface of a box. Rules match the group, not the name: an
// interface that someone renames falls out of the maps and stays closed.
const linkGroup uint32 = 0xb0c5

// Packet marks. The interface sets markUnjudged on whatever a box sends, judge replaces it, and routing lets nothing
// else through. The values are whole words, to stay clear of the bits that other software uses.
const (
	markUnjudged uint32 = 0xb0c50f00 + iota // not seen by judge: prohibited
	markForward                             // may leave the host, and only that
	markLocal                               // may reach a port of the gateway, and only that
	markProxy                               // assigned to the transparent proxy
)

// flowForwarded is the bit of a connection mark that says the kernel forwards this connection; the other bits tell the
// box (see boxMark). Connections to DNS and the proxy carry the box's bits alone.
const flowForwarded uint32 = 1

// boxMark is the connection mark of a box: stable over restarts, never zero. Two boxes may share one; whoever acts on
// it compares addresses as well.
func boxMark(id policy.BoxID) uint32 {
	sum := sha256.Sum256([]byte("mark " + id))
	return binary.BigEndian.Uint32(sum[:])&^flowForwarded | 1<<31
}

// linkName is the name of a box's host-side interface (at most 15 bytes).
func linkName(id policy.BoxID) string {
	sum := sha256.Sum256([]byte("link " + id))
	return "bg" + strings.ToLower(base32.HexEncoding.EncodeToString(sum[:]))[:12]
}

// linkMAC is a stable, locally administered address for one end of a box's link.
func linkMAC(id policy.BoxID, end string) []byte {
	sum := sha256.Sum256([]byte(end + " " + string(id)))
	mac := sum[:6]
	mac[0] = mac[0]&^3 | 2
	return mac
}
