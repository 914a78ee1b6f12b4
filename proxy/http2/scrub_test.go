package http2_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"testing"

	"boxgate/proxy/proxytest"
)

// TestScrubbedMessagesAreNotDelayed has a gRPC conversation. Each message ends like the beginning of the secret, and the next is
// sent only after it has arrived.
func TestScrubbedMessagesAreNotDelayed(t *testing.T) {
	t.Parallel()
	message := func(text string) []byte {
		return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(text))), text...)
	}
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	_, port := l.HTTPSServer(true, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/grpc+proto")
		w.Header().Set("Trailer", "Grpc-Status, Grpc-Message")
		controller := http.NewResponseController(w)
		_ = controller.Flush()
		in := make([]byte, 1)
		for range 3 {
			if _, err := io.ReadFull(r.Body, in); err != nil {
				return
			}
			_, _ = w.Write(message(proxytest.ScrubbedToken + " " + proxytest.ScrubbedToken[:9]))
			_ = controller.Flush()
		}
		w.Header().Set("Grpc-Status", "0")
		w.Header().Set("Grpc-Message", url.PathEscape(proxytest.ScrubbedToken))
	})
	l.Scrub(port)
	pr, pw := io.Pipe()
	req, _ := http.NewRequest("POST", "https://"+proxytest.HostPort(port)+"/", pr)
	res, err := l.HTTPClient(port, true).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	want := message(proxytest.ScrubStars + " " + proxytest.ScrubbedToken[:9])
	got := make([]byte, len(want))
	for range 3 {
		if _, err := pw.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(res.Body, got); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%q, %v", got, err)
		}
	}
	_ = pw.Close()
	if rest := proxytest.ReadAll(t, res.Body); rest != "" || res.Trailer.Get("Grpc-Status") != "0" || proxytest.Leak(fmt.Sprint(res.Trailer)) != "" {
		t.Errorf("%q, %v", rest, res.Trailer)
	}
}
