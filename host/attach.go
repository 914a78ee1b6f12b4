package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"boxgate/api"
	"boxgate/internal/fault"
	"boxgate/launcher"
	"boxgate/policy"
	"boxgate/store"
)

// errAttached is the answer to whoever wants something of a box that only its maker can do.
var errAttached = api.Errorf(api.ErrConflict, "the box is attached: commands are run in it by whoever made it")

// AttachBox implements [api.Host]. The namespace is opened once and judged and pinned through that: what its name means
// a moment later does not matter. It gets its interface closed, then its policy; a failure takes every step back.
func (h *Host) AttachBox(ctx context.Context, req api.AttachRequest) (api.Box, error) {
	if err := h.checkNew(req.Name, req.Policy, req.Headers); err != nil {
		return api.Box{}, err
	}
	ns, err := h.foreignNamespace(ctx, req.Attached)
	if err != nil {
		return api.Box{}, err
	}
	defer ns.Close()
	b, err := h.allocate(ctx, api.CreateRequest{Name: req.Name, Labels: req.Labels, Policy: req.Policy, Headers: req.Headers},
		&store.Attached{Kind: req.Kind, Ref: req.Ref, Stack: req.Stack}, "")
	if err != nil {
		return api.Box{}, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	h.mu.Lock()
	h.boxes[b.ID] = b
	h.mu.Unlock()
	var back undo
	if err := h.caught(b, func() error { return h.bringUnder(ctx, b, ns, &back) }); err != nil {
		return api.Box{}, h.takeBack(ctx, b, back, err)
	}
	view := b.view()
	view.Warnings = b.warnings()
	return view, nil
}

// bringUnder gives an attached box its CA, its closed network and its policy.
func (h *Host) bringUnder(ctx context.Context, b *box, ns *os.File, back *undo) error {
	compiled, err := h.inputs(b).compile()
	if err != nil {
		return err
	}
	if err := h.keepInitial(b); err != nil {
		return h.notStored("its policy could not be stored", err)
	}
	ca, err := h.authority(b.ID)
	if err != nil {
		return fmt.Errorf("its certificate authority: %w", err)
	}
	back.add(func(context.Context) error { h.minter.Remove(b.ID); return nil })
	if err := h.minter.Add(b.ID, ca); err != nil {
		return err
	}
	back.add(func(context.Context) error { return h.launcher.DetachNamespace(b.ID) })
	pin, err := h.launcher.AttachNamespace(b.ID, ns)
	if err = errors.Join(err, fault.At(ctx, "attach: namespace pinned")); err != nil {
		return err
	}
	if err := h.connect(ctx, b, compiled, pin, back); err != nil {
		return err
	}
	if err := b.unlocked(func() error { return h.firewall.AwaitBox(ctx, b.ID) }); err != nil {
		return err
	}
	if !b.connected {
		return errDeletedMeanwhile
	}
	if err := h.setState(b, api.StatusIdle, ""); err != nil {
		return h.notStored("its state could not be stored", err)
	}
	return nil
}

// DetachBox implements [api.Host].
func (h *Host) DetachBox(ctx context.Context, id policy.BoxID) error {
	b, err := h.find(id)
	if err != nil {
		return err
	}
	if b.attached == nil {
		return api.Errorf(api.ErrConflict, "box %s was launched here: delete it", id)
	}
	return h.DeleteBox(ctx, id)
}

// foreignNamespace opens what is to be attached, and refuses what cannot be.
func (h *Host) foreignNamespace(ctx context.Context, a api.Attached) (*os.File, error) {
	pointer, open := "/netns", func() (*os.File, error) { return openNetNS(a.Ref) }
	switch a.Kind {
	case api.AttachPID:
		pointer, open = "/pid", func() (*os.File, error) { return openNetNS(netNSOf(a.PID)) }
	case api.AttachDocker:
		pointer, open = "/container", func() (*os.File, error) { return openContainer(ctx, a.Ref) }
	}
	ns, err := open()
	if err != nil {
		return nil, invalidAt(pointer, err.Error())
	}
	if err := h.firewall.CheckForeign(fmt.Sprintf("/proc/self/fd/%d", ns.Fd())); err != nil {
		return nil, errors.Join(invalidAt(pointer, err.Error()), ns.Close())
	}
	return ns, nil
}

// netNSOf names the network namespace of a process.
func netNSOf(pid int) string { return fmt.Sprintf("/proc/%d/ns/net", pid) }

// openContainer opens the network namespace of a Docker container. Its process may have ended before that, and its ID have
// gone to one of another sandbox: then Docker names another process, or none.
func openContainer(ctx context.Context, container string) (*os.File, error) {
	pid, err := containerPID(ctx, container)
	if err != nil {
		return nil, err
	}
	ns, err := openNetNS(netNSOf(pid))
	if err != nil {
		return nil, err
	}
	now, err := containerPID(ctx, container)
	if err == nil && now != pid {
		err = errors.New("the container was restarted just now: attach it again")
	}
	if err != nil {
		return nil, errors.Join(err, ns.Close())
	}
	return ns, nil
}

// openNetNS opens a network namespace, and nothing else: what the path names is opened only once it is known for a
// namespace, since to open a device or a pipe does something.
func openNetNS(path string) (*os.File, error) {
	place, err := os.OpenFile(path, unix.O_PATH, 0)
	if err != nil {
		return nil, err
	}
	defer place.Close()
	notOne := fmt.Errorf("%s is not a network namespace", path)
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(place.Fd()), &fs); err != nil || fs.Type != unix.NSFS_MAGIC {
		return nil, notOne
	}
	f, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", place.Fd()))
	if err != nil {
		return nil, err
	}
	if kind, err := unix.IoctlRetInt(int(f.Fd()), unix.NS_GET_NSTYPE); err != nil || kind != unix.CLONE_NEWNET {
		return nil, errors.Join(notOne, f.Close())
	}
	return f, nil
}

// namespace is the path of a box's network namespace, if the box is one that runs.
func (h *Host) namespace(ctx context.Context, b *box) (string, error) {
	if b.attached != nil {
		return h.launcher.AttachedNamespace(b.ID)
	}
	status, err := h.launcher.State(ctx, b.ID)
	if err != nil {
		return "", err
	}
	if status.State == launcher.StateError || status.State == launcher.StateCreating {
		return "", errors.New("its first process has ended")
	}
	return status.NetNS, nil
}

// release lets go what the box consists of: its processes and files, or the namespace of one that somebody else made.
func (h *Host) release(ctx context.Context, b *box) error {
	if b.attached != nil {
		return h.launcher.DetachNamespace(b.ID)
	}
	return h.launcher.Delete(ctx, b.ID)
}

// pruneAttached lets namespaces go that belong to no box.
func (h *Host) pruneAttached() error {
	ids, err := h.launcher.AttachedBoxes()
	if err != nil {
		return err
	}
	for _, id := range ids {
		if _, err := h.find(id); err != nil {
			if err := h.launcher.DetachNamespace(id); err != nil {
				return err
			}
		}
	}
	return nil
}

// attachedView is what the API shows of what was attached.
func attachedView(a *store.Attached) *api.Attached {
	if a == nil {
		return nil
	}
	return &api.Attached{Kind: a.Kind, Ref: a.Ref, Stack: cmp.Or(a.Stack, api.StackHost)}
}

// invalidAt is one mistake in a request.
func invalidAt(pointer, message string) error {
	return &policy.InvalidError{Problems: []policy.Problem{{Pointer: pointer, Message: message}}}
}

// hasGuestStack reports whether the box is a sandbox that speaks on its interface with a network stack of its own.
func (b *box) hasGuestStack() bool { return b.attached != nil && b.attached.Stack == api.StackGuest }
