package policy

import "boxgate/policy/name"

// Withhold makes the policy that of a box that may reach nothing for now, for a reason that is not the policy's: what it
// denies is denied as before, and what it allows is denied with the reason and the rule. The kernel forwards nothing. Call
// it before anybody else has the policy, which does not change afterwards.
func (c *Compiled) Withhold(reason name.Reason, rule string) {
	c.withheld = &Decision{Reason: reason, Rule: rule}
	c.plan = KernelPlan{Version: c.plan.Version, Denied: c.plan.Denied, Protected: c.plan.Protected, RejectUDP: c.plan.RejectUDP}
	if c.forwarding != nil {
		c.forwarding.Withhold(reason, rule)
	}
}
