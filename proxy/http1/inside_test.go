package http1

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"boxgate/internal/memory"
)

// TestResponsesOfTheEndpointAreMemoryOfTheBox: a response that the box has not read is memory of the box, which is refused beyond its
// limit and given back with the response. Otherwise a box that reads nothing could make the gateway hold as many responses as it has
// connections.
func TestResponsesOfTheEndpointAreMemoryOfTheBox(t *testing.T) {
	t.Parallel()
	budget := memory.New(1<<20, 1<<20)
	account := budget.Account("box")
	first, second := insideWriter{header: http.Header{}}, insideWriter{header: http.Header{}}
	first.held.Open(account, memory.Buffers)
	second.held.Open(account, memory.Buffers)
	text := []byte(strings.Repeat("x", 300<<10))
	if n, err := first.Write(text); n != len(text) || err != nil || first.full {
		t.Fatal(n, err)
	}
	if budget.Used() < int64(len(text)) {
		t.Errorf("%d bytes are counted, the response has %d", budget.Used(), len(text))
	}
	for range 2 {
		if n, err := second.Write(text); n != 0 || !errors.Is(err, memory.ErrFull) || !second.full || second.body.Len() != 0 {
			t.Error("beyond the limit:", n, err)
		}
	}
	first.held.Close()
	second.held.Close()
	if budget.Used() != 0 {
		t.Errorf("%d bytes are not given back", budget.Used())
	}
}
