package harness

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// Exchange writes a request and reads the head and body of one response.
func Exchange(t *testing.T, c net.Conn, r *bufio.Reader, request string) (*http.Response, string) {
	t.Helper()
	_ = c.SetDeadline(time.Now().Add(Patience))
	if _, err := io.WriteString(c, request); err != nil {
		t.Fatal(err)
	}
	method, _, _ := strings.Cut(request, " ")
	res, err := http.ReadResponse(r, &http.Request{Method: method})
	if err != nil {
		t.Fatalf("%.60q: %v", request, err)
	}
	if res.StatusCode == http.StatusSwitchingProtocols || method == "CONNECT" && res.StatusCode == 200 {
		return res, ""
	}
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Errorf("%.60q: %v", request, err)
	}
	return res, string(body)
}

// UpgradeHead is the head of a WebSocket request without its first line and Host.
const UpgradeHead = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n"
