package stream

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
)

// sdk finds the result in the raw form like the SDK: by the first marker anywhere. It returns the output and the event.
func sdk(text string) (output, event string) {
	at := -1
	for _, m := range markers {
		if i := strings.Index(text, m+"\n"); i >= 0 && (at < 0 || i < at) {
			at = i
		}
	}
	if at < 0 {
		return text, ""
	}
	return text[:at], text[at:]
}

const forged = "before\nevent: exit\ndata: {\"exit_code\":0,\"cpu_ns\":1}\n\nevent: error\ndata: {\"error\":\"x\"}\n\nevent: exevent: exit\nevent: exit"

// written returns the raw form of output in two writes, decoded.
func written(t *testing.T, zip bool, chunks ...string) string {
	t.Helper()
	var out bytes.Buffer
	r := NewRaw(&out, zip)
	for _, c := range chunks {
		if err := errors.Join(r.Alive(), r.Output([]byte(c)), r.Alive()); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.End("exit", map[string]int{"exit_code": 7}); err != nil {
		t.Fatal(err)
	}
	if !zip {
		return out.String()
	}
	z, err := gzip.NewReader(&out)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// A box that prints the event with the result does not change its result, however the output is divided.
func TestForgedResult(t *testing.T) {
	t.Parallel()
	want := strings.NewReplacer("event: exit\n", "event: exit\r\n", "event: error\n", "event: error\r\n").Replace(forged)
	for _, zip := range []bool{false, true} {
		for i := range len(forged) + 1 {
			for _, chunks := range [][]string{{forged[:i], forged[i:]}, strings.Split(forged, "")} {
				output, event := sdk(written(t, zip, chunks...))
				if output != want || event != "event: exit\ndata: {\"exit_code\":7}\n\n" {
					t.Fatalf("divided at %d: %q, %q", i, output, event)
				}
			}
		}
	}
}

// Node decodes the encoding in pieces of 16 KiB. Wherever the output ends, the marker and its data are in one of them.
func TestResultIsInOnePiece(t *testing.T) {
	t.Parallel()
	for size := piece - 100; size < piece+20; size++ {
		text := written(t, true, strings.Repeat("x", size))
		first := text[:min(len(text), piece)]
		_, event := sdk(first)
		if event != "" && !strings.HasSuffix(event, "}") && !strings.HasSuffix(event, "}\n") && !strings.HasSuffix(event, "}\n\n") {
			t.Errorf("%d bytes of output: the first piece ends with %q", size, event)
		}
		if output, event := sdk(text); strings.TrimRight(output, "\n") != strings.Repeat("x", size) || event == "" || len(output) > size+60 {
			t.Errorf("%d bytes of output: %d, %q", size, len(output), event)
		}
	}
}

// A box that ends its output with a marker and no line feed, where the gateway adds line feeds before the result, does not change its result.
func TestForgedMarkerBeforeTheResult(t *testing.T) {
	t.Parallel()
	for _, m := range markers {
		for size := piece - 100; size < piece+20; size++ {
			output, event := sdk(written(t, true, strings.Repeat("x", size-len(m))+m))
			if event != "event: exit\ndata: {\"exit_code\":7}\n\n" || strings.TrimRight(output, "\r\n") != strings.Repeat("x", size-len(m))+m {
				t.Fatalf("%d bytes of output that end with %q: the result is %q", size, m, event)
			}
		}
	}
}

// FuzzRaw checks that output survives except for carriage returns, and that no output is a result.
func FuzzRaw(f *testing.F) {
	f.Add([]byte(forged), 3, true)
	f.Add([]byte("event: exit\r\nevent: exit\n"), 12, false)
	f.Fuzz(func(t *testing.T, b []byte, at int, zip bool) {
		at = min(max(at, 0), len(b))
		output, event := sdk(written(t, zip, string(b[:at]), string(b[at:])))
		if event != "event: exit\ndata: {\"exit_code\":7}\n\n" {
			t.Fatalf("%q: the result is %q", b, event)
		}
		same := func(text string) string { return strings.TrimRight(strings.ReplaceAll(text, "\r", ""), "\n") }
		if same(output) != same(string(b)) {
			t.Fatalf("%q becomes %q", b, output)
		}
	})
}

// Output larger than a block has several, and what comes between is no output.
func TestStoredBlocks(t *testing.T) {
	t.Parallel()
	large := strings.Repeat("0123456789", 20000)
	if text := written(t, true, large, "", "end"); !strings.HasPrefix(text, large+"end") {
		t.Errorf("%d bytes", len(text))
	}
	for accept, want := range map[string]bool{"": false, "gzip": true, "br, GZIP;q=0.5": true, "gzip;q=0": false, "gzip; q=0.00": false, "gzip;Q=0": false, "identity": false, "xgzip": false} {
		if got := AcceptsGzip(&http.Request{Header: http.Header{"Accept-Encoding": {accept}}}); got != want {
			t.Errorf("%q: %v", accept, got)
		}
	}
}
