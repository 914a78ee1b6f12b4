package ssh

import (
	"io"
	"sync/atomic"
)

// pump copies data from one channel to another and counts it, until from ends. After a failed write, or if to is nil (then
// count is nil as well), it discards what it reads: unread data would stay in memory.
func pump(to io.Writer, from io.Reader, of *stream, count *atomic.Int64) {
	buf := make([]byte, pumpBuffer)
	for {
		of.markCaughtUp()
		n, err := from.Read(buf)
		of.markConsumed(n, n < len(buf))
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
