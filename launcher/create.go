package launcher

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"boxgate/internal/fault"
	"boxgate/launcher/container"
	"boxgate/launcher/files"
	"boxgate/launcher/image"
	"boxgate/launcher/namespace"
	"boxgate/launcher/overlay"
	"boxgate/launcher/process"
	"boxgate/launcher/rootfs"
	"boxgate/policy"
)

// cleanupTimeout bounds the removal of a box, which continues even if its caller's context is cancelled.
const cleanupTimeout = 30 * time.Second

// Prepare creates the box's network namespace, pins it and returns the path of the pin. It contains no processes, and only
// a loopback interface, which is down. The caller closes the network before it calls Create. A failed Prepare leaves
// nothing behind; Delete undoes a successful one.
func (l *Launcher) Prepare(ctx context.Context, spec Spec) (netns string, err error) {
	if err := spec.check(); err != nil {
		return "", err
	}
	defer l.lock(spec.ID)()
	if err := ctx.Err(); err != nil {
		return "", context.Cause(ctx)
	}
	if err := os.Mkdir(l.dirs.box(spec.ID), 0o700); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return "", fmt.Errorf("box %s: %w", spec.ID, ErrExists)
		}
		return "", fmt.Errorf("box %s: %w", spec.ID, err)
	}
	defer l.removeOnError(spec.ID, &err)
	if err := fault.At(ctx, "launch: directory made"); err != nil {
		return "", err
	}
	index, err := namespace.ClaimIDs(ctx, l.dirs.box(spec.ID))
	if err != nil {
		return "", fmt.Errorf("box %s: %w", spec.ID, err)
	}
	r := record{ID: spec.ID, Image: spec.Image, Size: spec.Size, Env: spec.Env, IDIndex: index}
	if err := l.saveRecord(r); err != nil {
		return "", err
	}
	if err := l.removePins(spec.ID); err != nil { // left by a box with that ID before a reboot
		return "", err
	}
	if err := namespace.New(r.ids(), l.dirs.pin(spec.ID), l.dirs.userPin(spec.ID)); err != nil {
		return "", fmt.Errorf("box %s: %w", spec.ID, err)
	}
	return l.dirs.pin(spec.ID), fault.At(ctx, "launch: namespaces pinned")
}

// Create creates the box in the namespace that Prepare made and starts its first process. When it returns nil, Exec works.
// When it fails, it removes the box completely: processes, mounts, directories, control group, namespaces. spec must be the
// one given to Prepare.
func (l *Launcher) Create(ctx context.Context, spec Spec) (err error) {
	if err := spec.check(); err != nil {
		return err
	}
	defer l.lock(spec.ID)()
	r, err := l.loadRecord(spec.ID)
	if err != nil {
		return fmt.Errorf("%w: Prepare comes before Create", err)
	}
	if r.Created {
		return fmt.Errorf("box %s: %w", spec.ID, ErrExists)
	}
	defer l.removeOnError(spec.ID, &err)
	var img image.Image
	if len(spec.Layers) > 0 {
		img, err = l.layers.Image(spec.Layers, l.dirs.box(spec.ID))
	} else {
		img, err = l.images.Use(spec.Image, l.dirs.box(spec.ID))
	}
	if err != nil {
		return err
	}
	r.Image, r.Size, r.Env, r.Base = spec.Image, spec.Size, spec.Env, img.Env
	r.ImageKey, r.Rootfs, r.Layers = img.Key, img.Rootfs, spec.Layers
	if r.Project, err = l.dirs.limitDisk(ctx, r.ID, string(r.Size), l.cfg.Disk); err != nil {
		return fmt.Errorf("box %s: %w", spec.ID, err)
	}
	if err := l.saveRecord(r); err != nil { // so that deleting the box removes the limit
		return err
	}
	if err := l.launch(ctx, spec, img, r, writeNewRoot); err != nil {
		return err
	}
	r.Created = true
	return l.saveRecord(r)
}

// removeOnError removes the box if *err is not nil.
func (l *Launcher) removeOnError(id policy.BoxID, err *error) {
	if *err == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	if cerr := l.removeBox(ctx, id); cerr != nil {
		l.log.Error("a box that could not be created could not be removed either", zap.String("box", string(id)), zap.Error(cerr))
		*err = errors.Join(*err, cerr)
	}
}

// rootWriter writes into the root of a box before it starts.
type rootWriter func(*rootfs.Root, Spec) error

func writeNewRoot(root *rootfs.Root, spec Spec) error {
	return root.PrepareNew(rootfs.Identity{Hostname: spec.hostname(), DNS: spec.DNS, Git: rootfs.GitIdentity(spec.Git), CA: spec.CA, Roots: spec.Roots,
		Restored: len(spec.Layers) > 0})
}

// buildRoot mounts the box's root, writes files into it and writes the runtime's configuration.
func (l *Launcher) buildRoot(spec Spec, img image.Image, ids namespace.IDs, write rootWriter) error {
	lim, err := spec.Size.limits()
	if err != nil {
		return err
	}
	lim.IO = l.cfg.IO
	id := spec.ID
	if err := l.dirs.mountDisk(id); err != nil {
		return err
	}
	layers := overlay.Layers{
		Image: img.Rootfs, Stack: l.layers.Trees(spec.Layers), UserPin: l.dirs.userPin(id), Upper: l.dirs.upper(id), Work: l.dirs.work(id),
		Mounts: l.dirs.mounts(id), Lower: l.dirs.lowerMount(id), Root: l.dirs.rootMount(id),
	}
	if err := layers.Mount(ids.Host(0)); err != nil {
		return err
	}
	root, err := rootfs.Open(l.dirs.rootMount(spec.ID), ids)
	if err != nil {
		return err
	}
	err = write(root, spec)
	if cerr := root.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	userNS := l.dirs.userPin(id)
	if l.runtime.OwnUserNS {
		userNS = ""
	}
	_, unlimited := os.Stat(l.dirs.limited(id))
	config, err := container.Box{
		Root: l.dirs.rootMount(id), Init: rootfs.InitPath, UserNS: userNS, NetNS: l.dirs.pin(id), Cgroup: string(l.cgroup(id)),
		Hostname: spec.hostname(), IDs: ids.Mapping(), Limits: lim, NoDiskLimit: unlimited != nil,
	}.Config()
	if err != nil {
		return err
	}
	if err := os.Mkdir(l.dirs.bundle(spec.ID), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return files.WriteJSON(filepath.Join(l.dirs.bundle(spec.ID), "config.json"), config)
}

// startRuntime creates and starts the container. Its streams are /dev/null, not ours, because the first process outlives
// this process.
func (l *Launcher) startRuntime(ctx context.Context, spec Spec) error {
	lim, err := spec.Size.limits()
	if err != nil {
		return err
	}
	id := spec.ID
	logFile := filepath.Join(l.dirs.box(id), "runtime.log")
	pidFile := filepath.Join(l.dirs.box(id), "pid")
	making, cancel := withRuntimeTimeout(ctx)
	defer cancel()
	args := append([]string{"create", "--bundle", l.dirs.bundle(id), "--pid-file", pidFile}, l.runtime.CreateArgs...)
	create := l.runtimeCommand(making, logFile, append(args, string(id))...)
	if err = l.startLimited(create, lim); err == nil {
		err = create.Wait()
	}
	if err != nil {
		return fmt.Errorf("the runtime cannot create it: %w", whyFailed(making, logFile, err))
	}
	pid, err := readPid(pidFile)
	if err != nil {
		return err
	}
	if err := fault.At(ctx, "launch: container made"); err != nil {
		return err
	}
	if err := process.ReapLater(pid); err != nil {
		return err
	}
	if err := l.runtimeCommand(making, logFile, "start", string(id)).Run(); err != nil {
		return fmt.Errorf("the runtime cannot start it: %w", whyFailed(making, logFile, err))
	}
	return nil
}

// readPid reads a process ID from a file that the runtime wrote.
func readPid(file string) (int, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil || pid <= 1 {
		return 0, fmt.Errorf("%s holds no process ID", file)
	}
	return pid, nil
}
