package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"path"
	"strings"
	"time"

	"boxgate/api"
	"boxgate/audit"
	"boxgate/policy"
	"boxgate/policy/name"
)

// Events returns the decisions about a box so far.
func (w *World) Events(box string) []audit.Event {
	w.T.Helper()
	var events []audit.Event
	err := w.Client.Lines(w.T.Context(), api.BoxPath(box, "egress"), func(line []byte) error {
		var e audit.Event
		if err := json.Unmarshal(line, &e); err != nil {
			return err
		}
		events = append(events, e)
		return nil
	})
	if err != nil {
		w.T.Fatal(err)
	}
	return events
}

// Event waits for a decision about a box that satisfies match.
func (w *World) Event(box string, match func(audit.Event) bool) audit.Event {
	w.T.Helper()
	e, seen, ok := w.await(box, match)
	if !ok {
		for _, e := range seen {
			w.T.Logf("decision: %s", audit.Line(e))
		}
		w.T.Fatal("the decision was not logged")
	}
	return e
}

// await follows the decisions about a box, starting with the recorded ones, until one matches. If none matches in time,
// it returns the decisions it has seen.
func (w *World) await(box string, match func(audit.Event) bool) (found audit.Event, seen []audit.Event, ok bool) {
	w.T.Helper()
	ctx, cancel := context.WithTimeout(w.T.Context(), w.patience())
	defer cancel()
	errEnough := errors.New("enough has been read")
	for {
		seen = nil
		err := w.Client.Lines(ctx, api.BoxPath(box, "egress")+"?follow=true", func(line []byte) error {
			var e audit.Event
			if err := json.Unmarshal(line, &e); err != nil {
				return err
			}
			if e.Seq == 0 { // this reader was too slow and missed events; the gateway still has them
				return errEnough
			}
			seen = append(seen, e)
			if match(e) {
				found, ok = e, true
				return errEnough
			}
			return nil
		})
		switch {
		case ok:
			return found, seen, true
		case ctx.Err() != nil:
			w.failed.Store(true)
			return found, seen, false
		case err != nil && !errors.Is(err, errEnough):
			w.T.Fatal(err)
		}
	}
}

// Denied waits for a denial with the reason, recorded at the stage after the given time.
func (in *Intruder) Denied(since time.Time, stage policy.Stage, reason name.Reason) audit.Event {
	in.T.Helper()
	e, seen, ok := in.await(in.Box, func(e audit.Event) bool {
		return !e.Time.Before(since) && e.Stage == stage && e.Verdict == policy.Deny && e.Reason == reason
	})
	if ok {
		return e
	}
	in.T.Errorf("no decision at stage %s has the reason %s", stage, reason)
	for _, e := range seen {
		if !e.Time.Before(since) {
			in.T.Logf("decision: %s", audit.Line(e))
		}
	}
	return audit.Event{}
}

// Denial waits for a denial of an address. Port 0 means any port.
func (w *World) Denial(box string, stage policy.Stage, to netip.Addr, port uint16, reason name.Reason) audit.Event {
	w.T.Helper()
	e := w.Event(box, func(e audit.Event) bool { return e.Stage == stage && e.Addr == to && (port == 0 || e.Port == port) })
	if e.Verdict != policy.Deny || e.Reason != reason {
		w.T.Errorf("%v port %d: want %s, decision: %s", to, port, reason, audit.Line(e))
	}
	return e
}

// DenialOf waits for a denial of a name.
func (w *World) DenialOf(box string, stage policy.Stage, name string, reason name.Reason) audit.Event {
	w.T.Helper()
	return w.Event(box, func(e audit.Event) bool {
		return e.Stage == stage && e.Name == name && e.Verdict == policy.Deny && e.Reason == reason
	})
}

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

// NFT runs one command in the gateway's namespace. HANDLE(chain, text) is replaced by the handle of the rule of the
// chain that contains the text. A word with a star is replaced by the name of the matching chain or set: the names of a
// plan change with each change of the plan.
func (w *World) NFT(command string) {
	w.T.Helper()
	command = w.nftNames(command)
	if head, rest, ok := strings.Cut(command, "HANDLE("); ok {
		args, tail, _ := strings.Cut(rest, ")")
		chain, text, _ := strings.Cut(args, ", ")
		listing, err := w.Net.Gateway().Run(w.T.Context(), "nft", "-a", "list", "chain", "inet", "boxgate", chain)
		if err != nil {
			w.T.Fatalf("%v: %s", err, listing)
		}
		for line := range strings.Lines(listing) {
			if _, handle, found := strings.Cut(line, "# handle "); found && strings.Contains(line, text) {
				command = head + strings.TrimSpace(handle) + tail
			}
		}
	}
	if out, err := w.Net.Gateway().Run(w.T.Context(), "nft", command); err != nil {
		w.T.Fatalf("nft %s: %v: %s", command, err, out)
	}
}

// nftNames replaces words with stars by the shortest matching names in the gateway's table.
func (w *World) nftNames(command string) string {
	w.T.Helper()
	if !strings.Contains(command, "*") {
		return command
	}
	listing, err := w.Net.Gateway().Run(w.T.Context(), "nft", "list", "table", "inet", "boxgate")
	if err != nil {
		w.T.Fatalf("%v: %s", err, listing)
	}
	words := strings.Fields(command)
	for i, pattern := range words {
		found := ""
		for line := range strings.Lines(listing) {
			f := strings.Fields(line)
			if len(f) < 2 || f[0] != "chain" && f[0] != "set" {
				continue
			}
			if ok, _ := path.Match(pattern, f[1]); ok && (found == "" || len(f[1]) < len(found)) {
				found = f[1]
			}
		}
		if strings.Contains(pattern, "*") {
			words[i] = found
		}
	}
	return strings.Join(words, " ")
}
