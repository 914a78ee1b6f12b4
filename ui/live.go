package ui

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"boxgate/api"
	"boxgate/api/stream"
	"boxgate/audit"
)

// Bounds of a stream of decisions to one page. A box that makes thousands of decisions a second, or a browser that reads slowly,
// loses rows instead of the gateway's time, and the page shows how many.
const (
	batchTime   = 250 * time.Millisecond
	maxRows     = 100 // in a batch, of allowed decisions and of denials each
	maxFirst    = 300 // in the first batch, which has the decisions of the past
	streamPing  = 15 * time.Second
	maxLineRows = 1 << 20 // bytes of a batch
)

// batch is the rows that wait to be sent. Safe for concurrent use.
type batch struct {
	mu      sync.Mutex
	rows    []row
	denied  int // of rows
	bytes   int // of the decisions of rows
	most    int
	lost    uint64
	gap     string
	lastSeq uint64
}

// denial is the part of a line that marks a denial. Text of a box cannot contain it: quotation marks in JSON strings are escaped.
var denial = []byte(`"verdict":"deny"`)

// add adds a line of the API's stream. Beyond the bounds it is only counted.
func (b *batch) add(line []byte) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if bytes.HasPrefix(line, []byte(`{"lost":`)) || bytes.HasPrefix(line, []byte(`{"gap":`)) {
		var note struct {
			Lost uint64
			Gap  string
		}
		_ = json.Unmarshal(line, &note)
		b.lost += note.Lost
		b.gap = cmp.Or(note.Gap, b.gap)
		return nil
	}
	isDenial := bytes.Contains(line, denial)
	full := len(b.rows)-b.denied >= b.most
	if isDenial {
		full = b.denied >= b.most
	}
	var e audit.Event
	if full || b.bytes+len(line) > maxLineRows || json.Unmarshal(line, &e) != nil {
		b.lost++
		return nil
	}
	b.rows, b.bytes = append(b.rows, rowOf(e)), b.bytes+len(line)
	if isDenial {
		b.denied++
	}
	b.lastSeq = e.Seq
	return nil
}

// message is a batch as the script of the page receives it.
type message struct {
	First bool   `json:"first,omitempty"` // the rows replace all earlier ones
	Rows  []row  `json:"rows"`
	Lost  uint64 `json:"lost,omitempty"` // decisions that were left out
	Gap   string `json:"gap,omitempty"`
}

// take empties the batch.
func (b *batch) take() (m message, seq uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	m = message{Rows: b.rows, Lost: b.lost, Gap: b.gap}
	b.rows, b.denied, b.bytes, b.lost, b.gap, b.most = nil, 0, 0, 0, "", maxRows
	return m, b.lastSeq
}

// livePath returns the path of the API's stream for a page. A browser that reconnects goes on after the last batch that it has
// received.
func livePath(v *visit) (path, after string) {
	q := url.Values{"follow": {"true"}}
	if v.r.URL.Query().Get("denied") != "" {
		q.Set("denied", "true")
	}
	if after = cmp.Or(v.r.Header.Get("Last-Event-ID"), v.r.URL.Query().Get("after")); after != "" {
		q.Set("after", after)
	}
	return api.BoxPath(v.r.PathValue("id"), "egress") + "?" + q.Encode(), after
}

// readLive reads the API's stream into a batch. A panic ends this stream only: here it would end the gateway.
func readLive(ctx context.Context, c *api.Client, path string, begun chan<- string, into *batch) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("a decision cannot be shown: %v", p)
		}
	}()
	return c.Events(ctx, path, func(run string) { begun <- run }, into.add)
}

// serveLive streams the decisions about a box as server-sent events, in batches. It ends with the session.
func serveLive(v *visit) (view, error) {
	path, after := livePath(v)
	ctx := v.r.Context()
	waiting := &batch{most: maxFirst}
	begun, ended := make(chan string, 1), make(chan error, 1)
	go func() {
		ended <- readLive(ctx, v.client, path, begun, waiting)
	}()
	var run string
	select {
	case run = <-begun:
	case err := <-ended:
		if err != nil {
			return view{}, err
		}
		run = <-begun // it has begun and ended
		ended <- nil
	}
	out := &liveWriter{w: v.w, rc: http.NewResponseController(v.w), run: run}
	defer func() { _ = out.rc.SetWriteDeadline(noTime) }()
	h := v.w.Header()
	h.Set("Content-Type", stream.EventStream)
	h.Set("X-Accel-Buffering", "no")
	v.w.WriteHeader(http.StatusOK)
	if v.r.Method == http.MethodHead {
		return view{written: true}, nil
	}
	tick, ping := time.NewTicker(batchTime), time.NewTicker(streamPing)
	defer tick.Stop()
	defer ping.Stop()
	first, signedOut := after == "", v.ui.Sessions.Done(v.r)
	var err error
	for err == nil {
		select {
		case <-ctx.Done():
			return view{written: true}, nil
		case <-signedOut:
			return view{written: true}, nil
		case <-ended:
			return view{written: true}, out.send(waiting, false)
		case <-ping.C:
			err = out.text(": ping\n\n")
		case <-tick.C:
			err = out.send(waiting, first)
			first = first && !out.sent
		}
	}
	return view{written: true}, nil // the browser has left
}

// liveWriter writes server-sent events, each within sendTime.
type liveWriter struct {
	w    http.ResponseWriter
	rc   *http.ResponseController
	run  string
	sent bool
}

// send sends the batch, unless it is empty. The first batch is sent in any case.
func (l *liveWriter) send(b *batch, first bool) error {
	m, seq := b.take()
	if len(m.Rows) == 0 && m.Lost == 0 && m.Gap == "" && !first {
		return nil
	}
	if m.First = first; m.Rows == nil {
		m.Rows = []row{}
	}
	l.sent = true
	id := ""
	if seq != 0 {
		id = "id: " + l.run + "-" + strconv.FormatUint(seq, 10) + "\n"
	}
	return l.text(id + string(stream.Event("rows", m)))
}

func (l *liveWriter) text(s string) error {
	_ = l.rc.SetWriteDeadline(time.Now().Add(sendTime))
	if _, err := l.w.Write([]byte(s)); err != nil {
		return err
	}
	return l.rc.Flush()
}
