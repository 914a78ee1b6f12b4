package exchange

import (
	"context"
	"slices"
	"time"

	"boxgate/proxy/scrub"
	"boxgate/rule"
)

// message returns the request in its forwarded form, for signing.
func (w *Rewriting) message() *rule.Message {
	m := &rule.Message{
		Method: w.Method, Host: w.Authority, Target: w.Target, Length: w.Length, Body: w.Body, Altered: w.Changed, Time: w.s.Core.now(),
	}
	switch {
	case w.Trailers:
		m.Length = -1
	case w.Whole:
		m.Length = int64(len(w.Body))
	}
	m.Fields = append(m.Fields, w.Fields...)
	for i := range w.r.Set {
		if h := &w.r.Set[i]; !h.Remove {
			m.Fields = append(m.Fields, Field{Name: h.Name, Value: h.Value.Reveal()})
		}
	}
	return m
}

// now returns the time by the gateway's clock.
func (k *Core) now() time.Time {
	if k.Clock == nil {
		return time.Now()
	}
	return k.Clock()
}

// sign adds the rule's signature to the headers that are set. Its cleartext parts are masked even if the rule does not
// scrub, but then only in error responses: other responses may be parts of large objects.
func (w *Rewriting) sign(ctx context.Context) error {
	signer := w.r.header.OnRequests().Signer
	if signer == nil {
		return nil
	}
	if w.hash && w.read && !w.Whole {
		return signer.TooLarge()
	}
	signed, err := signer.Sign(ctx, w.s.Core, w.message())
	if err != nil {
		return err
	}
	if signed.Shown != "" {
		w.r.maskTexts = append(w.r.maskTexts, scrub.Texts(signed.Shown)...)
		w.r.Scrub, w.r.errorsOnly = w.r.maskSet(w.s), !w.r.header.Scrub
	}
	w.r.Set, w.Target = slices.Concat(w.r.Set, signed.Set), signed.Target // requests may share the rule's list
	return nil
}
