package box

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/host/change"
	"boxgate/host/rules"
	"boxgate/host/state"
	"boxgate/policy"
	"boxgate/policy/document"
	"boxgate/policy/name"
	"boxgate/store"
)

// Settings changes settings of boxes other than their rules.
type Settings struct {
	log         *zap.Logger
	records     store.Boxes
	environment store.Environment
	boxes       *state.Table
	shared      *rules.Shared
}

// NewSettings returns the service.
func NewSettings(log *zap.Logger, records store.Boxes, environment store.Environment, boxes *state.Table, shared *rules.Shared) *Settings {
	return &Settings{log, records, environment, boxes, shared}
}

// Environment implements the Host of [boxgate/api/settings].
func (s *Settings) Environment(context.Context) (map[string]name.Secret, error) {
	return s.environment.Variables()
}

// SetEnvironment implements the Host of [boxgate/api/settings].
func (s *Settings) SetEnvironment(_ context.Context, vars map[string]name.Secret) error {
	placeholders := placeholdersOf(s.shared.Rules(nil))
	for name := range vars {
		if pattern, ok := placeholders[name]; ok {
			return change.InvalidAt("/env_vars/"+name, conflictWith(pattern))
		}
	}
	return s.changeEnvironment(func(now map[string]name.Secret) error {
		clear(now)
		for name, value := range vars {
			now[name] = value
		}
		return nil
	})
}

// SetVariable implements the Host of [boxgate/api/settings].
func (s *Settings) SetVariable(_ context.Context, n string, value name.Secret) error {
	if pattern, ok := placeholdersOf(s.shared.Rules(nil))[n]; ok {
		return change.InvalidAt("", conflictWith(pattern))
	}
	return s.changeEnvironment(func(now map[string]name.Secret) error {
		now[n] = value
		if size := api.EnvironmentSize(now); size > api.MaxEnvironment {
			return change.InvalidAt("/value", tooLarge(size))
		}
		return nil
	})
}

// DeleteVariable implements the Host of [boxgate/api/settings].
func (s *Settings) DeleteVariable(_ context.Context, n string) error {
	return s.changeEnvironment(func(now map[string]name.Secret) error {
		if _, ok := now[n]; !ok {
			return api.Errorf(api.ErrNotFound, "there is no variable %q for new boxes", n)
		}
		delete(now, n)
		return nil
	})
}

func (s *Settings) changeEnvironment(edit func(map[string]name.Secret) error) error {
	err := s.environment.Change(edit)
	if refused := (*document.InvalidError)(nil); err == nil || errors.As(err, &refused) || errors.Is(err, api.ErrNotFound) {
		return err
	}
	return change.NotStored(s.log, "the environment of new boxes could not be stored", err)
}

// environmentOf returns the environment of a new box: own, merged over the environment of all new boxes. A placeholder,
// which keeps a secret out of the box, takes precedence over a variable of all boxes.
func (s *Settings) environmentOf(own map[string]name.Secret, headers []policy.HeaderRule) (map[string]name.Secret, error) {
	all, err := s.environment.Variables()
	if err != nil {
		return nil, err
	}
	for name := range placeholdersOf(s.shared.Rules(headers)) {
		delete(all, name)
	}
	for name, value := range own {
		all[name] = value
	}
	if size := api.EnvironmentSize(all); size > api.MaxEnvironment {
		return nil, change.InvalidAt("/env_vars", "with the environment of all boxes, "+tooLarge(size))
	}
	return all, nil
}

// Configure implements the Host of [boxgate/api/settings].
func (s *Settings) Configure(_ context.Context, id policy.BoxID, edit func(*api.Configuration) error) (api.Box, error) {
	b, err := s.boxes.Lock(id)
	if err != nil {
		return api.Box{}, err
	}
	defer b.Unlock()
	next := api.Configuration{Labels: slices.Clone(b.Record.Labels), Metadata: b.Record.Metadata, Hosted: b.Hosted}
	next.Hosted.Skills = slices.Clone(b.Hosted.Skills)
	if err := edit(&next); err != nil {
		return api.Box{}, err
	}
	record := b.Record
	record.Labels, record.Metadata, record.UpdatedAt = next.Labels, next.Metadata, time.Now()
	if record.Extra, err = json.Marshal(next.Hosted); err != nil {
		return api.Box{}, err
	}
	if err := s.records.Update(record); err != nil {
		return api.Box{}, change.NotStored(s.log, "the configuration of the box could not be stored", err)
	}
	b.Record, b.Hosted = record, next.Hosted
	b.Publish()
	return b.View(), nil
}

// placeholdersOf maps the variables that are placeholders of header rules to the pattern of their rule.
func placeholdersOf(rules []policy.HeaderRule) map[string]name.Pattern {
	vars := map[string]name.Pattern{}
	for _, rule := range rules {
		for _, p := range rule.Placeholders() {
			vars[p.Variable] = rule.Pattern
		}
	}
	return vars
}

func conflictWith(pattern name.Pattern) string {
	return fmt.Sprintf("the header rule of all boxes for %q has a placeholder of that name; give it in one place", pattern)
}

func tooLarge(size int) string {
	return fmt.Sprintf("the variables need %d bytes; the limit is %d, above which the kernel starts no command", size, api.MaxEnvironment)
}
