package api

import "boxgate/policy"

// BoxLimits are the limits of one box: those that the operator has set, by an admin key, in the place of the configured ones, and
// those that other keys have set, which count where they allow less.
type BoxLimits struct {
	Operator policy.Limits `json:"operator,omitzero"`
	Own      policy.Limits `json:"own,omitzero"`
}

// LimitChange changes limits: 0 unsets one.
type LimitChange map[policy.Limit]int64

// Of returns the limits that the box is held to, beside those of the configuration.
func (b BoxLimits) Of(host policy.Limits) policy.Limits {
	return b.Own.Within(b.Operator.Over(host))
}

// Changed returns the limits after a change by a caller. An admin key sets them to any value. Another key lowers what the operator gives:
// more than that is an ErrForbidden.
func (b BoxLimits) Changed(caller Caller, host policy.Limits, change LimitChange) (BoxLimits, error) {
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
