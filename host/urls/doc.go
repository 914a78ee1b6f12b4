// Package urls keeps the public URLs of boxes. [Service] makes, signs and deletes them, and proves domains that wait for it. [Table] finds
// the box of a host name for the ingress, [OwnURLs] finds URLs that boxes open themselves, [Domains] decides which API key may use which
// domain, and [Orders] bounds the certificates that are ordered for URLs.
//
// Lock order: the lock of a box, under which its URLs change, before those of the table, the pending domains and the orders, which
// are never held together.
package urls
