package proxy_test

import (
	"crypto/tls"
	"io"
	"strings"
	"testing"

	"boxgate/audit"
	"boxgate/proxy/proxytest"
)

// TestAttackLongHandshakeMessagesBeforeALogin: a client of a database that begins a message of the handshake that is too long, at once or after a
// request for TLS, loses the connection before it has come.
func TestAttackLongHandshakeMessagesBeforeALogin(t *testing.T) {
	t.Parallel()
	for what, direct := range map[string]bool{"direct TLS": true, "TLS on request": false} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			r, _, dst := pgRig(t, dbRule)
			c := proxytest.DialTo(t, r.Listen(dst))
			if !direct {
				_, _ = c.Write([]byte{0, 0, 0, 8, 4, 210, 22, 47})
				if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
					t.Fatal(err)
				}
			}
			cfg := &tls.Config{ServerName: db, RootCAs: r.BoxCA.Pool(), MaxVersion: tls.VersionTLS12, NextProtos: []string{"postgresql"}}
			_ = tls.Client(&lies{Conn: c}, cfg).Handshake()
			r.Want("the end of the connection", func(e audit.Event) bool { return strings.Contains(e.Error, "handshake that is too long") })
		})
	}
}
