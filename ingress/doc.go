// Package ingress serves the public URLs: https://{box}-{port}.{domain} reaches one port of one box.
//
// Visitors speak HTTP/1.x or HTTP/2; boxes speak HTTP/1.1, or HTTP/2 without TLS. Each request takes the same steps: look up
// the host, check the credential, wake the box, and only then dial it. The gateway replaces the client's claims about itself
// (X-Forwarded-For and the like), and removes the gateway's credentials (the Authorization that it checked, its cookies and
// keys). Everything streams in both directions. [Ingress.CloseURL] and [Ingress.CloseBox] cut open requests when a URL, its
// credential or its box goes.
package ingress
