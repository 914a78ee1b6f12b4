// Package certs makes the certificates that boxgate serves.
//
// [NewCA] makes a certificate authority: one per box for interception, one per installation for public URLs. A [Minter]
// holds the authorities of the boxes and hands out leaves for intercepted names. [Issued] and [Files] provide the
// certificate of the public URLs, from the installation's own authority or from two files.
//
// A private key leaves the package only as a name.Secret. An authority is trusted by one box only (and the internal
// one by those who install it), so a leaf of one box's authority is worthless to every other.
package certs
