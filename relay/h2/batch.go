package h2

// Batch lists the connections whose output is written when a goroutine has handled all the input that it has read, so that the
// small frames for a connection share a write and a TLS record. Without it, the goroutine that writes to a connection is woken
// by the first frame, on another processor, and writes the frames one by one.
//
// The goroutine that owns the batch passes it to the functions that append output, and calls [Batch.Flush] before it may block.
// The zero value is empty. Not safe for concurrent use.
type Batch struct {
	owed []Flusher
	few  [4]Flusher // memory of owed
}

// Flusher is a connection whose output waits for the end of a batch.
type Flusher interface {
	// Flush starts the writing of the output. It does not block. Locks of connections must not be held.
	Flush()
}

// Add adds a connection, which must not be in a batch already: its output is flushed by whichever batch it is in.
func (b *Batch) Add(c Flusher) {
	if b.owed == nil {
		b.owed = b.few[:0]
	}
	b.owed = append(b.owed, c)
}

// Flush flushes the connections and empties the batch.
func (b *Batch) Flush() {
	if len(b.owed) == 0 {
		return
	}
	for _, c := range b.owed {
		c.Flush()
	}
	b.owed, b.few = nil, [len(b.few)]Flusher{}
}
