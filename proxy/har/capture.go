package har

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"boxgate/internal/memory"
	"boxgate/proxy/scrub"
)

// Bounds of a capture. They keep an archive readable by browsers and editors.
const (
	MaxEntries = 10_000
	MaxBytes   = 256 << 20 // of the archive
	MaxBodies  = 1 << 20   // of each body
	MaxTime    = time.Hour
)

const (
	queueEntries = 1024     // finished entries that wait for the reader
	queueBytes   = 8 << 20  // their memory, which is the box's
	mostHeld     = 32 << 20 // memory of all entries, also of those in progress; and at most a quarter of the limit of the box
	mostTexts    = 1024     // secrets that are masked
	textBytes    = 256 << 10
)

// Memory is the memory of a capture itself, in bytes, apart from its entries: the masks of secrets, an entry being written, and a
// decoder with its window.
const Memory = 24 << 20

// Options select what a capture records.
type Options struct {
	Bodies      int  // bytes of each body; 0: bodies are left out
	Credentials bool // show the credentials that the box sends and gets, instead of their names only
}

// Reason says why a capture has ended.
type Reason string

// The reasons.
const (
	EndTime     Reason = "time"             // its time is over
	EndEntries  Reason = "entries"          // it has the maximum number of entries
	EndBytes    Reason = "bytes"            // the archive has its maximum size
	EndStopping Reason = "gateway_stopping" // the gateway stops or is replaced
	EndBox      Reason = "box_deleted"
	EndKey      Reason = "api_key_ended"
	EndSecrets  Reason = "secrets" // more secrets were sent than can be masked
)

// Capture records the requests of a box. Create it with [New]. Safe for concurrent use.
type Capture struct {
	options Options
	entries chan *Entry
	done    chan struct{}
	dropped atomic.Uint64
	queued  atomic.Int64 // bytes in entries
	held    atomic.Int64 // bytes of all entries

	mu    sync.Mutex
	why   Reason // "" until the capture has ended
	ended bool
	texts map[string]struct{} // to mask
	size  int                 // of texts
	lacks bool                // texts lacks some
	set   *scrub.Set          // finds the first texts
	finds int                 // number of texts that set finds
}

// New begins a capture. texts are secrets that servers already know.
func New(o Options, texts []string) *Capture {
	c := &Capture{options: o, entries: make(chan *Entry, queueEntries), done: make(chan struct{}), texts: map[string]struct{}{}}
	c.Mask(texts)
	return c
}

// End ends the capture. Only the first reason counts.
func (c *Capture) End(why Reason) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endLocked(why)
}

func (c *Capture) endLocked(why Reason) {
	if !c.ended {
		c.ended, c.why = true, why
		close(c.done)
	}
}

// Ended returns a channel that is closed when the capture ends.
func (c *Capture) Ended() <-chan struct{} { return c.done }

func (c *Capture) hasEnded() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// Reason returns the reason why the capture has ended; "" before.
func (c *Capture) Reason() Reason {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.why
}

// Entries returns the finished entries, in the order in which they ended.
func (c *Capture) Entries() <-chan *Entry { return c.entries }

// Dropped returns the number of exchanges that are missing because the reader was too slow.
func (c *Capture) Dropped() uint64 { return c.dropped.Load() }

// Mask adds secrets that are about to be sent. They are masked in every entry that is written from now on. Beyond a limit the capture
// ends: what cannot be masked is not written. c may be nil, which has no effect.
func (c *Capture) Mask(texts []string) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range texts {
		if _, known := c.texts[t]; known || len(t) < scrub.MinLength {
			continue
		}
		if len(c.texts) >= mostTexts || c.size+len(t) > textBytes {
			c.lacks = true
			c.endLocked(EndSecrets)
			return
		}
		c.texts[t] = struct{}{}
		c.size += len(t)
	}
}

// masks returns the set of all secrets that were added before. ok is false if there are secrets that it lacks. One goroutine calls it.
func (c *Capture) masks() (set *scrub.Set, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.set == nil || c.finds != len(c.texts) {
		texts := slices.Collect(maps.Keys(c.texts))
		c.mu.Unlock() // exchanges do not wait for it
		set = scrub.New(texts)
		c.mu.Lock()
		c.set, c.finds = set, len(texts)
	}
	return c.set, !c.lacks
}

// Begin begins the entry of an exchange that arrived at a time. Its memory is that of account. It returns nil if there is none, or
// the capture has ended.
func (c *Capture) Begin(account *memory.Account, at time.Time) *Entry {
	if c.hasEnded() {
		return nil
	}
	e := &Entry{capture: c, began: at, most: min(mostHeld, account.Limit()/4)}
	e.claim.Open(account, memory.Buffers)
	if !e.grow(entryCost) {
		c.dropped.Add(1)
		return nil
	}
	return e
}

// add passes a finished entry to the reader, or drops it.
func (c *Capture) add(e *Entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		e.release()
		return
	}
	if c.queued.Add(int64(e.size)) <= queueBytes {
		select {
		case c.entries <- e:
			return
		default:
		}
	}
	c.queued.Add(-int64(e.size))
	c.dropped.Add(1)
	e.release()
}

// taken releases the memory of an entry that was written.
func (c *Capture) taken(e *Entry) {
	c.queued.Add(-int64(e.size))
	e.release()
}

// reserve reports whether the entries may use n more bytes, most in all, and counts them if so.
func (c *Capture) reserve(n int, most int64) bool {
	if c.held.Add(int64(n)) > most {
		c.held.Add(-int64(n))
		return false
	}
	return true
}

// Discard releases the entries that were not written, and counts them as dropped. The capture must have ended.
func (c *Capture) Discard() {
	for {
		select {
		case e := <-c.entries:
			c.dropped.Add(1)
			c.taken(e)
		default:
			return
		}
	}
}
