package api

import "boxgate/policy"

// BoxLimits are the limits of one box. Operator is set with an admin key and overrides the configured limits. Own is set
// with other keys and counts only where it is lower.
type BoxLimits struct {
	Operator policy.Limits `json:"operator,omitzero"`
	Own      policy.Limits `json:"own,omitzero"`
}

// LimitChange is a change of limits. A value of 0 unsets the limit.
type LimitChange map[policy.Limit]int64

// Effective returns the effective limits of the box, given the configured limits.
func (b BoxLimits) Effective(host policy.Limits) policy.Limits {
	return b.Own.Within(b.Operator.Over(host))
}

// WithChange returns the limits after a change by a caller. An admin key may set any value. Any other key may only go below
// the operator's limits; more is an ErrForbidden.
func (b BoxLimits) WithChange(caller Caller, host policy.Limits, change LimitChange) (BoxLimits, error) {
	given := b.Operator.Over(host)
	for limit, n := range change {
		if caller.Role == RoleAdmin {
			b.Operator[limit], b.Own[limit] = n, 0
			continue
		}
		if n != 0 && policy.Exceeds(n, given[limit]) {
			return BoxLimits{}, Errorf(ErrForbidden, "the limit %s is %d on this gateway, and only an API key with the role %s may set more",
				limit, given[limit], RoleAdmin)
		}
		b.Own[limit] = n
	}
	return b, nil
}
