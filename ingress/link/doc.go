// Package link signs and verifies URLs that allow some methods on some paths of one public URL, until a time. The
// permission is in the signature; no state is stored. Pure: the clock is a parameter.
package link
