package sshflow

import (
	"net"
	"testing"
	"time"

	"boxgate/internal/memory"
)

// A connection is not read further while its backlog is too large, or while its account is exhausted.
func TestInflow(t *testing.T) {
	t.Parallel()
	for name, most := range map[string]int64{"of one connection": 64 << 20, "of an account": 2 << 20} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			from, to := net.Pipe()
			defer from.Close()
			claim := new(memory.Claim)
			claim.Open(memory.New(1<<30, most).Account("box"), memory.Buffers)
			f := New(to, claim)
			defer f.Close()
			s := f.AddStream()
			go func() {
				for {
					if _, err := from.Write(make([]byte, 4096)); err != nil {
						return
					}
				}
			}()
			read := make(chan int)
			go func() {
				b := make([]byte, 4096)
				for {
					n, err := f.Read(b)
					if err != nil {
						close(read)
						return
					}
					read <- n
				}
			}()
			limit := min(Most, int(most)/Cost)
			total := 0
			for f.stalled() == false {
				select {
				case n := <-read:
					total += n
				case <-time.After(time.Millisecond):
				}
			}
			if total > limit+8192 || total < limit/2 {
				t.Errorf("%d bytes were read; the limit is %d", total, limit)
			}
			s.Consumed(total, true)
			if <-read == 0 {
				t.Error("no read after everything was consumed")
			}
		})
	}
}

// stalled reports whether reads are suspended.
func (f *Flow) stalled() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return !f.hasCapacityLocked()
}
