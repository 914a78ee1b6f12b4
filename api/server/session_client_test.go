package server

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/api/apitest"
	session "boxgate/api/session/client"
)

// open starts a command with the command line's client.
func (f *fixture) open(t *testing.T, ctx context.Context, box string, argv ...string) *session.Session {
	t.Helper()
	s, err := session.Open(ctx, api.NewClient(f.URL, apitest.Key), box, session.Request{Command: argv, Env: []string{"A=b"}})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestSessionClient: input, both streams, signals and the exit status pass through the client.
func TestSessionClient(t *testing.T) {
	t.Parallel()
	f := serve(t)
	id := f.create(t, `{}`)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)

	var stdout, stderr bytes.Buffer
	code, err := f.open(t, ctx, id, "sh", "-c", "echo $A; echo e >&2; exit 42").Wait(&stdout, &stderr)
	if code != 42 || err != nil || stdout.String() != "b\n" || stderr.String() != "e\n" {
		t.Errorf("%d %v %q %q", code, err, &stdout, &stderr)
	}

	s := f.open(t, ctx, id, "cat")
	sent := bytes.Repeat([]byte("\x00\xff\r\n~"), 1<<18)
	go func() {
		_, _ = s.Write(sent)
		_ = s.CloseWrite()
	}()
	stdout.Reset()
	if code, err := s.Wait(&stdout, io.Discard); code != 0 || err != nil || !bytes.Equal(stdout.Bytes(), sent) {
		t.Errorf("cat: %d %v, %d of %d bytes", code, err, stdout.Len(), len(sent))
	}

	s = f.open(t, ctx, id, "sh", "-c", "trap 'exit 7' INT; echo; while :; do sleep 0.05; done")
	ready := writerFunc(func(p []byte) (int, error) { return len(p), s.Signal("INT") })
	if code, err := s.Wait(ready, io.Discard); code != 7 || err != nil {
		t.Errorf("signal: %d %v", code, err)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// TestSessionClientRefused: a refusal has the gateway's message, and the end of the context is returned as its cause.
func TestSessionClientRefused(t *testing.T) {
	t.Parallel()
	f := serve(t)
	id := f.create(t, `{}`)
	ctx, end := context.WithCancelCause(t.Context())
	client := api.NewClient(f.URL, apitest.Key)
	_, err := session.Open(ctx, client, "nobody", session.Request{Command: []string{"true"}})
	if refused, ok := errors.AsType[*api.ResponseError](err); !ok || refused.Status != http.StatusNotFound {
		t.Errorf("no box: %v", err)
	}
	if _, err := session.Open(ctx, client, id, session.Request{Command: []string{"/no/such"}}); err == nil || !strings.Contains(err.Error(), "/no/such") {
		t.Errorf("no program: %v", err)
	}
	s := f.open(t, ctx, id, "sh", "-c", "echo; exec sleep 1000")
	enough := errors.New("enough")
	if _, err := s.Wait(writerFunc(func(p []byte) (int, error) { end(enough); return len(p), nil }), io.Discard); !errors.Is(err, enough) {
		t.Errorf("ended: %v", err)
	}
}
