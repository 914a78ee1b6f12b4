package command

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"boxgate/api"
	"boxgate/cmd/gateway/command/terminal"
)

const (
	// progressPoll is how often the progress of a new box is requested.
	progressPoll = time.Second
	// progressLines is the time between two lines of progress if the output is not a terminal.
	progressLines = 4 * time.Second
)

// creatingBox holds the fields of a box that show its progress.
type creatingBox struct {
	Name, Status, Progress string
	CreatedAt              int64 `json:"created_at"`
}

// imageProgress shows the preparation of the image of a new box, which can take minutes.
type imageProgress struct {
	client  *api.Client
	name    string // of the box; empty: the newest box that is being created
	out     io.Writer
	started time.Time
	line    time.Time // of the last line
}

// showImageProgress prints the progress of the image until stop is called. It prints nothing if the image is present.
func showImageProgress(ctx context.Context, client *api.Client, name string, out io.Writer) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	p := &imageProgress{client: client, name: name, out: out, started: time.Now()}
	var running sync.WaitGroup
	running.Go(func() { p.run(ctx) })
	return func() { cancel(); running.Wait() }
}

func (p *imageProgress) run(ctx context.Context) {
	f, _ := p.out.(*os.File)
	onTerminal := f != nil && terminal.IsOne(f)
	tick := time.NewTicker(progressPoll)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			if onTerminal && !p.line.IsZero() {
				fmt.Fprint(p.out, "\r\033[K")
			}
			return
		case now := <-tick.C:
			progress := p.current(ctx)
			if progress == "" || !onTerminal && now.Sub(p.line) < progressLines {
				continue
			}
			p.line = now
			text := fmt.Sprintf("preparing the image, %.0f s: %.60s", now.Sub(p.started).Seconds(), progress)
			if onTerminal {
				fmt.Fprint(p.out, "\r\033[K"+text)
			} else {
				fmt.Fprintln(p.out, text)
			}
		}
	}
}

// current returns the progress of the box. It is empty if the image is not being prepared, or if the gateway does not
// answer: the request that creates the box reports errors.
func (p *imageProgress) current(ctx context.Context) string {
	var boxes []creatingBox
	if p.name != "" {
		boxes = make([]creatingBox, 1)
		if p.client.Get(ctx, api.BoxPath(p.name), &boxes[0]) != nil {
			return ""
		}
	} else if p.client.Get(ctx, "/v2/box", &boxes) != nil {
		return ""
	}
	var newest creatingBox
	for _, b := range boxes {
		if b.Status == string(api.StatusCreating) && b.CreatedAt >= newest.CreatedAt {
			newest = b
		}
	}
	return newest.Progress
}
