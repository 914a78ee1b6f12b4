// Package ingress serves the public URLs: https://{box}-{port}.{domain} reaches one port of one box.
//
// Visitors speak HTTP/1.x or HTTP/2, boxes HTTP/1.1. The steps of a request are the same for both: the host is looked up, the credential is checked, the box is woken,
// and only then is it dialled. What the client claims about itself (X-Forwarded-For and the like) is replaced,
// credentials of the gateway (the Authorization that was checked, the gateway's cookies and keys) are removed, and
// everything streams in both directions. [Ingress.CloseURL] and [Ingress.CloseBox] cut open requests when a URL, its
// credential or its box goes.
package ingress
