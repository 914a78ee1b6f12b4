package enforce

import (
	"context"
	"fmt"

	"boxgate/firewall"
	"boxgate/policy"
)

// Limit holds a box to limits of its own, in the kernel, DNS and the proxy, and returns when that is so. On error the limits of before hold.
// given are those that the operator has set, which bound the others.
func (e *Enforcer) Limit(ctx context.Context, b *policy.Box, own, given policy.Limits) error {
	if b.Policy.Load() != nil { // else it gets its rates with its network
		rates := ratesOf(own)
		rates.SendMost = given[policy.LimitSend]
		if err := e.Kernel.SetRates(ctx, b.ID, rates); err != nil {
			return fmt.Errorf("its rates: %w", err)
		}
	}
	b.Limits.Store(own)
	return nil
}

func ratesOf(own policy.Limits) firewall.Rates {
	return firewall.Rates{Send: own[policy.LimitSend], Receive: own[policy.LimitReceive]}
}
