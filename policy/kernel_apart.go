package policy

// WithoutForwarding returns the plan of a gateway that forwards nothing: TCP to addresses that are allowed goes to the
// proxy on every port, and UDP to them is rejected. It refuses at least what p refuses.
func (p KernelPlan) WithoutForwarding() KernelPlan {
	p.SteerAllowed = PortSet{All: true}
	p.RejectUDP = PortSet{All: true}
	if p.DefaultAllow {
		p.SteerOther = PortSet{All: true}
	}
	return p
}
