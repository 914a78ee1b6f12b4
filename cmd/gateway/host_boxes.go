package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/firewall"
	"boxgate/launcher"
	"boxgate/policy"
	"boxgate/store"
)

// undo collects what takes back the steps of a change, the last step first.
type undo []func(context.Context) error

func (u *undo) add(f func(context.Context) error) { *u = append(*u, f) }

// run takes everything back. A cancelled request must not stop it.
func (u *undo) run() error {
	ctx, cancel := context.WithTimeout(context.Background(), restoreTimeout)
	defer cancel()
	var errs []error
	for i := len(*u) - 1; i >= 0; i-- {
		errs = append(errs, (*u)[i](ctx))
	}
	return errors.Join(errs...)
}

// CreateBox implements [api.Host]. The order matters: the network namespace exists, its interface is closed, then the
// policy is in force, and only then does the first process of the box start. A failure takes every step back.
func (h *host) CreateBox(ctx context.Context, req api.CreateRequest) (api.Box, error) {
	compiled, err := policy.Compile(req.Policy, policy.MergeHeaders(h.globalRules(), req.Headers), h.protected.Load(), 1)
	if err != nil {
		return api.Box{}, err
	}
	image, err := h.imageOf(req.Runtime)
	if err != nil {
		return api.Box{}, err
	}
	b, err := h.allocate(req, image)
	if err != nil {
		return api.Box{}, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	var back undo
	back.add(func(context.Context) error { return h.forget(b) })
	h.mu.Lock()
	h.boxes[b.ID] = b
	h.mu.Unlock()
	if err := h.bringUp(ctx, b, compiled, &back); err != nil {
		b.deleted = true
		err = errors.Join(err, back.run())
		h.log.Error("a box could not be created", zap.String("box", string(b.ID)), zap.Error(err))
		return api.Box{}, createError(err)
	}
	if err := h.setState(b, api.StatusIdle, ""); err != nil {
		h.log.Error("the state of a box was not stored", zap.String("box", string(b.ID)), zap.Error(err))
	}
	if req.InitCommand != "" {
		h.runInit(b)
	}
	h.expireLater(b)
	view := b.view()
	view.Warnings = compiled.Warnings()
	return view, nil
}

// createError shows the caller what a launcher or kernel said: whoever may create boxes runs the host.
func createError(err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return api.Errorf(api.ErrUnavailable, "the box could not be created, and nothing of it is left: %w", err)
}

// imageOf maps the API's runtime name to an image of the configuration.
func (h *host) imageOf(runtime string) (string, error) {
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

// allocate stores the record of a new box, which gives it its addresses, together with its policy and header rules.
func (h *host) allocate(req api.CreateRequest, image string) (*box, error) {
	hosted, err := json.Marshal(req.Hosted)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	record := store.Box{
		ID: policy.BoxID(randomHex(8)), Name: req.Name, CreatedAt: now, UpdatedAt: now, Runtime: req.Runtime, Size: req.Size,
		State: string(api.StatusCreating), Labels: req.Labels, KeepAlive: req.KeepAlive, InitCommand: req.InitCommand,
		Ephemeral: req.Ephemeral, Env: req.Env, Secrets: req.HostedSecrets, Extra: hosted, Image: image,
	}
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
		return nil, err
	}
	b := newBox(record, req.Policy, 1, req.Headers, 1)
	b.hosted = req.Hosted
	if err := h.keepInitial(b); err != nil {
		return nil, errors.Join(err, h.store.DeleteBox(b.ID))
	}
	return b, nil
}

// keepInitial stores the policy and header rules of a new box. A gateway that dies before the box is complete removes it
// at its next start.
func (h *host) keepInitial(b *box) error {
	if err := h.store.StagePolicy(b.ID, b.spec, b.version); err != nil {
		return err
	}
	if err := h.store.CommitPolicy(b.ID); err != nil {
		return err
	}
	return h.store.SetHeaders(b.ID, b.headers, b.headersVersion)
}

// pools are the addresses that boxes get: all but the network address, the gateway's and the sink's.
func (h *host) pools() store.Pools {
	return store.Pools{V4: h.addrs.poolV4, V6: h.addrs.poolV6, Reserved: 3}
}

// newBox makes the box of a stored record; its policy is not in force yet.
func newBox(r store.Box, spec policy.Spec, version uint64, headers []policy.HeaderRule, headersVersion uint64) *box {
	b := &box{
		record: r, spec: spec, version: version, headers: headers, headersVersion: headersVersion,
		status: api.Status(r.State), lastActivity: r.UpdatedAt,
	}
	b.ID, b.V4, b.V6 = r.ID, r.V4, r.V6
	return b
}

// bringUp gives a new box its CA, its closed network, its policy and its first process.
func (h *host) bringUp(ctx context.Context, b *box, compiled *policy.Compiled, back *undo) error {
	ca, err := h.authority(b.ID)
	if err != nil {
		return fmt.Errorf("its certificate authority: %w", err)
	}
	if err := h.minter.Add(b.ID, ca); err != nil {
		return err
	}
	spec := h.launchSpec(b, ca.CertificatePEM())
	netns, err := h.launcher.Prepare(ctx, spec)
	if err != nil {
		return fmt.Errorf("its network namespace: %w", err)
	}
	back.add(func(ctx context.Context) error { return h.launcher.Delete(ctx, b.ID) })
	if err := h.connect(ctx, b, compiled, netns, back); err != nil {
		return err
	}
	return h.launcher.Create(ctx, spec)
}

// connect attaches the box's interface, closed, makes the box known to DNS and proxy, and opens what its policy allows.
func (h *host) connect(ctx context.Context, b *box, compiled *policy.Compiled, netns string, back *undo) error {
	back.add(func(ctx context.Context) error { return h.disconnect(ctx, b) })
	if err := h.firewall.AddBox(ctx, firewall.Attachment{Box: b.ID, NetNS: netns, V4: b.V4, V6: b.V6}); err != nil {
		return fmt.Errorf("its network: %w", err)
	}
	b.Policy.Store(compiled)
	h.registry.add(&b.Box)
	if err := h.firewall.Apply(ctx, b.ID, compiled.Kernel()); err != nil {
		return fmt.Errorf("its kernel rules: %w", err)
	}
	return nil
}

// disconnect takes the box off the network: the kernel first, then everything that remembers it.
func (h *host) disconnect(ctx context.Context, b *box) error {
	b.Policy.Store(nil)
	h.registry.remove(&b.Box)
	h.proxy.CloseBox(b.ID)
	err := h.firewall.RemoveBox(ctx, b.ID)
	h.dns.Forget(b.ID)
	h.minter.Remove(b.ID)
	return err
}

func (h *host) launchSpec(b *box, ca []byte) launcher.Spec {
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

// forget removes a box from the store and from memory.
func (h *host) forget(b *box) error {
	h.dropURLs(b.ID)
	err := h.store.DeleteBox(b.ID)
	h.mu.Lock()
	delete(h.boxes, b.ID)
	h.mu.Unlock()
	h.audit.Forget(b.ID)
	return err
}

// DeleteBox implements [api.Host]. The network goes first, so that nothing leaves while processes are being stopped. The
// record goes last: a gateway that dies half-way deletes the rest at its next start.
func (h *host) DeleteBox(ctx context.Context, id policy.BoxID) error {
	b, err := h.find(id)
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.gone(); err != nil {
		return err
	}
	if err := h.setState(b, api.StatusDeleted, ""); err != nil {
		return err
	}
	h.dropURLs(id)
	if err := errors.Join(h.disconnect(ctx, b), h.launcher.Delete(ctx, id)); err != nil {
		b.status, b.problem = api.StatusError, "not fully deleted; delete it again"
		return fmt.Errorf("deleting box %s: %w", id, err)
	}
	b.deleted = true
	return h.forget(b)
}

// setState stores the state of a box and takes it over.
func (h *host) setState(b *box, s api.Status, problem string) error {
	record := b.record
	record.State, record.UpdatedAt = string(s), time.Now()
	if err := h.store.UpdateBox(record); err != nil {
		return err
	}
	b.record, b.status, b.problem = record, s, problem
	return nil
}

// expireLater deletes an ephemeral box when its time is over.
func (h *host) expireLater(b *box) {
	if b.record.ExpiresAt.IsZero() {
		return
	}
	time.AfterFunc(time.Until(b.record.ExpiresAt), func() {
		if err := h.DeleteBox(context.Background(), b.ID); err != nil && !errors.Is(err, api.ErrNotFound) {
			h.log.Error("an ephemeral box was not deleted at its end", zap.String("box", string(b.ID)), zap.Error(err))
		}
	})
}
