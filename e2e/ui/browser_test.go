package ui

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"boxgate/e2e/harness"
	"boxgate/internal/testnet"
)

func TestMain(m *testing.M) { harness.Main(m) }

// unpacked is where `make visitors` unpacks the programs.
const unpacked = "/var/lib/boxgate/visitors"

// origin is the address of the dashboard in the namespace of the gateway.
const origin = "http://127.0.0.1:8600"

// browser is a Chromium in the namespace of a gateway, driven by testdata/driver.js. Safe for concurrent use.
type browser struct {
	t     *testing.T
	stdin io.WriteCloser

	mu      sync.Mutex
	calls   int
	waiting map[int]chan answer
	ended   error // after the driver's end
}

// answer is an answer of the driver.
type answer struct {
	ID    int
	Value json.RawMessage
	Error string
}

// newBrowser starts Chromium in a namespace, with further switches. It ends with the test.
func newBrowser(t *testing.T, in *testnet.NS, switches ...string) *browser {
	t.Helper()
	if _, err := os.Stat(filepath.Join(unpacked, "node_modules/axe-core")); err != nil {
		t.Fatalf("there is no browser: run `sudo make visitors` (%v)", err)
	}
	argv := append([]string{"testdata/driver.js", filepath.Join(unpacked, "usr/lib/chromium/chromium-headless-shell"),
		filepath.Join(unpacked, "node_modules/axe-core/axe.min.js")}, switches...)
	cmd := exec.Command("node", argv...)
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir(), "LD_LIBRARY_PATH="+filepath.Join(unpacked, "lib"),
		"NODE_PATH="+filepath.Join(unpacked, "node_modules"))
	var errout strings.Builder
	cmd.Stderr = &errout
	b := &browser{t: t, waiting: map[int]chan answer{0: make(chan answer, 1)}}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	b.stdin = stdin
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := in.Start(cmd); err != nil {
		t.Fatal(err)
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		b.read(stdout)
	}()
	t.Cleanup(func() {
		_ = b.stdin.Close()
		<-read
		if err := cmd.Wait(); err != nil {
			t.Errorf("the driver of Chromium: %v\n%s", err, errout.String())
		}
	})
	b.mu.Lock()
	started := b.waiting[0]
	b.mu.Unlock()
	if a := <-started; a.Error != "" {
		t.Fatalf("Chromium: %s", a.Error)
	}
	return b
}

// read passes the driver's answers on until it ends.
func (b *browser) read(from io.Reader) {
	lines := bufio.NewReader(from)
	for {
		line, err := lines.ReadBytes('\n')
		var a answer
		if err == nil {
			err = json.Unmarshal(line, &a)
		}
		b.mu.Lock()
		if err != nil {
			b.ended = errors.Join(errors.New("the driver ended"), err)
			for id, waiting := range b.waiting {
				waiting <- answer{ID: id, Error: b.ended.Error()}
			}
			clear(b.waiting)
			b.mu.Unlock()
			_, _ = io.Copy(io.Discard, lines)
			return
		}
		if waiting := b.waiting[a.ID]; waiting != nil {
			waiting <- a
			delete(b.waiting, a.ID)
		}
		b.mu.Unlock()
	}
}

// call makes a call of the driver and returns its answer.
func (b *browser) call(page, verb string, args ...any) (json.RawMessage, error) {
	if args == nil {
		args = []any{}
	}
	answered := make(chan answer, 1)
	b.mu.Lock()
	if b.ended != nil {
		b.mu.Unlock()
		return nil, b.ended
	}
	b.calls++
	id := b.calls
	b.waiting[id] = answered
	line, err := json.Marshal(map[string]any{"id": id, "page": page, "verb": verb, "args": args})
	if err == nil {
		_, err = b.stdin.Write(append(line, '\n'))
	}
	b.mu.Unlock()
	if err != nil {
		return nil, err
	}
	select {
	case a := <-answered:
		if a.Error != "" {
			return nil, errors.New(a.Error)
		}
		return a.Value, nil
	case <-time.After(harness.Patience):
		return nil, errors.New("the driver does not answer")
	}
}

// page is a page of the browser, with cookies of its own.
type page struct {
	t *testing.T
	*browser
	name string
}

// viewOptions are options of Playwright's newContext.
type viewOptions map[string]any

// open makes a page.
func (b *browser) open(t *testing.T, name string, with viewOptions) *page {
	t.Helper()
	if with == nil {
		with = viewOptions{}
	}
	p := &page{t, b, name}
	p.do("open", with)
	return p
}

// do makes a call that must succeed.
func (p *page) do(verb string, args ...any) json.RawMessage {
	p.t.Helper()
	value, err := p.call(p.name, verb, args...)
	if err != nil {
		where, _ := p.call(p.name, "url")
		shown, _ := p.call(p.name, "text", "body")
		p.t.Fatalf("%s %v at %s: %v\n%s", verb, args, where, err, harness.Tail(string(shown), 1500))
	}
	return value
}

// get is do for calls that return a value.
func get[T any](p *page, verb string, args ...any) (out T) {
	p.t.Helper()
	if err := json.Unmarshal(p.do(verb, args...), &out); err != nil {
		p.t.Fatalf("%s %v: %v", verb, args, err)
	}
	return out
}

// visit opens a path of the dashboard, which must answer with 200.
func (p *page) visit(path string) {
	p.t.Helper()
	if status := get[int](p, "goto", origin+path); status != 200 {
		p.t.Fatalf("%s: %d %s", path, status, get[string](p, "text", "body"))
	}
}

// signIn signs in with an API key, and ends at the first page of its role.
func (p *page) signIn(key string) {
	p.t.Helper()
	p.visit("/ui/")
	p.do("fill", "input[type=password]", key)
	p.do("click", "main button[type=submit]")
	p.do("wait", "form.who")
}

// clean fails the test if scripts of the page failed, or if its content security policy refused anything.
func (p *page) clean() {
	p.t.Helper()
	problems := slices.DeleteFunc(get[[]string](p, "problems"), func(text string) bool {
		return strings.HasPrefix(text, "Failed to load resource: the server responded with a status of 4") // the answer to a form
	})
	if len(problems) > 0 {
		p.t.Errorf("the browser's console at %s: %q", get[string](p, "url"), problems)
	}
}
