package box

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/dns"
	"boxgate/host/change"
	"boxgate/host/sandboxns"
	"boxgate/host/state"
	"boxgate/internal/fault"
	"boxgate/policy"
	"boxgate/store"
)

// AttachBox implements the Host of [boxgate/api/boxes]. The namespace is opened once, then checked and pinned through
// that descriptor, so it does not matter if its name is reused a moment later. The box gets a closed interface first,
// then its policy. A failure undoes every step.
func (l *Service) AttachBox(ctx context.Context, req api.AttachRequest) (api.Box, error) {
	var err error
	if req.Policy, err = l.policyOfNew(req.Policy, req.Named, &store.Attached{Kind: req.Kind, Pod: req.Pod}); err != nil {
		return api.Box{}, err
	}
	if err := l.shared.CheckSource(req.Source); err != nil {
		return api.Box{}, err
	}
	if err := l.checkNew(req.Name, req.Policy, req.Headers); err != nil {
		return api.Box{}, err
	}
	if req.Kind == api.AttachRemote {
		return l.attachRemote(ctx, req)
	}
	if err := checkTap(req.Tap); err != nil {
		return api.Box{}, err
	}
	found, err := sandboxns.Open(ctx, req.Attached, l.firewall.CheckForeign)
	if err != nil {
		return api.Box{}, err
	}
	defer found.NS.Close()
	search := searchOf(ctx, req, found.NS)
	b, err := l.admit(ctx, api.CreateRequest{Name: req.Name, Labels: req.Labels, Source: req.Source, Limits: req.Limits, Policy: req.Policy, Named: req.Named, Headers: req.Headers},
		&store.Attached{Kind: req.Kind, Ref: req.Ref, Container: found.Container, Stack: req.Stack, Runtime: req.Runtime, NetNS: req.NetNS, Pod: req.Pod, Search: search, Tap: storedTap(req.Tap)}, origin{})
	if err != nil {
		return api.Box{}, err
	}
	defer b.Unlock()
	p := &provisioning{box: b, foreign: found.NS}
	if err := l.provision(ctx, p, attachSteps); err != nil {
		return api.Box{}, l.discard(b, err)
	}
	b.Follow(p.netns)
	l.follower.Look(b.ID)
	return b.ViewWithWarnings(), nil
}

// searchOf returns the search list of the sandbox's resolver. That of a virtual machine is not known.
func searchOf(ctx context.Context, req api.AttachRequest, ns *os.File) (search []string) {
	if req.Tap != nil {
		return nil
	}
	conf := []byte("search " + strings.Join(req.Search, " "))
	if req.Search == nil {
		conf = sandboxns.ResolvConf(ctx, ns, req.PID)
	}
	for _, n := range dns.SearchFromResolvConf(bytes.NewReader(conf)) {
		search = append(search, n.String())
	}
	return search
}

// DetachBox implements the Host of [boxgate/api/boxes].
func (l *Service) DetachBox(ctx context.Context, id policy.BoxID) error {
	b, err := l.boxes.Find(id)
	if err != nil {
		return err
	}
	if b.Attached == nil {
		return api.Errorf(api.ErrConflict, "box %s was launched here, and is not attached: `gateway box rm %s` deletes it", id, id)
	}
	return l.DeleteBox(ctx, id)
}

// ReattachBox attaches a box to the sandbox given by to, or, if to is nil, to the previous one. The box keeps its ID,
// addresses, policy, header rules, public URLs and CA.
func (l *Service) ReattachBox(ctx context.Context, id policy.BoxID, to *api.Attached) (api.Box, error) {
	b, err := l.boxes.Find(id)
	if err != nil {
		return api.Box{}, err
	}
	if b.Attached == nil {
		return api.Box{}, api.Errorf(api.ErrConflict, "box %s was launched here: it is not attached to anything", id)
	}
	if b.IsRemote() {
		return api.Box{}, api.Errorf(api.ErrConflict, "box %s runs elsewhere: `gateway box token %s` gives its sandbox access", id, id)
	}
	now := b.Sandbox.Load()
	if now == nil {
		return api.Box{}, api.Errorf(api.ErrConflict, "box %s is being attached already", id)
	}
	if to == nil && now.Kind == api.AttachOCI {
		return api.Box{}, api.Errorf(api.ErrConflict, "box %s is a container of `gateway oci`: start another one, which gets a box of its own", id)
	}
	if to == nil {
		to = &api.Attached{Kind: now.Kind, Ref: now.Ref, Container: now.Container, NetNS: now.NetNS}
		to.PID, _ = strconv.Atoi(now.Ref)
	}
	if (to.Kind == api.AttachTap) != (now.Kind == api.AttachTap) {
		return api.Box{}, api.Errorf(api.ErrConflict, "box %s is attached by a tap of the gateway: detach it, then attach it to another sandbox", id)
	}
	found, err := sandboxns.Open(ctx, *to, func(path string) error { return l.checkSandbox(b, path) })
	if err != nil {
		return api.Box{}, err
	}
	defer found.NS.Close()
	b.Lock()
	defer b.Unlock()
	if err := b.Gone(); err != nil {
		return api.Box{}, err
	}
	defer l.follower.Look(id)
	target := store.Attached{Kind: to.Kind, Ref: to.Ref, Container: found.Container, Stack: b.Attached.Stack, NetNS: to.NetNS, Pod: b.Attached.Pod, Tap: b.Attached.Tap}
	if err := l.move(ctx, b, target, found.NS); err != nil {
		return api.Box{}, api.Errorf(api.ErrUnavailable, "box %s could not be attached again, and is disconnected: %w", id, err)
	}
	return b.ViewWithWarnings(), nil
}

// checkSandbox checks whether a box may be attached to a network namespace. The one it is attached to is always allowed.
func (l *Service) checkSandbox(b *state.Box, path string) error {
	if now := b.Sandbox.Load(); now != nil && b.Connected() && sandboxns.Same(now.Pin, path) {
		return nil
	}
	return l.firewall.CheckForeign(path)
}

// move attaches a box to another network namespace. The box is disconnected from before it leaves the old namespace until
// its policy is applied in the new one. The caller holds the lock of b.
func (l *Service) move(ctx context.Context, b *state.Box, to store.Attached, ns *os.File) error {
	ctx, cancel := change.Detach(ctx)
	defer cancel()
	if now := b.Sandbox.Load(); b.Connected() && sandboxns.Same(now.Pin, sandboxns.PathOf(ns)) {
		return l.storeName(b, to, now.Pin)
	}
	if err := l.detach(ctx, b, to, "it is being attached"); err != nil {
		return err
	}
	p := &provisioning{box: b, foreign: ns}
	err := l.provision(ctx, p, reattachSteps)
	switch {
	case err == nil:
		b.Follow(p.netns)
		l.log.Info("a box was attached again", zap.String("box", string(b.ID)), zap.String("sandbox", to.Kind+" "+to.Ref))
	case b.Deleted || errors.Is(err, errDeletedConcurrently): // or its sandbox has ended, which is already shown
	default:
		b.ShowGone("it could not be attached: " + err.Error())
	}
	return err
}

// storeName records another name for the sandbox that a box is attached to. The caller holds the lock of b.
func (l *Service) storeName(b *state.Box, to store.Attached, pin string) error {
	if err := l.storeAttached(b, to, api.StatusIdle, ""); err != nil {
		return err
	}
	b.Follow(pin)
	return nil
}

// detach disconnects an attached box and releases its namespace. Afterwards the box is attached to a sandbox without a
// namespace, until it is attached again. It can be repeated. The caller holds the lock of b.
func (l *Service) detach(ctx context.Context, b *state.Box, to store.Attached, why string) error {
	err := change.Contain(l.log, func() error { return l.detachSteps(ctx, b, to, why) }, zap.String("box", string(b.ID)))
	if err != nil {
		b.ShowGone("it could not be fully disconnected; retrying")
	}
	return err
}

func (l *Service) detachSteps(ctx context.Context, b *state.Box, to store.Attached, why string) error {
	l.reach.Remove(b.ID)
	if err := l.net.Disconnect(ctx, &b.Box); err != nil {
		return fmt.Errorf("taking it off the network: %w", err)
	}
	l.visitors.CloseBox(b.ID) // connections to its loopback hold a reference to the namespace
	if err := fault.At(ctx, "leave: off the network"); err != nil {
		return err
	}
	if err := l.sandboxes.DetachNamespace(b.ID); err != nil {
		return err
	}
	if err := fault.At(ctx, "leave: namespace released"); err != nil {
		return err
	}
	if err := l.storeAttached(b, to, api.StatusGone, why); err != nil {
		return err
	}
	b.Follow("")
	return fault.At(ctx, "leave: stored")
}

// storeAttached stores the sandbox that a box is attached to, and the box's state. The caller holds the lock of b.
func (l *Service) storeAttached(b *state.Box, to store.Attached, s api.Status, problem string) error {
	record := b.Record
	to.Search = b.Attached.Search // the search list of the first attachment
	record.Attached, record.State, record.Error, record.UpdatedAt = &to, string(s), problem, time.Now()
	if err := l.records.Update(record); err != nil {
		return change.NotStored(l.log, "the sandbox of the box could not be stored", err)
	}
	b.Record, b.Status, b.Problem = record, s, problem
	b.Publish()
	return nil
}

// followed implements [follow.Owner].
type followed struct{ *Service }

// Attached implements [follow.Owner].
func (l followed) Attached() []policy.BoxID {
	var ids []policy.BoxID
	for _, b := range l.boxes.All() {
		if b.Sandbox.Load() != nil {
			ids = append(ids, b.ID)
		}
	}
	return ids
}

// Sandbox implements [follow.Owner].
func (l followed) Sandbox(id policy.BoxID) (sandboxns.Sandbox, uint64, bool) {
	b, err := l.boxes.Find(id)
	if err != nil {
		return sandboxns.Sandbox{}, 0, false
	}
	now := b.Sandbox.Load()
	if now == nil {
		return sandboxns.Sandbox{}, 0, false
	}
	return now.Sandbox, now.Turn, true
}

// Disconnect implements [follow.Owner].
func (l followed) Disconnect(ctx context.Context, id policy.BoxID, turn uint64, why string) error {
	return l.inTurn(id, turn, func(b *state.Box) error {
		ctx, cancel := change.Detach(ctx)
		defer cancel()
		if b.Record.Attached.Kind == api.AttachOCI { // its container cannot start again: a restart creates another one
			return l.deleteLocked(ctx, b)
		}
		if b.Status == api.StatusGone && b.Problem == why {
			return nil
		}
		if err := l.detach(ctx, b, *b.Record.Attached, why); err != nil {
			return err
		}
		l.log.Warn("a box is gone: it has no network until it is attached again", zap.String("box", string(id)),
			zap.String("status", string(api.StatusGone)), zap.String("reason", why))
		return nil
	})
}

// Reattach implements [follow.Owner].
func (l followed) Reattach(ctx context.Context, id policy.BoxID, turn uint64, to sandboxns.Found) error {
	return l.inTurn(id, turn, func(b *state.Box) error {
		if err := l.checkSandbox(b, sandboxns.PathOf(to.NS)); err != nil {
			err = fmt.Errorf("its container runs, but cannot be attached: %w", err)
			if b.Status == api.StatusGone {
				b.ShowGone(err.Error())
			}
			return err
		}
		return l.move(ctx, b, *b.Record.Attached, to.NS)
	})
}

// inTurn calls do with a locked box, unless its sandbox has changed since turn.
func (l followed) inTurn(id policy.BoxID, turn uint64, do func(*state.Box) error) error {
	b, err := l.boxes.Lock(id)
	if errors.Is(err, api.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	defer b.Unlock()
	if b.Sandbox.Load().Turn != turn {
		return nil // the follower looks again
	}
	return do(b)
}
