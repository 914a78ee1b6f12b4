package downstream

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"

	"boxgate/internal/memory"
	"boxgate/relay/h2"
)

// task is a request that was taken. A test decides how it continues.
type task struct {
	s       *Stream
	waiting atomic.Bool
	served  atomic.Int32
	serve   func(*Stream)
}

func (k *task) Unwatch() bool { return k.waiting.Swap(false) }

func (k *task) Serve() {
	k.served.Add(1)
	k.serve(k.s)
}

// taken serves a client. All of its requests become tasks, which are passed to start.
func taken(t *testing.T, start func(*task), test func(p *peer, cancel func())) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p := unserved(t)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		p.memory = memory.New(1<<30, 1<<30).Account("box")
		p.serveBy(func(nc net.Conn) {
			Serve(ctx, nc, Config{
				Start: func(s *Stream, _ *h2.Batch) {
					k := &task{s: s, serve: hello}
					s.Take(k)
					start(k)
				},
				Handler: hello, Refused: p.told, Panicked: func(v any) { t.Errorf("panic: %v", v) }, Memory: p.memory, Idle: time.Minute,
			})
		})
		p.greet()
		p.frames()
		test(p, cancel)
		p.leave()
	})
}

// wait makes the task wait without a goroutine.
func (k *task) wait(t *testing.T) {
	k.waiting.Store(true)
	if !k.s.Await(k) {
		t.Error("the context has ended")
	}
}

// TestTakenRequests: a task can answer in Config.Start, later, or in a goroutine.
func TestTakenRequests(t *testing.T) {
	answer := func(s *Stream) {
		if !s.WriteNow(200, fields("a", "1"), []byte("hel")) || !s.WriteNow(0, nil, []byte("lo")) || s.WriteNow(200, nil, nil) {
			t.Error("the answer is not taken")
		}
		s.CloseNow(0, fields("t", "2"))
		s.Done()
	}
	for name, start := range map[string]func(*task){
		"at once": func(k *task) { answer(k.s) },
		"later": func(k *task) {
			k.wait(t)
			time.AfterFunc(time.Second, func() {
				if k.Unwatch() {
					answer(k.s)
				}
			})
		},
		"in a goroutine": func(k *task) {
			k.serve = func(s *Stream) {
				_ = s.WriteHeader(200, fields("a", "1"), false)
				_, _ = s.Write([]byte("hel"))
				_, _ = s.Write([]byte("lo"))
				_ = s.CloseWrite(fields("t", "2"))
			}
			k.s.Resume()
		},
	} {
		t.Run(name, func(t *testing.T) {
			taken(t, start, func(p *peer, _ func()) {
				for id := uint32(1); id < 6; id += 2 {
					p.ask(id, true, get()...)
					synctest.Wait()
					time.Sleep(2 * time.Second)
					p.expect(fmt.Sprintf("%d HEADERS :status=200 a=1", id), fmt.Sprintf("%d DATA hel", id), fmt.Sprintf("%d DATA lo", id),
						fmt.Sprintf("%d HEADERS t=2 end", id))
				}
			})
		})
	}
}

// TestTakenRequestWithoutContent: the head of a response without content ends the stream.
func TestTakenRequestWithoutContent(t *testing.T) {
	taken(t, func(k *task) {
		k.s.CloseNow(204, nil)
		k.s.Done()
	}, func(p *peer, _ func()) {
		p.ask(1, true, get()...)
		p.expect("1 HEADERS :status=204 end")
	})
}

// TestWaitingTasksAreToldOfTheEnd: a task that waits without a goroutine gets one when its response is no longer wanted.
func TestWaitingTasksAreToldOfTheEnd(t *testing.T) {
	for name, end := range map[string]func(p *peer, k *task, cancel func()){
		"reset by the client": func(p *peer, _ *task, _ func()) { _ = p.framer.WriteRSTStream(1, http2.ErrCodeCancel) },
		"cancelled":           func(_ *peer, k *task, _ func()) { k.s.Cancel(nil) },
		"connection lost":     func(p *peer, _ *task, _ func()) { _ = p.conn.Close() },
		"context ended":       func(_ *peer, _ *task, cancel func()) { cancel() },
	} {
		t.Run(name, func(t *testing.T) {
			var last *task
			taken(t, func(k *task) {
				last = k
				k.serve = func(s *Stream) { <-s.Context().Done() }
				k.wait(t)
			}, func(p *peer, cancel func()) {
				p.ask(1, true, get()...)
				synctest.Wait()
				if n := last.served.Load(); n != 0 {
					t.Fatalf("served %d times", n)
				}
				end(p, last, cancel)
				synctest.Wait()
				if n := last.served.Load(); n != 1 || last.s.Await(last) {
					t.Errorf("served %d times", n)
				}
				if last.Unwatch() { // for the connection to end
					last.s.Resume()
				}
			})
		})
	}
}

// TestTasksCountAsRequests: no more tasks are started than requests may be in progress, with or without goroutines.
func TestTasksCountAsRequests(t *testing.T) {
	var started int
	var tasks []*task
	taken(t, func(k *task) {
		started++
		k.wait(t)
		tasks = append(tasks, k)
	}, func(p *peer, _ func()) {
		for i := range h2.Streams {
			p.ask(uint32(2*i+1), true, get()...)
		}
		synctest.Wait()
		for _, k := range tasks {
			k.Unwatch() // so that a reset does not resume it
		}
		for i := range h2.Streams {
			_ = p.framer.WriteRSTStream(uint32(2*i+1), http2.ErrCodeCancel)
		}
		p.ask(2*h2.Streams+1, true, get()...)
		synctest.Wait()
		if started != h2.Streams {
			t.Errorf("%d were started", started)
		}
		for _, k := range tasks {
			k.s.Done()
		}
		p.expect(fmt.Sprintf("%d HEADERS :status=200", 2*h2.Streams+1), fmt.Sprintf("%d DATA hello end", 2*h2.Streams+1))
	})
}

// TestWriteNowKeepsToLimits: WriteNow refuses content that would have to wait for the client.
func TestWriteNowKeepsToLimits(t *testing.T) {
	var last *Stream
	taken(t, func(k *task) {
		last = k.s
		k.wait(t)
	}, func(p *peer, _ func()) {
		_ = p.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 4})
		p.ask(1, true, get()...)
		p.frames()
		if last.WriteNow(200, nil, []byte("hello")) {
			t.Error("more than the stream's window")
		}
		if !last.WriteNow(200, nil, []byte("hell")) || last.WriteNow(0, nil, []byte("o")) || last.Flush() != nil {
			t.Error("the window is not used")
		}
		p.expect("1 HEADERS :status=200", "1 DATA hell")
		_ = p.framer.WriteWindowUpdate(1, 1<<20)
		synctest.Wait()
		sent := 4
		for part := []byte(strings.Repeat("x", 1000)); last.WriteNow(0, nil, part); {
			sent += len(part)
		}
		if room := batchMax + 2000; last.Ready() || sent > room {
			t.Errorf("%d bytes are to be sent", sent)
		}
		last.CloseNow(0, nil)
		last.Done()
		p.frames()
	})
}

// TestAnswersOfABatch: responses that are delayed until the end of a batch go out in one write then, and no earlier.
func TestAnswersOfABatch(t *testing.T) {
	var waiting []*task
	taken(t, func(k *task) {
		k.wait(t)
		waiting = append(waiting, k)
	}, func(p *peer, _ func()) {
		var want []string
		for id := uint32(1); id < 20; id += 2 {
			p.ask(id, true, get()...)
			want = append(want, fmt.Sprintf("%d HEADERS :status=200", id), fmt.Sprintf("%d DATA hello end", id))
		}
		synctest.Wait()
		before := p.writes
		var b h2.Batch
		for _, k := range waiting {
			k.Unwatch()
			k.s.Delay(&b)
			if !k.s.WriteNow(200, nil, []byte("hello")) || k.s.Flush() != nil {
				t.Fatal("the answer is not taken")
			}
			k.s.CloseNow(0, nil)
		}
		synctest.Wait()
		if n := p.writes - before; n > 0 {
			t.Errorf("%d writes before the end of the batch", n)
		}
		b.Flush()
		p.expect(want...)
		if n := p.writes - before; n != 1 {
			t.Errorf("the batch took %d writes", n)
		}
		for _, k := range waiting {
			k.s.Done()
		}
	})
}

// TestDelayEnds: a response that continues after a wait, or in a goroutine, is not delayed; neither is a full batch.
func TestDelayEnds(t *testing.T) {
	var waiting []*task
	taken(t, func(k *task) {
		k.wait(t)
		waiting = append(waiting, k)
	}, func(p *peer, _ func()) {
		for id := uint32(1); id < 6; id += 2 {
			p.ask(id, true, get()...)
		}
		synctest.Wait()
		var b h2.Batch // never flushed
		first, second, third := waiting[0], waiting[1], waiting[2]
		for _, k := range waiting {
			k.Unwatch()
			k.s.Delay(&b)
		}
		first.wait(t)
		_ = first.s.WriteHeader(200, nil, true)
		p.expect("1 HEADERS :status=200 end")
		second.s.Resume()
		synctest.Wait()
		p.expect("3 HEADERS :status=200", "3 DATA hello end")
		if !third.s.WriteNow(200, nil, make([]byte, dataMax)) || third.s.Flush() != nil {
			t.Error("the answer is not taken")
		}
		synctest.Wait()
		if p.frames() == nil {
			t.Error("a full batch is not written")
		}
		third.s.CloseNow(0, nil)
		first.Unwatch()
		first.s.Done()
		third.s.Done()
	})
}
