package exec

import (
	"strings"
	"sync"
	"sync/atomic"
)

// heldMost is how many bytes of output all answers in the making may hold. Boxes choose what they print, and so do many of them at
// the same time; what is beyond it is cut.
const heldMost = 128 << 20

// capture keeps the first bytes of a stream and discards the rest, so that the command does not block. What it keeps is counted
// as it will be in JSON, where a control byte takes six.
type capture struct {
	most int
	held *atomic.Int64 // by all captures
	mu   sync.Mutex
	buf  []byte
	cost int
	cut  bool
	gone bool
}

func (c *capture) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gone {
		return len(b), nil
	}
	n, cost := fitting(b, c.most-c.cost)
	if c.held.Add(int64(cost)) > heldMost {
		c.held.Add(-int64(cost))
		n, cost = 0, 0
	}
	c.buf, c.cost = append(c.buf, b[:n]...), c.cost+cost
	if n < len(b) {
		c.cut, c.most = true, c.cost // nothing follows a gap
	}
	return len(b), nil
}

// fitting returns how many bytes take at most room in JSON, and how much they take.
func fitting(b []byte, room int) (n, cost int) {
	for n < len(b) {
		each := 1
		switch c := b[n]; {
		case c < ' ' && c != '\n' && c != '\t' && c != '\r', c == '<', c == '>', c == '&':
			each = len("\\u0000")
		case c < ' ', c == '"', c == '\\':
			each = len("\\n")
		}
		if cost+each > room {
			break
		}
		n, cost = n+1, cost+each
	}
	return n, cost
}

// text returns what was captured as valid UTF-8, for JSON: other bytes become U+FFFD.
func (c *capture) text() string { return strings.ToValidUTF8(string(c.buf), "\uFFFD") }

// drop forgets what was captured, and what still comes: nobody waits for it any more.
func (c *capture) drop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held.Add(-int64(c.cost))
	c.buf, c.cost, c.gone = nil, 0, true
}
