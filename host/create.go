package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/internal/fault"
	"boxgate/launcher"
	"boxgate/policy"
	"boxgate/store"
)

// CreateBox implements [api.Host]. The order matters: the network namespace exists, its interface is closed, then the
// policy is in force, and only then does the first process of the box start. A failure takes every step back.
func (h *Host) CreateBox(ctx context.Context, req api.CreateRequest) (api.Box, error) {
	if err := h.checkNew(req.Name, req.Policy, req.Headers); err != nil {
		return api.Box{}, err
	}
	image, err := h.imageOf(req.Runtime)
	if err != nil {
		return api.Box{}, err
	}
	b, err := h.allocate(ctx, req, nil, image)
	if err != nil {
		return api.Box{}, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	h.mu.Lock()
	h.boxes[b.ID] = b
	h.mu.Unlock()
	var back undo
	if err := h.caught(b, func() error { return h.bringUp(ctx, b, &back) }); err != nil {
		return api.Box{}, h.takeBack(ctx, b, back, err)
	}
	if req.InitCommand != "" {
		h.runInit(b)
	}
	h.expireLater(b, time.Until(b.record.ExpiresAt))
	view := b.view()
	view.Warnings = b.warnings()
	return view, nil
}

// checkNew tells the mistakes in what a new box is to be, before anything of it is made.
func (h *Host) checkNew(name string, spec policy.Spec, headers []policy.HeaderRule) error {
	in := h.sharedInputs()
	in.spec, in.version, in.headers, in.tokens = spec, 1, headers, store.NewKey()
	if _, err := in.compile(); err != nil {
		return err
	}
	if looksLikeID.MatchString(name) {
		return invalidAt("/name", "looks like the ID of a box; choose another name")
	}
	return nil
}

// takeBack removes a box that could not be completed, and returns what the caller is told. What cannot be removed now
// stays known, so that its name and addresses are not given away, and can be deleted again.
func (h *Host) takeBack(ctx context.Context, b *box, back undo, cause error) error {
	if b.deleted { // its addresses may be another's by now
		return errDeletedMeanwhile
	}
	left := back.run(ctx)
	if left == nil {
		left = h.forget(b)
	}
	h.log.Error("a box could not be created", zap.String("box", string(b.ID)), zap.Error(errors.Join(cause, left)))
	if left != nil {
		h.showError(b, "it could not be created, nor fully removed; delete it")
		return api.Errorf(api.ErrUnavailable, "the box could not be created, and what is left of it must be deleted: %w", cause)
	}
	if errors.Is(cause, context.Canceled) || errors.Is(cause, context.DeadlineExceeded) {
		return cause
	}
	// Whoever may create boxes runs the host: the launcher's and the kernel's own words help.
	return api.Errorf(api.ErrUnavailable, "the box could not be created, and nothing of it is left: %w", cause)
}

// errDeletedMeanwhile is the answer to whoever makes a box that somebody else deletes.
var errDeletedMeanwhile = api.Errorf(api.ErrConflict, "the box was deleted while it was being made")

// looksLikeID matches what [randomHex] makes for IDs: as a name it would be found in the place of a deleted box.
var looksLikeID = regexp.MustCompile(`^[0-9a-f]{16}$`)

// imageOf maps the API's runtime name to an image of the configuration.
func (h *Host) imageOf(runtime string) (string, error) {
	if runtime == "" {
		runtime = "default"
	}
	if image, ok := h.cfg.Launcher.Images[runtime]; ok {
		return image, nil
	}
	// The SDK's well-known runtimes run in the default image when it has what they need.
	if h.cfg.Launcher.Images["default"] == "debian" && (runtime == "node" || runtime == "python") {
		return "debian", nil
	}
	var known []string
	for name := range h.cfg.Launcher.Images {
		known = append(known, name)
	}
	return "", &policy.InvalidError{Problems: []policy.Problem{{
		Pointer: "/runtime", Message: fmt.Sprintf("no image is configured for %q; launcher.images has %s", runtime, strings.Join(known, ", ")),
	}}}
}

// allocate stores the record of a new box, which gives it its addresses.
func (h *Host) allocate(ctx context.Context, req api.CreateRequest, attached *store.Attached, image string) (*box, error) {
	hosted, err := json.Marshal(req.Hosted)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	record := store.Box{
		ID: policy.BoxID(randomHex(8)), Name: req.Name, CreatedAt: now, UpdatedAt: now, Runtime: req.Runtime, Size: req.Size,
		State: string(api.StatusCreating), Labels: req.Labels, KeepAlive: req.KeepAlive, InitCommand: req.InitCommand,
		Ephemeral: req.Ephemeral, Env: req.Env, Secrets: req.HostedSecrets, Extra: hosted, Image: image, Attached: attached,
	}
	record.PlaceholderKey = store.NewKey()
	if req.TTL > 0 {
		record.ExpiresAt = now.Add(req.TTL)
	}
	record, err = h.store.AllocateBox(record, h.pools())
	switch {
	case errors.Is(err, store.ErrNameTaken):
		return nil, api.Errorf(api.ErrConflict, "a box named %q exists already", req.Name)
	case errors.Is(err, store.ErrExhausted):
		return nil, api.Errorf(api.ErrLimit, "every address of network.pool_v4 is in use; delete boxes or enlarge the pool")
	case err != nil:
		return nil, h.notStored("the box could not be stored, nothing was made", err)
	}
	return newBox(record, store.Policy{Spec: req.Policy, Version: 1}, store.Headers{Rules: req.Headers, Version: 1}, req.Hosted), nil
}

// keepInitial stores the policy and header rules of a new box. A gateway that dies before the box is complete removes it
// at its next start.
func (h *Host) keepInitial(b *box) error {
	if err := h.store.StagePolicy(b.ID, b.spec, b.version); err != nil {
		return err
	}
	if err := fault.At(context.Background(), "create: policy staged"); err != nil {
		return err
	}
	if err := h.store.CommitPolicy(b.ID); err != nil {
		return err
	}
	return h.store.SetHeaders(b.ID, b.headers, b.headersVersion)
}

// pools are the addresses that boxes get: all but the network address, the gateway's and the sink's.
func (h *Host) pools() store.Pools {
	return store.Pools{V4: h.addrs.PoolV4, V6: h.addrs.PoolV6, Reserved: 3}
}

// newBox makes the box of a stored record; its policy is not in force yet.
func newBox(r store.Box, p store.Policy, headers store.Headers, hosted api.Hosted) *box {
	b := &box{
		name: r.Name, createdAt: r.CreatedAt, attached: r.Attached, env: r.Env, record: r, hosted: hosted, status: api.Status(r.State),
		spec: p.Spec, version: p.Version, lastVersion: p.Version, headers: headers.Rules, headersVersion: headers.Version,
	}
	b.ID, b.V4, b.V6 = r.ID, r.V4, r.V6
	b.activity.Store(r.UpdatedAt.UnixNano())
	b.publish()
	return b
}

// bringUp gives a new box its CA, its closed network, its policy and its first process.
func (h *Host) bringUp(ctx context.Context, b *box, back *undo) error {
	// Compiled anew: since the box is among the others, a change of what all share either is in here or finds the box.
	compiled, err := h.inputs(b).compile()
	if err != nil {
		return err
	}
	if err := fault.At(ctx, "create: record stored"); err != nil {
		return err
	}
	if err := h.keepInitial(b); err != nil {
		return h.notStored("its policy could not be stored", err)
	}
	ca, err := h.authority(b.ID)
	if err != nil {
		return fmt.Errorf("its certificate authority: %w", err)
	}
	if err := fault.At(ctx, "create: authority stored"); err != nil {
		return err
	}
	back.add(func(context.Context) error { h.minter.Remove(b.ID); return nil })
	if err := h.minter.Add(b.ID, ca); err != nil {
		return err
	}
	spec := h.launchSpec(b, ca.CertificatePEM())
	back.add(func(ctx context.Context) error {
		return b.unlocked(func() error { return h.launcher.Delete(ctx, b.ID) })
	})
	netns, err := h.launcher.Prepare(ctx, spec)
	if err != nil {
		return fmt.Errorf("its network namespace: %w", err)
	}
	if err := h.connect(ctx, b, compiled, netns, back); err != nil {
		return err
	}
	err = b.unlocked(func() error {
		if err := h.firewall.AwaitBox(ctx, b.ID); err != nil {
			return err
		}
		return h.launcher.Create(ctx, spec)
	})
	if err != nil {
		return err
	}
	if !b.connected {
		return errDeletedMeanwhile
	}
	if err := fault.At(ctx, "create: box runs"); err != nil {
		return err
	}
	if err := h.setState(b, api.StatusIdle, ""); err != nil {
		return h.notStored("its state could not be stored", err)
	}
	return nil
}

func (h *Host) launchSpec(b *box, ca []byte) launcher.Spec {
	return launcher.Spec{
		ID: b.ID, Image: b.record.Image, Size: launcher.Size(b.record.Size), CA: ca,
		Hostname: hostnameOf(b.record), DNS: h.gatewayAddrs(),
	}
}

// hostnameOf is what the box calls itself.
func hostnameOf(r store.Box) string {
	if n, err := policy.ParseName(r.Name); err == nil && !strings.ContainsAny(n.String(), "._") {
		return n.String()
	}
	return string(r.ID)
}
