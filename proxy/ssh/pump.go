package ssh

import (
	"io"
	"sync/atomic"
)

// pump passes data on from a channel to another, and counts it, until the first ends. Once it cannot be passed on, or with
// nowhere to go (to and count are nil then), it is read and dropped: what nobody reads stays in memory.
func pump(to io.Writer, from io.Reader, of *stream, count *atomic.Int64) {
	buf := make([]byte, pumpBuffer)
	for {
		of.waiting()
		n, err := from.Read(buf)
		of.took(n, n < len(buf))
		if n > 0 && to != nil {
			passed, failed := to.Write(buf[:n])
			count.Add(int64(passed))
			if failed != nil {
				to = nil
			}
		}
		if err != nil {
			return
		}
	}
}
