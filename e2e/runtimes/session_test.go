package runtimes

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"boxgate/api"
	session "boxgate/api/session/client"
	"boxgate/e2e/harness"
	"boxgate/launcher/oci"
)

// A session has input, output, signals, a status, and a terminal of the requested size. Its children end with it.
func TestSessionsUnderEachRuntime(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *harness.World, runtime *oci.Runtime) {
		box := w.Create(map[string]any{})
		run := func(req session.Request, during func(*session.Session)) (string, int) {
			t.Helper()
			s, err := session.Open(t.Context(), w.Client, box, req)
			if err != nil {
				t.Fatal(err)
			}
			go during(s)
			var out bytes.Buffer
			code, err := s.Wait(&out, &out)
			if err != nil {
				t.Fatal(err)
			}
			return out.String(), code
		}
		sent := bytes.Repeat([]byte("0123456789\n"), 1<<16)
		out, code := run(session.Request{Command: []string{"sh", "-c", "cat; exit 7"}}, func(s *session.Session) {
			_, _ = s.Write(sent)
			_ = s.CloseWrite()
		})
		if out != string(sent) || code != 7 {
			t.Errorf("%d bytes of %d came back, exit status %d", len(out), len(sent), code)
		}

		s, err := session.Open(t.Context(), w.Client, box, session.Request{Command: []string{"sh", "-c", "trap 'exit 9' INT; echo ready; while :; do sleep 0.05; done"}})
		if err != nil {
			t.Fatal(err)
		}
		if code, err := s.Wait(writerFunc(func(p []byte) (int, error) { return len(p), s.Signal("INT") }), io.Discard); code != 9 || err != nil {
			t.Errorf("a signal: %d %v", code, err)
		}

		out, code = run(session.Request{Command: []string{"sh", "-c", `tty; stty size; until [ "$(stty size)" = "40 90" ]; do sleep 0.05; done; read line; echo "got $line"; exit 3`}, Terminal: &api.TerminalSize{Rows: 30, Cols: 70}}, func(s *session.Session) {
			_ = s.Resize(api.TerminalSize{Rows: 40, Cols: 90})
			_, _ = s.Write([]byte("typed\n"))
		})
		named := runtime.NamelessTerminal || strings.Contains(out, "/dev/pts/")
		sized := runtime.LateTerminalSize || strings.Contains(out, "30 70") || strings.Contains(out, "40 90")
		if !named || !sized || !strings.Contains(out, "got typed") || code != 3 {
			t.Errorf("a terminal: %d %q", code, out)
		}

		s, err = session.Open(t.Context(), w.Client, box, session.Request{Command: []string{"sh", "-c", "sleep 9881 & echo ready; sleep 9882"}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Wait(writerFunc(func([]byte) (int, error) { return 0, io.ErrClosedPipe }), io.Discard); err == nil {
			t.Error("a session that was closed ended by itself")
		}
		w.Until("what the session started has ended", func() bool {
			out, _ := w.Sh(box, "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -o 'sleep 988[12]'")
			return out == ""
		})
	})
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
