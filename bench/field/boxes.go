package field

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"boxgate/api"
	"boxgate/bench/load"
	"boxgate/bench/origin"
)

// boxName is the box that generates the load.
const boxName = "load"

// routedName is the box whose traffic the kernel forwards.
const routedName = "routed"

// The policies of the two boxes.
var (
	named  = map[string]any{"mode": "custom", "allowed_domains": []string{"*." + origin.Suffix}}
	routed = map[string]any{"mode": "custom", "allowed_cidrs": []string{origin.Network}}
)

// AttachBoxes attaches the load box and the routed box with the policies and header rules of all scenarios, and opens
// public URLs on the load box.
func (g *Gateway) AttachBoxes(ctx context.Context) (err error) {
	headers := map[string]any{}
	for _, pattern := range []string{"up", "sink", "grpc", "*.fresh"} {
		headers[pattern+"."+origin.Suffix] = map[string]string{origin.Header: origin.Value}
	}
	for _, box := range []map[string]any{
		{"netns": g.Box.Path(), "name": boxName, "attach_headers": headers, "network_policy": named},
		{"netns": g.Routed.Path(), "name": routedName, "network_policy": routed},
	} {
		if err := g.Client.Do(ctx, "POST", "/v2/box/attach", box, nil); err != nil {
			return fmt.Errorf("attaching a box: %w", err)
		}
	}
	if g.URL, err = g.publish(ctx, BackendPort); err != nil {
		return err
	}
	g.Echo, err = g.publish(ctx, EchoPort)
	return err
}

// publish opens a public URL on a port of the box.
func (g *Gateway) publish(ctx context.Context, port int) (Public, error) {
	var opened struct{ URL, Token string }
	if err := g.Client.Do(ctx, "POST", api.BoxPath(boxName, "preview"), map[string]any{"port": port, "bearer_token": true}, &opened); err != nil {
		return Public{}, fmt.Errorf("opening a public URL: %w", err)
	}
	u, err := url.Parse(opened.URL)
	if err != nil {
		return Public{}, err
	}
	return Public{Host: u.Hostname(), Token: opened.Token}, nil
}

// The ports of the servers behind public URLs: one answers requests, one echoes WebSocket messages.
const (
	BackendPort = 8080
	EchoPort    = 8090
)

// AttachMore attaches additional boxes, up to a total of count.
func (g *Gateway) AttachMore(ctx context.Context, count int) error {
	for i := len(g.boxes); i < count; i++ {
		ns, err := g.field.bareNamespace()
		if err != nil {
			return err
		}
		body := map[string]any{"netns": ns.Path(), "name": crowdName(i), "network_policy": policy(10, i)}
		if err := g.Client.Do(ctx, "POST", "/v2/box/attach", body, nil); err != nil {
			return fmt.Errorf("attaching box %d: %w", i, err)
		}
		g.boxes = append(g.boxes, ns)
	}
	return nil
}

func crowdName(i int) string { return fmt.Sprintf("crowd%d", i) }

// PutPolicy replaces the policy of an additional box by another with the given number of rules.
func (g *Gateway) PutPolicy(ctx context.Context, box, rules, seed int) error {
	return g.Client.Do(ctx, "PUT", policyPath(crowdName(box%len(g.boxes))), policy(rules, seed), nil)
}

// Restore restores the policies of the two boxes, and the deleted public URL of the load box.
func (g *Gateway) Restore(ctx context.Context) (err error) {
	g.Echo, err = g.publish(ctx, EchoPort)
	return errors.Join(err,
		g.Client.Do(ctx, "PUT", policyPath(boxName), named, nil), g.Client.Do(ctx, "PUT", policyPath(routedName), routed, nil))
}

// DenyAllChange returns the API call that cuts all connections of the load box, or of the routed one.
func (g *Gateway) DenyAllChange(ofRouted bool) (*load.Change, error) {
	key, err := g.key()
	name := boxName
	if ofRouted {
		name = routedName
	}
	return &load.Change{Socket: g.socket(), Key: key, Method: "PUT", Path: policyPath(name), Body: map[string]any{"mode": "deny-all"}}, err
}

// DeleteURLChange returns the API call that deletes the public URL of the WebSocket server.
func (g *Gateway) DeleteURLChange() (*load.Change, error) {
	key, err := g.key()
	return &load.Change{Socket: g.socket(), Key: key, Method: "DELETE", Path: api.BoxPath(boxName, "preview", strconv.Itoa(EchoPort))}, err
}

func policyPath(box string) string { return api.BoxPath(box, "config", "network-policy") }

// policy returns a policy that allows domains and networks, half of them depending on the seed.
func policy(rules, seed int) map[string]any {
	var domains, networks []string
	for i := range rules / 2 {
		domains = append(domains, fmt.Sprintf("d%d-%d.example.com", seed, i))
		networks = append(networks, fmt.Sprintf("%d.%d.%d.0/24", 20+seed%8, (seed*7+i/250)%250, i%250))
	}
	return map[string]any{"mode": "custom", "allowed_domains": domains, "allowed_cidrs": networks}
}

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

// SnapshotFiles is the number of files of 10 KiB that a box writes before its snapshot is taken.
const SnapshotFiles = 1000

// Write makes the box write the files of its snapshots.
func (b *LaunchedBox) Write(ctx context.Context) error {
	return b.run(ctx, "sh", "-c", fmt.Sprintf("mkdir made && cd made && for i in $(seq %d); do head -c 10240 /dev/urandom >$i; done", SnapshotFiles))
}

// Snapshot takes a snapshot of the box and returns when it is ready.
func (b *LaunchedBox) Snapshot(ctx context.Context) (id string, err error) {
	var s struct{ ID, Status, Error string }
	err = b.g.Client.Do(ctx, "POST", api.BoxPath(b.id, "snapshots"), map[string]any{"name": "measured"}, &s)
	for err == nil && s.Status == "creating" {
		s.Status, s.Error, err = b.snapshotStatus(ctx, s.ID)
	}
	if err == nil && s.Status != "ready" {
		err = fmt.Errorf("the snapshot is %q: %s", s.Status, s.Error)
	}
	return s.ID, err
}

// snapshotStatus polls the status of a snapshot after a short wait.
func (b *LaunchedBox) snapshotStatus(ctx context.Context, id string) (status, why string, err error) {
	select {
	case <-time.After(10 * time.Millisecond):
	case <-ctx.Done():
		return "", "", context.Cause(ctx)
	}
	var list struct {
		Snapshots []struct{ ID, Status, Error string }
	}
	if err := b.g.Client.Get(ctx, api.BoxPath(b.id, "snapshots"), &list); err != nil {
		return "", "", err
	}
	for _, s := range list.Snapshots {
		if s.ID == id {
			return s.Status, s.Error, nil
		}
	}
	return "", "", errors.New("the snapshot is gone")
}

// DeleteSnapshot deletes a snapshot, even if ctx has ended.
func (g *Gateway) DeleteSnapshot(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	return g.Client.Do(ctx, "DELETE", "/v2/box/snapshots", map[string]any{"ids": []string{id}}, nil)
}

// Fork creates count boxes of a snapshot concurrently, and returns when a command has run in each. The caller must
// delete the returned boxes, even on an error.
func (g *Gateway) Fork(ctx context.Context, snapshot string, count int) ([]*LaunchedBox, error) {
	boxes, errs := make([]*LaunchedBox, count), make([]error, count)
	var all sync.WaitGroup
	for i := range count {
		all.Go(func() {
			var made struct{ ID string }
			if errs[i] = g.Client.Do(ctx, "POST", "/v2/box/from-snapshot", map[string]any{"snapshot_id": snapshot}, &made); errs[i] != nil {
				return
			}
			boxes[i] = &LaunchedBox{g, made.ID}
			errs[i] = boxes[i].Step(ctx, StepExec)
		})
	}
	all.Wait()
	return slices.DeleteFunc(boxes, func(b *LaunchedBox) bool { return b == nil }), errors.Join(errs...)
}
