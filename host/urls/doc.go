// Package urls manages the public URLs of boxes. [Service] creates, signs and deletes them, and checks the proofs of
// pending domains. [Table] maps host names to boxes for the ingress, [OwnURLs] finds URLs that boxes open themselves,
// [Domains] decides which API key may use which domain, and [Orders] limits the certificates ordered for URLs.
//
// Lock order: the lock of a box, under which its URLs change, before the locks of the table, the pending domains and the
// orders, which are never held together.
package urls
