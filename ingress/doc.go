// Package ingress serves the public URLs: https://{box}-{port}.{domain} reaches one port of one box.
//
// The way of a request (see [Ingress.ServeHTTP]): the host is looked up, the credential is checked, the box is woken, and
// only then is it dialled. What the client claims about itself (X-Forwarded-For and its kin) is replaced, what opens the
// gateway (the Authorization that was checked, the gateway's cookies and keys) is taken out, and everything streams in
// both directions. [Ingress.CloseURL] and [Ingress.CloseBox] cut what is open when a URL, its credential or its box goes.
package ingress
