package field

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"boxgate/api"
)

// The steps of a launched box.
const (
	StepCreate   = "create"
	StepExec     = "exec"
	StepPause    = "pause"
	StepResume   = "resume"
	StepDelete   = "delete"
	StepSnapshot = "snapshot"
	StepFork     = "fork of 20"         // 20 concurrent forks of one snapshot
	StepRuntime  = "exec by runc alone" // in the same box, without the gateway
)

// LaunchedBox is a box launched by the gateway for a measurement.
type LaunchedBox struct {
	g  *Gateway
	id string
}

// Launch launches a box.
func (g *Gateway) Launch(ctx context.Context) (*LaunchedBox, error) {
	if g.field.image("") != "debian" {
		return nil, errors.New("no debian image is unpacked in " + g.field.Images)
	}
	var made struct{ ID string }
	if err := g.Client.Do(ctx, "POST", "/v2/box", map[string]any{"name": launched}, &made); err != nil {
		return nil, fmt.Errorf("creating a box: %w", err)
	}
	return &LaunchedBox{g, made.ID}, nil
}

// Delete deletes the box, even if ctx has ended, because a box outlives its gateway.
func (b *LaunchedBox) Delete(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	return b.g.Client.Do(ctx, "DELETE", api.BoxPath(b.id), nil, nil)
}

// Step runs one of the steps between creating and deleting the box.
func (b *LaunchedBox) Step(ctx context.Context, step string) error {
	switch step {
	case StepExec:
		return b.run(ctx, "/bin/true")
	case StepRuntime:
		return b.execAlone(ctx)
	}
	return b.g.Client.Do(ctx, "POST", api.BoxPath(b.id, step), nil, nil)
}

// run runs a command in the box.
func (b *LaunchedBox) run(ctx context.Context, command ...string) error {
	code, err := b.g.Client.Exec(ctx, b.id, api.ExecRequest{Command: command}, io.Discard, io.Discard)
	if err == nil && code != 0 {
		err = fmt.Errorf("%q ended with %d", command, code)
	}
	return err
}

// execAlone makes the runtime run a command in the box, without the gateway.
func (b *LaunchedBox) execAlone(ctx context.Context) error {
	roots, err := filepath.Glob(filepath.Join(b.g.runDir(), "runtime", b.id))
	if err != nil || len(roots) != 1 {
		return fmt.Errorf("the container of box %s was not found: %v %w", b.id, roots, err)
	}
	cmd := exec.CommandContext(ctx, "runc", "--root", filepath.Dir(roots[0]), "exec", b.id, "/bin/true")
	cmd.Stderr = os.Stderr
	return cmd.Run()
}
