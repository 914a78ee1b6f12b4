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

// image returns the image of launched boxes: the debian image if it is unpacked, otherwise an empty directory.
func (f *Field) image(dir string) string {
	if unpacked, err := filepath.Glob(filepath.Join(f.Images, "debian-[0-9]*")); err == nil && len(unpacked) > 0 {
		return "debian"
	}
	return filepath.Join(dir, "root")
}

// launched is the name of the box created by FirstCommand.
const launched = "launched"

// FirstCommand measures the time from the request to create a box to the end of the first command in it. It deletes the
// box.
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
