package h2c

import (
	"bytes"
	"context"
	"io"
	"net"
	"time"

	"golang.org/x/net/http2"
)

// probeTime is how long an application may take to show that it speaks HTTP/2.
const probeTime = 5 * time.Second

// speaks reports whether a server answers the client preface of HTTP/2 with SETTINGS, as it must (RFC 9113, 3.4). It closes
// the connection.
func speaks(ctx context.Context, conn net.Conn) bool {
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	_ = conn.SetDeadline(time.Now().Add(probeTime))
	var hello bytes.Buffer
	hello.WriteString(http2.ClientPreface)
	_ = http2.NewFramer(&hello, nil).WriteSettings()
	if _, err := conn.Write(hello.Bytes()); err != nil {
		return false
	}
	var head [9]byte
	if _, err := io.ReadFull(conn, head[:]); err != nil {
		return false
	}
	f, err := http2.ReadFrameHeader(bytes.NewReader(head[:]))
	return err == nil && f.Type == http2.FrameSettings && !f.Flags.Has(http2.FlagSettingsAck) && f.StreamID == 0 && f.Length%6 == 0
}
