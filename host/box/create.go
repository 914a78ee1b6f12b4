package box

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"boxgate/agents"
	"boxgate/api"
	"boxgate/host/change"
	"boxgate/host/state"
	"boxgate/internal/fault"
	"boxgate/policy"
	"boxgate/policy/name"
	quotas "boxgate/quota"
	"boxgate/store"
)

// CreateBox implements the Host of [boxgate/api/boxes]. The order matters: first the network namespace with a closed
// interface, then the policy, and only then the first process of the box. A failure undoes every step.
func (l *Service) CreateBox(ctx context.Context, req api.CreateRequest) (api.Box, error) {
	if !l.cfg.Launcher.Enabled {
		return api.Box{}, errAttachOnly
	}
	if err := l.admitted(); err != nil {
		return api.Box{}, err
	}
	if err := l.holdings.CheckSpace(leastSpace); err != nil {
		return api.Box{}, err
	}
	files, err := agents.Files(req.Hosted.MCPServers) // a snapshot has its own in its files
	if err != nil {
		return api.Box{}, err
	}
	from, err := l.originOf(ctx, &req)
	if err != nil {
		return api.Box{}, err
	}
	if req.Policy, err = l.policyOfNew(req.Policy, req.Named, nil); err != nil {
		return api.Box{}, err
	}
	if err := l.shared.CheckSource(req.Source); err != nil {
		return api.Box{}, err
	}
	if err := l.checkNew(req.Name, req.Policy, req.Headers); err != nil {
		return api.Box{}, err
	}
	if req.Env, err = l.settings.environmentOf(req.Env, req.Headers); err != nil {
		return api.Box{}, err
	}
	if req.TTL, err = l.lifetimes.ofNew(ctx, req.TTL); err != nil {
		return api.Box{}, err
	}
	b, err := l.admit(ctx, req, nil, from)
	if err != nil {
		return api.Box{}, err
	}
	making, cancel := context.WithTimeout(context.WithoutCancel(ctx), creationTimeout)
	m := &creation{Service: l, box: b, files: files, result: make(chan error, 1)}
	go func() {
		defer cancel()
		m.result <- change.Contain(l.log, func() error { return m.run(making) }, zap.String("box", string(b.ID)))
	}()
	return m.awaitOrPromise(ctx, req.Wait, cancel)
}

// leastSpace is the disk space, in bytes, that must be free for a new box.
const leastSpace = 1 << 20

// errAttachOnly refuses to launch boxes on a host configured to only attach them.
var errAttachOnly = api.Errorf(api.ErrConflict, "this host launches no boxes, it only attaches them: use `gateway box attach`, or set launcher.enabled to true")

// policyOfNew returns the policy of a new box: the named one, the given one, or the configured default, in this order. attached is nil for
// a launched box.
func (l *Service) policyOfNew(given policy.Spec, named string, attached *store.Attached) (policy.Spec, error) {
	switch {
	case named != "":
		return l.shared.NamedFor(named, "/network_policy/named", attached)
	case given.Mode == "":
		return l.cfg.Policy.Default.Spec, nil
	}
	return given, nil
}

// admit stores the record of a new box and adds it to the table, locked. From then on a change of the box's named policy
// reaches it; the box starts with the version read here.
func (l *Service) admit(ctx context.Context, req api.CreateRequest, attached *store.Attached, from origin) (*state.Box, error) {
	done, err := l.holdings.Reserve(ctx, quotas.Boxes, 1)
	if err != nil {
		return nil, err
	}
	defer done()
	id, claimed, err := l.claim(ctx, req, attached == nil)
	if err != nil {
		return nil, err
	}
	defer claimed()
	if err := fault.At(ctx, "create: name claimed"); err != nil {
		return nil, err
	}
	defer l.shared.LockNamed()()
	if req.Policy, err = l.policyOfNew(req.Policy, req.Named, attached); err != nil {
		return nil, err
	}
	b, err := l.allocate(id, req, attached, from)
	if err != nil {
		return nil, err
	}
	l.describeTap(b)
	b.Lock()
	l.boxes.Add(b)
	return b, nil
}

// claim returns the ID of a new box, with its name claimed in the fleet. claimed must be called once the box is in the table, or is given up.
// A name of a box that is given up is freed by the next look at the directory. Only launched boxes need the fleet: must is set for them.
func (l *Service) claim(ctx context.Context, req api.CreateRequest, must bool) (id policy.BoxID, claimed func(), err error) {
	if id, err = l.newID(); err != nil || l.names == nil {
		return id, func() {}, err
	}
	claimed, err = l.names.Claim(ctx, id, req.Name, req.Labels, must)
	return id, claimed, err
}

// discard forgets a new box that could not be completed, and returns the error for the caller. If the rollback failed,
// the box stays in the table, so that its name and addresses are not reused and it can be deleted again.
func (l *Service) discard(b *state.Box, cause error) error {
	if b.Deleting && errors.Is(cause, errDeletedConcurrently) {
		return cause // the deletion removes the box
	}
	var left error
	if leftover := (*leftoverError)(nil); errors.As(cause, &leftover) {
		cause, left = leftover.cause, leftover.left
	} else {
		left = l.removeBox(b)
	}
	l.log.Error("a box could not be created", zap.String("box", string(b.ID)), zap.Error(errors.Join(cause, left)))
	if left != nil {
		b.ShowError("it could not be created, nor fully removed; delete it")
		return api.Errorf(api.ErrUnavailable, "the box could not be created, and "+api.Remains+": %w", cause)
	}
	if errors.Is(cause, context.Canceled) || errors.Is(cause, context.DeadlineExceeded) {
		return cause
	}
	// A caller who may create boxes operates the host, so the errors of the launcher and the kernel are shown.
	return api.Errorf(api.ErrUnavailable, "the box could not be created, and nothing of it is left: %w", cause)
}

// allocate stores the record of a new box. The store assigns its addresses.
func (l *Service) allocate(id policy.BoxID, req api.CreateRequest, attached *store.Attached, from origin) (*state.Box, error) {
	hosted, err := json.Marshal(req.Hosted)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	record := store.Box{
		ID: id, Name: req.Name, CreatedAt: now, UpdatedAt: now, Runtime: req.Runtime, Size: req.Size,
		State: string(api.StatusCreating), Labels: req.Labels, Metadata: req.Metadata, KeepAlive: req.KeepAlive, InitCommand: req.InitCommand, User: req.User, Home: req.Home, OnEnd: storedEnd(req.End.OnEnd), AutoResume: req.End.AutoResume,
		CreatedBy: req.CreatedBy, Source: req.Source, Limits: store.BoxLimits(req.Limits), Ephemeral: req.Ephemeral, Env: req.Env, Secrets: req.HostedSecrets, Extra: hosted, Image: from.image, Layers: from.layers, Attached: attached,
		PlaceholderKey: store.NewKey(),
	}
	if req.TTL > 0 {
		record = within(record, req.TTL, l.lifetimes.now())
		if record.OnEnd == api.EndPause {
			record.TTL = req.TTL
		}
	}
	record, err = l.records.Allocate(record, l.pools())
	switch {
	case errors.Is(err, store.ErrNameTaken):
		return nil, api.Errorf(api.ErrConflict, "a box named %q exists already", req.Name)
	case errors.Is(err, store.ErrExhausted):
		return nil, api.Errorf(api.ErrLimit, "every address of network.pool_v4 is in use; delete boxes or enlarge the pool")
	case errors.Is(err, store.ErrNotFound):
		return nil, errNoSnapshot(req.Snapshot) // deleted concurrently
	case err != nil:
		return nil, change.NotStored(l.log, "the box could not be stored, nothing was made", err)
	}
	return state.NewBox(record, store.Policy{Spec: req.Policy, Version: 1, Named: req.Named}, store.Headers{Rules: req.Headers, Version: 1}, req.Hosted, 0), nil
}

// hostnameOf returns the host name of a box.
func hostnameOf(r store.Box) string {
	if n, err := name.Parse(r.Name); err == nil && !strings.ContainsAny(n.String(), "._") {
		return n.String()
	}
	return string(r.ID)
}

// looksLikeID matches the IDs made by [Service.newID]. As a name, such an ID would be found in place of a deleted box.
var looksLikeID = regexp.MustCompile(`^[0-9a-f]{16}$`)

// newID returns the ID of a new box: six hexadecimal digits of the host's ID and ten random ones.
func (l *Service) newID() (policy.BoxID, error) {
	host, err := l.installation.HostID()
	if err != nil {
		return "", change.NotStored(l.log, "the host has no ID yet, nothing was made", err)
	}
	return policy.BoxID(host + randomHex(5)), nil
}

// randomHex returns n random bytes in hexadecimal.
func randomHex(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails (crypto/rand)
	return hex.EncodeToString(b)
}

// creationTimeout is the time limit for creating a box, including the pull of its image.
const creationTimeout = time.Hour

// creation is a box that is being created.
type creation struct {
	*Service
	box      *state.Box
	files    []agents.File
	result   chan error // receives the result
	promised bool       // the caller was answered before the box was complete; guarded by the box's lock
}

// run creates the box. The caller holds the box's lock, which run releases.
func (m *creation) run(ctx context.Context) error {
	b := m.box
	defer b.Unlock()
	defer b.BeginStateChange()()
	err := m.provision(ctx, &provisioning{box: b, files: m.files, note: m.noteIn(b.ID)}, launchSteps)
	switch {
	case err == nil:
		m.usage.Watch(b)
		m.usage.RunInit(b)
		m.lifetimes.keep(b)
		return nil
	case m.promised && !b.Deleting:
		m.lifetimes.keep(b)
		return m.keepFailed(b, err)
	}
	return m.discard(b, err)
}

// keepFailed keeps a box that could not be created, in state error with the cause. It has no processes.
func (l *Service) keepFailed(b *state.Box, cause error) error {
	l.log.Error("a box could not be created", zap.String("box", string(b.ID)), zap.Error(cause))
	problem := "it could not be created; delete it, and create it again: " + cause.Error()
	if err := b.SetState(l.records, api.StatusError, problem); err != nil {
		b.ShowError(problem)
	}
	return cause
}

// awaitOrPromise waits up to most for the box, and then returns it, in state creating if it is not complete. If ctx is
// canceled earlier, the creation is undone.
func (m *creation) awaitOrPromise(ctx context.Context, most time.Duration, cancel func()) (api.Box, error) {
	limit := time.NewTimer(most)
	defer limit.Stop()
	select {
	case err := <-m.result:
		return m.finish(err)
	case <-ctx.Done():
		cancel()
	case <-limit.C:
		if box, ok, err := m.promiseBox(); ok || err != nil {
			return box, err
		}
	}
	return m.finish(<-m.result)
}

func (m *creation) finish(err error) (api.Box, error) {
	if err != nil {
		return api.Box{}, err
	}
	m.box.Lock()
	defer m.box.Unlock()
	return m.withAgentWarnings(m.box.ViewWithWarnings()), nil
}

// promiseBox stores that the box has been promised to the caller, so that it is kept even if it fails. ok is false if its
// creation has already ended.
func (m *creation) promiseBox() (box api.Box, ok bool, err error) {
	b := m.box
	b.Lock()
	defer b.Unlock()
	if b.Deleting || b.Status != api.StatusCreating {
		return api.Box{}, false, nil
	}
	record := b.Record
	record.Promised = true
	if err := m.records.Update(record); err != nil {
		return api.Box{}, false, change.NotStored(m.log, "the state of the box could not be stored; "+api.Continues+", but the box is removed if the gateway restarts", err)
	}
	b.Record, m.promised = record, true
	return m.withAgentWarnings(b.ViewWithWarnings()), true, nil
}

// imageOf returns the configured image for a runtime name of the API, after checking that this host can provide it.
func (l *Service) imageOf(ctx context.Context, runtime string) (string, error) {
	images, name := l.cfg.Launcher.AllImages(), runtime
	if runtime == "" {
		name = "default"
	}
	found, ok := images[name]
	if !ok {
		return "", change.InvalidAt("/runtime", fmt.Sprintf("no image is configured for %q: add it to launcher.images, or use one of %s",
			runtime, strings.Join(slices.Sorted(maps.Keys(images)), ", ")))
	}
	if err := l.sandboxes.CheckImage(ctx, found); err != nil {
		if ctx.Err() != nil {
			return "", context.Cause(ctx)
		}
		return "", change.InvalidAt("/runtime", fmt.Sprintf("this host cannot have the image of %q: %v", name, err))
	}
	return found, nil
}

// originOf returns the root file system of a new box. For a box from a snapshot it also fills in the request.
func (l *Service) originOf(ctx context.Context, req *api.CreateRequest) (origin, error) {
	if req.Snapshot == "" {
		image, err := l.imageOf(ctx, req.Runtime)
		return origin{image: l.imageFor(req, image)}, err
	}
	runtime := req.Runtime
	from, err := l.snapshots.inherit(ctx, req)
	if err != nil || runtime == "" || runtime == req.Runtime {
		return from, err
	}
	if image, err := l.imageOf(ctx, runtime); err != nil || image != from.image {
		return origin{}, change.InvalidAt("/runtime", fmt.Sprintf("the snapshot was taken of a box with runtime %q, and so is a box from it: leave runtime out", req.Runtime))
	}
	req.Runtime = runtime
	return from, nil
}

// ensureImage builds, pulls or unpacks the image of a new box unless it is present, which may take minutes.
func (p *provisioning) ensureImage(ctx context.Context) error {
	b := p.box
	restored := len(b.Record.Layers) > 0 // a box from a snapshot keeps the snapshot's layers
	if restored && p.fetch == nil {
		return nil
	}
	defer b.Progress.Store(nil)
	progress := func(line string) {
		b.Progress.Store(&line)
		p.log.Info("image", zap.String("box", string(b.ID)), zap.String("image", b.Record.Image), zap.String("progress", line))
	}
	err := b.Unlocked(func() error {
		if restored {
			return p.fetch(ctx, b.Record.CreatedBy, b.Record.Layers, progress)
		}
		return p.sandboxes.EnsureImage(ctx, b.Record.Image, progress)
	})
	if b.Deleting {
		return errDeletedConcurrently
	}
	return err
}
