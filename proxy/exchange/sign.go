package exchange

import (
	"context"
	"errors"
	"time"

	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy/scrub"
	"boxgate/proxy/sign"
)

// request returns the request as it is signed: as it is forwarded.
func (w *Rewriting) request() *sign.Request {
	r := &sign.Request{
		Method: w.Method, Host: w.Authority, Target: w.Target, Length: w.Length, Body: w.Body, Altered: w.Changed, Time: w.s.Core.now(),
	}
	switch {
	case w.Trailers:
		r.Length = -1
	case w.Whole:
		r.Length = int64(len(w.Body))
	}
	r.Fields = append(r.Fields, w.Fields...)
	for i := range w.r.Set {
		if h := &w.r.Set[i]; !h.Remove {
			r.Fields = append(r.Fields, sign.Field{Name: h.Name, Value: h.Value.Reveal()})
		}
	}
	return r
}

// now returns the time by the gateway's clock.
func (k *Core) now() time.Time {
	if k.Clock == nil {
		return time.Now()
	}
	return k.Clock()
}

// sign adds the signature of the rule to the headers that are set.
func (w *Rewriting) sign(ctx context.Context) error {
	how := w.r.header.Sign
	if !how.Signs() {
		return nil
	}
	if w.hash && w.read && !w.Whole {
		return sign.TooLarge()
	}
	signed, err := w.signed(ctx, how)
	if err != nil {
		return err
	}
	set := make([]policy.Header, 0, len(w.r.Set)+len(signed.Set)+len(signed.Remove))
	set = append(append(set, w.r.Set...), signed.Set...) // the rule's own list must stay as it is
	for _, name := range signed.Remove {
		set = append(set, policy.Header{Name: name, Remove: true})
	}
	w.r.Set, w.Target = set, signed.Target
	return nil
}

// signed makes the signature. A session token, which goes with it in the clear, is masked even where the rule does not scrub: AWS
// prints what it was sent when it refuses a request. Other responses are then left alone: they may be parts of large objects.
func (w *Rewriting) signed(ctx context.Context, how policy.Signing) (sign.Signed, error) {
	if how.HMAC != nil {
		key, err := w.s.Core.key(ctx, how.HMAC.Key)
		if err != nil {
			return sign.Signed{}, err
		}
		return sign.HMAC(how.HMAC, key, w.request())
	}
	key, err := w.s.Core.key(ctx, how.AWS.Credentials)
	if err != nil {
		return sign.Signed{}, err
	}
	credentials, err := policy.ParseAWSCredentials(key)
	if err != nil {
		return sign.Signed{}, err
	}
	if !credentials.Expires.IsZero() && !w.s.Core.now().Before(credentials.Expires) {
		return sign.Signed{}, errExpiredKeys
	}
	if token := credentials.SessionToken.Reveal(); token != "" {
		w.r.told = append(w.r.told, scrub.Texts(token)...)
		w.r.Scrub, w.r.errors = w.r.masked(w.s), !w.r.header.Scrub
	}
	return sign.AWS(how.AWS, credentials, w.request())
}

var errExpiredKeys = errors.New("the AWS credentials have expired")

// key returns the value that signs.
func (k *Core) key(ctx context.Context, key policy.Key) (name.Secret, error) {
	if key.Source == "" {
		return key.Value, nil
	}
	v, err := k.secret(ctx, key.Source)
	return name.NewSecret(v), err
}
