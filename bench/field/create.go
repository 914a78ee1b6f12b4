package field

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"boxgate/api"
)

// image is what the gateway launches boxes from: the debian image, if it is unpacked, or else an empty directory.
func (f *Field) image(dir string) string {
	if unpacked, err := filepath.Glob(filepath.Join(f.Images, "debian-[0-9]*")); err == nil && len(unpacked) > 0 {
		return "debian"
	}
	return filepath.Join(dir, "root")
}

// launched is a box that the gateway creates.
const launched = "launched"

// FirstCommand measures from the request to create a box until a command has run in it, and deletes the box.
func (g *Gateway) FirstCommand(ctx context.Context) (took time.Duration, err error) {
	if g.field.image("") != "debian" {
		return 0, errors.New("no debian image is unpacked in " + g.field.Images)
	}
	begun := time.Now()
	if err := g.Client.Do(ctx, "POST", "/v2/box", map[string]any{"name": launched}, nil); err != nil {
		return 0, fmt.Errorf("creating a box: %w", err)
	}
	defer func() { // a box outlives its gateway
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		err = errors.Join(err, g.Client.Do(ctx, "DELETE", api.BoxPath(launched), nil, nil))
	}()
	code, err := g.Client.Exec(ctx, launched, api.ExecRequest{Command: []string{"/bin/true"}}, io.Discard, io.Discard)
	took = time.Since(begun)
	if err == nil && code != 0 {
		err = fmt.Errorf("/bin/true ended with %d", code)
	}
	return took, err
}
