package ingress

import (
	"crypto/tls"
	"net"
	"slices"
	"strings"
	"testing"

	"boxgate/audit"
)

// lies is the connection of a visitor who answers the server's handshake with the beginning of a certificate of 252 KiB, which
// crypto/tls would buffer.
type lies struct {
	net.Conn
	writes int
}

func (l *lies) Write(b []byte) (int, error) {
	if l.writes++; l.writes == 1 {
		return l.Conn.Write(b)
	}
	for part := range slices.Chunk(append([]byte{11, 3, 0xf0, 0}, make([]byte, 96<<10)...), 16<<10) {
		_, _ = l.Conn.Write(append([]byte{22, 3, 3, byte(len(part) >> 8), byte(len(part))}, part...))
	}
	return len(b), nil
}

// TestAttackVisitorsLongHandshakeMessages: a visitor who begins an oversized handshake message loses the connection before the
// message is complete.
func TestAttackVisitorsLongHandshakeMessages(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	cfg := &tls.Config{RootCAs: f.roots, ServerName: "one" + domain, MaxVersion: tls.VersionTLS12}
	if err := tls.Client(f.dial(t, f.https), cfg).Handshake(); err != nil {
		t.Fatal(err)
	}
	_ = tls.Client(&lies{Conn: f.dial(t, f.https)}, cfg).Handshake()
	f.event(t, func(e audit.Event) bool { return strings.Contains(e.Error, "handshake that is too long") })
}
