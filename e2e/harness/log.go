package harness

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
)

// ReadLog returns the gateway's log so far.
func (w *World) ReadLog() string {
	w.T.Helper()
	text, err := w.logSince()
	if err != nil {
		w.T.Fatal(err)
	}
	return text
}

// LogText returns the part of the gateway's log written in this test.
func (w *World) LogText() string {
	text, err := w.logSince()
	if err != nil {
		return err.Error()
	}
	return text
}

func (w *World) logSince() (string, error) {
	f, err := os.Open(w.Log.Name())
	if err != nil {
		return "", err
	}
	defer f.Close()
	text, err := io.ReadAll(io.NewSectionReader(f, w.logFrom, 1<<40))
	return string(text), err
}

// NoInternalErrors fails the test if the log shows an internal error of the gateway.
func (w *World) NoInternalErrors() {
	w.T.Helper()
	data := w.ReadLog()
	for _, bad := range []string{`"panic`, `"reason":"internal"`, "too many open files", "DATA RACE"} {
		if i := strings.Index(data, bad); i >= 0 {
			w.T.Errorf("the gateway's log: %s", Tail(data[:min(len(data), i+500)], 1000))
		}
	}
}

// Restored counts how often the gateway has logged that it restored its rules.
func (w *World) Restored() int {
	w.T.Helper()
	return strings.Count(w.LogText(), "have been restored")
}

// Metrics returns the metrics in Prometheus's text format.
func (w *World) Metrics() []byte {
	w.T.Helper()
	client := &http.Client{Transport: &http.Transport{DialContext: w.Net.Gateway().DialContext, DisableKeepAlives: true}}
	res, err := client.Get("http://127.0.0.1:9600/metrics")
	if err != nil {
		w.T.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil || !bytes.Contains(body, []byte("boxgate")) {
		w.T.Fatalf("metrics: %v %s", err, body)
	}
	return body
}

// Metric sums the samples of a metric.
func (w *World) Metric(name string) (sum float64) {
	w.T.Helper()
	for line := range strings.Lines(string(w.Metrics())) {
		if rest, ok := strings.CutPrefix(line, name); ok && (rest[0] == '{' || rest[0] == ' ') {
			var v float64
			fields := strings.Fields(line)
			_, _ = fmt.Sscan(fields[len(fields)-1], &v)
			sum += v
		}
	}
	return sum
}
