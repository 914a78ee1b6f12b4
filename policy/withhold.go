package policy

// setWithheld denies what the policy allows, and has the kernel forward nothing.
func (c *Compiled) setWithheld(w Withheld) {
	if w == (Withheld{}) {
		return
	}
	c.withheld = &Decision{Reason: w.Reason, Rule: w.Rule}
	c.plan = KernelPlan{Version: c.plan.Version, Denied: c.plan.Denied, Protected: c.plan.Protected, RejectUDP: c.plan.RejectUDP}
	if c.forwarding != nil {
		c.forwarding.setWithheld(w)
	}
}
