package policy

import "boxgate/policy/name"

// WithoutForwarding returns the plan of a gateway that forwards nothing: TCP to addresses that are allowed goes to the
// proxy on every port, and UDP to them is rejected. It refuses at least what p refuses.
func (p KernelPlan) WithoutForwarding() KernelPlan {
	p.SteerAllowed = name.PortSet{All: true}
	p.RejectUDP = name.PortSet{All: true}
	if p.DefaultAllow {
		p.SteerOther = name.PortSet{All: true}
	}
	return p
}
