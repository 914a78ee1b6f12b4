package doctor

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"time"

	"boxgate/api"
	"boxgate/doctor"
)

// insidePatience bounds a request from the box itself.
const insidePatience = 10 * time.Second

// inside makes the request with curl in the box itself, under its own policy and rules, if the gateway runs its commands and it is not
// paused. Everything in the output may be the box's invention: it is shown, escaped, and never decides anything.
func (r *run) inside(ctx context.Context) *doctor.Client {
	if v := r.of.Shown.Load(); r.of.Attached != nil || v == nil || v.Status != api.StatusIdle && v.Status != api.StatusRunning {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, insidePatience+time.Second)
	defer cancel()
	scheme := "https"
	if r.req.Port == 80 {
		scheme = "http"
	}
	url := fmt.Sprintf("%s://%s%s", scheme, r.destination(), r.req.Path)
	stdout, stderr := &bounded{}, &bounded{}
	res, err := r.Commands.Exec(ctx, r.of.ID, api.ExecRequest{Command: []string{
		"curl", "-q", "-sS", "--globoff", "--path-as-is", "-o", "/dev/null", "--max-time", fmt.Sprint(int(insidePatience.Seconds())), "-w", "%{http_version} %{http_code} %{size_download}", "--", url,
	}}, stdout, stderr)
	c := &doctor.Client{Name: "curl"}
	switch {
	case err != nil || res.ExitCode == 127: // it has no curl, or could not run it in time
		return nil
	case res.ExitCode != 0:
		c.Error = fmt.Sprintf("exit status %d: %s", res.ExitCode, strings.TrimSpace(stderr.String()))
		return c
	}
	var version string
	if n, _ := fmt.Sscanf(stdout.String(), "%s %d %d", &version, &c.Status, &c.Bytes); n == 3 {
		c.Proto = "HTTP/" + version
	} else {
		c.Error = "its output is not curl's"
	}
	return c
}

// maxOutput bounds the kept output of curl, in bytes.
const maxOutput = 400

// bounded keeps the beginning of what is written to it.
type bounded struct{ bytes.Buffer }

// Write implements [io.Writer].
func (b *bounded) Write(p []byte) (int, error) {
	b.Buffer.Write(p[:min(len(p), maxOutput-b.Len())])
	return len(p), nil
}
