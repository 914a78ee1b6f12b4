package harness

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"strings"
	"time"

	"boxgate/api"
)

func fileOf(media, name string, data []byte) fileBody {
	return fileBody{Data: base64.StdEncoding.EncodeToString(data), MediaType: media, Filename: name}
}

// removal bounds the removal of a file in the box, which is done by a program of the box.
const removal = 10 * time.Second

// writeFiles writes the files of a prompt into the box, as the box's own user. It returns the path for PROMPT_FILES_PATH,
// and a function that removes the file if the harness did not. If the run is cut short, the file stays, because the box
// may have been paused.
func (e *Endpoints) writeFiles(ctx context.Context, j *job) (name string, remove func(), err error) {
	data, err := json.Marshal(j.body.Files)
	if err != nil {
		return "", nil, err
	}
	var out bytes.Buffer
	script := `umask 077; f=$(mktemp /tmp/prompt-files-XXXXXXXX) && cat >"$f" && printf %s "$f"`
	res, err := e.Commands.Exec(ctx, j.box.ID, api.ExecRequest{Command: []string{"sh", "-c", script}, Dir: "/", Stdin: bytes.NewReader(data)}, &bounded{w: &out, room: 256}, io.Discard)
	if err != nil {
		return "", nil, err
	}
	if name = out.String(); res.ExitCode != 0 || !strings.HasPrefix(name, "/tmp/prompt-files-") {
		return "", nil, api.Errorf(api.ErrUnavailable, "the files of the prompt could not be written to /tmp in the box; is it full?")
	}
	return name, func() {
		ctx, cancel := context.WithTimeout(ctx, removal)
		defer cancel()
		if ctx.Err() == nil {
			rm := api.ExecRequest{Command: []string{"rm", "-f", "--", name}, Dir: "/"}
			_, _ = e.Commands.Exec(ctx, j.box.ID, rm, io.Discard, io.Discard)
		}
	}, nil
}

// bounded passes on the first bytes of the output, then returns [io.ErrShortWrite].
type bounded struct {
	w    io.Writer
	room int
}

// Write implements [io.Writer].
func (b *bounded) Write(p []byte) (int, error) {
	n := min(len(p), b.room)
	b.room -= n
	if _, err := b.w.Write(p[:n]); err != nil {
		return 0, err
	}
	if n < len(p) {
		return n, io.ErrShortWrite
	}
	return len(p), nil
}
