package har

import (
	"bytes"
	"io"
	"testing"
	"time"

	"boxgate/audit"
	"boxgate/internal/memory"
)

// filled begins an exchange with a body.
func filled(c *Capture, account *memory.Account, size int) *Entry {
	e := c.Begin(account, time.Now())
	e.Request(Request{Version: "HTTP/1.1", Method: "POST", Scheme: "https", Host: "a.example", Path: "/", Size: -1, Fields: []Field{{"X-A", "b"}}})
	e.RequestBody(bytes.Repeat([]byte("x"), size))
	return e
}

// TestContentsAreReleased: an entry holds no memory that is not charged, although its exchange keeps it until the next request on the
// connection: neither after it was written or dropped, nor when its capture has ended.
func TestContentsAreReleased(t *testing.T) {
	t.Parallel()
	for what, release := range map[string]func(*Capture, *Entry){
		"written": func(c *Capture, e *Entry) {
			e.Finish(&audit.Event{Path: "/"})
			if err := NewWriter(io.Discard, c, func(b []byte) []byte { return b }).Add(<-c.Entries()); err != nil {
				t.Error(err)
			}
		},
		"not written": func(c *Capture, e *Entry) {
			e.Finish(&audit.Event{Path: "/"})
			c.End(EndTime)
			c.Discard()
			if c.Dropped() != 1 {
				t.Errorf("%d entries are missing", c.Dropped())
			}
		},
		"late": func(c *Capture, e *Entry) {
			c.End(EndTime)
			e.Finish(&audit.Event{Path: "/"})
		},
		"in progress": func(c *Capture, e *Entry) {
			c.End(EndTime)
			e.RequestBody([]byte("more"))
		},
		"discarded": func(_ *Capture, e *Entry) { e.Discard() },
	} {
		c, account := New(Options{Bodies: MaxBodies}, nil), memory.New(64<<20, 64<<20).Account("box")
		e := filled(c, account, 1000)
		if account.InUse() < 1000 || c.held.Load() != account.InUse() {
			t.Fatalf("%s: %d bytes are charged, %d held", what, account.InUse(), c.held.Load())
		}
		release(c, e)
		if account.InUse() != 0 || c.held.Load() != 0 || c.queued.Load() != 0 {
			t.Errorf("%s: %d bytes are charged, %d held", what, account.InUse(), c.held.Load())
		}
		if e.upload.data != nil || e.request.Fields != nil || e.outcome.Path != "" {
			t.Errorf("%s: the entry still has %+v", what, e.request)
		}
	}
}

// TestBoxKeepsMemoryForItsTraffic: all entries in progress together leave most of the box's share to its traffic.
func TestBoxKeepsMemoryForItsTraffic(t *testing.T) {
	t.Parallel()
	for limit, most := range map[int64]int64{16 << 20: 4 << 20, 256 << 20: mostHeld} {
		c, account := New(Options{Bodies: MaxBodies}, nil), memory.New(1<<30, limit).Account("box")
		var entries []*Entry
		for range 200 {
			entries = append(entries, filled(c, account, MaxBodies))
		}
		if held := account.InUse(); held > most || held < most/2 {
			t.Errorf("%d of %d bytes are held", held, limit)
		}
		for _, e := range entries {
			e.Discard()
		}
		if account.InUse() != 0 || c.held.Load() != 0 {
			t.Errorf("%d bytes are still charged, %d held", account.InUse(), c.held.Load())
		}
	}
}
