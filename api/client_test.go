package api

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"testing"
)

// A line of any length that the gateway can be made to write does not hide the lines after it.
func TestNoLineOfAStreamHidesTheNext(t *testing.T) {
	t.Parallel()
	long := bytes.Repeat([]byte("x"), 4<<20)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(append(append([]byte("first\n"), long...), "\nlast\n"...))
	}))
	defer server.Close()
	var sizes []int
	last := ""
	err := NewClient(server.URL, "key").Events(t.Context(), "/v2/audit", func(string) {}, func(line []byte) error {
		sizes, last = append(sizes, len(line)), string(line[max(len(line)-10, 0):])
		return nil
	})
	if err != nil || len(sizes) != 3 || sizes[1] != len(long) || last != "last" {
		t.Errorf("lines of %v bytes, the last %q: %v", sizes, last, err)
	}
}
