// Package certs makes the certificates that boxgate serves.
//
// [NewCA] makes a certificate authority: one per box for interception, one per installation for public URLs. A [Minter]
// issues leaves for intercepted names, signed by the authorities of the boxes. [Issued] and [Files] provide the
// certificate of the public URLs, from the installation's own authority or from two files.
//
// A private key leaves the package only as a name.Secret. Only one box trusts its authority (and only users who install
// it trust the installation's authority), so a leaf of one box's authority is worthless to every other.
package certs
