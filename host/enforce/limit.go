package enforce

import (
	"context"
	"fmt"

	"boxgate/firewall"
	"boxgate/policy"
)

// Limit holds a box to limits of its own, in the kernel, DNS and the proxy, and returns when that is so. On error the limits of before hold.
func (e *Enforcer) Limit(ctx context.Context, b *policy.Box, own policy.Limits) error {
	if b.Policy.Load() != nil { // else it gets its rates with its network
		if err := e.Kernel.SetRates(ctx, b.ID, ratesOf(own)); err != nil {
			return fmt.Errorf("its rates: %w", err)
		}
	}
	b.Limits.Store(own)
	return nil
}

func ratesOf(own policy.Limits) firewall.Rates {
	return firewall.Rates{Send: own[policy.LimitSend], Receive: own[policy.LimitReceive]}
}
