package agents

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/internal/nightly"
)

// TestAgentsSecretKeyIsNotInTheBox: while an agent works with its key, and after that, the key is nowhere in the box: in no
// environment or command line, no file, no memory of a process, and not in the events, logs and snapshots of the box.
func TestAgentsSecretKeyIsNotInTheBox(t *testing.T) {
	nightly.Only(t)
	s := newStudio(t)
	for _, a := range agents {
		t.Run(a.String(), func(t *testing.T) {
			s := studio{s.On(t), s.models}
			s.models.Forget()
			box := s.box(a, realKey)
			ended := make(chan outcome, 1)
			go func() { // while the agent waits for its command, it holds all that it has received
				ended <- s.run(box, "model: say I look.\nmodel: run env; touch waiting; while [ -e waiting ]; do sleep 0.1; done\nmodel: say done", nil)
			}()
			s.Until("the agent runs the command", func() bool { _, code := s.Sh(box, "test -e waiting"); return code == 0 })
			s.inMemory(box, a)
			s.MustSh(box, "rm waiting")
			if o := <-ended; !strings.Contains(o.done.Output, "done") || strings.Contains(fmt.Sprint(o), realKey) {
				t.Errorf("%+v", o)
			}
			if all := s.models.Requests(); len(all) == 0 || all[0].Key != realKey {
				t.Errorf("the model received %d requests without the key", len(all))
			}
			s.inFiles(box)
		})
	}
}

// inMemory searches the processes of the box.
func (s studio) inMemory(box string, a agent) {
	t := s.T
	space, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", s.InitOf(box)))
	if err != nil {
		t.Fatal(err)
	}
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	const control = "I look." // said by the model
	found := false
	for _, dir := range dirs {
		if of, err := os.Readlink(dir + "/ns/pid"); err != nil || of != space {
			continue
		}
		command, _ := os.ReadFile(dir + "/cmdline") // it may have ended
		environ, _ := os.ReadFile(dir + "/environ")
		for _, text := range [][]byte{command, environ} {
			if bytes.Contains(text, []byte(realKey)) {
				t.Errorf("the key is in the command line or environment of %q", command)
			}
		}
		eachPart(dir, func(part []byte) {
			found = found || bytes.Contains(part, []byte(control))
			if bytes.Contains(part, []byte(realKey)) {
				t.Errorf("the key is in the memory of %q", command)
			}
		})
	}
	if !found {
		t.Errorf("the search finds nothing in the memory of %s", a.name)
	}
}

// eachPart calls search for the parts of a process's memory that are there. The programs reserve much more than they use.
func eachPart(dir string, search func([]byte)) {
	maps, _ := os.ReadFile(dir + "/maps") // it may have ended
	memory, err := os.Open(dir + "/mem")
	if err != nil {
		return
	}
	defer memory.Close()
	pages, err := os.Open(dir + "/pagemap")
	if err != nil {
		return
	}
	defer pages.Close()
	size := int64(os.Getpagesize())
	for line := range strings.Lines(string(maps)) {
		var from, to int64
		var rights string
		if n, _ := fmt.Sscanf(line, "%x-%x %s", &from, &to, &rights); n != 3 || !strings.HasPrefix(rights, "rw") {
			continue
		}
		const batch = 1 << 16 // pages
		for at := from; at < to; at += batch * size {
			entries, _ := io.ReadAll(io.NewSectionReader(pages, at/size*8, min(batch, (to-at)/size)*8))
			search(present(memory, at, size, entries))
		}
	}
}

// present returns the pages that are there, by their entries in the page map.
func present(memory io.ReaderAt, at, size int64, entries []byte) (all []byte) {
	page := make([]byte, size)
	for i := 0; i+8 <= len(entries); i += 8 {
		const there = 3 << 62 // in memory, or swapped
		if binary.NativeEndian.Uint64(entries[i:])&there == 0 {
			continue
		}
		n, _ := memory.ReadAt(page, at+int64(i/8)*size)
		all = append(all, page[:n]...)
	}
	return all
}

// inFiles searches the files of the box, its logs and a snapshot.
func (s studio) inFiles(box string) {
	t := s.T
	search := func(what string) string {
		return fmt.Sprintf(`grep -rlaF -e %s /workspace /tmp /home /root /etc /var /run 2>/dev/null`, what)
	}
	half := len(realKey) / 2 // the line itself must not match
	if out, _ := s.Sh(box, fmt.Sprintf("k=%s; %s", realKey[:half], search(`"$k"`+realKey[half:]))); out != "" {
		t.Errorf("the key is in files of the box: %s", out)
	}
	if out, _ := s.Sh(box, search(`'I look.'`)); out == "" {
		t.Error("the search finds nothing in the files of the box")
	}
	if _, err := s.snapshot(box); err != nil {
		t.Error(err)
	}
	var logs, runs any
	for path, into := range map[string]*any{"logs": &logs, "runs": &runs} {
		if err := s.Client.Do(t.Context(), "GET", api.BoxPath(box, path), nil, into); err != nil || strings.Contains(fmt.Sprint(*into), realKey) {
			t.Errorf("%s of the box: %v %v", path, err, *into)
		}
	}
	for _, root := range []string{filepath.Join(s.Dir, "state"), s.Log.Name()} {
		err := filepath.WalkDir(root, func(file string, d os.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return nil // files of the box come and go
			}
			text, _ := os.ReadFile(file)
			if bytes.Contains(text, []byte(realKey)) {
				t.Errorf("the key is in %s", file)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// snapshot takes a snapshot of the box.
func (s studio) snapshot(box string) (id string, err error) {
	var made struct{ ID string }
	err = s.Client.Do(s.T.Context(), "POST", api.BoxPath(box, "snapshots"), map[string]any{"name": "agent"}, &made)
	return made.ID, err
}
