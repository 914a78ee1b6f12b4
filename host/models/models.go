// Package models connects the accounts of models ([budget.Book]) with the boxes of the gateway, the API keys that made them, and the
// commands that run in them.
package models

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"sync"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/api/history"
	"boxgate/config"
	"boxgate/host/state"
	"boxgate/internal/required"
	"boxgate/llm"
	"boxgate/llm/budget"
	"boxgate/policy"
	"boxgate/store"
)

// Config configures a [Service].
type Config struct {
	Config  config.Config
	Log     *zap.Logger
	Store   store.Models
	Keys    store.Keys
	Records store.Boxes
	Boxes   *state.Table
	History *history.History
}

// Service keeps the accounts of models of this gateway. It implements [llm.Meter]. Safe for concurrent use.
type Service struct {
	*budget.Book
	log    *zap.Logger
	boxes  *state.Table
	stored store.Keys
	host   llm.Limit // of each key without a limit of its own

	mu      sync.Mutex
	keys    map[string]llm.Limit // of known API keys by ID; not set: the configured one
	revoked map[string]llm.Limit // of revoked API keys that had one
}

// New opens the accounts.
func New(c Config) (*Service, error) {
	if err := required.Fields(c); err != nil {
		return nil, err
	}
	prices, err := c.Config.Prices.Table()
	if err != nil {
		return nil, fmt.Errorf("prices: %w", err)
	}
	s := &Service{log: c.Log, boxes: c.Boxes, stored: c.Keys, host: c.Config.Quotas.Model.Limit(), keys: map[string]llm.Limit{}}
	kept := map[string]bool{api.OperatorKey: true}
	all, err := c.Keys.All()
	if err != nil {
		return nil, err
	}
	for _, k := range all {
		s.SetKey(k)
		kept[k.ID] = true
	}
	if s.revoked, err = s.readRevoked(); err != nil {
		return nil, err
	}
	boxes, err := c.Records.All()
	if err != nil {
		return nil, err
	}
	for _, b := range boxes {
		kept[keyOf(b.CreatedBy)] = true
	}
	s.Book, err = budget.New(budget.Config{
		Prices: prices, All: c.Config.Limits.ModelTotal.Limit(), Scope: s.scope, Store: c.Store, Log: c.Log,
		Run: func(box string) func(budget.Charge) {
			add := c.History.Charge(policy.BoxID(box))
			if add == nil {
				return nil
			}
			return func(charge budget.Charge) { add(charge.Usage, charge.USD) }
		},
	}, func(key string) bool { return kept[key] })
	if err != nil {
		return nil, fmt.Errorf("the use of models: %w", err)
	}
	return s, nil
}

// keyOf returns the ID of the API key of a record.
func keyOf(creator string) string { return cmp.Or(creator, api.OperatorKey) }

// SetKey sets the limit of an API key. Admin keys have none.
func (s *Service) SetKey(k store.APIKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k.Role == store.RoleAdmin {
		s.keys[k.ID] = llm.Limit{Per: llm.PerTotal}
		return
	}
	s.keys[k.ID] = k.Model
}

// RemoveKey revokes an API key, whose record has been deleted. Its own limit continues to apply to the boxes that it has made
// ([store.RevokedKey]), also after a restart. Without one, and for admin keys, the configured limit applies.
func (s *Service) RemoveKey(id string) {
	revoked, err := s.readRevoked()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.log.Error("the limits of revoked API keys could not be read; they stay as they were", zap.Error(err))
		revoked = maps.Clone(s.revoked)
		if own := s.keys[id]; own.Bounds() {
			revoked[id] = own
		}
	}
	delete(s.keys, id)
	s.revoked = revoked
}

func (s *Service) readRevoked() (map[string]llm.Limit, error) {
	all, err := s.stored.Revoked()
	limits := map[string]llm.Limit{}
	for _, k := range all {
		limits[k.ID] = k.Model
	}
	return limits, err
}

// limitsOf returns the limits of an API key.
func (s *Service) limitsOf(key string) []llm.Limit {
	s.mu.Lock()
	defer s.mu.Unlock()
	own, known := s.keys[key]
	if !known {
		own = s.revoked[key]
	}
	if key == api.OperatorKey {
		own = llm.Limit{Per: llm.PerTotal}
	}
	if !own.IsSet() {
		own = s.host
	}
	if !own.Bounds() {
		return nil
	}
	return []llm.Limit{own}
}

// scope returns the limits of the requests of a box.
func (s *Service) scope(box string) (budget.Scope, bool) {
	b, err := s.boxes.Find(policy.BoxID(box))
	if err != nil {
		return budget.Scope{}, false
	}
	shown := b.Shown.Load()
	key := keyOf(shown.CreatedBy)
	return budget.Scope{Box: shown.Limits.Models(s.boxes.ModelLimit), Key: key, KeyLimits: s.limitsOf(key)}, true
}

// Box returns the use of models by a box.
func (s *Service) Box(id policy.BoxID) api.ModelUsage { return viewOf(s.OfBox(id)) }

// Key returns the use of models by the boxes that an API key has made.
func (s *Service) Key(id string) api.ModelUsage { return viewOf(s.OfKey(id, s.limitsOf(id))) }

// ModelUsage implements the Models of [boxgate/api/gateway].
func (s *Service) ModelUsage(context.Context) api.ModelUsage { return viewOf(s.OfAll()) }

// viewOf converts the use of an account for the API.
func viewOf(v budget.View) api.ModelUsage {
	out := api.ModelUsage{ModelSum: api.ModelSum(v.Sum), AssumedTokens: v.Assumed.Tokens, AssumedUSD: v.Assumed.USD}
	for _, m := range v.Models {
		out.Models = append(out.Models, api.ModelSum(m))
	}
	for _, b := range v.Budgets {
		out.Budgets = append(out.Budgets, api.ModelBudget{
			Of: b.Of, Limit: b.Limit, Used: b.Used.Tokens, UsedUSD: b.Used.USD, Reserved: b.Reserved.Tokens, ReservedUSD: b.Reserved.USD, Ends: b.Ends,
		})
	}
	return out
}
