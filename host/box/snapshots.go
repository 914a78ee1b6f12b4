package box

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"

	"go.uber.org/zap"

	"boxgate/agents"
	"boxgate/api"
	"boxgate/host/change"
	"boxgate/host/keys"
	"boxgate/host/snapshots"
	"boxgate/host/state"
	"boxgate/llm"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/store"
)

// Snapshots takes snapshots of boxes, and prepares the creation of boxes from them.
type Snapshots struct {
	log      *zap.Logger
	boxes    *state.Table
	manager  *snapshots.Manager
	holdings *keys.Holdings
}

// NewSnapshots returns the service.
func NewSnapshots(log *zap.Logger, boxes *state.Table, shelf *snapshots.Manager, holdings *keys.Holdings) *Snapshots {
	return &Snapshots{log, boxes, shelf, holdings}
}

// TakeSnapshot implements the Host of [boxgate/api/snapshots].
func (s *Snapshots) TakeSnapshot(ctx context.Context, id policy.BoxID, name string) (api.Snapshot, error) {
	r, err := s.describe(id)
	if err != nil {
		return api.Snapshot{}, err
	}
	r.ID, r.Name, r.TakenBy = newSnapshotID(id), name, keys.CreatorOf(ctx)
	if err := s.manager.Refresh(ctx); err != nil { // the key's snapshots of other hosts count
		return api.Snapshot{}, unavailable(err)
	}
	allowed, err := s.holdings.Snapshot(ctx)
	if err != nil {
		return api.Snapshot{}, err
	}
	r, err = s.manager.Take(ctx, r, allowed)
	if errors.Is(err, store.ErrNotFound) {
		return api.Snapshot{}, api.Errorf(api.ErrConflict, "the snapshot was deleted while it was taken")
	}
	if err != nil {
		return api.Snapshot{}, change.NotStored(s.log, "the snapshot could not be stored, nothing was made", err)
	}
	return snapshotView(r), nil
}

// newSnapshotID returns the ID of a new snapshot: the digits of the host from the ID of its box, so that each host of a fleet knows where it is,
// and 16 random ones.
func newSnapshotID(box policy.BoxID) string {
	return "snap_" + string(box[:min(len(box), 6)]) + randomHex(8)
}

// describe returns the record of a new snapshot of a box.
func (s *Snapshots) describe(id policy.BoxID) (store.Snapshot, error) {
	b, err := s.boxes.Lock(id)
	if err != nil {
		return store.Snapshot{}, err
	}
	defer b.Unlock()
	if b.Attached != nil {
		return store.Snapshot{}, api.Errorf(api.ErrConflict, "the box is attached: its files belong to its own runtime, which can take snapshots of them")
	}
	if b.Status != api.StatusIdle && b.Status != api.StatusPaused {
		return store.Snapshot{}, api.Errorf(api.ErrConflict, "the box is in state %s, in which no snapshot can be taken: %s", b.Status, b.Problem)
	}
	return store.Snapshot{Layers: b.Record.Layers}.Of(b.Record, b.StoredPolicy()), nil
}

// Snapshots implements the Host of [boxgate/api/snapshots].
func (s *Snapshots) Snapshots(ctx context.Context, box policy.BoxID) ([]api.Snapshot, error) {
	_ = s.manager.Refresh(ctx) // on failure, which is logged, the last list of the snapshots of other hosts is used
	list, err := s.manager.List(box)
	if err != nil {
		return nil, err
	}
	more, err := s.manager.Elsewhere(box)
	if len(more) > 0 {
		list = append(list, more...)
		slices.SortFunc(list, func(a, b store.Snapshot) int { return a.CreatedAt.Compare(b.CreatedAt) })
	}
	var views []api.Snapshot
	for _, r := range list {
		views = append(views, snapshotView(r))
	}
	return views, err
}

// SnapshotStoreAway implements [boxgate/api/snapshots.Sharing].
func (s *Snapshots) SnapshotStoreAway() bool { return s.manager.Away() }

func snapshotView(r store.Snapshot) api.Snapshot {
	return api.Snapshot{ID: r.ID, Name: r.Name, Box: r.Box, CreatedBy: r.CreatedBy, Size: r.Size, Status: r.State, Error: r.Error, CreatedAt: r.CreatedAt}
}

// DeleteSnapshots implements the Host of [boxgate/api/snapshots].
func (s *Snapshots) DeleteSnapshots(ctx context.Context, ids []string) error {
	err := s.manager.Delete(ctx, ids)
	if errors.Is(err, store.ErrNotFound) {
		return api.Errorf(api.ErrNotFound, "one of the snapshots does not exist; none was deleted")
	}
	if errors.Is(err, snapshots.ErrStore) {
		return unavailable(err)
	}
	if err != nil {
		return change.NotStored(s.log, "the deletion of the snapshots could not be stored", err)
	}
	return nil
}

// unavailable is the answer to a request that needs the snapshot store of several hosts.
func unavailable(err error) error { return api.Errorf(api.ErrUnavailable, "%w", err) }

// errNoSnapshot refuses to create a box from a snapshot that does not exist.
func errNoSnapshot(id string) error {
	return api.Errorf(api.ErrNotFound, "there is no snapshot %q", id)
}

// origin is the root file system of a new box.
type origin struct {
	image  string
	layers []string // on top of the image, lowest first
}

// inherit fills in a request for a box from a snapshot: the size, user, policy, limits and fields of the hosted product that
// the request leaves out, and the variables that it does not set. Header rules are not inherited: the creator of the box
// decides which secrets it may use.
func (s *Snapshots) inherit(ctx context.Context, req *api.CreateRequest) (origin, error) {
	r, err := s.manager.Find(ctx, req.Snapshot)
	if errors.Is(err, store.ErrNotFound) {
		return origin{}, errNoSnapshot(req.Snapshot)
	}
	if errors.Is(err, snapshots.ErrStore) {
		return origin{}, unavailable(err)
	}
	if err != nil {
		return origin{}, err
	}
	if r.State != snapshots.Ready {
		return origin{}, api.Errorf(api.ErrConflict, "the snapshot is in state %s; only one that is ready can be used: %s", r.State, r.Error)
	}
	var hosted api.Hosted
	if err := json.Unmarshal(r.Extra, &hosted); err != nil {
		return origin{}, err
	}
	env, secrets := r.Kept()
	maps.DeleteFunc(secrets, func(pointer string, _ name.Secret) bool {
		return pointer == "/github_token" || // belongs to a header rule
			pointer == agents.KeyPointer && req.Hosted.Agent != "" || strings.HasPrefix(pointer, "/mcp_servers/") && req.Hosted.MCPServers != nil
	})
	req.Env, req.HostedSecrets = merged(env, req.Env), merged(secrets, req.HostedSecrets)
	req.Hosted = req.Hosted.Or(hosted)
	req.Limits = s.limits(ctx, api.BoxLimits(r.Limits), req)
	req.Size, req.Runtime = cmp.Or(req.Size, r.BoxSize), r.Runtime
	req.User, req.Home = cmp.Or(req.User, r.User), cmp.Or(req.Home, r.Home)
	if req.Policy.Mode == "" && req.Named == "" {
		req.Policy, req.Named = r.Policy, r.Named
	}
	for _, rule := range req.Headers {
		for _, p := range rule.Placeholders() { // a placeholder keeps a secret out of the box, and takes precedence
			delete(req.Env, p.Variable)
		}
	}
	return origin{r.Image, r.Layers}, nil
}

// limits returns the limits of a box from a snapshot: the limits of the original box, except where the request sets them. Only
// an admin key's box may get limits above the configuration's. Limits lowered by the operator stay low, whatever another
// key requests.
func (s *Snapshots) limits(ctx context.Context, before api.BoxLimits, req *api.CreateRequest) api.BoxLimits {
	admin := api.CallerOf(ctx).Role == api.RoleAdmin
	for limit, n := range before.Operator {
		if !admin && policy.Exceeds(n, s.boxes.Limits[limit]) {
			before.Operator[limit] = 0
		}
	}
	if !admin && !before.OperatorModel.Within(s.boxes.ModelLimit) {
		before.OperatorModel = llm.Limit{}
	}
	if req.ModelLimit != nil {
		before.OwnModel = llm.Limit{}
		if admin {
			before.OperatorModel = llm.Limit{}
		}
	}
	for limit := range req.LimitChange {
		before.Own[limit] = 0
		if admin {
			before.Operator[limit] = 0
		}
	}
	return api.BoxLimits{
		Operator: req.Limits.Operator.Over(before.Operator), Own: req.Limits.Own.Over(before.Own),
		OperatorModel: cmp.Or(req.Limits.OperatorModel, before.OperatorModel), OwnModel: cmp.Or(req.Limits.OwnModel, before.OwnModel),
	}
}

// sweepLayers removes layers that only a deleted box used.
func (s *Snapshots) sweepLayers(b *state.Box) {
	if len(b.Record.Layers) == 0 {
		return
	}
	if err := s.manager.Sweep(); err != nil {
		s.log.Error("the layers of a deleted box could not be removed", zap.String("box", string(b.ID)), zap.Error(err))
	}
}

// merged returns a copy of below with the entries of above merged over it.
func merged(below, above map[string]name.Secret) map[string]name.Secret {
	out := map[string]name.Secret{}
	maps.Copy(out, below)
	maps.Copy(out, above)
	return out
}
