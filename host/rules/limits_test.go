package rules

import (
	"testing"
	"testing/synctest"
	"time"

	"boxgate/api"
	"boxgate/host/state"
	"boxgate/policy"
)

// TestKeysGainNothingByChangingRates: keys without the role admin can change a box's receive rate so rarely that full
// token buckets gain it little.
func TestKeysGainNothingByChangingRates(t *testing.T) {
	t.Parallel()
	for given, want := range map[int64]time.Duration{policy.Unlimited: time.Second, 64 << 10: 32 * time.Second, 100 << 20: time.Second} {
		synctest.Test(t, func(t *testing.T) {
			b := &state.Box{}
			limits := policy.Limits{policy.LimitReceive: given, policy.LimitSend: given}
			change := func(role api.Role) error {
				own := b.Limits.Load()
				own[policy.LimitReceive]++
				err := mayChangeRates(api.WithCaller(t.Context(), api.Caller{Role: role}), b, own, limits)
				if err == nil {
					b.Limits.Store(own)
				}
				return err
			}
			time.Sleep(time.Hour)
			if err := change(api.RoleCreator); err != nil {
				t.Fatal(err)
			}
			time.Sleep(want - time.Millisecond)
			if err := change(api.RoleCreator); err == nil {
				t.Errorf("at %d bytes a second, the rate can be changed within %v", given, want)
			}
			if err := change(api.RoleAdmin); err != nil {
				t.Error(err)
			}
			time.Sleep(time.Millisecond)
			if err := change(api.RoleCreator); err != nil {
				t.Error(err)
			}
		})
	}
}
