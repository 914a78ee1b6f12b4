package server

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"boxgate/api"
	"boxgate/api/apitest"
	"boxgate/api/files"
	"boxgate/policy"
)

// loudHost is a host whose boxes print a lot and have large files. A call only completes once all calls of the test have
// progressed as far as they can.
type loudHost struct {
	*apitest.Host
	size  int
	met   sync.WaitGroup
	begin chan struct{} // closed: calls no longer wait for each other
}

func (h *loudHost) Exec(ctx context.Context, _ policy.BoxID, _ api.ExecRequest, stdout, _ io.Writer) (api.ExecResult, error) {
	piece := []byte(strings.Repeat("x", 8<<10))
	for range h.size / len(piece) {
		if _, err := stdout.Write(piece); err != nil {
			return api.ExecResult{}, err
		}
	}
	h.arrive()
	return api.ExecResult{}, ctx.Err()
}

// arrive waits for all other calls.
func (h *loudHost) arrive() {
	h.met.Done()
	<-h.begin
}

func (h *loudHost) OpenFiles(context.Context, policy.BoxID) (files.Files, error) {
	return loudFiles{host: h}, nil
}

type loudFiles struct {
	files.Files
	host *loudHost
}

func (loudFiles) Close() {}

func (f loudFiles) Read(string, int64, int64) (files.Info, io.Reader, error) {
	return files.Info{Type: "file", Size: int64(f.host.size)}, io.MultiReader(strings.NewReader(strings.Repeat("x", f.host.size)), &last{host: f.host}), nil
}

// last is the end of a file, which waits for the other calls.
type last struct {
	host *loudHost
	once sync.Once
}

func (l *last) Read([]byte) (int, error) {
	l.once.Do(l.host.arrive)
	return 0, io.EOF
}

// Many concurrent calls, of every kind with a buffered response, stay within the budget together and release all of it.
func TestManyAnswersStayWithinTheirBudget(t *testing.T) {
	t.Parallel()
	const size, budget = 256 << 10, 4 << 20
	loud := &loudHost{size: size, begin: make(chan struct{})}
	f := serve(t, func(c *Config) {
		loud.Host = c.Boxes.(*apitest.Host)
		c.Services, c.MaxOutput, c.MaxBuffered = services(loud), size, budget
	})
	id := f.create(t, `{}`)
	call := func(method, path, body string) (kept int) {
		got := f.Call(t, method, "/v2/box/"+id+"/"+path, body)
		switch got.StatusCode {
		case http.StatusTooManyRequests:
			loud.met.Done()
		case http.StatusOK:
			return strings.Count(got.Text, "x")
		default:
			t.Errorf("%s: %s %.200s", path, got.Status, got.Text)
		}
		return 0
	}
	calls := []func() int{
		func() int { return call("POST", "exec", `{"command":["x"]}`) },
		func() int { return call("POST", "code", `{"code":"x","language":"js"}`) },
		func() int { return call("POST", "git/exec", `{"args":["x"]}`) },
		func() int { return call("GET", "files/read?path=x", "") },
	}
	var all sync.WaitGroup
	var kept atomic.Int64
	loud.met.Add(20 * len(calls))
	for i := range 20 * len(calls) {
		all.Go(func() { kept.Add(int64(calls[i%len(calls)]())) })
	}
	loud.met.Wait()
	close(loud.begin)
	all.Wait()
	if n := kept.Load(); n > budget/2+1000 || n < budget/4 {
		t.Errorf("%d bytes were kept for one box, of %d for all boxes", n, budget)
	}
	for _, again := range calls {
		for loud.met.Add(1); again() < size; loud.met.Add(1) { // until the memory of the other calls is released
		}
	}
}
