package process

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"boxgate/api"
	"boxgate/api/access"
	"boxgate/api/session"
	"boxgate/policy"
	"boxgate/quota"
)

// program is a command. It runs until it returns; ctx ends when it is killed.
type program func(ctx context.Context, c *command) int

// sessions runs a program for each process.
type sessions struct {
	program program
	pids    atomic.Int64
	fail    error
}

// Run implements [Sessions].
func (s *sessions) Run(ctx context.Context, _ policy.BoxID, d session.Direct) (api.ExecResult, error) {
	if s.fail != nil {
		return api.ExecResult{}, s.fail
	}
	c := &command{in: d.In, out: d.Out, errs: d.Err, pid: int(s.pids.Add(1)), signals: make(chan string, 10)}
	d.Started(c, "run_1")
	ended := make(chan int, 1)
	go func() { ended <- s.program(ctx, c) }()
	code := <-ended
	if ctx.Err() != nil {
		return api.ExecResult{}, context.Cause(ctx)
	}
	return api.ExecResult{ExitCode: code}, nil
}

// command implements [api.Session].
type command struct {
	in        io.Reader
	out, errs io.Writer
	pid       int
	signals   chan string

	mu   sync.Mutex
	size api.TerminalSize
}

func (c *command) Pid() int                 { return c.pid }
func (c *command) Signal(name string) error { c.signals <- name; return nil }
func (c *command) Resize(s api.TerminalSize) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.size = s
	return nil
}
func (c *command) Wait(context.Context) (api.ExecResult, error) { return api.ExecResult{}, nil }

// until is a command that runs until a signal kills it.
func until(ctx context.Context, c *command) int {
	select {
	case <-ctx.Done():
		return 137
	case name := <-c.signals:
		return map[string]int{"KILL": 137, "TERM": 143}[name]
	}
}

// echo writes its input back until that ends.
func echo(_ context.Context, c *command) int {
	_, _ = io.Copy(c.out, c.in)
	return 0
}

func service(p program) *Service { return New(&sessions{program: p}) }

// admitted returns the context of a call whose credential does not end.
func admitted(t *testing.T) context.Context {
	return access.WithCredential(t.Context(), func() bool { return true })
}

func start(t *testing.T, s *Service, req Request) (*Process, *Output) {
	t.Helper()
	req.Command = []string{"x"}
	p, out, err := s.Start(admitted(t), "b", req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(out.Close)
	return p, out
}

// kept returns the number of processes that are kept.
func kept(s *Service) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.boxes {
		n += len(t.running) + len(t.ended)
	}
	return n
}

// all reads output to its end.
func all(t *testing.T, out *Output) string {
	t.Helper()
	var text bytes.Buffer
	for {
		chunk, err := out.Next(t.Context())
		if errors.Is(err, io.EOF) {
			return text.String()
		}
		if err != nil {
			t.Fatal(err)
		}
		text.Write(chunk.Data)
	}
}

// TestProcess: a process outlives the call that started it, is listed, found by its ID and tag, fed and read by other calls, and for a
// while found after its end.
func TestProcess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := service(echo)
		ctx, end := context.WithCancel(admitted(t))
		p, first, err := s.Start(ctx, "b", Request{SessionRequest: api.SessionRequest{Command: []string{"cat"}}, Tag: "mine", Input: true})
		if err != nil {
			t.Fatal(err)
		}
		end()
		first.Close()
		synctest.Wait()
		if list := s.List("b"); len(list) != 1 || list[0] != p || len(s.List("other")) != 0 {
			t.Fatal(list)
		}
		byID, err := s.Find("b", p.Pid())
		byTag, err2 := s.FindTag("b", "mine")
		if byID != p || byTag != p {
			t.Fatal(err, err2)
		}
		for what, find := range map[string]func() (*Process, error){
			"of another box": func() (*Process, error) { return s.Find("other", p.Pid()) }, "another ID": func() (*Process, error) { return s.Find("b", 99) },
			"no tag": func() (*Process, error) { return s.FindTag("b", "") }, "another tag": func() (*Process, error) { return s.FindTag("b", "m") },
		} {
			if found, err := find(); found != nil || !errors.Is(err, api.ErrNotFound) {
				t.Error(what, found, err)
			}
		}
		one, err := p.Attach(t.Context())
		two, err2 := p.Attach(t.Context())
		if err != nil || err2 != nil {
			t.Fatal(err, err2)
		}
		if err := errors.Join(p.Write(t.Context(), []byte("hello ")), p.Write(t.Context(), []byte("you")), p.CloseInput()); err != nil {
			t.Fatal(err)
		}
		if a, b := all(t, one), all(t, two); a != "hello you" || b != a {
			t.Errorf("%q %q", a, b)
		}
		if exit, err := p.Exit(t.Context()); err != nil || exit.Code != 0 || exit.Err != nil {
			t.Error(exit, err)
		}
		if err := p.Write(t.Context(), []byte("x")); !errors.Is(err, api.ErrNotFound) {
			t.Error(err)
		}
		if late, err := s.FindTag("b", "mine"); late != p || len(s.List("b")) != 0 {
			t.Error(err)
		}
		time.Sleep(endedTime + time.Second)
		if _, err := s.Find("b", p.Pid()); !errors.Is(err, api.ErrNotFound) || kept(s) != 0 {
			t.Error(err)
		}
	})
}

// TestEndOfProcesses: a process ends with its timeout and with its API key, and its result tells of signals that were sent.
func TestEndOfProcesses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := service(until)
		defer func() {
			for _, p := range s.List("b") { // if the test has failed
				p.kill(errors.New("the test has ended"))
			}
		}()
		exit := func(p *Process) Exit {
			t.Helper()
			ctx, end := context.WithTimeout(t.Context(), time.Hour)
			defer end()
			e, err := p.Exit(ctx)
			if err != nil {
				t.Fatal(err)
			}
			return e
		}
		p, _ := start(t, s, Request{Timeout: time.Minute})
		begun := time.Now()
		if e := exit(p); !errors.Is(e.Err, context.DeadlineExceeded) || time.Since(begun) != time.Minute {
			t.Errorf("%+v after %v", e, time.Since(begun))
		}
		p, _ = start(t, s, Request{})
		if err := p.Signal("TERM"); err != nil {
			t.Fatal(err)
		}
		if e := exit(p); e.Signal != "TERM" || e.Code != 143 || e.Err != nil {
			t.Errorf("%+v", e)
		}
		if err := p.Signal("WINCH"); err == nil {
			t.Error("any signal")
		}
		if err := p.Signal("KILL"); !errors.Is(err, api.ErrNotFound) {
			t.Error(err)
		}
		var revoked atomic.Bool
		p, out, err := s.Start(access.WithCredential(t.Context(), func() bool { return !revoked.Load() }), "b", Request{})
		if err != nil {
			t.Fatal(err)
		}
		out.Close()
		revoked.Store(true)
		begun = time.Now()
		if e := exit(p); !errors.Is(e.Err, access.ErrKeyEnded) || time.Since(begun) > 2*time.Second {
			t.Errorf("%+v after %v", e, time.Since(begun))
		}
		if p, _, err = s.Start(t.Context(), "b", Request{}); err == nil {
			if e := exit(p); !errors.Is(e.Err, access.ErrKeyEnded) {
				t.Errorf("without a credential: %+v", e)
			}
		}
		ctx, end := context.WithCancel(t.Context())
		end()
		s.sessions = &sessions{fail: api.ErrNotStarted}
		if _, _, err := s.Start(admitted(t), "b", Request{}); !errors.Is(err, api.ErrUnavailable) {
			t.Error(err)
		}
		if _, _, err := s.Start(ctx, "b", Request{Tag: strings.Repeat("x", MaxTag+1)}); err == nil {
			t.Error("a long tag")
		}
	})
}

// TestInput: input waits for a command that does not read, keeps the calls apart, and is refused when it is closed.
func TestInput(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		read := make(chan struct{})
		s := service(func(ctx context.Context, c *command) int {
			<-read
			return echo(ctx, c)
		})
		p, out := start(t, s, Request{Input: true})
		ctx, end := context.WithTimeout(t.Context(), time.Second)
		defer end()
		if err := p.Write(ctx, make([]byte, maxInput)); err != nil {
			t.Fatal(err)
		}
		if err := p.Write(ctx, []byte("a")); !errors.Is(err, context.DeadlineExceeded) {
			t.Error("input without a bound", err)
		}
		done := make(chan error, 2)
		for _, c := range []string{"a", "b"} {
			go func() { done <- p.Write(t.Context(), bytes.Repeat([]byte(c), 2*maxInput)) }()
		}
		close(read)
		if err := errors.Join(<-done, <-done, p.CloseInput()); err != nil {
			t.Fatal(err)
		}
		text := strings.TrimLeft(all(t, out), "\x00")
		if a, b := strings.Repeat("a", 2*maxInput), strings.Repeat("b", 2*maxInput); text != a+b && text != b+a {
			t.Error("mixed input")
		}
		closed, _ := start(t, service(until), Request{})
		if err := closed.Write(t.Context(), []byte("x")); !errors.Is(err, api.ErrConflict) || !errors.Is(err, ErrNoInput) {
			t.Error(err)
		}
		_ = closed.Signal("KILL")
	})
}

// TestAttackRevokedKeyReadsOn: a call ends with its context although there is always more output, or room for its input.
func TestAttackRevokedKeyReadsOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		flood := func(ctx context.Context, c *command) int {
			for ctx.Err() == nil {
				_, _ = c.out.Write(make([]byte, chunkSize))
			}
			return 0
		}
		p, out := start(t, service(flood), Request{Input: true})
		defer p.kill(nil)
		ctx, revoke := context.WithCancelCause(t.Context())
		for range 10 {
			if _, err := out.Next(ctx); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		revoke(access.ErrKeyEnded)
		if chunk, err := out.Next(ctx); !errors.Is(err, access.ErrKeyEnded) {
			t.Errorf("%d bytes, %v", len(chunk.Data), err)
		}
		for range 100 { // the order of ready cases is random
			if err := p.Write(ctx, []byte("x")); !errors.Is(err, access.ErrKeyEnded) {
				t.Fatal("input: ", err)
			}
		}
	})
}

// TestAttackSlowReader: a reader that does not read holds up a command only while no other one reads, and no more is kept for it than the
// bound; a command is not held up when it is killed.
func TestAttackSlowReader(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var written atomic.Int64
		flood := func(ctx context.Context, c *command) int {
			for range 1000 {
				n, _ := c.out.Write(make([]byte, 32<<10))
				written.Add(int64(n))
			}
			return 0
		}
		p, stuck := start(t, service(flood), Request{})
		synctest.Wait()
		held := written.Load()
		stuck.from.mu.Lock()
		size := stuck.size
		stuck.from.mu.Unlock()
		if held < maxUnread || held > maxUnread+2*(32<<10) || size > maxUnread+32<<10 {
			t.Fatalf("%d bytes for a reader that does not read", held)
		}
		time.Sleep(time.Hour)
		if written.Load() != held {
			t.Fatal("output is lost although it is the only reader")
		}
		quick, err := p.Attach(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if got := all(t, quick); len(got) != 1000*(32<<10)-int(held) {
			t.Errorf("%d bytes, %d before", len(got), held)
		}
		if _, err := stuck.Next(t.Context()); !errors.Is(err, ErrSlow) {
			t.Error(err)
		}

		p, stuck = start(t, service(flood), Request{Timeout: time.Minute})
		if e, err := p.Exit(t.Context()); err != nil || !errors.Is(e.Err, context.DeadlineExceeded) {
			t.Error(e, err)
		}
		if got := all(t, stuck); len(got) < maxUnread {
			t.Errorf("%d bytes of a killed command", len(got))
		}
		p, _ = start(t, service(until), Request{})
		for range maxReaders - 1 {
			if _, err := p.Attach(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := p.Attach(t.Context()); !errors.Is(err, api.ErrLimit) {
			t.Error("any number of readers", err)
		}
		_ = p.Signal("KILL")
	})
}

// TestMemoryOfReaders: the output of each reader is charged to its API key until it is closed.
func TestMemoryOfReaders(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var limits quota.Limits
		limits[quota.Memory] = 2 * readerCost
		scope, end := quota.New(quota.Config{Defaults: limits}).Open(quota.Holder{Type: quota.APIKey, ID: "key_1"})
		defer end()
		ctx := quota.WithScope(t.Context(), scope)
		p, first, err := service(until).Start(ctx, "b", Request{SessionRequest: api.SessionRequest{Command: []string{"x"}}})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = p.Signal("KILL") }()
		second, err := p.Attach(ctx)
		if err != nil || scope.Used(quota.Memory) != 2*readerCost {
			t.Fatal(err, scope.Used(quota.Memory))
		}
		if _, err := p.Attach(ctx); err == nil {
			t.Error("more than the quota of its key")
		}
		for _, r := range []*Output{first, second, first} {
			r.Close()
		}
		if n := scope.Used(quota.Memory); n != 0 {
			t.Errorf("%d bytes are charged without a reader", n)
		}
	})
}

// TestAttackEndedProcesses: few ended processes of a box are kept, without their requests.
func TestAttackEndedProcesses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := service(func(context.Context, *command) int { return 0 })
		for range 3 * maxEnded {
			p, out := start(t, s, Request{})
			all(t, out)
			if p.Request().Command != nil {
				t.Fatal("the request of an ended process is kept")
			}
		}
		if n := kept(s); n != maxEnded {
			t.Errorf("%d ended processes", n)
		}
		time.Sleep(endedTime + time.Second)
		if kept(s) != 0 {
			t.Error("kept for good")
		}
	})
}

// TestSizeOfATerminal: programs allocate memory in proportion to the size of their terminal.
func TestSizeOfATerminal(t *testing.T) {
	t.Parallel()
	for size, ok := range map[terminalBody]bool{
		{Rows: 1, Cols: api.MaxDimension}: true, {Rows: 0, Cols: 80}: false, {Rows: 24, Cols: api.MaxDimension + 1}: false, {Rows: 1<<16 + 24, Cols: 80}: false,
	} {
		body := processBody{Command: []string{"sh"}, Terminal: &size}
		req, err := body.request(api.Box{})
		if (err == nil) != ok || ok && (req.Terminal.Rows != 1 || req.Terminal.Cols != api.MaxDimension) {
			t.Errorf("%+v: %+v %v", size, req.Terminal, err)
		}
	}
}
