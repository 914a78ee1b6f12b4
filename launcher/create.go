package launcher

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	runc "github.com/containerd/go-runc"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"boxgate/internal/fault"
	"boxgate/launcher/container"
	"boxgate/launcher/files"
	"boxgate/launcher/image"
	"boxgate/launcher/namespace"
	"boxgate/launcher/oci"
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
	r := record{ID: spec.ID, Image: spec.Image, Size: spec.Size, Env: spec.Env, Account: spec.Account, IDIndex: index}
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
	r.Image, r.Size, r.Env, r.Account, r.Base = spec.Image, spec.Size, spec.Env, spec.Account, img.Env
	r.ImageKey, r.Rootfs, r.Layers, r.Root = img.Key, img.Rootfs, spec.Layers, l.cfg.Root
	if r.Project, err = l.dirs.limitDisk(ctx, r.ID, string(r.Size), l.cfg.Disk); err != nil {
		return fmt.Errorf("box %s: %w", spec.ID, err)
	}
	if err := l.saveRecord(r); err != nil { // so that deleting the box removes the limit
		return err
	}
	if err := l.launch(ctx, spec, img, r, l.writeNewRoot); err != nil {
		return err
	}
	r.Created, r.Roots = true, fingerprint(spec.Roots)
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

func (l *Launcher) writeNewRoot(root *rootfs.Root, spec Spec) error {
	if l.cfg.Root {
		l.letSudo(root, spec)
	}
	return root.PrepareNew(rootfs.Identity{Hostname: spec.hostname(), Account: spec.Account, DNS: spec.DNS, Git: rootfs.GitIdentity(spec.Git), CA: spec.CA, Roots: spec.Roots, Agents: spec.Agents, Files: spec.Files,
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
		Mounts: l.dirs.mounts(id), Lower: l.dirs.lowerMount(id), Root: l.dirs.rootMount(id), SetUserID: l.cfg.Root,
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
	l.filters.forget(id)
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

// Delete kills all processes of a box and removes it: container, control group, mounts, network namespace, and last its
// record and files. So no process is left when the namespace goes, and an interrupted Delete can be repeated. Deleting a
// box that does not exist returns nil.
//
// Once begun it continues even if ctx ends, for at most cleanupTimeout. Files are only moved to the trash, because removing
// millions of them can take minutes.
func (l *Launcher) Delete(ctx context.Context, id policy.BoxID) error {
	if err := checkID(id); err != nil {
		return err
	}
	if _, starting := l.starting.Load(id); starting {
		_ = l.cgroup(id).Kill() // frees the lock immediately, even if the box stalls the runtime
	}
	defer l.lock(id)()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	return l.removeBox(ctx, id)
}

// removeBox does the work of Delete; the caller holds the box's lock.
func (l *Launcher) removeBox(ctx context.Context, id policy.BoxID) error {
	r, _ := l.loadRecord(id) // without a record there is no disk limit to undo
	return runSteps(id, "removed",
		func() error { return l.removeKernelState(ctx, id) },
		func() error { return l.dirs.freeDisk(id, r.Project) },
		func() error { return l.moveToTrash(id) },
		func() error { l.images.Release(l.dirs.box(id)); return nil },
		func() error { return fault.At(ctx, "remove: files in the trash") },
	)
}

// removeKernelState kills the processes of a box and removes all its kernel state. The caller holds the box's lock.
func (l *Launcher) removeKernelState(ctx context.Context, id policy.BoxID) error {
	defer l.background.CloseAll(id)
	defer l.motion.AllowStarts(id)
	defer l.branches.Forget(l.cgroup(id))
	defer l.filters.forget(id)
	return runSteps(id, "stopped",
		func() error { return l.removeContainer(ctx, id) },
		func() error { return fault.At(ctx, "remove: processes ended") },
		func() error { return l.cgroup(id).KillAndRemove(ctx) },
		func() error { return overlay.Unmount(l.dirs.mounts(id)) },
		func() error { return l.removeMountPoints(id) },
		func() error { return l.removePins(id) },
		func() error { return fault.At(ctx, "remove: namespaces gone") },
	)
}

// runSteps runs the steps in order, up to the first error.
func runSteps(id policy.BoxID, what string, steps ...func() error) error {
	for _, step := range steps {
		if err := step(); err != nil {
			return fmt.Errorf("box %s cannot be %s: %w", id, what, err)
		}
	}
	return nil
}

// removeMountPoints removes the directories that mountRoot made. They must be empty: if not, something is still mounted
// there, and removing its files would be worse than failing.
func (l *Launcher) removeMountPoints(id policy.BoxID) error {
	points, err := os.ReadDir(l.dirs.mounts(id))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	dirs := []string{}
	for _, p := range points {
		dirs = append(dirs, filepath.Join(l.dirs.mounts(id), p.Name()))
	}
	for _, p := range append(dirs, l.dirs.mounts(id)) {
		if err := os.Remove(p); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// removePins unpins the box's namespaces, first the network namespace, which is owned by the user namespace.
func (l *Launcher) removePins(id policy.BoxID) error {
	if err := namespace.Unpin(l.dirs.pin(id)); err != nil {
		return err
	}
	return namespace.Unpin(l.dirs.userPin(id))
}

// removeContainer kills the container's processes and deletes it from the runtime. A frozen box is killed before it is
// thawed, so that it never runs again.
func (l *Launcher) removeContainer(ctx context.Context, id policy.BoxID) error {
	if !l.isContainer(id) {
		return nil
	}
	_ = l.runc.Kill(ctx, string(id), int(unix.SIGKILL), nil) // fails if it has already ended
	if err := l.cgroup(id).Kill(); err != nil {
		return err
	}
	if l.onEnd != nil {
		l.onEnd(id)
	}
	err := l.runc.Delete(ctx, string(id), &runc.DeleteOpts{Force: true})
	if err == nil {
		return nil
	}
	// The runtime cannot delete a container whose state file it cannot read, such as one truncated by a power failure.
	// Clearing the control group kills its processes.
	if cerr := l.cgroup(id).KillAndRemove(ctx); cerr != nil {
		return errors.Join(err, cerr)
	}
	var errs []error
	for _, path := range append(l.stateFiles(id), l.containerState(id)) {
		errs = append(errs, os.RemoveAll(path))
	}
	return errors.Join(errs...)
}

// moveToTrash moves the files of a box to the trash, in constant time, and releases its user IDs: no process can reach the
// files any longer. [Launcher.KeepTrashEmpty] removes them.
func (l *Launcher) moveToTrash(id policy.BoxID) error {
	if err := l.trash.Move(l.dirs.box(id)); err != nil {
		return err
	}
	return namespace.FreeIDs(l.dirs.box(id))
}

// KeepTrashEmpty removes the files of deleted boxes, oldest runs first, until ctx ends: a few at a time, with a lower CPU
// and disk priority than everything else. Failures are logged once and retried from time to time. Call it once.
func (l *Launcher) KeepTrashEmpty(ctx context.Context) { l.trash.KeepEmpty(ctx) }

// EmptyTrash removes the files of all deleted boxes. On failure it continues, and returns the errors.
func (l *Launcher) EmptyTrash(ctx context.Context) error { return l.trash.Empty(ctx) }

// Trash returns how many deleted boxes still have files, and for how many of them a removal failed.
func (l *Launcher) Trash() (boxes, failed int) { return l.trash.Count() }

// Leftovers lists the boxes, launched and attached, of which a launcher with this configuration has left anything behind.
// It creates nothing, not even the launcher's directories.
func Leftovers(cfg Config) (launched, attached []policy.BoxID, err error) {
	l := &Launcher{dirs: dirsOf(cfg.StateDir, cfg.RunDir)}
	known, err := l.leftovers()
	for id := range known {
		launched = append(launched, id)
	}
	slices.Sort(launched)
	attached, attachedErr := l.AttachedBoxes()
	if errors.Is(attachedErr, fs.ErrNotExist) {
		attachedErr = nil
	}
	return launched, attached, errors.Join(err, attachedErr)
}

// CheckUnmounted fails if there is a mount at or below a directory, because its files must not be removed then.
func CheckUnmounted(dir string) error {
	mounts, err := overlay.MountsBelow(dir)
	if err == nil && len(mounts) > 0 {
		err = fmt.Errorf("%s is still mounted: unmount it, and try again", strings.Join(mounts, ", "))
	}
	return err
}

// Uninstall kills every box and removes all kernel state and run files of boxes. Without purge, their disks stay, and a
// later launcher can restart them as after a reboot; with purge, boxes and disks are deleted. The launcher must not be used
// afterwards. Uninstall continues after a failure and can be repeated.
func (l *Launcher) Uninstall(ctx context.Context, purge bool) error {
	known, err := l.leftovers()
	errs := []error{err}
	for id := range known {
		if purge {
			errs = append(errs, l.Delete(ctx, id))
		} else {
			errs = append(errs, l.stopAndRelease(ctx, id))
		}
	}
	attached, err := l.AttachedBoxes()
	errs = append(errs, err)
	for _, id := range attached {
		errs = append(errs, l.DetachNamespace(id))
	}
	if purge {
		errs = append(errs, l.EmptyTrash(ctx))
	}
	for _, path := range oci.Namespaces(l.dirs.runtimeRoot()) {
		errs = append(errs, namespace.Unpin(path))
	}
	for _, own := range l.dirs.ofRun() {
		errs = append(errs, overlay.Unmount(own))
	}
	if err := errors.Join(errs...); err != nil {
		return err // remaining files may be mounted below the run directory
	}
	for _, own := range l.dirs.ofRun() {
		if err := os.RemoveAll(own); err != nil {
			return err
		}
	}
	_ = os.Remove(l.dirs.run)               // fails if it contains files of other programs
	_ = os.Remove(filepath.Dir(l.dirs.run)) // fails if another launcher's directory is there
	return namespace.RemoveClaims(ctx)
}

// stopAndRelease stops a box, unmounts its disk and releases its user IDs, as a reboot would.
func (l *Launcher) stopAndRelease(ctx context.Context, id policy.BoxID) error {
	if err := l.Stop(ctx, id); err != nil {
		return err
	}
	return errors.Join(l.dirs.volume(id).Unmount(), namespace.FreeIDs(l.dirs.box(id)))
}
