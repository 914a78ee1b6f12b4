package oauth

import (
	"context"
	"errors"
	"net/url"
	"time"

	"boxgate/secrets/remote"
)

// maxSkew is how far the gateway's clock may be from a server's before a refused assertion says nothing about the grant.
const maxSkew = time.Minute

// asserted asks for a token in exchange for the assertion that sign puts into the form. A server refuses an assertion as
// it refuses a grant that was revoked (invalid_grant) also if it is not valid by the server's clock, or if it was seen before: a
// request that got no answer is repeated. So the error says that the grant is gone only if a second, new assertion is
// refused as well, and the clocks agree.
func (q question) asserted(ctx context.Context, d remote.Desk, sign func(url.Values) error) (a answer, err error) {
	for range 2 {
		if err := sign(q.form); err != nil {
			return answer{}, err
		}
		a, err = q.ask(ctx, d)
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

// skew returns by how much the server's clock is ahead of the gateway's; 0 if the server does not say.
func (a *answer) skew(now time.Time) time.Duration {
	if a.head.Date.IsZero() {
		return 0
	}
	return a.head.Date.Sub(now).Round(time.Second)
}
