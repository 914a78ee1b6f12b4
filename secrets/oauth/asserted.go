package oauth

import (
	"context"
	"errors"
	"net/url"
	"time"

	"boxgate/secrets/remote"
)

// maxSkew is the clock difference to a server above which a refused assertion does not mean that the grant is gone.
const maxSkew = time.Minute

// sendAsserted requests a token in exchange for the assertion that sign adds to the form. A server answers invalid_grant
// for a revoked grant, but also for an assertion that is not valid by its clock, or that it has seen before, as in the
// retry of a request without an answer. So the error means that the grant is gone only if a second, new assertion is
// refused too, and the clocks agree.
func (q question) sendAsserted(ctx context.Context, d remote.Env, sign func(url.Values) error) (a answer, err error) {
	for range 2 {
		if err := sign(q.form); err != nil {
			return answer{}, err
		}
		a, err = q.send(ctx, d)
		refused, ok := errors.AsType[*remote.Error](err)
		if !ok || !refused.Gone {
			return a, err
		}
		if skew := a.skew(d.Now()); skew.Abs() > maxSkew {
			refused.Gone, refused.Skew = false, skew
			return a, err
		}
	}
	return a, err
}

// skew returns how far the server's clock is ahead of the gateway's; 0 if unknown.
func (a *answer) skew(now time.Time) time.Duration {
	if a.head.Date.IsZero() {
		return 0
	}
	return a.head.Date.Sub(now).Round(time.Second)
}
