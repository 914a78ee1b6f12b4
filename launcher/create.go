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

	"boxgate/internal/fault"
	"boxgate/policy"

	"go.uber.org/zap"
)

// cleanupTime bounds the removal of a box, which is carried through when the call that asked for it is gone.
const cleanupTime = 30 * time.Second

// Prepare makes the box's network namespace and pins it; it returns the path of the pin. Nothing runs in it and it has
// no interface but a loopback that is down. The caller closes the network before it calls Create. A failed Prepare
// leaves nothing behind; Delete undoes a successful one.
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
	defer l.undo(spec.ID, &err)
	if err := fault.At(ctx, "launch: directory made"); err != nil {
		return "", err
	}
	index, err := claimIDs(ctx, l.dirs.box(spec.ID))
	if err != nil {
		return "", fmt.Errorf("box %s: %w", spec.ID, err)
	}
	r := record{ID: spec.ID, Image: spec.Image, Size: spec.Size, Env: spec.Env, IDIndex: index}
	if err := l.save(r); err != nil {
		return "", err
	}
	if err := l.removePins(spec.ID); err != nil { // of a box of that ID before a reboot
		return "", err
	}
	if err := newNamespaces(r.ids(), l.dirs.pin(spec.ID), l.dirs.userPin(spec.ID)); err != nil {
		return "", fmt.Errorf("box %s: %w", spec.ID, err)
	}
	return l.dirs.pin(spec.ID), fault.At(ctx, "launch: namespaces pinned")
}

// Create makes the box in the namespace that Prepare made and starts its first process. When it returns nil, Exec works.
// When it fails, nothing of the box is left: no process, mount, directory, control group or namespace. It must be given
// the Spec that Prepare was given.
func (l *Launcher) Create(ctx context.Context, spec Spec) (err error) {
	if err := spec.check(); err != nil {
		return err
	}
	defer l.lock(spec.ID)()
	r, err := l.load(spec.ID)
	if err != nil {
		return fmt.Errorf("%w: Prepare comes before Create", err)
	}
	if r.Created {
		return fmt.Errorf("box %s: %w", spec.ID, ErrExists)
	}
	defer l.undo(spec.ID, &err)
	if !isPinned(l.dirs.pin(spec.ID)) || !isPinned(l.dirs.userPin(spec.ID)) {
		return fmt.Errorf("box %s: its namespaces are gone", spec.ID)
	}
	img, err := l.images.find(spec.Image)
	if err != nil {
		return err
	}
	r.Image, r.Size, r.Env, r.Base = spec.Image, spec.Size, spec.Env, img.Env
	if err := l.save(r); err != nil {
		return err
	}
	if err := l.build(spec, img, r.ids()); err != nil {
		return fmt.Errorf("box %s: %w", spec.ID, err)
	}
	if err := fault.At(ctx, "launch: root built"); err != nil {
		return err
	}
	if err := l.startRuntime(ctx, spec); err != nil {
		return fmt.Errorf("box %s: %w", spec.ID, err)
	}
	if err := fault.At(ctx, "launch: first process started"); err != nil {
		return err
	}
	// The box has copies of its own by now. The empty mount points stay: the runtime starts commands from there.
	if err := unmountAll(l.dirs.mounts(spec.ID)); err != nil {
		return fmt.Errorf("box %s: %w", spec.ID, err)
	}
	r.Created = true
	return l.save(r)
}

// undo removes everything of a box if *err says that making it failed.
func (l *Launcher) undo(id policy.BoxID, err *error) {
	if *err == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTime)
	defer cancel()
	if cerr := l.remove(ctx, id); cerr != nil {
		l.log.Error("a box that could not be made could not be removed either", zap.String("box", string(id)), zap.Error(cerr))
		*err = errors.Join(*err, cerr)
	}
}

// build mounts the box's root, writes into it and writes the runtime's configuration.
func (l *Launcher) build(spec Spec, img image, ids idRange) error {
	lim, err := spec.Size.limits()
	if err != nil {
		return err
	}
	id := spec.ID
	layers := layers{
		image: img.rootfs, userPin: l.dirs.userPin(id), upper: l.dirs.upper(id), work: l.dirs.work(id),
		mounts: l.dirs.mounts(id), lower: l.dirs.lowerMount(id), root: l.dirs.rootMount(id),
	}
	if err := layers.mount(ids.host(0)); err != nil {
		return err
	}
	root, err := openBoxRoot(l.dirs.rootMount(spec.ID), ids)
	if err != nil {
		return err
	}
	err = root.furnish(identity{hostname: spec.hostname(), dns: spec.DNS, ca: spec.CA})
	if cerr := root.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	config, err := box{
		root: l.dirs.rootMount(id), init: initPath, userNS: l.dirs.userPin(id), netNS: l.dirs.pin(id), cgroup: string(l.cgroup(id)),
		hostname: spec.hostname(), ids: ids.mapping(), limits: lim,
	}.config()
	if err != nil {
		return err
	}
	if err := os.Mkdir(l.dirs.bundle(spec.ID), 0o700); err != nil {
		return err
	}
	return writeJSON(filepath.Join(l.dirs.bundle(spec.ID), "config.json"), config)
}

// startRuntime creates and starts the container. Its streams are /dev/null, not ours: the first process outlives us.
func (l *Launcher) startRuntime(ctx context.Context, spec Spec) error {
	lim, err := spec.Size.limits()
	if err != nil {
		return err
	}
	id := spec.ID
	logFile := filepath.Join(l.dirs.box(id), "runtime.log")
	pidFile := filepath.Join(l.dirs.box(id), "pid")
	create := l.runtimeCommand(ctx, logFile, "create", "--bundle", l.dirs.bundle(id), "--pid-file", pidFile, string(id))
	if err = startLimited(create, lim); err == nil {
		err = create.Wait()
	}
	if err != nil {
		return fmt.Errorf("the runtime cannot create it: %w", runtimeError(logFile, err))
	}
	pid, err := readPid(pidFile)
	if err != nil {
		return err
	}
	if err := fault.At(ctx, "launch: container made"); err != nil {
		return err
	}
	if err := bury(pid); err != nil {
		return err
	}
	if err := l.runtimeCommand(ctx, logFile, "start", string(id)).Run(); err != nil {
		return fmt.Errorf("the runtime cannot start it: %w", runtimeError(logFile, err))
	}
	return nil
}

// readPid reads a file the runtime wrote a process ID to.
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
