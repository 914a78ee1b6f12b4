package keys

import (
	"context"
	"errors"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/fleet"
	"boxgate/fleet/shared"
	"boxgate/host/change"
	quotas "boxgate/quota"
	"boxgate/store"
)

// Fleet has the API keys of the fleet; implemented by [boxgate/fleet/node.Shared].
type Fleet interface {
	// Change changes objects of a kind by their IDs, and returns when the change is in force on this host or, with everywhere, on every host
	// of the fleet.
	Change(ctx context.Context, kind shared.Kind, everywhere bool, edit func(objects map[string][]byte) error) error
	// Fenced reports whether the keys of the fleet must be refused.
	Fenced() bool
}

// fenced reports whether the keys of the fleet must be refused.
func (k *Service) fenced() bool { return k.fleet == nil || k.fleet.Fenced() }

// editor returns the editor of the fleet's keys, or of this host's.
func (k *Service) editor(ctx context.Context, fleet, everywhere bool) store.KeyEditor {
	if !fleet {
		return k.keys.KeyEditor
	}
	return store.FleetKeys(func(edit func(records map[string][]byte) error) error {
		if k.fleet == nil {
			return shared.ErrFenced
		}
		return k.fleet.Change(ctx, shared.APIKeys, everywhere, edit)
	})
}

// delete deletes a key. One of the fleet has ended on every host then; each keeps its limits for its own boxes.
func (k *Service) delete(ctx context.Context, old store.APIKey) error {
	if old.Fleet {
		return k.editor(ctx, true, true).Remove(old.ID)
	}
	return k.keys.Delete(old.ID)
}

func errNameTaken(name string) error {
	return api.Errorf(api.ErrConflict, "there is an API key named %q already; revoke it, or choose another name", name)
}

// freeName refuses a name for a new key of the fleet that a key of this host has.
func (k *Service) freeName(name string) error {
	if k.fleet == nil {
		return nil // the store compares it with all keys
	}
	all, err := k.keys.All()
	if err != nil {
		return err
	}
	for _, found := range all {
		if found.Name == name && !found.Fleet || name == store.OperatorKey {
			return errNameTaken(name)
		}
	}
	return nil
}

// notStored is the error of a change of keys. Without an answer of etcd, the outcome is not known.
func (k *Service) notStored(what string, err error) error {
	switch {
	case errors.Is(err, shared.ErrBehind), errors.Is(err, shared.ErrContended), errors.Is(err, shared.ErrTooLarge), errors.Is(err, shared.ErrFenced):
		k.log.Warn("a change of an API key of the fleet", zap.Error(err))
		return api.Errorf(api.ErrUnavailable, "the API keys of the fleet: %w", err)
	case errors.Is(err, fleet.ErrUnreachable):
		k.log.Warn("a change of an API key of the fleet", zap.Error(err))
		return api.Errorf(api.ErrUnavailable, "whether the API keys of the fleet were changed is not known, list them: %w", err)
	}
	return change.NotStored(k.log, what, err)
}

// ApplyFleet makes records the API keys of the fleet on this host, as a [shared.Apply] does. Requests with a key that was changed or removed
// are checked again.
func (k *Service) ApplyFleet(records map[string][]byte) error {
	changed, unusable, err := k.keys.SetFleet(records)
	if err != nil {
		return err
	}
	if unusable > 0 {
		k.log.Warn("records of API keys of the fleet are not usable; these keys are not valid here", zap.Int("records", unusable))
	}
	if len(changed) == 0 {
		return nil
	}
	all, err := k.keys.All()
	if err != nil {
		return err
	}
	left := map[string]bool{}
	for _, found := range all {
		if left[found.ID] = true; found.Fleet {
			k.quotas.Set(CallerOf(found).Holder(), quotas.LimitsFromMap(found.Quotas))
			k.models.SetKey(found)
		}
	}
	for _, id := range changed {
		k.changed(id)
	}
	err = k.loadRevoked()
	for _, id := range changed {
		if !left[id] {
			k.models.RemoveKey(id)
		}
	}
	return err
}

// dropFleet removes the keys of the fleet from a host that is no longer a member.
func (k *Service) dropFleet() error {
	if k.fleet != nil {
		return nil
	}
	all, err := k.keys.All()
	if err != nil {
		return err
	}
	for _, found := range all {
		if found.Fleet {
			_, _, err := k.keys.SetFleet(nil)
			return err
		}
	}
	return nil
}
