package enforce

import (
	"context"
	"fmt"

	"boxgate/firewall"
	"boxgate/policy"
)

// Limit applies limits to a box, in the kernel, DNS and the proxy, and then returns. On an error the previous limits
// stay. given are the limits set by the operator, which cap the box's own.
func (e *Enforcer) Limit(ctx context.Context, b *policy.Box, own, given policy.Limits) error {
	if b.Policy.Load() != nil { // otherwise Connect sets its rates
		rates := ratesOf(own)
		rates.MaxSend = given[policy.LimitSend]
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
