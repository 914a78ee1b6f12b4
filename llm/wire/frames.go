package wire

import (
	"encoding/binary"
	"encoding/json"
)

// frames splits a stream of messages in the form application/vnd.amazon.eventstream as it arrives: the length of the message and of its
// headers, a checksum, the headers, the payload, and a checksum (https://docs.aws.amazon.com/AmazonS3/latest/API/RESTSelectObjectAppendix.html).
// The checksums are left to the client. The zero value is ready after payload is set. Not safe for concurrent use.
type frames struct {
	payload func(data []byte) // after each message with a payload of at most maxPayload

	prelude [preludeSize]byte
	got     int    // bytes of the message so far
	size    int    // of the message; 0: its prelude is incomplete
	begin   int    // of the payload, within the message
	kept    []byte // of the payload
	broken  bool   // the data has another form
}

// Sizes of messages in bytes.
const (
	preludeSize  = 12
	checksumSize = 4
	maxMessage   = 24 << 20 // more than the servers send
	maxPayload   = 64 << 10 // longer ones have the results of tools, and no usage
)

// feed takes the next piece of the stream.
func (f *frames) feed(p []byte) {
	for len(p) > 0 && !f.broken {
		if f.size == 0 {
			n := copy(f.prelude[f.got:], p)
			f.got, p = f.got+n, p[n:]
			if f.got == preludeSize {
				f.start()
			}
			continue
		}
		p = f.body(p)
	}
}

// start follows the prelude of a message.
func (f *frames) start() {
	size, headers := binary.BigEndian.Uint32(f.prelude[:]), binary.BigEndian.Uint32(f.prelude[4:])
	if size > maxMessage || headers > size || headers+preludeSize+checksumSize > size {
		f.broken = true
		return
	}
	f.size, f.begin, f.kept = int(size), preludeSize+int(headers), f.kept[:0]
}

// body takes bytes after the prelude, and returns those after the message.
func (f *frames) body(p []byte) []byte {
	part := p[:min(len(p), f.size-f.got)]
	from, to := max(f.begin, f.got), min(f.size-checksumSize, f.got+len(part))
	if length := f.size - checksumSize - f.begin; from < to && length <= maxPayload {
		f.kept = append(f.kept, part[from-f.got:to-f.got]...)
	}
	if f.got += len(part); f.got == f.size {
		if len(f.kept) > 0 {
			f.payload(f.kept)
		}
		f.got, f.size = 0, 0
	}
	return p[len(part):]
}

// between reports whether no message has begun that has not ended.
func (f *frames) between() bool { return !f.broken && f.got == 0 }

// endFrame reads the payload of a message of Amazon Bedrock: an event of Converse, or one of the model's own API in base64.
func (r *Reader) endFrame(payload []byte) {
	var chunk struct {
		Bytes []byte `json:"bytes"`
	}
	if json.Unmarshal(payload, &chunk) == nil && len(chunk.Bytes) > 0 {
		payload = chunk.Bytes
	}
	r.scan.feed(payload)
	r.endEvent(nil)
	r.scan.reset()
}
